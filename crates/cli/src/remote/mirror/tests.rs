//! Tests of the view and of the order of files.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_admission::{Manifest, Options, admit};
use chancery_model::{ResourceKey, ResourceName, ScopeName, TypeUrl, types};
use chancery_proto::discovery::{Any, DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};

use super::{
    plan::{Step, steps},
    view::{FULL, View},
};

/// Returns the resources of a manifest as a response of each type, all of version `version`.
fn responses(version: &str, resources: &str) -> Vec<DeltaDiscoveryResponse> {
    let manifest =
        Manifest { file: "-".to_owned(), content: format!("{{resources: [{resources}]}}") };
    let transaction = admit(&[manifest], &Options::new(ScopeName::new("s").unwrap())).unwrap();
    let mut by_type: BTreeMap<String, DeltaDiscoveryResponse> = BTreeMap::new();
    for upsert in transaction.upserts {
        let type_url = upsert.draft.key.type_url.as_str().to_owned();
        let response = by_type.entry(type_url.clone()).or_default();
        response.system_version_info = version.to_owned();
        response.type_url.clone_from(&type_url);
        response.resources.push(Resource {
            version: version.to_owned(),
            name: upsert.draft.key.name.as_str().to_owned(),
            resource: Some(Any { type_url, value: upsert.draft.body }),
            ..Resource::default()
        });
    }
    by_type.into_values().collect()
}

fn removed(type_url: &str, names: &[&str]) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        system_version_info: "9".to_owned(),
        type_url: type_url.to_owned(),
        removed_resources: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryResponse::default()
    }
}

fn key(type_url: &'static str, name: &str) -> ResourceKey {
    ResourceKey { type_url: TypeUrl::from_static(type_url), name: ResourceName::new(name).unwrap() }
}

fn cluster(name: &str) -> String {
    format!(
        "{{'@type': {}, name: {name}, type: EDS, eds_cluster_config: {{service_name: eds-{name}}}}}",
        types::CLUSTER
    )
}

fn endpoints(cluster: &str) -> String {
    format!("{{'@type': {}, cluster_name: eds-{cluster}}}", types::ENDPOINT)
}

fn listener(route: &str) -> String {
    let manager =
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    format!(
        "{{'@type': {}, name: main, filter_chains: [{{filters: [{{name: hcm, typed_config: {{'@type': \
         type.googleapis.com/{manager}, stat_prefix: x, rds: {{route_config_name: {route}}}}}}}]}}]}}",
        types::LISTENER
    )
}

fn route(cluster: &str) -> String {
    format!(
        "{{'@type': {}, name: main, virtual_hosts: [{{name: a, domains: ['*'], routes: [{{match: {{prefix: /}}, \
         route: {{cluster: {cluster}}}}}]}}]}}",
        types::ROUTE
    )
}

/// Gives the view a state, with the ends of the first states.
fn settle(view: &mut View, version: &str, resources: &[String]) {
    responses(version, &resources.join(", ")).into_iter().for_each(|it| view.on_response(it));
    FULL.into_iter().for_each(|url| view.on_response(removed(url, &[""])));
}

fn names(requests: &[DeltaDiscoveryRequest], type_url: &str) -> (Vec<String>, Vec<String>) {
    let request = requests.iter().find(|request| request.type_url == type_url);
    let lists = request
        .map(|it| (it.resource_names_subscribe.clone(), it.resource_names_unsubscribe.clone()));
    lists.unwrap_or_default()
}

/// The result of a step, for comparison: paths and resource names.
fn shown(steps: &[Step]) -> Vec<String> {
    let files = |files: &[super::plan::File]| {
        let file = |file: &super::plan::File| {
            let names: Vec<&str> = file.resources.iter().map(|(name, _)| name.as_str()).collect();
            format!("{}={}", file.path, names.join("+"))
        };
        files.iter().map(file).collect::<Vec<_>>().join(" ")
    };
    let step = |step: &Step| match step {
        Step::Create(created) => format!("create {}", files(created)),
        Step::Write(written) => format!("write {}", files(written)),
        Step::Remove(paths) => format!("remove {}", paths.join(" ")),
    };
    steps.iter().map(step).collect()
}

