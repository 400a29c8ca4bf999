//! The example of gRFC A52, and the tree of policies of a cluster.

use chancery_lb_policy::{
    AggregatePolicy, LbConfig, Leaf, Registry, Tree, WeightedLocality, cluster_notes,
    proto::{
        Address, ClientSideWeightedRoundRobin, Cluster, ClusterLoadAssignment, Endpoint,
        LbEndpoint, LeastRequestLbConfig, Locality, LocalityLbEndpoints, OutlierDetection,
        RingHashLbConfig, SocketAddress, prost_types::Duration,
    },
    types,
};
use prost::Message;
use serde_json::{Value, json};

use crate::support::{any, bytes, list, round_robin, typed_struct, wrr_locality};

const CUSTOM: &str = "myorg.MyCustomLeastRequestPolicy";

/// The cluster of the example in gRFC A52.
fn example() -> Cluster {
    let custom = typed_struct(
        "type.googleapis.com/myorg.MyCustomLeastRequestPolicy",
        &json!({ "choiceCount": 2 }),
    );
    Cluster {
        name: "ClusterName".to_owned(),
        r#type: Cluster::EDS,
        load_balancing_policy: Some(list([wrr_locality([custom, round_robin()])])),
        ..Default::default()
    }
}

fn locality(letter: &str, weight: Option<u32>, priority: u32) -> LocalityLbEndpoints {
    let locality = Locality {
        region: format!("region_{letter}"),
        zone: format!("zone_{letter}"),
        sub_zone: format!("subZone_{letter}"),
    };
    let locality = Some(locality);
    let load_balancing_weight = weight;
    LocalityLbEndpoints { locality, load_balancing_weight, priority, ..Default::default() }
}

fn assignment(endpoints: Vec<LocalityLbEndpoints>) -> ClusterLoadAssignment {
    ClusterLoadAssignment { cluster_name: "ClusterName".to_owned(), endpoints }
}

fn tree(cluster: &Cluster, endpoints: Vec<LocalityLbEndpoints>) -> Tree {
    let assignment = assignment(endpoints);
    let leaf = Leaf { cluster, assignment: Some(&assignment) };
    let registry = Registry::default().with_policy(CUSTOM);
    registry.tree(cluster, &[leaf], AggregatePolicy::default()).unwrap()
}

/// Returns the configuration of the outlier detection of the first priority.
fn outlier_detection(cluster: &Cluster) -> Value {
    let tree = tree(cluster, Vec::new());
    let path = "/children/priority-1/config/0/outlier_detection_experimental";
    tree.config.config.pointer(path).unwrap().clone()
}

/// LB-55, LB-56: the four steps of the example give the documented results. The keys are those of JSON
/// (LB-16), and gRFC A50 has since added the outlier detection.
#[test]
fn example_of_a52_gives_its_documented_results() {
    let registry = Registry::default().with_policy(CUSTOM);
    let custom = json!([{ CUSTOM: { "choiceCount": 2 } }]);
    let policy = json!([{ "xds_wrr_locality_experimental": { "childPolicy": custom } }]);
    let converted = registry.convert_cluster(&example()).unwrap();
    assert_eq!(converted.to_json(), policy);
    let tree = tree(&example(), vec![locality("a", Some(1), 0), locality("b", Some(2), 0)]);
    let cluster_impl = json!([{ "xds_cluster_impl_experimental": {
        "cluster": "ClusterName", "childPolicy": policy } }]);
    assert_eq!(
        tree.config.to_json(),
        json!([{ "priority_experimental": {
            "children": { "priority-1": {
                "config": [{ "outlier_detection_experimental": { "childPolicy": cluster_impl } }],
                "ignoreReresolutionRequests": true,
            } },
            "priorities": ["priority-1"],
        } }])
    );
    assert_eq!(
        tree.priorities[0].weighted_target.as_ref().unwrap().config,
        json!({ "targets": {
            "Locality{region=region_a,zone=zone_a,subZone=subZone_a}":
                { "weight": 1, "childPolicy": custom },
            "Locality{region=region_b,zone=zone_b,subZone=subZone_b}":
                { "weight": 2, "childPolicy": custom },
        } })
    );
    let target = tree.priorities[0].weighted_target.as_ref().unwrap();
    assert_eq!(registry.check(&target.to_json()), Ok(()));
    // Without the custom policy, the next entry decides.
    let without = Registry::default().convert_cluster(&example()).unwrap();
    assert_eq!(without.config, json!({ "childPolicy": [{ "round_robin": {} }] }));
}

