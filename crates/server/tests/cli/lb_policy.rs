//! The commands `lb-policy convert` and `lb-policy explain`.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Server, chancery, run};

const CLUSTER: &str = "
resources:
- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: web
  type: EDS
  eds_cluster_config: {service_name: shop, eds_config: {ads: {}}}
  load_balancing_policy:
    policies:
    - typed_extension_config:
        name: outer
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality
          endpoint_picking_policy:
            policies:
            - typed_extension_config:
                name: custom
                typed_config:
                  '@type': type.googleapis.com/xds.type.v3.TypedStruct
                  type_url: type.googleapis.com/myorg.MyLb
                  value: {choiceCount: 2}
            - typed_extension_config:
                name: built-in
                typed_config:
                  '@type': type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin
- '@type': type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: shop
  endpoints:
  - locality: {region: r, zone: a}
    load_balancing_weight: 3
    lb_endpoints:
    - endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 80}}}
";

const POLICY: &str = "
policies:
- typed_extension_config:
    name: ring
    typed_config:
      '@type': type.googleapis.com/envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash
      hash_function: MURMUR_HASH_2
";

fn local(args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = chancery();
    command.arg("lb-policy").args(args).env("CHANCERY_SERVER", "127.0.0.1:1");
    let done = run(command, input);
    (done.code, done.out, done.err)
}

/// LB-07, LB-15: the flags select the policies of the client.
#[test]
fn policy_of_a_file_is_converted_without_a_server() {
    let config = |args: &[&str]| {
        let (code, out, err) = local(&[&["convert", "-f", "-"], args].concat(), CLUSTER);
        assert_eq!((code, err.as_str()), (0, ""));
        serde_json::from_str::<Value>(&out).unwrap()["loadBalancingConfig"].clone()
    };
    let expected =
        |child: Value| json!([{ "xds_wrr_locality_experimental": { "childPolicy": [child] } }]);
    assert_eq!(config(&[]), expected(json!({ "round_robin": {} })));
    let custom = json!({ "myorg.MyLb": { "choiceCount": 2 } });
    assert_eq!(config(&["web", "--policy", "myorg.MyLb", "--client", "c-core"]), expected(custom));
}

/// LB-31: a policy without cluster is converted too.
#[test]
fn rejected_policy_is_reported_with_its_field() {
    let (code, out, err) = local(&["convert", "-f", "-"], POLICY);
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(
        err,
        "error: gRPC clients reject cluster \"policy\": load_balancing_policy.policies[0].RingHash.\
         hash_function: the hash function is MURMUR_HASH_2, but gRPC supports only XX_HASH; set XX_HASH\n"
    );
}

/// LB-25: the example of gRFC A52 has `fields` instead of `value`.
#[test]
fn typed_struct_with_fields_is_refused() {
    let wrong =
        CLUSTER.replace("value: {choiceCount: 2}", "fields: [{key: choiceCount, value: '2'}]");
    let (code, _, err) = local(&["convert", "-f", "-"], &wrong);
    assert_eq!(code, 1);
    assert!(err.contains("TypedStruct has no such field"), "{err}");
}

/// Clusters of one name in several scopes are ambiguous, so both commands refuse them.
#[test]
fn clusters_of_one_name_in_two_scopes_are_refused_with_both_positions() {
    let cluster = |policy: &str| {
        format!(
            "- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: web\n  type: EDS\n  \
             eds_cluster_config: {{eds_config: {{ads: {{}}}}}}\n  lb_policy: {policy}\n"
        )
    };
    let (a, b) = (cluster("ROUND_ROBIN"), cluster("LEAST_REQUEST"));
    let other = a.replace("web", "other");
    let input = format!("scope: a\nresources:\n{a}---\nscope: b\nresources:\n{other}{b}");
    let line = |position, document, index, scope| {
        format!(
            "error: -:{position}: document {document}: resources[{index}] Cluster \"web\": exists 2 times in the files, here \
             in scope \"{scope}\"; give -f input that has it in only one scope\n"
        )
    };
    let expected = line("3:3", 1, 0, "a") + &line("16:3", 2, 1, "b");
    for command in ["convert", "explain"] {
        let (code, out, err) = local(&[command, "web", "-f", "-"], &input);
        assert_eq!((code, out.as_str(), err), (1, "", expected.clone()));
    }
    let (code, _, err) = local(&["convert", "other", "-f", "-"], &input);
    assert_eq!((code, err.as_str()), (0, ""));
}

/// LB-65: the tree, with the endpoints of the file.
#[test]
fn tree_of_a_file_is_explained_with_its_endpoints() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.yaml");
    fs::write(&path, CLUSTER).unwrap();
    let (code, out, err) = local(&["explain", "web", "-f", path.to_str().unwrap()], "");
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(
        out,
        r#"cluster "web" in gRPC clients
priority_experimental
  priority-1: cluster "web" (ignores re-resolution requests)
    outlier_detection_experimental
      xds_cluster_impl_experimental {"cluster":"web"}
        xds_wrr_locality_experimental
          weighted_target_experimental
            Locality{region=r,zone=a,subZone=} weight 3
              round_robin {}
              10.0.0.1:80
"#
    );
    assert_eq!(local(&["explain", "none", "-f", path.to_str().unwrap()], "").0, 1);
}

