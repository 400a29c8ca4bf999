//! The input of the external validator, written resource by resource.

use std::io::{self, Write};

use chancery_admission::body_to_json;
use chancery_model::types;
use serde_json::{Value, json};

use super::settings::{ExternalInput, Resource};

const HCM: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
/// The lists of static resources in a bootstrap.
const LISTS: [&str; 3] = ["clusters", "listeners", "secrets"];

/// The start of a bootstrap. Resources may name ADS as the source of others. Validation connects to no server.
const BOOTSTRAP: &str = concat!(
    r#"{"node":{"id":"chancery","cluster":"chancery"},"dynamic_resources":{"ads_config":{"api_type":"DELTA_GRPC","#,
    r#""transport_api_version":"V3","grpc_services":[{"envoy_grpc":{"cluster_name":"chancery-validate-ads"}}]}},"#,
    r#""static_resources":{"#,
);
/// The cluster of ADS.
const ADS_CLUSTER: &str =
    r#"{"name":"chancery-validate-ads","type":"STATIC","connect_timeout":"1s"}"#;

/// Writes the input in the given form.
pub(super) fn write(
    form: ExternalInput,
    resources: &[Resource],
    out: &mut impl Write,
) -> io::Result<()> {
    match form {
        ExternalInput::Manifest => {
            out.write_all(b"{\"resources\":[")?;
            let all = resources.iter().map(|(type_url, body)| body_to_json(type_url, body));
            write_items(all, true, out)?;
            out.write_all(b"]}")
        }
        ExternalInput::Bootstrap => {
            out.write_all(BOOTSTRAP.as_bytes())?;
            for (index, list) in LISTS.into_iter().enumerate() {
                let separator = if index == 0 { "" } else { "," };
                let first = if index == 0 { ADS_CLUSTER } else { "" };
                write!(out, "{separator}\"{list}\":[{first}")?;
                let of_list = resources.iter().filter(|resource| list_of(resource) == Some(list));
                let placed = of_list.enumerate().filter_map(|(n, it)| static_resource(n, it));
                write_items(placed, first.is_empty(), out)?;
                out.write_all(b"]")?;
            }
            out.write_all(b"}}")
        }
    }
}

fn write_items(
    items: impl Iterator<Item = Value>,
    are_first: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    for (index, item) in items.enumerate() {
        if index > 0 || !are_first {
            out.write_all(b",")?;
        }
        serde_json::to_writer(&mut *out, &item)?;
    }
    Ok(())
}

/// Returns the list of a bootstrap that can have a resource; `None` if none can.
fn list_of((type_url, _): &Resource) -> Option<&'static str> {
    match type_url.as_str() {
        types::CLUSTER | types::ENDPOINT => Some(LISTS[0]),
        types::LISTENER | types::ROUTE | types::VIRTUAL_HOST => Some(LISTS[1]),
        types::SECRET => Some(LISTS[2]),
        _ => None,
    }
}

/// Returns resource `n` of a list as an entry of a bootstrap. Routes, virtual hosts and endpoints have no list of their
/// own there: a listener or a cluster contains them. API listeners of gRPC clients have no place there.
fn static_resource(n: usize, (type_url, body): &Resource) -> Option<Value> {
    let mut resource = body_to_json(type_url, body);
    if let Value::Object(fields) = &mut resource {
        fields.remove("@type");
    }
    let is_api_listener =
        type_url.as_str() == types::LISTENER && resource.get("api_listener").is_some();
    let placed = match type_url.as_str() {
        types::ENDPOINT => json!({
            "name": format!("chancery-endpoints-{n}"),
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": resource,
        }),
        types::ROUTE => listener_of_routes(n, resource),
        types::VIRTUAL_HOST => listener_of_routes(n, json!({"virtual_hosts": [resource]})),
        types::LISTENER => {
            inline_routes(&mut resource);
            resource
        }
        _ => resource,
    };
    (!is_api_listener).then_some(placed)
}

/// Returns a listener with a route configuration. Envoy does not check its clusters, which may not be in the input.
fn listener_of_routes(n: usize, mut routes: Value) -> Value {
    routes["validate_clusters"] = false.into();
    let manager = json!({
        "@type": HCM,
        "stat_prefix": "chancery",
        "route_config": routes,
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
    });
    json!({
        "name": format!("chancery-routes-{n}"),
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    })
}

