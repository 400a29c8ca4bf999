//! Resources in the form in which an author writes them.

use serde_json::{Value, json};

use super::envoy::Mode;

pub(crate) const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub(crate) const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
pub(crate) const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub(crate) const ENDPOINT: &str =
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
pub(crate) const SCOPED_ROUTE: &str =
    "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration";
/// The four types to which every client of these tests subscribes.
pub(crate) const TYPES: [&str; 4] = [LISTENER, ROUTE, CLUSTER, ENDPOINT];

pub(crate) fn cluster(mode: Mode, name: &str, connect_timeout: &str) -> Value {
    json!({
        "@type": CLUSTER,
        "name": name,
        "type": "EDS",
        "connect_timeout": connect_timeout,
        "eds_cluster_config": {"eds_config": mode.config_source()},
    })
}

pub(crate) fn endpoints(cluster: &str, port: u16) -> Value {
    json!({
        "@type": ENDPOINT,
        "cluster_name": cluster,
        "endpoints": [{
            "locality": {"region": "r", "zone": "z"},
            "load_balancing_weight": 1,
            "lb_endpoints": [{
                "health_status": "HEALTHY",
                "endpoint": {"address": {
                    "socket_address": {"address": "127.0.0.1", "port_value": port}
                }},
            }],
        }],
    })
}

pub(crate) fn route(name: &str, cluster: &str) -> Value {
    json!({
        "@type": ROUTE,
        "name": name,
        "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{"match": {"prefix": ""}, "route": {"cluster": cluster}}],
        }],
    })
}

/// Returns a listener of a proxy.
pub(crate) fn listener(mode: Mode, name: &str, port: u16, route: &str, stat_prefix: &str) -> Value {
    listener_of(name, port, &connection_manager(mode, route, stat_prefix))
}

/// Returns a listener of a proxy with the given connection manager.
pub(crate) fn listener_of(name: &str, port: u16, manager: &Value) -> Value {
    json!({
        "@type": LISTENER,
        "name": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager,
        }]}],
    })
}

/// Returns a listener of a gRPC client. Its name is the target of the client.
pub(crate) fn api_listener(name: &str, route: &str) -> Value {
    json!({
        "@type": LISTENER,
        "name": name,
        "api_listener": {"api_listener": connection_manager(Mode::SotwAds, route, name)},
    })
}

/// Returns the resources of a proxy that forwards all requests on `port` to one cluster with one endpoint.
pub(crate) fn proxied(mode: Mode, port: u16, name: &str, upstream: u16) -> [Value; 4] {
    [
        cluster(mode, name, "20s"),
        endpoints(name, upstream),
        listener(mode, "main", port, "main", "main"),
        route("main", name),
    ]
}

/// Returns the resources of a gRPC client that calls `target`: one cluster with one endpoint.
pub(crate) fn service(target: &str, name: &str, port: u16) -> [Value; 4] {
    [
        api_listener(target, "greeter"),
        route("greeter", name),
        cluster(Mode::SotwAds, name, "20s"),
        endpoints(name, port),
    ]
}

/// Returns the connection manager of an HTTP listener that gets its routes from RDS.
pub(crate) fn connection_manager(mode: Mode, route: &str, stat_prefix: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": stat_prefix,
        "rds": {"route_config_name": route, "config_source": mode.config_source()},
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
        }],
    })
}

/// Adds the filter that requests missing clusters or virtual hosts to a connection manager. `settings` are
/// the fields of the filter.
pub(crate) fn add_on_demand_filter(manager: &mut Value, mut settings: Value) {
    settings["@type"] =
        "type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand".into();
    let on_demand = json!({"name": "envoy.filters.http.on_demand", "typed_config": settings});
    let router = manager["http_filters"][0].take();
    manager["http_filters"] = json!([on_demand, router]);
}

/// Returns the routes of requests with the header `x-scope: <name>`.
pub(crate) fn scope(name: &str, route: &str) -> Value {
    json!({
        "@type": SCOPED_ROUTE,
        "name": name,
        "route_configuration_name": route,
        "key": {"fragments": [{"string_key": name}]},
    })
}

/// Returns the connection manager of an HTTP listener that gets its routes from SRDS.
pub(crate) fn scoped_connection_manager(mode: Mode, stat_prefix: &str) -> Value {
    let mut manager = connection_manager(mode, "", stat_prefix);
    manager["rds"].take();
    manager["scoped_routes"] = json!({
        "name": "scopes",
        "scope_key_builder": {"fragments": [
            {"header_value_extractor": {"name": "x-scope", "index": 0}},
        ]},
        "rds_config_source": mode.config_source(),
        "scoped_rds": {"scoped_rds_config_source": mode.config_source()},
    });
    manager
}
