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
            write_items(all, out)?;
            out.write_all(b"]}")
        }
        ExternalInput::Bootstrap => {
            out.write_all(
                b"{\"node\":{\"id\":\"chancery\",\"cluster\":\"chancery\"},\"static_resources\":{",
            )?;
            for (index, list) in LISTS.into_iter().enumerate() {
                let separator = if index == 0 { "" } else { "," };
                write!(out, "{separator}\"{list}\":[")?;
                let placed = resources.iter().enumerate().filter_map(|(n, resource)| {
                    list_of(resource)
                        .filter(|own| *own == list)
                        .map(|_| static_resource(n, resource))
                });
                write_items(placed, out)?;
                out.write_all(b"]")?;
            }
            out.write_all(b"}}")
        }
    }
}

fn write_items(items: impl Iterator<Item = Value>, out: &mut impl Write) -> io::Result<()> {
    for (index, item) in items.enumerate() {
        if index > 0 {
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
        types::LISTENER | types::ROUTE => Some(LISTS[1]),
        types::SECRET => Some(LISTS[2]),
        _ => None,
    }
}

/// Returns resource `n` as an entry of a bootstrap. Routes and endpoints have no list of their own there: a
/// listener or a cluster contains them.
fn static_resource(n: usize, (type_url, body): &Resource) -> Value {
    let mut resource = body_to_json(type_url, body);
    if let Value::Object(fields) = &mut resource {
        fields.remove("@type");
    }
    match type_url.as_str() {
        types::ENDPOINT => json!({
            "name": format!("chancery-endpoints-{n}"),
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": resource,
        }),
        types::ROUTE => {
            // The clusters of the routes may not be in the transaction.
            if let Value::Object(fields) = &mut resource {
                fields.insert("validate_clusters".to_owned(), Value::Bool(false));
            }
            let manager = json!({
                "@type": HCM,
                "stat_prefix": "chancery",
                "route_config": resource,
                "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
            });
            json!({
                "name": format!("chancery-routes-{n}"),
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
            })
        }
        _ => resource,
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
- {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret, name: s}
- {"@type": type.googleapis.com/envoy.service.runtime.v3.Runtime, name: x}
"#;

    #[test]
    fn bootstrap_has_each_resource_where_envoy_reads_it() {
        let bootstrap = input(ExternalInput::Bootstrap, ALL);
        let of = |list: &str| bootstrap["static_resources"][list].as_array().unwrap().clone();
        let (clusters, listeners) = (of("clusters"), of("listeners"));
        assert_eq!(clusters.len(), 3, "{bootstrap:#}");
        assert_eq!(clusters[0], json!({"name": "a"}));
        assert_eq!(clusters[2]["load_assignment"], json!({"cluster_name": "e"}));
        let manager = &listeners[0]["filter_chains"][0]["filters"][0]["typed_config"];
        let routes = json!({"name": "r", "validate_clusters": false});
        assert_eq!(manager["route_config"], routes);
        assert_eq!(of("secrets"), [json!({"name": "s"})]);
    }

    #[test]
    fn manifest_has_all_resources_with_their_types() {
        let manifest = input(ExternalInput::Manifest, ALL);
        assert_eq!(manifest["resources"].as_array().unwrap().len(), 6, "{manifest:#}");
        assert_eq!(manifest["resources"][0]["@type"], types::CLUSTER);
    }
}