/// FS-06: nothing is written before every resource that the view refers to is there, or known to be absent.
#[test]
fn view_is_complete_when_every_reference_is_answered() {
    let mut view = View::new([key(types::RUNTIME, "rt")]);
    let first = view.first_requests();
    assert_eq!(names(&first, types::CLUSTER).0, ["*", ""]);
    assert_eq!(names(&first, types::RUNTIME).0, ["rt"]);
    settle(&mut view, "1", &[cluster("a"), cluster("b"), listener("main")]);
    let next = view.next_requests();
    assert_eq!(names(&next, types::ENDPOINT).0, ["eds-a", "eds-b"]);
    assert_eq!(names(&next, types::ROUTE).0, ["main"]);
    settle(&mut view, "1", &[endpoints("a"), route("a")]);
    view.on_response(removed(types::RUNTIME, &["rt"]));
    let missing: Vec<_> = view.missing().collect();
    assert_eq!(missing, [(types::ENDPOINT, Some("eds-b"))]);
    view.on_response(removed(types::ENDPOINT, &["eds-b"]));
    assert!(view.is_complete());
    let changes = view.take_changes();
    assert_eq!(
        shown(&steps(&view, &changes, &BTreeMap::new(), |_| false, |_| false)),
        [
            "create eds/eds-a=eds-a eds/eds-b= rds/main=main rtds/rt=",
            "write cds=a+b",
            "write lds=main",
            "write cds=a+b",
        ]
    );

    // A new stream lists what is held, and is complete only after the ends of the first states.
    let again = view.first_requests();
    assert_eq!(again[0].initial_resource_versions.len(), 2);
    let eds = again.iter().find(|it| it.type_url == types::ENDPOINT).unwrap();
    assert_eq!(eds.resource_names_subscribe, ["eds-a", "eds-b"]);
    assert_eq!(eds.initial_resource_versions.keys().collect::<Vec<_>>(), ["eds-a"]);
    assert!(!view.is_complete());
    settle(&mut view, "1", &[cluster("a"), endpoints("a")]);
    assert!(view.is_complete() && !view.has_changes(), "the same content is no change");
}

/// DELTA-53: the first state may arrive in several responses. A part of it would remove what is in use.
#[test]
fn first_state_is_complete_only_at_its_end() {
    let mut view = View::new([]);
    settle(&mut view, "1", &[]);
    drop(view.first_requests());
    FULL.into_iter().for_each(|url| view.on_response(removed(url, &[])));
    assert_eq!(view.missing().count(), FULL.len());
    FULL.into_iter().for_each(|url| view.on_response(removed(url, &[""])));
    assert!(view.is_complete());
}

/// FS-13: traffic moves from one cluster to another. Additions precede the reference to them, and removals follow
/// the end of the last reference.
#[test]
fn new_cluster_precedes_its_route_and_the_old_one_is_removed_last() {
    let mut view = View::new([]);
    let before = [cluster("old"), listener("main"), endpoints("old"), route("old")];
    settle(&mut view, "1", &before[..2]);
    settle(&mut view, "1", &before[2..]);
    drop((view.take_changes(), view.next_requests()));
    let held = &view.full(types::CLUSTER).unwrap().resources["old"].body;
    let published = BTreeMap::from([("old".to_owned(), held.clone())]);

    settle(&mut view, "2", &[cluster("new"), route("new")]);
    view.on_response(removed(types::CLUSTER, &["old"]));
    assert!(!view.is_complete());
    let requests = view.next_requests();
    let expected = (vec!["eds-new".to_owned()], vec!["eds-old".to_owned()]);
    assert_eq!(names(&requests, types::ENDPOINT), expected);
    settle(&mut view, "2", &[endpoints("new")]);
    assert!(view.is_complete());
    let changes = view.take_changes();
    let exists = |path: &str| path != "eds/eds-new";
    assert_eq!(
        shown(&steps(&view, &changes, &published, exists, |_| false)),
        [
            "create eds/eds-new=eds-new",
            "write cds=new+old",
            "write rds/main=main",
            "write cds=new",
            "remove eds/eds-old",
        ]
    );
}

/// FS-07: the last content stays in force when a resource is removed while another one refers to it.
#[test]
fn removed_resource_that_is_in_use_keeps_its_file() {
    let mut view = View::new([]);
    settle(&mut view, "1", &[cluster("a")]);
    settle(&mut view, "1", &[endpoints("a")]);
    drop(view.take_changes());
    view.on_response(removed(types::ENDPOINT, &["eds-a"]));
    let changes = view.take_changes();
    assert_eq!(changes.named.len(), 1);
    assert_eq!(steps(&view, &changes, &BTreeMap::new(), |_| true, |_| false), []);
    // It returns.
    settle(&mut view, "2", &[endpoints("a")]);
    let changes = view.take_changes();
    assert_eq!(
        shown(&steps(&view, &changes, &BTreeMap::new(), |_| true, |_| false)),
        ["write eds/eds-a=eds-a"]
    );
}

/// FS-15: a heartbeat has no body, and changes no file.
#[test]
fn heartbeat_changes_nothing() {
    let mut view = View::new([]);
    settle(&mut view, "1", &[cluster("a")]);
    settle(&mut view, "1", &[endpoints("a")]);
    drop(view.take_changes());
    for (url, name) in [(types::CLUSTER, "a"), (types::ENDPOINT, "eds-a")] {
        let heartbeat =
            Resource { name: name.to_owned(), version: "1".to_owned(), ..Resource::default() };
        let resources = vec![heartbeat];
        view.on_response(DeltaDiscoveryResponse { resources, ..removed(url, &[]) });
    }
    assert!(!view.has_changes());
    assert_eq!(view.full(types::CLUSTER).unwrap().resources.len(), 1);
    let body = Bytes::from_static(b"\xff");
    let broken = Resource {
        name: "b".to_owned(),
        resource: Some(Any { type_url: types::CLUSTER.to_owned(), value: body }),
        ..Resource::default()
    };
    let resources = vec![broken];
    view.on_response(DeltaDiscoveryResponse { resources, ..removed(types::CLUSTER, &[]) });
    assert!(view.has_changes(), "a body that does not parse here is mirrored");
}
