//! The walk over lists of policies: choice, skips, errors and depth.

use chancery_lb_policy::{
    Client, LbConfig, MESSAGE_BYTES_MAX, Reason, Registry,
    proto::{
        ClientSideWeightedRoundRobin, LeastRequest, LoadBalancingPolicy, Policy, RandomSubsetting,
        RingHash, TypedExtensionConfig, prost_types::Duration,
    },
    types,
};
use prost::Message;
use serde_json::json;

use crate::support::{
    MAGLEV, any, bytes, convert, error, json, list, round_robin, typed_struct, wrr_locality,
};

/// Returns `levels` nested lists of policies, of which the innermost is round_robin.
fn nested(levels: usize) -> LoadBalancingPolicy {
    let policy = (1..levels).fold(round_robin(), |child, _| wrr_locality([child]));
    list([policy])
}

/// LB-01, LB-02: a list of policies with `typed_extension_config`s becomes an array with one object
/// with one key.
#[test]
fn result_is_a_list_of_one_object_with_one_key() {
    // The tags of `policies`, `typed_extension_config`, `name` and `typed_config`.
    let mut config = b"\x0a\x01x\x12".to_vec();
    let any = round_robin().encode_to_vec();
    config.push(any.len().try_into().unwrap());
    config.extend(any);
    let mut policy = vec![0x22, config.len().try_into().unwrap()];
    policy.extend(config);
    let mut message = vec![0x0a, policy.len().try_into().unwrap()];
    message.extend(policy);
    let converted = Registry::default().convert_bytes(&message).unwrap();
    assert_eq!(converted.to_json(), json!([{ "round_robin": {} }]));
}

