//! The resources of a node from JSON, and ends as text.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_proto::envoy_pool;
use chancery_resolve::{
    Answer, ClusterChoice, End, Request, Resolution, Resource, Resources, resolve,
};
use prost::Message as _;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

pub(crate) const PREFIX: &str = "type.googleapis.com/envoy.";
pub(crate) const MANAGER: &str =
    "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// The resources of a node.
#[derive(Default)]
pub(crate) struct Node(BTreeMap<String, BTreeMap<String, Resource>>);

impl Node {
    /// Adds resources, each with `@type` without [`PREFIX`].
    pub(crate) fn new(resources: &[Value]) -> Self {
        let mut node = Self::default();
        resources.iter().for_each(|resource| node.add(resource, ""));
        node
    }

    /// Adds a resource which the node may have in another version.
    pub(crate) fn add(&mut self, resource: &Value, doubt: &str) {
        let kind = resource["@type"].as_str().unwrap();
        let mut fields = resource.clone();
        fields.as_object_mut().unwrap().remove("@type");
        let name = fields["name"].as_str().or(fields["cluster_name"].as_str()).unwrap().to_owned();
        let body = encode(&format!("envoy.{kind}"), &fields);
        let of_type = self.0.entry(format!("{PREFIX}{kind}")).or_default();
        of_type.insert(name, Resource { body, doubt: doubt.to_owned() });
    }

    pub(crate) fn ask(&self, method: &str, url: &str, headers: &[&str]) -> Answer {
        let headers: Vec<String> = headers.iter().map(|&header| header.to_owned()).collect();
        resolve(self, &Request::parse(url, method, &headers).unwrap(), None)
    }

    /// Returns the only path of a request.
    pub(crate) fn walk(&self, url: &str, headers: &[&str]) -> Resolution {
        let mut answer = self.ask("GET", url, headers);
        assert_eq!(answer.resolutions.len(), 1, "{answer:?}");
        answer.resolutions.remove(0)
    }

    /// Checks the end of requests: a URL with headers, and the end as [`shown`] writes it. Nothing may be undecided.
    #[track_caller]
    pub(crate) fn check(&self, cases: &[(&str, &[&str], &str)]) {
        for (url, headers, expected) in cases {
            let walk = self.walk(url, headers);
            assert_eq!(shown(&walk.end), *expected, "{url} {headers:?}: {walk:#?}");
            assert_eq!(walk.undecided, [], "{url} {headers:?}");
        }
    }
}

impl Resources for Node {
    fn get(&self, type_url: &str, name: &str) -> Option<Resource> {
        self.0.get(type_url)?.get(name).cloned()
    }

    fn names(&self, type_url: &str) -> Vec<String> {
        self.0.get(type_url).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}

fn encode(name: &str, json: &Value) -> Bytes {
    let descriptor = envoy_pool().get_message_by_name(name).unwrap();
    let message = DynamicMessage::deserialize(descriptor, json);
    message.unwrap_or_else(|error| panic!("{name}: {error}: {json}")).encode_to_vec().into()
}

/// Returns an end as text.
pub(crate) fn shown(end: &End) -> String {
    let names = |clusters: &[ClusterChoice]| {
        let names = clusters.iter().map(|one| match one.weight {
            0 => one.name.clone(),
            weight => format!("{}={weight}", one.name),
        });
        names.collect::<Vec<_>>().join(" ")
    };
    match end {
        End::Clusters { clusters, path, host } => {
            let mut text = names(clusters);
            text.extend(path.iter().map(|path| format!(" path {path}")));
            text.extend(host.iter().map(|host| format!(" host {host}")));
            text
        }
        End::Tcp { clusters } => format!("tcp {}", names(clusters)),
        End::Redirect { status, location } => format!("{status} {location}"),
        End::DirectResponse { status } => status.to_string(),
        End::NonForwarding => "non forwarding".to_owned(),
        End::NoRoute { .. } => "no route".to_owned(),
        End::Missing { name, .. } => format!("missing {name}"),
        End::NoConnection { .. } => "no connection".to_owned(),
        End::Undecided { .. } => "undecided".to_owned(),
    }
}

/// Returns a connection manager with fields.
pub(crate) fn manager(fields: Value) -> Value {
    let mut manager = json!({
        "@type": format!("{PREFIX}{MANAGER}"),
        "stat_prefix": "main",
        "http_filters": [{"name": "router", "typed_config": {
            "@type": format!("{PREFIX}extensions.filters.http.router.v3.Router"),
        }}],
    });
    manager.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    manager
}

/// Returns a filter chain with one filter.
pub(crate) fn chain(filter: &Value) -> Value {
    json!({"filters": [{"name": "main", "typed_config": filter}]})
}

/// Returns a listener.
pub(crate) fn listener(name: &str, port: u16, chains: &[Value]) -> Value {
    json!({
        "@type": "config.listener.v3.Listener",
        "name": name,
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "filter_chains": chains,
    })
}

/// Returns a static cluster with one endpoint.
pub(crate) fn cluster(name: &str) -> Value {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": 81}});
    json!({"@type": "config.cluster.v3.Cluster", "name": name, "load_assignment": {
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
    }})
}

/// Returns a node with the clusters `a`, `b` and `c`, and a listener on port 80 with fields of the connection manager.
pub(crate) fn node_with(fields: Value) -> Node {
    let listener = listener("main", 80, &[chain(&manager(fields))]);
    Node::new(&[listener, cluster("a"), cluster("b"), cluster("c")])
}

/// Returns a node with one virtual host of these routes.
pub(crate) fn node_with_routes(routes: Value) -> Node {
    let host = json!({"name": "all", "domains": ["*"], "routes": routes});
    node_with(json!({"route_config": {"name": "inline", "virtual_hosts": [host]}}))
}
