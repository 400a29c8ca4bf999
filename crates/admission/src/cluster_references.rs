//! The clusters to which routes and listeners send requests.

use chancery_model::TypeUrl;
use prost_reflect::{FieldDescriptor, MessageDescriptor};

use crate::inspect::{self, Value, Visitor};

/// Calls `found` with the name of each cluster to which a body sends requests: by a route, a weighted
/// cluster, or a TCP proxy, also inside nested messages. Clusters that a header or a plugin selects are
/// unknown. A body of an unknown type, or one that does not parse, has no such names.
pub fn for_each_cluster(type_url: &TypeUrl, body: &[u8], found: impl FnMut(&str)) {
    let message = chancery_proto::envoy_pool().get_message_by_name(type_url.message_name());
    if let Some(message) = message {
        // A stored body has passed admission, so that it parses.
        drop(inspect::walk(&message, body, &mut Clusters(found)));
    }
}

struct Clusters<F>(F);

impl<F: FnMut(&str)> Visitor for Clusters<F> {
    fn value(
        &mut self,
        message: &MessageDescriptor,
        field: &FieldDescriptor,
        _depth: usize,
        value: Value<'_>,
    ) {
        let Value::Text(text) = value else { return };
        let is_cluster = matches!(
            (field.name(), message.full_name()),
            (
                "cluster",
                "envoy.config.route.v3.RouteAction"
                    | "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
            ) | (
                "name",
                "envoy.config.route.v3.WeightedCluster.ClusterWeight"
                    | "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight"
            )
        );
        if is_cluster && !text.is_empty() {
            (self.0)(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::ScopeName;

    use super::*;
    use crate::{Manifest, Options, admit};

    #[test]
    fn clusters_of_routes_and_proxies_are_found() {
        let content = r#"
resources:
- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: main
  virtual_hosts:
  - name: web
    domains: ["*"]
    routes:
    - {match: {prefix: /a}, route: {cluster: direct}}
    - {match: {prefix: /h}, route: {cluster_header: x-cluster}}
    - {match: {prefix: /w}, route: {weighted_clusters: {clusters: [{name: blue, weight: 1}, {name: green, weight: 1}]}}}
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: tcp
  filter_chains:
  - filters:
    - name: envoy.filters.network.tcp_proxy
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
        stat_prefix: tcp
        cluster: database
"#;
        let manifest = Manifest { file: "a.yaml".to_owned(), content: content.to_owned() };
        let options = Options::new(ScopeName::new("default").unwrap());
        let transaction = admit(&[manifest], &options).unwrap();
        let mut all = Vec::new();
        for upsert in &transaction.upserts {
            let draft = &upsert.draft;
            for_each_cluster(&draft.key.type_url, &draft.body, |name| all.push(name.to_owned()));
        }
        all.sort();
        assert_eq!(all, ["blue", "database", "direct", "green"]);
    }
}