fn weighted(region: &str, zone: &str, weight: Option<u32>) -> WeightedLocality {
    let (region, zone) = (region.to_owned(), zone.to_owned());
    let locality = Locality { region, zone, sub_zone: String::new() };
    WeightedLocality { locality, weight, endpoints: Vec::new() }
}

fn wrr() -> LbConfig {
    let child = json!([{ "round_robin": {} }]);
    LbConfig::new("xds_wrr_locality_experimental", json!({ "childPolicy": child }))
}

/// LB-56: keys are unique, even if names contain the separators.
#[test]
fn each_locality_has_its_own_target() {
    let localities = [weighted("a,zone=b", "c", Some(1)), weighted("a", "b,zone=c", Some(2))];
    let target = wrr().weighted_target(&localities).unwrap();
    assert_eq!(target.config.config["targets"].as_object().unwrap().len(), 2);
}

/// LB-57: the first weight counts, and the other gives a warning.
#[test]
fn first_weight_of_a_locality_counts() {
    let localities = [1, 1, 3].map(|weight| weighted("a", "", Some(weight)));
    let target = wrr().weighted_target(&localities).unwrap();
    let key = "Locality{region=a,zone=,subZone=}";
    assert_eq!(target.config.config["targets"][key]["weight"], 1);
    assert_eq!(target.warnings, [format!("{key} has the weights 1 and 3; 1 counts")]);
}

/// LB-58.
#[test]
fn locality_without_weight_is_an_error() {
    let error = wrr().weighted_target(&[weighted("a", "", None)]).unwrap_err();
    assert_eq!(error.to_string(), "Locality{region=a,zone=,subZone=}: the locality has no weight");
}

/// LB-59.
#[test]
fn wrr_locality_without_child_is_an_error() {
    let config = LbConfig::new("xds_wrr_locality_experimental", json!({}));
    let error = Registry::default().check(&config.to_json()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "xds_wrr_locality_experimental.childPolicy: the field is missing"
    );
    assert!(config.weighted_target(&[]).is_err());
    assert!(LbConfig::new("round_robin", json!({})).weighted_target(&[]).is_err());
}

