//! The served methods by path, derived from the type table.

use std::collections::HashMap;

use chancery_model::{
    TypeUrl,
    types::{AGGREGATED, KNOWN, Service},
};
use chancery_protocol::{Protocol, StreamKind};

/// Methods by path, `/<package>.<service>/<method>` (SVC-01, SVC-02).
#[derive(Debug)]
pub(crate) struct Methods(HashMap<String, StreamKind>);

impl Methods {
    pub(crate) fn new() -> Self {
        let mut methods = Self(HashMap::new());
        methods.add(&AGGREGATED, None);
        for known in &KNOWN {
            if let Some(service) = &known.service {
                methods.add(service, Some(TypeUrl::from_static(known.url)));
            }
        }
        methods
    }

    pub(crate) fn get(&self, path: &str) -> Option<&StreamKind> {
        self.0.get(path)
    }

    fn add(&mut self, service: &Service, type_url: Option<TypeUrl>) {
        let sotw = service.sotw.map(|method| (method, Protocol::Sotw));
        for (method, protocol) in sotw.into_iter().chain([(service.delta, Protocol::Delta)]) {
            let kind = StreamKind { protocol, type_url: type_url.clone() };
            self.0.insert(format!("/{}/{method}", service.name), kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SVC-01, -02, -03, -05: the paths are exactly those of every service of Table 1; VHDS and LEDS
    /// only as delta.
    #[test]
    fn method_paths_match_the_protocol() {
        let mut paths: Vec<String> = Methods::new().0.into_keys().collect();
        paths.sort();
        let expected = "\
/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters
/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters
/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources
/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources
/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints
/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints
/envoy.service.endpoint.v3.LocalityEndpointDiscoveryService/DeltaLocalityEndpoints
/envoy.service.extension.v3.ExtensionConfigDiscoveryService/DeltaExtensionConfigs
/envoy.service.extension.v3.ExtensionConfigDiscoveryService/StreamExtensionConfigs
/envoy.service.listener.v3.ListenerDiscoveryService/DeltaListeners
/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners
/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes
/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes
/envoy.service.route.v3.ScopedRoutesDiscoveryService/DeltaScopedRoutes
/envoy.service.route.v3.ScopedRoutesDiscoveryService/StreamScopedRoutes
/envoy.service.route.v3.VirtualHostDiscoveryService/DeltaVirtualHosts
/envoy.service.runtime.v3.RuntimeDiscoveryService/DeltaRuntime
/envoy.service.runtime.v3.RuntimeDiscoveryService/StreamRuntime
/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets
/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets";
        assert_eq!(paths.join("\n"), expected);
    }
}
