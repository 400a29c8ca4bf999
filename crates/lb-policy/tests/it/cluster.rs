//! The policy of a whole cluster.

use chancery_lb_policy::{
    LegacyLeastRequest, Registry,
    proto::{Cluster, LeastRequestLbConfig, RingHashLbConfig},
};
use prost::Message;

use crate::support::{list, round_robin, wrr_locality};

fn json(cluster: &Cluster) -> String {
    Registry::default().convert_cluster(cluster).unwrap().to_string()
}

fn error(cluster: &Cluster) -> String {
    Registry::default().convert_cluster(cluster).unwrap_err().to_string()
}

fn legacy(lb_policy: i32) -> Cluster {
    Cluster { lb_policy, ..Default::default() }
}

/// LB-45: the new field decides alone, even if it is empty.
#[test]
fn new_field_decides_alone() {
    for lb_policy in 0..8 {
        let load_balancing_policy = Some(list([round_robin()]));
        let ring_hash_lb_config = Some(RingHashLbConfig { hash_function: 1, ..Default::default() });
        let cluster = Cluster { load_balancing_policy, ring_hash_lb_config, ..legacy(lb_policy) };
        assert_eq!(json(&cluster), r#"[{"round_robin":{}}]"#);
    }
    let cluster = Cluster { load_balancing_policy: Some(list([])), ..Default::default() };
    assert_eq!(
        error(&cluster),
        "load_balancing_policy: the list of policies is empty; add a policy that gRPC supports"
    );
}

/// LB-47.
#[test]
fn legacy_round_robin_is_below_wrr_locality() {
    assert_eq!(
        json(&legacy(Cluster::ROUND_ROBIN)),
        r#"[{"xds_wrr_locality_experimental":{"childPolicy":[{"round_robin":{}}]}}]"#
    );
}

/// LB-48: the legacy enum has other numbers.
#[test]
fn legacy_ring_hash_is_converted() {
    let cluster = |config| Cluster { ring_hash_lb_config: config, ..legacy(Cluster::RING_HASH) };
    assert_eq!(
        json(&cluster(None)),
        r#"[{"ring_hash_experimental":{"maxRingSize":8388608,"minRingSize":1024}}]"#
    );
    // minimum_ring_size = 5, hash_function = XX_HASH, maximum_ring_size = 6
    let config =
        RingHashLbConfig::decode(&b"\x0a\x02\x08\x05\x18\x00\x22\x02\x08\x06"[..]).unwrap();
    assert_eq!(
        json(&cluster(Some(config))),
        r#"[{"ring_hash_experimental":{"maxRingSize":6,"minRingSize":5}}]"#
    );
    let murmur = RingHashLbConfig { hash_function: 1, ..Default::default() };
    assert_eq!(
        error(&cluster(Some(murmur))),
        "ring_hash_lb_config.hash_function: gRPC supports only XX_HASH; remove the field or set XX_HASH"
    );
    let small = RingHashLbConfig { maximum_ring_size: Some(7), ..Default::default() };
    assert!(error(&cluster(Some(small))).contains("the size 1024 exceeds maxRingSize 7"));
}

/// LB-49: the policy is below `xds_wrr_locality_experimental`, unless the client is known to differ.
#[test]
fn legacy_least_request_depends_on_the_client() {
    let cluster = |choice_count| Cluster {
        least_request_lb_config: Some(LeastRequestLbConfig { choice_count }),
        ..legacy(Cluster::LEAST_REQUEST)
    };
    let bare = r#"[{"least_request_experimental":{"choiceCount":3}}]"#;
    assert_eq!(
        json(&cluster(Some(3))),
        format!(r#"[{{"xds_wrr_locality_experimental":{{"childPolicy":{bare}}}}}]"#)
    );
    assert!(json(&cluster(None)).contains(r#""choiceCount":2"#));
    assert!(error(&cluster(Some(1))).contains("the count is 1; set at least 2"));
    let convert = |treatment| {
        let registry = Registry::default().with_legacy_least_request(treatment);
        registry.convert_cluster(&cluster(Some(3)))
    };
    assert_eq!(convert(LegacyLeastRequest::Bare).unwrap().to_string(), bare);
    assert!(convert(LegacyLeastRequest::Rejected).is_err());
}

/// LB-50.
#[test]
fn other_legacy_policy_is_an_error() {
    for (value, name) in [
        (3, "RANDOM"),
        (5, "MAGLEV"),
        (6, "CLUSTER_PROVIDED"),
        (7, "LOAD_BALANCING_POLICY_CONFIG"),
        (99, "99"),
    ] {
        let text = format!("lb_policy: gRPC does not support {name}; set `load_balancing_policy`");
        assert_eq!(error(&legacy(value)), text);
    }
}

/// LB-51: ring_hash is legal below `xds_wrr_locality_experimental`.
#[test]
fn ring_hash_is_legal_at_the_top_and_below_wrr_locality() {
    let ring_hash = || crate::support::bytes(chancery_lb_policy::types::RING_HASH, [0x08, 0x01]);
    for policy in [ring_hash(), wrr_locality([ring_hash()])] {
        let cluster = Cluster { load_balancing_policy: Some(list([policy])), ..Default::default() };
        assert!(json(&cluster).contains("ring_hash_experimental"));
    }
}
