//! Descriptor pools, decoded once per process on first use.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

use crate::{ENVOY_DESCRIPTORS, FILE_DESCRIPTOR_SET};

fn decode(bytes: &[u8]) -> DescriptorPool {
    DescriptorPool::decode(bytes).expect("the build script wrote valid descriptors")
}

/// Returns the descriptors of the whole Envoy API. The first call takes tens of milliseconds and
/// 17 MB of memory.
#[must_use]
pub fn envoy_pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| decode(ENVOY_DESCRIPTORS));
    &POOL
}

/// Returns the descriptors of our own APIs.
#[must_use]
pub fn own_pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| decode(FILE_DESCRIPTOR_SET));
    &POOL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoy_pool_contains_all_known_types() {
        for name in [
            "envoy.config.listener.v3.Listener",
            "envoy.config.route.v3.RouteConfiguration",
            "envoy.config.route.v3.ScopedRouteConfiguration",
            "envoy.config.route.v3.VirtualHost",
            "envoy.config.cluster.v3.Cluster",
            "envoy.config.endpoint.v3.ClusterLoadAssignment",
            "envoy.config.endpoint.v3.LbEndpoint",
            "envoy.extensions.transport_sockets.tls.v3.Secret",
            "envoy.service.runtime.v3.Runtime",
            "envoy.config.core.v3.TypedExtensionConfig",
            "envoy.config.bootstrap.v3.Bootstrap",
            "udpa.type.v1.TypedStruct",
            "xds.type.v3.TypedStruct",
        ] {
            assert!(envoy_pool().get_message_by_name(name).is_some(), "{name}");
        }
        assert!(own_pool().files().all(|file| !file.package_name().starts_with("envoy.")));
    }

    /// prost-types would silently drop extension options, which contain every validation rule.
    #[test]
    fn envoy_pool_contains_validation_rules() {
        let cluster = envoy_pool().get_message_by_name("envoy.config.cluster.v3.Cluster").unwrap();
        let name = cluster.get_field_by_name("name").unwrap();
        let rules = envoy_pool().get_extension_by_name("validate.rules").unwrap();
        assert!(name.options().has_extension(&rules), "{:?}", name.options());
    }

    /// A resolver that considers all files would find another package for `config.core.v3.…`.
    #[test]
    fn relative_type_name_resolves_as_in_protoc() {
        let filter = "envoy.extensions.filters.http.jwt_authn.v3.RemoteJwks";
        let field = envoy_pool().get_message_by_name(filter).unwrap();
        let field = field.get_field_by_name("http_uri").unwrap().kind();
        assert_eq!(field.as_message().unwrap().full_name(), "envoy.config.core.v3.HttpUri");
    }
}