/// Lets inline routes of a listener name clusters that are not in the input.
fn inline_routes(value: &mut Value) {
    if value["@type"] == HCM
        && let Some(Value::Object(routes)) = value.get_mut("route_config")
    {
        routes.entry("validate_clusters").or_insert(Value::Bool(false));
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(inline_routes),
        Value::Array(items) => items.iter_mut().for_each(inline_routes),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use chancery_admission::{Manifest, Options, admit};
    use chancery_model::ScopeName;

    use super::*;

    fn input(form: ExternalInput, content: &str) -> Value {
        let manifest = Manifest { file: "a.yaml".to_owned(), content: content.to_owned() };
        let transaction =
            admit(&[manifest], &Options::new(ScopeName::new("default").unwrap())).unwrap();
        let drafts = transaction.upserts.into_iter().map(|upsert| upsert.draft);
        let resources: Vec<Resource> =
            drafts.map(|draft| (draft.key.type_url, draft.body)).collect();
        let mut out = Vec::new();
        write(form, &resources, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    const ALL: &str = r#"resources:
- {"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a}
- {"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: b}
- {"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: e}
- {"@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: r}
- name: r/v
  resource: {"@type": type.googleapis.com/envoy.config.route.v3.VirtualHost, name: r/v, domains: [v.test]}
- {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret, name: s}
- {"@type": type.googleapis.com/envoy.service.runtime.v3.Runtime, name: x}
"#;

    #[test]
    fn bootstrap_has_each_resource_where_envoy_reads_it() {
        let bootstrap = input(ExternalInput::Bootstrap, ALL);
        let of = |list: &str| bootstrap["static_resources"][list].as_array().unwrap().clone();
        let (clusters, listeners) = (of("clusters"), of("listeners"));
        assert_eq!(clusters.len(), 4, "{bootstrap:#}");
        assert_eq!(clusters[1], json!({"name": "a"}));
        assert_eq!(clusters[3]["load_assignment"], json!({"cluster_name": "e"}));
        let routes = |n: usize| {
            let manager = &listeners[n]["filter_chains"][0]["filters"][0]["typed_config"];
            manager["route_config"].clone()
        };
        assert_eq!(routes(0), json!({"name": "r", "validate_clusters": false}));
        let host = json!({"name": "r/v", "domains": ["v.test"]});
        assert_eq!(routes(1), json!({"virtual_hosts": [host], "validate_clusters": false}));
        assert_eq!(of("secrets"), [json!({"name": "s"})]);
    }

    /// ADS needs a cluster. Envoy rejects API listeners in its bootstrap.
    #[test]
    fn bootstrap_has_ads_and_no_listener_of_grpc_clients() {
        let bootstrap = input(
            ExternalInput::Bootstrap,
            r#"resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: grpc
  api_listener:
    api_listener:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: grpc
      route_config: {}
      http_filters:
      - name: router
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#,
        );
        assert_eq!(bootstrap["static_resources"]["listeners"], json!([]));
        let ads = &bootstrap["dynamic_resources"]["ads_config"]["grpc_services"][0]["envoy_grpc"];
        assert_eq!(ads["cluster_name"], bootstrap["static_resources"]["clusters"][0]["name"]);
    }

    /// The clusters may be stored, or belong to another scope of the transaction.
    #[test]
    fn inline_routes_of_listeners_may_name_clusters_outside_of_the_input() {
        let bootstrap = input(
            ExternalInput::Bootstrap,
            r#"resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: web
  address: {socket_address: {address: 127.0.0.1, port_value: 80}}
  filter_chains:
  - filters:
    - name: http
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: web
        route_config: {name: inline}
        http_filters:
        - name: router
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#,
        );
        let listener = &bootstrap["static_resources"]["listeners"][0];
        let manager = &listener["filter_chains"][0]["filters"][0]["typed_config"];
        let routes = json!({"name": "inline", "validate_clusters": false});
        assert_eq!(manager["route_config"], routes, "{listener:#}");
    }

    #[test]
    fn manifest_has_all_resources_with_their_types() {
        let manifest = input(ExternalInput::Manifest, ALL);
        assert_eq!(manifest["resources"].as_array().unwrap().len(), 7, "{manifest:#}");
        assert_eq!(manifest["resources"][0]["@type"], types::CLUSTER);
    }
}
