//! The served methods by path, derived from the type table.

use std::collections::HashMap;

use chancery_model::{
    TypeUrl,
    types::{AGGREGATED, AGGREGATED_V2, KNOWN, Properties, Service, V2},
};
use chancery_proto::{istio::mcp::v1alpha1::resource_source_server, lrs};
use chancery_protocol::{Protocol, StreamKind};

/// The served paths.
#[derive(Debug)]
pub(crate) struct Methods {
    /// Methods by path, `/<package>.<service>/<method>` (SVC-01, SVC-02).
    streams: HashMap<String, StreamKind>,
    /// Types by the path of REST-JSON polling (REST-01).
    polls: HashMap<&'static str, TypeUrl>,
    /// The paths of the load reporting service (LRS-01, LRS-22).
    load_reports: Vec<String>,
}

impl Methods {
    /// Returns the methods of v3, and those of v2 if they are enabled (SVC-14).
    pub(crate) fn new(v2_services: bool) -> Self {
        let reports = [lrs::SERVICE].into_iter().chain(v2_services.then_some(lrs::SERVICE_V2));
        let load_reports = reports.map(|service| format!("/{service}/{}", lrs::METHOD)).collect();
        let mut methods = Self { streams: HashMap::new(), polls: HashMap::new(), load_reports };
        methods.add(&AGGREGATED, None);
        // MCP-01.
        let source = resource_source_server::SERVICE_NAME;
        let kind = StreamKind { protocol: Protocol::Mcp, type_url: None };
        methods.streams.insert(format!("/{source}/EstablishResourceStream"), kind);
        if v2_services {
            methods.add(&AGGREGATED_V2, None);
        }
        let v2: &[Properties] = if v2_services { &V2 } else { &[] };
        for known in KNOWN.iter().chain(v2) {
            if let Some(service) = &known.service {
                methods.add(service, Some(TypeUrl::from_static(known.url)));
                let poll = service.rest.map(|path| (path, TypeUrl::from_static(known.url)));
                methods.polls.extend(poll);
            }
        }
        methods
    }

    /// Returns all paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        let polls = self.polls.keys().map(|path| (*path).to_owned());
        self.streams.keys().cloned().chain(polls).chain(self.load_reports.iter().cloned())
    }

    pub(crate) fn get(&self, path: &str) -> Option<&StreamKind> {
        self.streams.get(path)
    }

    /// Returns the type that a path of REST-JSON polling serves.
    pub(crate) fn poll(&self, path: &str) -> Option<&TypeUrl> {
        self.polls.get(path)
    }

    /// Returns whether a path is that of load reports.
    pub(crate) fn is_load_reports(&self, path: &str) -> bool {
        self.load_reports.iter().any(|served| served == path)
    }

    fn add(&mut self, service: &Service, type_url: Option<TypeUrl>) {
        let sotw = service.sotw.map(|method| (method, Protocol::Sotw));
        for (method, protocol) in sotw.into_iter().chain([(service.delta, Protocol::Delta)]) {
            let kind = StreamKind { protocol, type_url: type_url.clone() };
            self.streams.insert(format!("/{}/{method}", service.name), kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SVC-01, -02, -03, -05: the paths are exactly those of every service of Table 1; VHDS and LEDS
    /// only as delta. MCP-01: the source of MCP.
    #[test]
    fn method_paths_match_the_protocol() {
        let mut paths: Vec<String> = Methods::new(false).streams.into_keys().collect();
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
/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets
/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";
        assert_eq!(paths.join("\n"), expected);
    }

    /// SVC-04, SVC-14: the paths of v2 are exactly those of Table 2.
    #[test]
    fn v2_paths_are_those_of_the_protocol() {
        let mut paths: Vec<String> = Methods::new(true).streams.into_keys().collect();
        paths.retain(|path| Methods::new(false).get(path).is_none());
        paths.sort();
        let expected = "\
/envoy.api.v2.ClusterDiscoveryService/DeltaClusters
/envoy.api.v2.ClusterDiscoveryService/StreamClusters
/envoy.api.v2.EndpointDiscoveryService/DeltaEndpoints
/envoy.api.v2.EndpointDiscoveryService/StreamEndpoints
/envoy.api.v2.ListenerDiscoveryService/DeltaListeners
/envoy.api.v2.ListenerDiscoveryService/StreamListeners
/envoy.api.v2.RouteDiscoveryService/DeltaRoutes
/envoy.api.v2.RouteDiscoveryService/StreamRoutes
/envoy.api.v2.ScopedRoutesDiscoveryService/DeltaScopedRoutes
/envoy.api.v2.ScopedRoutesDiscoveryService/StreamScopedRoutes
/envoy.api.v2.VirtualHostDiscoveryService/DeltaVirtualHosts
/envoy.service.discovery.v2.AggregatedDiscoveryService/DeltaAggregatedResources
/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources
/envoy.service.discovery.v2.RuntimeDiscoveryService/DeltaRuntime
/envoy.service.discovery.v2.RuntimeDiscoveryService/StreamRuntime
/envoy.service.discovery.v2.SecretDiscoveryService/DeltaSecrets
/envoy.service.discovery.v2.SecretDiscoveryService/StreamSecrets";
        assert_eq!(paths.join("\n"), expected);
    }

    /// REST-01, REST-09: the paths of polling are those of Tables 1 and 2; ADS, VHDS and LEDS have none.
    #[test]
    fn rest_paths_match_the_protocol() {
        let mut paths: Vec<&str> = Methods::new(true).polls.into_keys().collect();
        paths.sort_unstable();
        let expected = "\
/v2/discovery:clusters
/v2/discovery:endpoints
/v2/discovery:listeners
/v2/discovery:routes
/v2/discovery:runtime
/v2/discovery:scoped-routes
/v2/discovery:secrets
/v3/discovery:clusters
/v3/discovery:endpoints
/v3/discovery:extension_configs
/v3/discovery:listeners
/v3/discovery:routes
/v3/discovery:runtime
/v3/discovery:scoped-routes
/v3/discovery:secrets";
        assert_eq!(paths.join("\n"), expected);
    }
}