/// LB-60: the assignment is rejected before its weights are used.
#[test]
fn invalid_assignment_is_an_error() {
    let cluster = example();
    let registry = Registry::default();
    let twice = vec![locality("a", Some(1), 0), locality("a", Some(1), 0)];
    let nowhere = LocalityLbEndpoints { load_balancing_weight: Some(1), ..Default::default() };
    for (endpoints, text) in [
        (
            vec![locality("a", Some(u32::MAX), 0), locality("b", Some(1), 0)],
            "endpoints: the weights of priority 0 add up to 4294967296, more than 4294967295",
        ),
        (vec![locality("a", Some(1), 1)], "endpoints: the priority 1 is used, but not 0"),
        (
            twice,
            "endpoints[1]: priority 0 contains \
             Locality{region=region_a,zone=zone_a,subZone=subZone_a} twice",
        ),
        (vec![nowhere], "endpoints[0]: the field `locality` is missing"),
    ] {
        let assignment = assignment(endpoints);
        let leaf = Leaf { cluster: &cluster, assignment: Some(&assignment) };
        let error = registry.tree(&cluster, &[leaf], AggregatePolicy::default()).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    let most = vec![locality("a", Some(u32::MAX - 1), 0), locality("b", Some(1), 0)];
    assert_eq!(tree(&cluster, most).priorities.len(), 1);
}

/// LB-65: a child per priority; re-resolution requests are ignored for EDS only.
#[test]
fn tree_has_a_child_per_priority() {
    let endpoints = vec![
        locality("b", Some(1), 1),
        locality("a", Some(1), 0),
        locality("c", None, 5),
        locality("d", Some(0), 0),
    ];
    let found = tree(&example(), endpoints);
    let regions = |index: usize| {
        let localities = found.priorities[index].localities.iter();
        localities.map(|one| one.locality.region.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((regions(0), regions(1)), (vec!["region_a"], vec!["region_b"]));
    assert_eq!(found.config.config["priorities"], json!(["priority-1", "priority-2"]));
    assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
    let dns = Cluster { r#type: Cluster::LOGICAL_DNS, ..example() };
    let found = tree(&dns, Vec::new());
    let child = &found.config.config["children"]["priority-1"];
    assert_eq!(child["ignoreReresolutionRequests"], false);
    let empty = tree(&example(), Vec::new());
    assert_eq!(empty.priorities[0].weighted_target.as_ref().unwrap().config["targets"], json!({}));
    let other = Cluster { r#type: 0, ..example() };
    let leaf = Leaf { cluster: &other, assignment: None };
    assert!(Registry::default().tree(&other, &[leaf], AggregatePolicy::default()).is_err());
}

/// LB-65: clients send no new calls to endpoints that are neither healthy nor of unknown health.
#[test]
fn endpoint_that_is_draining_or_unhealthy_is_skipped() {
    let endpoint = |health_status: i32| {
        let port_value = health_status.unsigned_abs();
        let address = "10.0.0.1".to_owned();
        let socket_address = Some(SocketAddress { address, port_value });
        let address = Some(Address { socket_address });
        LbEndpoint { endpoint: Some(Endpoint { address }), health_status, ..Default::default() }
    };
    let mut endpoints = locality("a", Some(1), 0);
    endpoints.lb_endpoints = (0..6).map(endpoint).collect();
    let found = tree(&example(), vec![endpoints]);
    assert_eq!(found.priorities[0].localities[0].endpoints, ["10.0.0.1:0", "10.0.0.1:1"]);
    assert_eq!(
        found.warnings,
        ["endpoints[0]: clients skip 4 endpoints of \
          Locality{region=region_a,zone=zone_a,subZone=subZone_a}, which are neither HEALTHY nor \
          UNKNOWN, or have no address"]
    );
}

/// LB-66: the outlier detection of the cluster.
#[test]
fn outlier_detection_is_converted() {
    let seconds = |seconds| Some(Duration { seconds, nanos: 0 });
    let detection = OutlierDetection {
        interval: seconds(1),
        base_ejection_time: seconds(2),
        max_ejection_time: seconds(3),
        max_ejection_percent: Some(4),
        enforcing_success_rate: Some(5),
        success_rate_minimum_hosts: Some(6),
        success_rate_request_volume: Some(7),
        success_rate_stdev_factor: Some(8),
        failure_percentage_threshold: Some(9),
        enforcing_failure_percentage: Some(10),
        failure_percentage_minimum_hosts: Some(11),
        failure_percentage_request_volume: Some(12),
    };
    let cluster = |detection| Cluster { outlier_detection: Some(detection), ..example() };
    let mut config = outlier_detection(&cluster(detection.clone()));
    assert!(config.as_object_mut().unwrap().remove("childPolicy").is_some());
    assert_eq!(
        config,
        json!({
            "interval": "1s", "baseEjectionTime": "2s", "maxEjectionTime": "3s",
            "maxEjectionPercent": 4,
            "successRateEjection": {
                "stdevFactor": 8, "enforcementPercentage": 5, "minimumHosts": 6, "requestVolume": 7 },
            "failurePercentageEjection": {
                "threshold": 9, "enforcementPercentage": 10, "minimumHosts": 11, "requestVolume": 12 },
        })
    );
    let unset = outlier_detection(&cluster(OutlierDetection::default()));
    assert_eq!(unset["successRateEjection"], json!({}));
    assert_eq!(unset["failurePercentageEjection"], Value::Null);
    let zero = OutlierDetection {
        enforcing_success_rate: Some(0),
        enforcing_failure_percentage: Some(0),
        ..Default::default()
    };
    assert_eq!(outlier_detection(&cluster(zero)).as_object().unwrap().len(), 1);
    let cluster = cluster(OutlierDetection { max_ejection_percent: Some(101), ..detection });
    let leaf = Leaf { cluster: &cluster, assignment: None };
    let error = Registry::default().tree(&cluster, &[leaf], AggregatePolicy::default());
    assert!(error.unwrap_err().to_string().ends_with("the percentage 101 exceeds 100"));
}

/// LB-67: without outlier detection, the policy has only its child.
#[test]
fn outlier_detection_is_empty_without_the_field() {
    let config = outlier_detection(&example());
    assert_eq!(config.as_object().unwrap().keys().collect::<Vec<_>>(), ["childPolicy"]);
}

/// LB-52: the policy of the underlying cluster, or that of the aggregate cluster.
#[test]
fn policy_below_an_aggregate_cluster_depends_on_the_grfc() {
    let of = |name: &str, policy| Cluster {
        name: name.to_owned(),
        r#type: Cluster::EDS,
        load_balancing_policy: Some(list([policy])),
        ..Default::default()
    };
    let aggregate = of("all", bytes(types::PICK_FIRST, []));
    let (one, two) = (of("one", round_robin()), of("two", wrr_locality([round_robin()])));
    let leaves = [&one, &two].map(|cluster| Leaf { cluster, assignment: None });
    let policies = |aggregate_policy| {
        let tree = Registry::default().tree(&aggregate, &leaves, aggregate_policy).unwrap();
        let children = tree.config.config["children"].as_object().unwrap().clone();
        let names = children.values().map(|child| {
            let path = "/config/0/outlier_detection_experimental/childPolicy/0\
                        /xds_cluster_impl_experimental/childPolicy/0";
            child.pointer(path).unwrap().as_object().unwrap().keys().next().unwrap().clone()
        });
        names.collect::<Vec<_>>()
    };
    let underlying = ["round_robin", "xds_wrr_locality_experimental"];
    assert_eq!(policies(AggregatePolicy::default()), underlying);
    assert_eq!(policies(AggregatePolicy::Aggregate), ["pick_first", "pick_first"]);
}

/// LB-34, LB-36, LB-37, LB-38: the values that clients replace.
#[test]
fn values_that_clients_replace_are_noted() {
    let message = ClientSideWeightedRoundRobin {
        weight_update_period: Some(Duration { seconds: 0, nanos: 1_000_000 }),
        metric_names_for_computing_utilization: [
            "cpu_utilization",
            "named_metrics.a",
            "utilization.b",
            "named_metrics.",
            "rps",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Default::default()
    };
    let notes = |policy| {
        let converted = Registry::default().convert(&list([wrr_locality([policy])]));
        converted.unwrap().notes()
    };
    assert_eq!(
        notes(any(types::WEIGHTED_ROUND_ROBIN, &message)),
        [
            "weighted_round_robin.weightUpdatePeriod: clients use 0.1s instead of 0.001s",
            "weighted_round_robin.metricNamesForComputingUtilization: clients ignore the metric \
             \"named_metrics.\", and C-core rejects the cluster",
            "weighted_round_robin.metricNamesForComputingUtilization: clients ignore the metric \
             \"rps\", and C-core rejects the cluster",
        ]
    );
    assert_eq!(
        notes(bytes(types::RING_HASH, [0x08, 0x01])),
        ["ring_hash_experimental.maxRingSize: by default, clients use 4096 instead of 8388608"]
    );
    assert_eq!(
        notes(bytes(types::LEAST_REQUEST, *b"\x0a\x02\x08\x0b")),
        ["least_request_experimental.choiceCount: clients use 10 instead of 11"]
    );
    assert!(notes(round_robin()).is_empty());
}

/// LB-46: grpc-go validates the legacy policy although the new field overrides it.
#[test]
fn legacy_policy_that_grpc_go_rejects_is_noted() {
    let cluster = |lb_policy| Cluster { lb_policy, ..example() };
    for (lb_policy, rejected) in
        [(0, false), (1, false), (2, false), (3, true), (6, true), (7, true)]
    {
        assert_eq!(!cluster_notes(&cluster(lb_policy)).is_empty(), rejected, "{lb_policy}");
    }
    let ring_hash_lb_config = Some(RingHashLbConfig { hash_function: 1, ..Default::default() });
    assert!(!cluster_notes(&Cluster { ring_hash_lb_config, ..cluster(2) }).is_empty());
    let least_request_lb_config = Some(LeastRequestLbConfig { choice_count: Some(1) });
    assert!(!cluster_notes(&Cluster { least_request_lb_config, ..cluster(1) }).is_empty());
    let legacy = Cluster { load_balancing_policy: None, ..cluster(7) };
    assert!(cluster_notes(&legacy).is_empty());
}

/// LB-70: the conversion leaves its input unchanged.
#[test]
fn conversion_leaves_the_cluster_unchanged() {
    let cluster = example();
    let before = cluster.encode_to_vec();
    tree(&cluster, vec![locality("a", Some(1), 0)]);
    assert_eq!(cluster.encode_to_vec(), before);
}
