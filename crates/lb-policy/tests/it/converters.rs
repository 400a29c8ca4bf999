//! The converters of the policies of gRPC.

use chancery_lb_policy::{
    Registry,
    proto::{
        ClientSideWeightedRoundRobin, LeastRequest, PickFirst, RandomSubsetting, RingHash,
        prost_types::{Any, Duration},
    },
    types,
};

use crate::support::{any, bytes, convert, error, json, list, round_robin, wrr_locality};

const XX_HASH: i32 = 1;

fn ring_hash(hash_function: i32, min: Option<u64>, max: Option<u64>) -> [Any; 1] {
    let message = RingHash { hash_function, minimum_ring_size: min, maximum_ring_size: max };
    [any(types::RING_HASH, &message)]
}

/// LB-30: both sizes are present even if they are unset.
#[test]
fn ring_hash_has_both_sizes() {
    assert_eq!(
        json(ring_hash(XX_HASH, None, None)),
        r#"[{"ring_hash_experimental":{"maxRingSize":8388608,"minRingSize":1024}}]"#
    );
    assert_eq!(
        json(ring_hash(XX_HASH, Some(5000), Some(6000))),
        r#"[{"ring_hash_experimental":{"maxRingSize":6000,"minRingSize":5000}}]"#
    );
}

/// LB-31: only XX_HASH is accepted, and a lenient client accepts an unset function too.
#[test]
fn ring_hash_needs_xx_hash() {
    for (function, name) in [(0, "DEFAULT_HASH"), (2, "MURMUR_HASH_2"), (7, "7")] {
        let text = error(ring_hash(function, None, None));
        assert!(text.contains(&format!("the hash function is {name}, ")), "{text}");
    }
    let lenient = Registry::default().with_default_hash();
    assert!(lenient.convert(&list(ring_hash(0, None, None))).is_ok());
    assert!(lenient.convert(&list(ring_hash(XX_HASH, None, None))).is_ok());
    assert!(lenient.convert(&list(ring_hash(2, None, None))).is_err());
}

/// LB-32.
#[test]
fn ring_hash_sizes_are_bounded() {
    for (min, max, ok) in [
        (Some(1), Some(1), true),
        (Some(8_388_608), None, true),
        (Some(8_388_609), None, false),
        (None, Some(8_388_609), false),
        (Some(0), None, false),
        (None, Some(0), false),
        (None, Some(1023), false),
        (None, Some(1024), true),
        (Some(7), Some(6), false),
    ] {
        let result = convert(ring_hash(XX_HASH, min, max));
        assert_eq!(result.is_ok(), ok, "{min:?} {max:?}: {result:?}");
    }
}

/// LB-33: the header is never a result of the conversion, and its name is checked in service configs.
#[test]
fn request_hash_header_is_checked() {
    assert!(!json(ring_hash(XX_HASH, None, None)).contains("requestHashHeader"));
    for (name, ok) in [
        ("X-Key", true),
        ("", true),
        ("a.b_c-1", true),
        ("key-bin", false),
        ("Key-Bin", false),
        ("a b", false),
        (":path", false),
        ("ä", false),
    ] {
        let config =
            serde_json::json!([{ "ring_hash_experimental": { "requestHashHeader": name } }]);
        assert_eq!(Registry::default().check(&config).is_ok(), ok, "{name}");
    }
}