/// LB-03: later entries are not inspected, not even for errors.
#[test]
fn first_supported_entry_decides() {
    let broken = bytes(types::RING_HASH, [0xff]);
    assert_eq!(json([round_robin(), broken]), r#"[{"round_robin":{}}]"#);
    let two = [bytes(types::PICK_FIRST, []), round_robin()];
    assert_eq!(json(two), r#"[{"pick_first":{"shuffleAddressList":false}}]"#);
}

/// LB-04, LB-41: an unsupported type, such as a policy that only Envoy has, is skipped.
#[test]
fn entry_of_unknown_type_is_skipped() {
    for name in ["maglev.v3.Maglev", "random.v3.Random", "subset.v3.Subset"] {
        let name = format!("envoy.extensions.load_balancing_policies.{name}");
        assert_eq!(json([bytes(&name, [0xff]), round_robin()]), r#"[{"round_robin":{}}]"#);
    }
}

/// LB-05: the walk does not continue behind a supported entry that fails.
#[test]
fn supported_entry_that_fails_is_an_error() {
    let text = error([bytes(MAGLEV, []), bytes(types::RING_HASH, []), round_robin()]);
    assert_eq!(
        text,
        "policies[1].RingHash.hash_function: the hash function is DEFAULT_HASH, but gRPC supports only \
         XX_HASH; set XX_HASH"
    );
}

/// LB-06: the error lists the types of the entries.
#[test]
fn list_without_supported_entry_is_an_error_with_the_types() {
    let text = error([bytes(MAGLEV, []), typed_struct("x/myorg.Other", &json!({}))]);
    assert_eq!(
        text,
        format!(
            "gRPC supports none of the policies: {MAGLEV}, xds.type.v3.TypedStruct of an unknown policy"
        )
    );
    let text = error([]);
    assert_eq!(text, "the list of policies is empty; add a policy that gRPC supports");
    let many = error((0..100).map(|_| bytes(MAGLEV, [])));
    assert!(many.ends_with("and 90 more") && many.len() < 1000, "{many}");
}

/// LB-08: the name of the extension has no meaning.
#[test]
fn extension_name_is_ignored() {
    for name in ["", "envoy.load_balancing_policies.ring_hash", "pick_first"] {
        let typed_config = Some(round_robin());
        let config = TypedExtensionConfig { name: name.to_owned(), typed_config };
        let policy = Policy { typed_extension_config: Some(config) };
        let converted =
            Registry::default().convert(&LoadBalancingPolicy { policies: vec![policy] });
        assert_eq!(converted.unwrap().name, "round_robin");
    }
}

/// LB-09: the part of the type URL before the last `/` has no meaning, and entries without
/// configuration are skipped.
#[test]
fn type_is_compared_without_the_prefix_of_its_url() {
    for prefix in ["", "/", "example.com/a/b/"] {
        let mut policy = round_robin();
        policy.type_url = format!("{prefix}{}", types::ROUND_ROBIN);
        assert_eq!(json([policy]), r#"[{"round_robin":{}}]"#);
    }
    let config = TypedExtensionConfig { name: "x".to_owned(), typed_config: None };
    let policies = vec![
        Policy::default(),
        Policy { typed_extension_config: Some(config) },
        Policy::new(round_robin()),
    ];
    let converted = Registry::default().convert(&LoadBalancingPolicy { policies });
    assert_eq!(converted.unwrap().name, "round_robin");
}

/// LB-10: 16 levels are accepted, and the 17th is an error.
#[test]
fn seventeenth_level_is_an_error() {
    let registry = Registry::default();
    assert_eq!(registry.convert(&nested(16)).unwrap().name, "xds_wrr_locality_experimental");
    let error = registry.convert(&nested(17)).unwrap_err();
    assert_eq!(error.reason, Reason::TooDeep { max: 16 });
    assert!(error.path.starts_with("policies[0].WrrLocality.endpoint_picking_policy.policies[0]."));
    // The error is not a skip.
    let deep = nested(17).policies.remove(0);
    let both = LoadBalancingPolicy { policies: vec![deep, Policy::new(round_robin())] };
    assert_eq!(registry.convert(&both).unwrap_err().reason, Reason::TooDeep { max: 16 });
}

/// LB-11: only the levels that are converted count.
#[test]
fn deep_content_of_skipped_and_later_entries_is_accepted() {
    let deep = nested(40).policies.remove(0);
    let any = deep.typed_extension_config.clone().unwrap().typed_config.unwrap();
    let policies =
        [Policy::new(bytes(MAGLEV, any.value)), Policy::new(round_robin()), deep].to_vec();
    let converted = Registry::default().convert(&LoadBalancingPolicy { policies });
    assert_eq!(converted.unwrap().name, "round_robin");
    let value = (0..1000).fold(json!(1), |value, _| json!([value]));
    let skipped = typed_struct("myorg.Unknown", &json!({ "a": value }));
    assert_eq!(json([skipped, round_robin()]), r#"[{"round_robin":{}}]"#);
}

/// LB-12: deep, long and malformed input gives an error.
#[test]
fn hostile_input_is_an_error() {
    let value = (0..1000).fold(json!(1), |value, _| json!([value]));
    let text = error([typed_struct("myorg.Custom", &json!({ "a": value }))]);
    assert!(text.ends_with("recursion limit reached"), "{text}");
    let text = error([bytes(types::PICK_FIRST, vec![0; MESSAGE_BYTES_MAX + 1])]);
    assert_eq!(
        text,
        "policies[0].PickFirst: the message has 4194305 bytes, the maximum is 4194304"
    );
    let text = error([wrr_locality([bytes(types::PICK_FIRST, [0x0f])])]);
    let path = "policies[0].WrrLocality.endpoint_picking_policy.policies[0].PickFirst: ";
    assert!(text.starts_with(&format!("{path}cannot decode the message: ")), "{text}");
    let long = vec![0; MESSAGE_BYTES_MAX + 1];
    assert!(Registry::default().convert_bytes(&long).is_err());
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let noise: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        let types = [types::RING_HASH, types::WRR_LOCALITY, types::TYPED_STRUCT];
        drop(Registry::default().convert_bytes(&noise));
        drop(convert([bytes(types[random.usize(..3)], noise)]));
    }
}

/// LB-13: the result is parsed, and an error of the parser names the field.
#[test]
fn converted_policy_is_parsed() {
    let custom = typed_struct("x/ring_hash_experimental", &json!({ "minRingSize": "many" }));
    let registry = Registry::default();
    assert!(registry.convert_unchecked(&list([custom.clone()])).is_ok());
    assert_eq!(
        error([wrr_locality([custom])]),
        "xds_wrr_locality_experimental.childPolicy[0].ring_hash_experimental.minRingSize: an integer \
         that is not negative is expected"
    );
    let registry = registry.with_checked_policy("myorg.Strict", |config| match config.get("a") {
        Some(_) => Ok(()),
        None => Err("`a` is missing".to_owned()),
    });
    let strict = |config| registry.convert(&list([typed_struct("myorg.Strict", &config)]));
    assert!(strict(json!({ "a": 1 })).is_ok());
    assert_eq!(strict(json!({})).unwrap_err().to_string(), "myorg.Strict: `a` is missing");
}

/// LB-14: the policies that every client has.
#[test]
fn registry_knows_the_policies_of_grpc() {
    let registry = Registry::default();
    let child = json!([{ "round_robin": {} }]);
    for (name, config) in [
        ("round_robin", json!({})),
        ("pick_first", json!({ "shuffleAddressList": true })),
        ("ring_hash_experimental", json!({})),
        ("least_request_experimental", json!({})),
        ("weighted_round_robin", json!({ "blackoutPeriod": "1s" })),
        ("xds_wrr_locality_experimental", json!({ "childPolicy": child })),
        (
            "weighted_target_experimental",
            json!({ "targets": { "a": { "weight": 1, "childPolicy": child } } }),
        ),
        (
            "priority_experimental",
            json!({ "children": { "a": { "config": child } }, "priorities": ["a"] }),
        ),
        ("outlier_detection_experimental", json!({ "childPolicy": child })),
        ("xds_cluster_impl_experimental", json!({ "cluster": "c", "childPolicy": child })),
        (
            "xds_cluster_manager_experimental",
            json!({ "children": { "a": { "childPolicy": child } } }),
        ),
        ("cds_experimental", json!({ "cluster": "c" })),
        ("override_host_experimental", json!({ "childPolicy": child })),
        (
            "rls_experimental",
            json!({
                "routeLookupConfig": {}, "childPolicy": child,
                "childPolicyConfigTargetFieldName": "target",
            }),
        ),
        ("random_subsetting_experimental", json!({ "subsetSize": 1, "childPolicy": child })),
    ] {
        assert_eq!(registry.check(&json!([{ name: config }])), Ok(()), "{name}");
        let converted = registry.convert(&list([typed_struct(&format!("x/{name}"), &config)]));
        assert_eq!(converted.unwrap(), LbConfig::new(name, config));
        let without = registry.clone().without_policy(name);
        assert!(without.check(&json!([{ name: {} }])).is_err(), "{name}");
    }
    assert!(registry.check(&json!([{ "grpclb": {} }])).is_err());
    let grpclb = registry.with_policy("grpclb");
    assert_eq!(grpclb.check(&json!([{ "grpclb": {} }])), Ok(()));
}

#[test]
fn invalid_configuration_of_a_grpc_policy_is_refused_with_its_field() {
    let registry = Registry::default();
    let child = json!([{ "round_robin": {} }]);
    for (config, text) in [
        (json!({}), "a list of policies is expected"),
        (json!([{}]), "an object with one key, the name of a policy, is expected"),
        (
            json!([{ "a": {}, "b": {} }]),
            "an object with one key, the name of a policy, is expected",
        ),
        (json!([{ "round_robin": null }]), "round_robin: the configuration has to be an object"),
        (
            json!([{ "weighted_target_experimental": { "targets": { "a": { "childPolicy": child } } } }]),
            "weighted_target_experimental.targets.a.weight: the weight is missing or 0; set at least 1",
        ),
        (
            json!([{ "priority_experimental": { "children": {}, "priorities": ["a"] } }]),
            "priority_experimental.priorities: \"a\" is not in `children`",
        ),
        (
            json!([{ "outlier_detection_experimental": {
                "maxEjectionPercent": 101, "childPolicy": child } }]),
            "outlier_detection_experimental.maxEjectionPercent: the percentage 101 exceeds 100",
        ),
        (
            json!([{ "cds_experimental": {} }]),
            "cds_experimental.cluster: the name of the cluster is missing",
        ),
        (
            json!([{ "weighted_round_robin": { "blackoutPeriod": "soon" } }]),
            "weighted_round_robin.blackoutPeriod: \"soon\" is not a duration; write seconds with the suffix \
             s, such as 1.5s",
        ),
    ] {
        assert_eq!(registry.check(&config).unwrap_err().to_string(), text);
    }
    let deep = (0..100).fold(
        child,
        |child, _| json!([{ "xds_wrr_locality_experimental": { "childPolicy": child } }]),
    );
    assert_eq!(registry.check(&deep).unwrap_err().reason, Reason::TooDeep { max: 64 });
}

/// LB-15: the converters and names are those of the client.
#[test]
fn policies_depend_on_the_client() {
    let least_request = list([bytes(types::LEAST_REQUEST, []), round_robin()]);
    let name = |registry: &Registry| registry.convert(&least_request).unwrap().name;
    assert_eq!(name(&Registry::default()), "least_request_experimental");
    assert_eq!(name(&Registry::of_client(Client::Go)), "least_request_experimental");
    assert_eq!(name(&Registry::of_client(Client::CCore)), "round_robin");
    assert_eq!(name(&Registry::of_client(Client::Node)), "round_robin");
    let old = Registry::default().without_converter(types::WEIGHTED_ROUND_ROBIN);
    let weighted = list([bytes(types::WEIGHTED_ROUND_ROBIN, []), round_robin()]);
    assert_eq!(old.convert(&weighted).unwrap().name, "round_robin");
    assert!(Registry::of_client(Client::Java).convert(&nested(17)).is_ok());
    assert!(Registry::of_client(Client::Java).convert(&nested(18)).is_err());
    assert!(Registry::of_client(Client::Node).convert(&nested(17)).is_ok());
    let sized = RingHash { hash_function: 1, minimum_ring_size: Some(4), ..Default::default() };
    let sized = list([any(types::RING_HASH, &sized)]);
    let error = Registry::of_client(Client::Node).convert(&sized).unwrap_err();
    assert_eq!(error.path, "policies[0].RingHash.minimum_ring_size");
    assert!(Registry::of_client(Client::Go).convert(&sized).is_ok());
    // A converter that returns a policy which the client lacks gives an error, not a skip.
    let odd = Registry::default().without_policy("least_request_experimental");
    assert!(odd.convert(&least_request).is_err());
}

/// LB-15: the converter of Java has no random_subsetting, caps rings, and reads numbers as signed ones.
#[test]
fn java_differs_from_the_specification() {
    let java = Registry::of_client(Client::Java);
    let accepts = |registry: &Registry, policy| registry.convert(&list([policy])).is_ok();
    let subsetting =
        RandomSubsetting { subset_size: Some(3), child_policy: Some(list([round_robin()])) };
    let ring = |minimum_ring_size, maximum_ring_size| {
        let message = RingHash { hash_function: 1, minimum_ring_size, maximum_ring_size };
        any(types::RING_HASH, &message)
    };
    let weighted = ClientSideWeightedRoundRobin {
        error_utilization_penalty: Some(-1.0),
        ..Default::default()
    };
    let choices = |choice_count| any(types::LEAST_REQUEST, &LeastRequest { choice_count });
    let named = |name: &str, value| typed_struct(&format!("type.googleapis.com/{name}"), &value);
    let child = json!({ "childPolicy": [{ "round_robin": {} }] });
    for (policy, by_java, by_specification) in [
        (any(types::RANDOM_SUBSETTING, &subsetting), false, true),
        (ring(Some(9_000_000), None), true, false),
        (ring(None, Some(512)), false, false),
        (ring(Some(10), Some(5)), false, false),
        (ring(Some(5), Some(10)), true, true),
        (any(types::WEIGHTED_ROUND_ROBIN, &weighted), true, false),
        (choices(Some(2_147_483_648)), false, true),
        (choices(Some(2_147_483_647)), true, true),
        (named("wrr_locality_experimental", child.clone()), true, false),
        (named("xds_wrr_locality_experimental", child), false, true),
        (named("weighted_target_experimental", json!({})), false, true),
    ] {
        assert_eq!(accepts(&java, policy.clone()), by_java, "{policy:?}");
        assert_eq!(accepts(&Registry::default(), policy.clone()), by_specification, "{policy:?}");
    }
    // The next policy is used in place of one that Java does not have.
    let policies = list([any(types::RANDOM_SUBSETTING, &subsetting), round_robin()]);
    assert_eq!(java.convert(&policies).unwrap().name, "round_robin");
}

/// LB-15: the rules of C-core that are stricter than those of other clients, as observed.
#[test]
fn c_core_is_stricter_than_other_clients() {
    let weights =
        |message: ClientSideWeightedRoundRobin| any(types::WEIGHTED_ROUND_ROBIN, &message);
    let seconds = |seconds| Some(Duration { seconds, nanos: 0 });
    let negative =
        ClientSideWeightedRoundRobin { blackout_period: seconds(-1), ..Default::default() };
    let metric = |name: &str| ClientSideWeightedRoundRobin {
        metric_names_for_computing_utilization: vec![name.to_owned()],
        ..Default::default()
    };
    let point = json!({ "weightUpdatePeriod": ".5s" });
    let typed = |type_url: &str| typed_struct(type_url, &point);
    let empty =
        LoadBalancingPolicy { policies: vec![Policy::default(), Policy::new(round_robin())] };
    for (policy, path) in [
        (list([weights(negative)]), "weighted_round_robin.blackoutPeriod"),
        (list([weights(metric("a"))]), "weighted_round_robin.metricNamesForComputingUtilization"),
        (list([typed("a/weighted_round_robin")]), "weighted_round_robin.weightUpdatePeriod"),
        (list([typed("weighted_round_robin")]), "policies[0].TypedStruct.type_url"),
        (list([typed("a/"), round_robin()]), "policies[0].TypedStruct.type_url"),
        (empty, "policies[0]"),
    ] {
        let error = Registry::of_client(Client::CCore).convert(&policy).unwrap_err();
        assert_eq!(error.path, path, "{error}");
        assert!(Registry::default().convert(&policy).is_ok(), "{path}");
    }
    let known = list([weights(metric("named_metrics.a"))]);
    assert!(Registry::of_client(Client::CCore).convert(&known).is_ok());
}

/// LB-16: the output has lowerCamelCase keys, and the input may have either spelling.
#[test]
fn keys_have_the_spelling_of_json_and_both_parse() {
    assert_eq!(
        json([wrr_locality([round_robin()])]),
        r#"[{"xds_wrr_locality_experimental":{"childPolicy":[{"round_robin":{}}]}}]"#
    );
    let config = |key: &str, size: u64| json!({ key: size });
    for key in ["minRingSize", "min_ring_size"] {
        let policy = |size| typed_struct("x/ring_hash_experimental", &config(key, size));
        assert!(convert([policy(4096)]).is_ok());
        assert!(error([policy(4097)]).contains("exceeds maxRingSize 4096"));
    }
    let both = json!({ "minRingSize": 1, "min_ring_size": 1 });
    let text = error([typed_struct("x/ring_hash_experimental", &both)]);
    assert!(text.ends_with("the field is also given as \"min_ring_size\""), "{text}");
}

/// LB-19: fields that gRPC does not use are ignored.
#[test]
fn unused_fields_are_ignored() {
    // Fields 4 to 9 and 100 as strings.
    let mut extra = Vec::new();
    for tag in [4_u8, 5, 6, 7, 8, 9] {
        extra.extend([tag << 3 | 2, 2, 0x08, 0x01]);
    }
    extra.extend([0xa2, 0x06, 0x00]);
    let mut least_request = vec![0x0a, 0x02, 0x08, 0x05];
    least_request.extend(&extra);
    assert_eq!(
        json([bytes(types::LEAST_REQUEST, least_request)]),
        r#"[{"least_request_experimental":{"choiceCount":5}}]"#
    );
    let mut ring_hash = vec![0x08, 0x01];
    ring_hash.extend(&extra);
    assert!(convert([bytes(types::RING_HASH, ring_hash)]).is_ok());
    assert!(convert([any(types::PICK_FIRST, &round_robin())]).is_err());
}
