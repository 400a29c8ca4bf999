use std::collections::BTreeSet;

use chancery_model::ScopeName;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use super::{
    table::{
        CLUSTER_FIELDS, CONFIG_SOURCE, EXTENSION_SOURCE, NAME_FIELD, REQUESTS, SCOPED_ROUTE_FIELD,
        SKIPPED, THIS_SERVER,
    },
    *,
};
use crate::{Manifest, Options, Validation, ValidationMode, admit};

/// Returns the references of all resources of a manifest: field, type and name.
fn references(resources: &str) -> Vec<String> {
    let content = format!("resources:\n{resources}");
    let manifest = Manifest { file: "a.yaml".to_owned(), content };
    let options = Options::new(ScopeName::new("default").unwrap());
    let options = Options { validation: Validation::of(ValidationMode::Off), ..options };
    let transaction = admit(&[manifest], &options).unwrap();
    let mut all = Vec::new();
    for upsert in &transaction.upserts {
        let draft = &upsert.draft;
        for_each_reference(&draft.key, &draft.body, |reference| {
            let kind = reference.type_url.message_name().rsplit('.').next().unwrap();
            all.push(format!("{} → {kind} {}", reference.field, reference.name));
        });
    }
    all
}

const LISTENER: &str = r#"
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: web
  access_log:
  - name: envoy.access_loggers.http_grpc
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
      common_config: {log_name: web, grpc_service: {envoy_grpc: {cluster_name: logs}}}
  listener_filters:
  - name: from-ecds
    config_discovery: {config_source: {ads: {}}, type_urls: [a]}
  filter_chains:
  - transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
        common_tls_context:
          tls_certificate_sds_secret_configs:
          - {name: bootstrap-secret}
          - {name: file-secret, sds_config: {path_config_source: {path: /a}}}
          - {name: cert, sds_config: {ads: {}}}
          - {name: other, sds_config: {api_config_source: {api_type: GRPC, grpc_services: [{envoy_grpc: {cluster_name: sds}}]}}}
    filters:
    - name: hcm
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: web
        rds: {route_config_name: main, config_source: {ads: {}}}
        http_filters:
        - name: authz
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
            http_service: {server_uri: {uri: http://a, cluster: authz, timeout: 1s}}
        - name: dynamic
          config_discovery: {config_source: {self: {}}, type_urls: [a]}
  - filters:
    - name: hcm
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: scoped
        scoped_routes:
          name: x
          scope_key_builder: {fragments: [{header_value_extractor: {name: a, index: 0}}]}
          scoped_rds: {scoped_rds_config_source: {ads: {}}}
    - name: tcp
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
        stat_prefix: tcp
        weighted_clusters: {clusters: [{name: blue, weight: 1}, {name: green, weight: 1}]}
"#;

#[test]
fn references_of_listeners_are_found() {
    let found = references(LISTENER);
    let chains = |n, rest: &str| format!("filter_chains[{n}].filters{rest}");
    let expected: BTreeSet<String> = [
        "access_log[0].typed_config.common_config.grpc_service.envoy_grpc.cluster_name → Cluster logs".to_owned(),
        "listener_filters[0].config_discovery → TypedExtensionConfig from-ecds".to_owned(),
        chains(0, "[0].typed_config.rds.route_config_name → RouteConfiguration main"),
        chains(
            0,
            "[0].typed_config.http_filters[0].typed_config.http_service.server_uri.cluster → Cluster authz",
        ),
        chains(
            0,
            "[0].typed_config.http_filters[1].config_discovery → TypedExtensionConfig dynamic",
        ),
        chains(
            1,
            "[0].typed_config.scoped_routes.scoped_rds.srds_resources_locator → ScopedRouteConfiguration *",
        ),
        chains(1, "[1].typed_config.weighted_clusters.clusters[0].name → Cluster blue"),
        chains(1, "[1].typed_config.weighted_clusters.clusters[1].name → Cluster green"),
    ]
    .into();
    let (secrets, others): (Vec<String>, Vec<String>) =
        found.into_iter().partition(|one| one.contains("Secret"));
    assert_eq!(others.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(secrets.len(), 1, "{secrets:?}");
    assert!(secrets[0].ends_with("sds_secret_configs[2].name → Secret cert"), "{secrets:?}");
}

/// A listener requests the chains that its matcher names, except for its own (FCDS).
#[test]
fn filter_chains_that_a_listener_requests_are_references() {
    let listener = |source: &str| {
        let action = |name: &str| {
            format!(
                "{{action: {{name: a, typed_config: {{'@type': type.googleapis.com/google.protobuf.StringValue, value: {name}}}}}}}"
            )
        };
        format!(
            "
- '@type': type.googleapis.com/envoy.config.listener.v3.Listener
  name: web
  fcds_config: {{config_source: {source}}}
  filter_chains: [{{name: own}}]
  filter_chain_matcher:
    matcher_tree:
      input: {{name: p, typed_config: {{'@type': type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.DestinationIPInput}}}}
      custom_match:
        name: ip
        typed_config:
          '@type': type.googleapis.com/xds.type.matcher.v3.IPMatcher
          range_matchers: [{{ranges: [{{address_prefix: 10.0.0.0, prefix_len: 8}}], on_match: {}}}]
    on_no_match:
      matcher:
        matcher_tree:
          input: {{name: p, typed_config: {{'@type': type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.DestinationPortInput}}}}
          exact_match_map: {{map: {{'1': {}, '2': {}}}}}
",
            action("inner"),
            action("own"),
            action("outer"),
        )
    };
    let names = |found: Vec<String>| -> Vec<String> {
        found.iter().map(|one| one.rsplit_once(" → ").unwrap().1.to_owned()).collect()
    };
    let mut found = names(references(&listener("{ads: {}}")));
    found.sort();
    assert_eq!(found, ["FilterChain inner", "FilterChain outer"]);
    assert!(references(&listener("{path_config_source: {path: /a}}")).is_empty());
    let chain = references(
        "
- '@type': type.googleapis.com/envoy.config.listener.v3.FilterChain
  name: inner
  filters:
  - name: tcp
    typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c}
",
    );
    assert_eq!(chain, ["filters[0].typed_config.cluster → Cluster c"]);
}

#[test]
fn references_of_routes_are_found() {
    let found = references(
        r#"
- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: main
  vhds: {config_source: {ads: {}}}
  virtual_hosts:
  - name: web
    domains: ["*"]
    request_mirror_policies: [{cluster: shadow}]
    typed_per_filter_config:
      value:
        "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
        overrides: {grpc_service: {envoy_grpc: {cluster_name: proc}}}
    routes:
    - {match: {prefix: /a}, route: {cluster: direct}}
    - {match: {prefix: /h}, route: {cluster_header: x-cluster}}
    - {match: {prefix: /w}, route: {weighted_clusters: {clusters: [{name: blue, weight: 1}]}}}
- "@type": type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration
  name: scoped
  route_configuration_name: main
  key: {fragments: [{string_key: a}]}
"#,
    );
    assert_eq!(
        found,
        [
            "virtual_hosts[0].routes[0].route.cluster → Cluster direct",
            "virtual_hosts[0].routes[2].route.weighted_clusters.clusters[0].name → Cluster blue",
            "virtual_hosts[0].typed_per_filter_config[\"value\"].overrides.grpc_service.envoy_grpc.cluster_name → Cluster proc",
            "virtual_hosts[0].request_mirror_policies[0].cluster → Cluster shadow",
            "vhds → VirtualHost main/*",
            "route_configuration_name → RouteConfiguration main",
        ]
    );
}

#[test]
fn references_of_clusters_and_endpoints_are_found() {
    let found = references(
        r#"
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: own
  type: EDS
  eds_cluster_config: {eds_config: {ads: {}}}
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: from-file
  type: EDS
  eds_cluster_config: {eds_config: {path_config_source: {path: /a}}, service_name: a}
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: all
  cluster_type:
    name: envoy.clusters.aggregate
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig
      clusters: [first, second]
- "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: own
  endpoints:
  - leds_cluster_locality_config: {leds_config: {ads: {}}, leds_collection_name: list}
  - leds_cluster_locality_config:
      leds_config: {ads: {}}
      leds_collection_name: xdstp://a/envoy.config.endpoint.v3.LbEndpoint/own/*
"#,
    );
    let path = "leds_cluster_locality_config.leds_collection_name";
    assert_eq!(
        found,
        [
            "eds_cluster_config.service_name → ClusterLoadAssignment own".to_owned(),
            "cluster_type.typed_config.clusters[0] → Cluster first".to_owned(),
            "cluster_type.typed_config.clusters[1] → Cluster second".to_owned(),
            format!("endpoints[0].{path} → LbEndpointCollection list"),
            format!(
                "endpoints[1].{path} → LbEndpoint xdstp://a/envoy.config.endpoint.v3.LbEndpoint/own/*"
            ),
        ]
    );
}

/// The fields that look like names of clusters and are none: names of their own, fields of the bootstrap and
/// of statistics, headers, filters that compare.
const NO_CLUSTER_FIELDS: [(&str, &str); 27] = [
    ("envoy.admin.v3.CommandLineOptions", "service_cluster"),
    ("envoy.config.bootstrap.v3.ClusterManager", "local_cluster_name"),
    ("envoy.config.core.v3.ApiConfigSource", "cluster_names"),
    ("envoy.config.core.v3.Node", "cluster"),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name"),
    ("envoy.config.endpoint.v3.ClusterStats", "cluster_name"),
    ("envoy.config.endpoint.v3.ClusterStats", "cluster_service_name"),
    ("envoy.config.route.v3.RouteAction", "cluster_header"),
    ("envoy.config.route.v3.RouteAction", "cluster_specifier_plugin"),
    ("envoy.config.route.v3.RouteAction.RequestMirrorPolicy", "cluster_header"),
    ("envoy.config.route.v3.WeightedCluster.ClusterWeight", "cluster_header"),
    ("envoy.data.accesslog.v3.AccessLogCommon", "upstream_cluster"),
    ("envoy.data.cluster.v3.OutlierDetectionEvent", "cluster_name"),
    ("envoy.data.core.v3.HealthCheckEvent", "cluster_name"),
    ("envoy.extensions.clusters.dynamic_modules.v3.ClusterConfig", "cluster_name"),
    ("envoy.extensions.filters.http.fault.v3.HTTPFault", "upstream_cluster"),
    ("envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel", "required_cluster_name"),
    ("envoy.extensions.filters.network.reverse_tunnel.v3.Validation", "cluster_id_format"),
    ("envoy.extensions.filters.network.thrift_proxy.v3.RouteAction", "cluster_header"),
    ("envoy.service.health.v3.ClusterEndpointsHealth", "cluster_name"),
    ("envoy.service.health.v3.ClusterHealthCheck", "cluster_name"),
    ("envoy.service.load_stats.v3.LoadStatsResponse", "clusters"),
    ("envoy.admin.v3.ClusterStatus", "name"),
    ("envoy.config.cluster.v3.Cluster", "name"),
    ("envoy.config.cluster.v3.Cluster.CustomClusterType", "name"),
    ("envoy.config.route.v3.VirtualCluster", "name"),
    ("istio.networking.v1alpha3.EnvoyFilter.ClusterMatch", "name"),
];

/// The messages with a config source that request no resource by a name: parts of the bootstrap, requests on
/// demand, types that the server does not know.
const NO_REQUESTS: [&str; 11] = [
    "envoy.config.bootstrap.v3.Bootstrap",
    "envoy.config.bootstrap.v3.Bootstrap.DynamicResources",
    "envoy.config.bootstrap.v3.RuntimeLayer.RtdsLayer",
    "envoy.config.cluster.v3.Cluster",
    "envoy.config.listener.v3.Listener.FcdsConfig",
    "envoy.extensions.access_loggers.filters.process_ratelimit.v3.DynamicTokenBucket",
    "envoy.extensions.clusters.aggregate.v3.AggregateClusterResource",
    "envoy.extensions.filters.http.on_demand.v3.OnDemandCds",
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes",
    "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.OnDemand",
    "envoy.extensions.transport_sockets.tls.cert_selectors.on_demand_secret.v3.Config",
];

/// A new release of Envoy's API may add fields with references. Each must be in a table of the program, or in
/// a list of this test.
#[test]
fn tables_contain_all_fields_of_the_descriptors_that_may_refer() {
    let pool = chancery_proto::envoy_pool();
    let has_type = |field: &FieldDescriptor, name: &str| matches!(field.kind(), Kind::Message(m) if m.full_name() == name);
    let (mut clusters, mut requests) = (BTreeSet::new(), BTreeSet::new());
    let all: Vec<MessageDescriptor> = pool.all_messages().collect();
    for message in &all {
        let last = message.full_name().rsplit('.').next().unwrap();
        for field in message.fields() {
            let is_text = matches!(field.kind(), Kind::String);
            let is_name = field.name() == NAME_FIELD && last.contains("Cluster");
            if is_text && (field.name().contains("cluster") || is_name) {
                clusters.insert((message.full_name(), field.name().to_owned()));
            }
            if has_type(&field, CONFIG_SOURCE) && message.full_name() != EXTENSION_SOURCE {
                requests.insert(message.full_name());
            }
            if has_type(&field, EXTENSION_SOURCE) {
                assert!(message.get_field_by_name(NAME_FIELD).is_some(), "{}", message.full_name());
            }
        }
    }
    let known = CLUSTER_FIELDS.iter().chain(&NO_CLUSTER_FIELDS);
    let known: BTreeSet<(&str, String)> = known.map(|(m, f)| (*m, (*f).to_owned())).collect();
    assert_eq!(clusters.symmetric_difference(&known).collect::<Vec<_>>(), Vec::<&_>::new());
    let known = REQUESTS.iter().map(|request| request.message).chain(NO_REQUESTS);
    assert_eq!(requests, known.collect());
}

#[test]
fn fields_of_the_tables_exist() {
    let pool = chancery_proto::envoy_pool();
    let field = |message: &str, field: &str| {
        let message = pool.get_message_by_name(message).unwrap_or_else(|| panic!("{message}"));
        message.get_field_by_name(field).unwrap_or_else(|| panic!("{message:?} {field}"));
    };
    for (message, name) in CLUSTER_FIELDS.iter().chain([&SCOPED_ROUTE_FIELD]) {
        field(message, name);
    }
    for request in REQUESTS {
        field(request.message, request.source);
        assert!(Plan::get().find(request.message).is_some(), "{}", request.message);
    }
    for name in THIS_SERVER {
        field(CONFIG_SOURCE, name);
    }
    for name in SKIPPED {
        assert!(pool.get_message_by_name(name).is_some(), "{name}");
    }
}