/// LB-36: less than 2 is rejected, and more than 10 stays.
#[test]
fn least_request_choice_count_is_at_least_two() {
    let policy = |choice_count| [any(types::LEAST_REQUEST, &LeastRequest { choice_count })];
    for (count, expected) in [(None, 2), (Some(2), 2), (Some(11), 11), (Some(u32::MAX), u32::MAX)] {
        let expected =
            format!(r#"[{{"least_request_experimental":{{"choiceCount":{expected}}}}}]"#);
        assert_eq!(json(policy(count)), expected);
    }
    for count in [0, 1] {
        assert_eq!(
            error(policy(Some(count))),
            format!("least_request_experimental.choiceCount: the count is {count}; set at least 2")
        );
    }
}

/// LB-37: only set fields are present, and a negative penalty is rejected.
#[test]
fn weighted_round_robin_has_only_set_fields() {
    assert_eq!(json([bytes(types::WEIGHTED_ROUND_ROBIN, [])]), r#"[{"weighted_round_robin":{}}]"#);
    let seconds = |seconds| Some(Duration { seconds, nanos: 0 });
    let message = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(true),
        oob_reporting_period: seconds(1),
        blackout_period: seconds(2),
        weight_expiration_period: seconds(3),
        weight_update_period: Some(Duration { seconds: 0, nanos: 50_000_000 }),
        error_utilization_penalty: Some(0.1),
        metric_names_for_computing_utilization: vec!["named_metrics.a".to_owned()],
    };
    assert_eq!(
        json([any(types::WEIGHTED_ROUND_ROBIN, &message)]),
        concat!(
            r#"[{"weighted_round_robin":{"blackoutPeriod":"2s","enableOobLoadReport":true,"#,
            r#""errorUtilizationPenalty":0.1,"metricNamesForComputingUtilization":["named_metrics.a"],"#,
            r#""oobReportingPeriod":"1s","weightExpirationPeriod":"3s","weightUpdatePeriod":"0.050s"}}]"#,
        )
    );
    for penalty in [-0.5, f32::NAN, f32::INFINITY] {
        let message = ClientSideWeightedRoundRobin {
            error_utilization_penalty: Some(penalty),
            ..Default::default()
        };
        let text = error([any(types::WEIGHTED_ROUND_ROBIN, &message)]);
        assert!(
            text.contains("ClientSideWeightedRoundRobin.error_utilization_penalty: "),
            "{text}"
        );
    }
    let blackout_period = Some(Duration { seconds: 1, nanos: -1 });
    let message = ClientSideWeightedRoundRobin { blackout_period, ..Default::default() };
    let text = error([any(types::WEIGHTED_ROUND_ROBIN, &message)]);
    assert!(text.contains("ClientSideWeightedRoundRobin.blackout_period: "), "{text}");
}

/// LB-18: an explicit zero differs from an unset field.
#[test]
fn explicit_zero_is_emitted() {
    let message = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(false),
        blackout_period: Some(Duration::default()),
        error_utilization_penalty: Some(0.0),
        ..Default::default()
    };
    assert_eq!(
        json([any(types::WEIGHTED_ROUND_ROBIN, &message)]),
        concat!(
            r#"[{"weighted_round_robin":{"blackoutPeriod":"0s","enableOobLoadReport":false,"#,
            r#""errorUtilizationPenalty":0.0}}]"#,
        )
    );
}

/// LB-39.
#[test]
fn pick_first_has_shuffle_address_list() {
    for shuffle_address_list in [false, true] {
        let policy = any(types::PICK_FIRST, &PickFirst { shuffle_address_list });
        let expected =
            format!(r#"[{{"pick_first":{{"shuffleAddressList":{shuffle_address_list}}}}}]"#);
        assert_eq!(json([policy]), expected);
    }
}

/// LB-40: size and child are required, and the child is a level.
#[test]
fn random_subsetting_has_size_and_child() {
    let policy = |subset_size, child_policy| {
        any(types::RANDOM_SUBSETTING, &RandomSubsetting { subset_size, child_policy })
    };
    let child = || Some(list([round_robin()]));
    assert_eq!(
        json([policy(Some(3), child())]),
        concat!(
            r#"[{"random_subsetting_experimental":"#,
            r#"{"childPolicy":[{"round_robin":{}}],"subsetSize":3}}]"#,
        )
    );
    for (size, child, path) in [
        (None, child(), "subset_size"),
        (Some(0), child(), "subset_size"),
        (Some(3), None, "child_policy"),
        (Some(3), Some(list([])), "child_policy"),
    ] {
        let text = error([policy(size, child), round_robin()]);
        assert!(text.starts_with(&format!("policies[0].RandomSubsetting.{path}: ")), "{text}");
    }
    let deep = |levels| {
        let inner = (1..levels).fold(round_robin(), |child, _| wrr_locality([child]));
        convert([policy(Some(1), Some(list([inner])))])
    };
    assert!(deep(15).is_ok());
    assert!(deep(16).is_err());
}

#[test]
fn wrr_locality_needs_a_child() {
    assert_eq!(
        error([bytes(types::WRR_LOCALITY, [])]),
        "policies[0].WrrLocality.endpoint_picking_policy: the child policy is missing"
    );
}

/// LB-17: equal input gives equal text.
#[test]
fn output_is_deterministic() {
    let config = serde_json::json!({ "z": 1, "a": [{ "y": 2, "b": 0.5 }], "m": null });
    let policy = || crate::support::typed_struct("x/myorg.Custom", &config);
    let text = json([policy()]);
    assert_eq!(text, r#"[{"myorg.Custom":{"a":[{"b":0.5,"y":2}],"m":null,"z":1}}]"#);
    assert!((0..100).all(|_| json([policy()]) == text));
}