/// LB-70: the commands read the store, and change nothing.
#[test]
fn stored_cluster_is_converted_and_stays_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    server.json(&["apply", "-f", "-"], CLUSTER);
    let before = server.run(&["get", "-o", "json"]).out;
    let config = server.json(&["lb-policy", "convert", "web"], "");
    let name = "xds_wrr_locality_experimental";
    assert_eq!(
        config["loadBalancingConfig"][0][name]["childPolicy"][0],
        json!({ "round_robin": {} })
    );
    let tree = server.json(&["lb-policy", "explain", "web"], "");
    assert_eq!(tree["priorities"][0]["localities"][0]["endpoints"], json!(["10.0.0.1:80"]));
    assert_eq!(server.run(&["lb-policy", "convert", "none"]).code, 1);
    assert_eq!(server.run(&["get", "-o", "json"]).out, before);
    assert_eq!(server.terminate().0, Some(0));
}

/// The example of gRFC A52, in JSON. `fields` of the `TypedStruct` is `value` here (LB-25).
fn example_of_a52() -> String {
    let locality = |letter: &str, weight: u32, port: u16| {
        json!({
            "locality": {
                "region": format!("region_{letter}"),
                "zone": format!("zone_{letter}"),
                "sub_zone": format!("subZone_{letter}"),
            },
            "load_balancing_weight": weight,
            "lb_endpoints": [{"endpoint": {"address": {"socket_address": {
                "address": "10.0.0.1", "port_value": port,
            }}}}],
        })
    };
    let policy = |name: &str, config: Value| json!({"typed_extension_config": {"name": name, "typed_config": config}});
    let custom = json!({
        "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": "type.googleapis.com/myorg.MyCustomLeastRequestPolicy",
        "value": {"choiceCount": 2},
    });
    let round_robin = json!({
        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
    });
    let wrr_locality = json!({
        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality",
        "endpoint_picking_policy": {"policies": [
            policy("<<backend-id>>-1", custom), policy("<<backend-id>>-2", round_robin),
        ]},
    });
    json!({"resources": [
        {
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": "ClusterName",
            "type": "EDS",
            "eds_cluster_config": {"eds_config": {"ads": {}}},
            "load_balancing_policy": {"policies": [policy("<<backend-id>>-0", wrr_locality)]},
        },
        {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": "ClusterName",
            "endpoints": [locality("a", 1, 1), locality("b", 2, 2)],
        },
    ]})
    .to_string()
}

/// LB-03, LB-55, LB-56: `convert` prints the first documented result of gRFC A52, and `explain` the third and
/// the fourth. gRFC A50 has since added the outlier detection, and the spelling of keys is that of JSON.
#[test]
fn example_of_a52_gives_its_documented_results_on_the_command_line() {
    let example = example_of_a52();
    let policy = ["--policy", "myorg.MyCustomLeastRequestPolicy"];
    let read = |command: &[&str]| {
        let (code, out, err) =
            local(&[command, &["-f", "-", "-o", "json"], policy.as_slice()].concat(), &example);
        assert_eq!((code, err.as_str()), (0, ""));
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let custom = json!([{ "myorg.MyCustomLeastRequestPolicy": { "choiceCount": 2 } }]);
    let policy = json!([{ "xds_wrr_locality_experimental": { "childPolicy": custom } }]);
    assert_eq!(read(&["convert"]), json!({ "loadBalancingConfig": policy }));

    let tree = read(&["explain", "ClusterName"]);
    let child = &tree["loadBalancingConfig"][0]["priority_experimental"]["children"]["priority-1"];
    assert_eq!(
        child["config"][0]["outlier_detection_experimental"]["childPolicy"],
        json!([{ "xds_cluster_impl_experimental": { "cluster": "ClusterName", "childPolicy": policy } }])
    );
    assert_eq!(
        tree["priorities"][0]["weightedTarget"],
        json!([{ "weighted_target_experimental": { "targets": {
            "Locality{region=region_a,zone=zone_a,subZone=subZone_a}":
                { "weight": 1, "childPolicy": custom },
            "Locality{region=region_b,zone=zone_b,subZone=subZone_b}":
                { "weight": 2, "childPolicy": custom },
        } } }])
    );
}

/// LB-52: the underlying clusters of an aggregate cluster are found by name, and a cycle is an error.
#[test]
fn tree_of_an_aggregate_cluster_has_its_underlying_clusters() {
    let aggregate = |name: &str, clusters: &[&str]| {
        json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": name,
            "lb_policy": "CLUSTER_PROVIDED",
            "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                "clusters": clusters,
            }},
        })
    };
    let leaf = |name: &str, policy: &str| {
        json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": name,
            "type": "EDS",
            "eds_cluster_config": {"eds_config": {"ads": {}}},
            "lb_policy": policy,
        })
    };
    let input = json!({"resources": [
        aggregate("outer", &["inner", "b"]),
        aggregate("inner", &["a", "b"]),
        aggregate("circle", &["half"]),
        aggregate("half", &["circle"]),
        leaf("a", "RING_HASH"),
        leaf("b", "ROUND_ROBIN"),
    ]})
    .to_string();
    let (code, out, err) = local(&["explain", "outer", "-f", "-", "-o", "json"], &input);
    assert_eq!((code, err.as_str()), (0, ""));
    let tree: Value = serde_json::from_str(&out).unwrap();
    let priorities = tree["priorities"].as_array().unwrap().iter();
    let clusters: Vec<&str> = priorities.filter_map(|it| it["cluster"].as_str()).collect();
    assert_eq!(clusters, ["a", "b"]);
    let (code, _, err) = local(&["explain", "circle", "-f", "-"], &input);
    assert_eq!(code, 1);
    assert_eq!(err, "error: aggregate cluster \"circle\" has no underlying clusters\n");
}
