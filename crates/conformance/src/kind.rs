//! The resource types of the kit: names, paths and sample resources.
//!
//! The table repeats the protocol's names on purpose. A server that shares a wrong name with its own table
//! would otherwise pass.

use chancery_proto::envoy_pool;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::{Value, json};

/// The highest generation of a sample resource.
pub(crate) const GENERATION_MAX: u32 = 5;

const PREFIX: &str = "type.googleapis.com/";

/// A resource type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Cds,
    Eds,
    Lds,
    Rds,
    Srds,
    Vhds,
    Sds,
    Rtds,
    Ecds,
}

/// The names of a type in the protocol.
struct Names {
    label: &'static str,
    message: &'static str,
    service: &'static str,
    /// The part of the method names after `Stream`, `Delta` and `Fetch`.
    method: &'static str,
    /// The REST path, if the type has the SotW variant.
    rest: Option<&'static str>,
}

const fn names(
    label: &'static str,
    message: &'static str,
    service: &'static str,
    method: &'static str,
    rest: Option<&'static str>,
) -> Names {
    Names { label, message, service, method, rest }
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Cds,
        Self::Eds,
        Self::Lds,
        Self::Rds,
        Self::Srds,
        Self::Vhds,
        Self::Sds,
        Self::Rtds,
        Self::Ecds,
    ];

    fn names(self) -> Names {
        match self {
            Self::Cds => names(
                "CDS",
                "envoy.config.cluster.v3.Cluster",
                "envoy.service.cluster.v3.ClusterDiscoveryService",
                "Clusters",
                Some("/v3/discovery:clusters"),
            ),
            Self::Eds => names(
                "EDS",
                "envoy.config.endpoint.v3.ClusterLoadAssignment",
                "envoy.service.endpoint.v3.EndpointDiscoveryService",
                "Endpoints",
                Some("/v3/discovery:endpoints"),
            ),
            Self::Lds => names(
                "LDS",
                "envoy.config.listener.v3.Listener",
                "envoy.service.listener.v3.ListenerDiscoveryService",
                "Listeners",
                Some("/v3/discovery:listeners"),
            ),
            Self::Rds => names(
                "RDS",
                "envoy.config.route.v3.RouteConfiguration",
                "envoy.service.route.v3.RouteDiscoveryService",
                "Routes",
                Some("/v3/discovery:routes"),
            ),
            Self::Srds => names(
                "SRDS",
                "envoy.config.route.v3.ScopedRouteConfiguration",
                "envoy.service.route.v3.ScopedRoutesDiscoveryService",
                "ScopedRoutes",
                Some("/v3/discovery:scoped-routes"),
            ),
            Self::Vhds => names(
                "VHDS",
                "envoy.config.route.v3.VirtualHost",
                "envoy.service.route.v3.VirtualHostDiscoveryService",
                "VirtualHosts",
                None,
            ),
            Self::Sds => names(
                "SDS",
                "envoy.extensions.transport_sockets.tls.v3.Secret",
                "envoy.service.secret.v3.SecretDiscoveryService",
                "Secrets",
                Some("/v3/discovery:secrets"),
            ),
            Self::Rtds => names(
                "RTDS",
                "envoy.service.runtime.v3.Runtime",
                "envoy.service.runtime.v3.RuntimeDiscoveryService",
                "Runtime",
                Some("/v3/discovery:runtime"),
            ),
            Self::Ecds => names(
                "ECDS",
                "envoy.config.core.v3.TypedExtensionConfig",
                "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
                "ExtensionConfigs",
                Some("/v3/discovery:extension_configs"),
            ),
        }
    }

    /// Returns the abbreviation, such as `CDS`.
    pub(crate) fn label(self) -> &'static str {
        self.names().label
    }

    /// Returns the type URL.
    pub(crate) fn url(self) -> String {
        format!("{PREFIX}{}", self.names().message)
    }

    pub(crate) fn of_url(url: &str) -> Option<Self> {
        let message = url.strip_prefix(PREFIX)?;
        Self::ALL.into_iter().find(|kind| kind.names().message == message)
    }

    /// Returns the path of a method of the service of this type.
    pub(crate) fn method(self, prefix: &str) -> String {
        let names = self.names();
        format!("/{}/{prefix}{}", names.service, names.method)
    }

    pub(crate) fn rest_path(self) -> Option<&'static str> {
        self.names().rest
    }

    /// Returns whether the type has the SotW variant (SVC-05).
    pub(crate) fn has_sotw(self) -> bool {
        self.names().rest.is_some()
    }

    /// Returns whether a SotW response holds all subscribed resources (SOTW-70, SOTW-73).
    pub(crate) fn is_full_state(self) -> bool {
        matches!(self, Self::Cds | Self::Lds | Self::Srds)
    }

    /// Returns the field with the resource's name.
    fn name_field(self) -> &'static str {
        if self == Self::Eds { "cluster_name" } else { "name" }
    }

    fn descriptor(self) -> Option<MessageDescriptor> {
        envoy_pool().get_message_by_name(self.names().message)
    }

    /// Returns a sample resource in JSON. Each generation has different content.
    ///
    /// A route of generation N refers to the cluster `cluster-N` beside it: `prefix` is the prefix of both names.
    pub(crate) fn json(self, prefix: &str, name: &str, generation: u32) -> Value {
        let full = format!("{prefix}{name}");
        let word = format!("g{generation}");
        match self {
            Self::Cds => json!({
                "name": full, "type": "EDS", "connectTimeout": format!("{generation}s"),
                "edsClusterConfig": {"edsConfig": {"ads": {}, "resourceApiVersion": "V3"}},
            }),
            Self::Eds => json!({"clusterName": full, "endpoints": [{"lbEndpoints": [{"endpoint": {
                "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 1000 + generation}},
            }}]}]}),
            Self::Lds => json!({"name": full, "statPrefix": word, "apiListener": {}}),
            Self::Rds => json!({"name": full, "virtualHosts": [{
                "name": word, "domains": ["*"],
                "routes": [{"match": {"prefix": "/"},
                    "route": {"cluster": format!("{prefix}cluster-{generation}")}}],
            }]}),
            Self::Srds => json!({
                "name": full, "routeConfigurationName": word,
                "key": {"fragments": [{"stringKey": full}]},
            }),
            Self::Vhds => {
                // The host is in the name, so that both forms of the name find it.
                let host = name.rsplit('/').next().unwrap_or(name);
                json!({"name": full, "domains": [host], "routes": [{"match": {"prefix": "/"},
                    "directResponse": {"status": 200 + generation}}]})
            }
            Self::Sds => {
                json!({"name": full, "genericSecret": {"secret": {"inlineString": word}}})
            }
            Self::Rtds => json!({"name": full, "layer": {"generation": word}}),
            Self::Ecds => json!({"name": full, "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                "maxRequestBytes": generation,
            }}),
        }
    }

    /// Returns a sample resource as a message.
    pub(crate) fn message(
        self,
        prefix: &str,
        name: &str,
        generation: u32,
    ) -> Option<DynamicMessage> {
        self.read_json(self.json(prefix, name, generation))
    }

    /// Reads a resource in JSON.
    pub(crate) fn read_json(self, json: Value) -> Option<DynamicMessage> {
        DynamicMessage::deserialize(self.descriptor()?, json).ok()
    }

    /// Returns the name of an encoded resource without `prefix`, and the generation if the content is that of a sample.
    pub(crate) fn identify(self, prefix: &str, body: &[u8]) -> Option<(String, Option<u32>)> {
        let message = DynamicMessage::decode(self.descriptor()?, body).ok()?;
        let full = message.get_field_by_name(self.name_field())?.as_str()?.to_owned();
        let name = full.strip_prefix(prefix).unwrap_or(&full).to_owned();
        let mut generations = 1..=GENERATION_MAX;
        let found =
            generations.find(|n| self.message(prefix, &name, *n).as_ref() == Some(&message));
        Some((name, found))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn sample_of_each_type_is_identified_by_its_bytes() {
        for kind in Kind::ALL {
            for generation in 1..=GENERATION_MAX {
                let body = kind.message("p-", "a/b", generation).unwrap().encode_to_vec();
                let found = kind.identify("p-", &body).unwrap();
                assert_eq!(found, ("a/b".to_owned(), Some(generation)), "{kind:?}");
            }
            assert_eq!(Kind::of_url(&kind.url()), Some(kind));
        }
    }

    #[test]
    fn unknown_content_has_no_generation() {
        let mut message = Kind::Lds.message("", "a", 1).unwrap();
        message.set_field_by_name("stat_prefix", prost_reflect::Value::String("other".into()));
        assert_eq!(Kind::Lds.identify("", &message.encode_to_vec()), Some(("a".into(), None)));
        assert_eq!(Kind::Lds.identify("", &[0xff]), None);
    }
}
