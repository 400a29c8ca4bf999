//! Descriptor pools, decoded once per process on first use.

use std::{
    collections::BTreeSet,
    sync::{LazyLock, OnceLock},
};

use prost::{DecodeError, Message};
use prost_reflect::DescriptorPool;
use prost_types::{DescriptorProto, FileDescriptorProto};

use crate::{ENVOY_DESCRIPTORS, FILE_DESCRIPTOR_SET};

fn decode(bytes: &[u8]) -> DescriptorPool {
    DescriptorPool::decode(bytes).expect("the build script wrote valid descriptors")
}

static ENVOY_POOL: OnceLock<DescriptorPool> = OnceLock::new();

/// Decodes the descriptors of the Envoy API, and adds those of the resources in collections of MCP.
fn envoy_api() -> DescriptorPool {
    let mut pool = decode(ENVOY_DESCRIPTORS);
    let files = ["metadata", "resource"].map(|file| format!("istio/mcp/v1alpha1/{file}.proto"));
    for file in files.iter().filter_map(|name| own_pool().get_file_by_name(name)) {
        let added = pool.add_file_descriptor_proto(file.file_descriptor_proto().clone());
        added.expect("the imports of the file are part of the Envoy API");
    }
    pool
}

/// Returns the descriptors of the whole Envoy API, those of the resources in collections of MCP, and those of
/// [`add_descriptor_sets`]. The first call
/// takes tens of milliseconds and 17 MB of memory.
#[must_use]
pub fn envoy_pool() -> &'static DescriptorPool {
    ENVOY_POOL.get_or_init(envoy_api)
}

/// Adds encoded `FileDescriptorSet`s to [`envoy_pool`] (REST-05). Each set needs the files that it
/// imports, unless Envoy's API or an earlier set has them. A file whose types are all defined alike in another file
/// adds nothing.
///
/// # Errors
/// Returns the index of the invalid set and the reason, or 0 if the pool is already in use.
pub fn add_descriptor_sets(sets: &[Vec<u8>]) -> Result<(), (usize, String)> {
    let mut pool = envoy_api();
    for (index, set) in sets.iter().enumerate() {
        let set = without_known(&pool, set).map_err(|error| (index, error.to_string()))?;
        pool.decode_file_descriptor_set(set.as_slice())
            .map_err(|error| (index, error.to_string()))?;
    }
    ENVOY_POOL.set(pool).map_err(|_| (0, "the descriptors are already in use".to_owned()))
}

/// A `FileDescriptorSet` whose files stay encoded. `prost_types` would drop the options that are extensions.
#[derive(Clone, PartialEq, Message)]
struct EncodedSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    file: Vec<Vec<u8>>,
}

/// Replaces files that the pool has under another name. The replacement imports the file of the pool, for the files
/// that import it.
fn without_known(pool: &DescriptorPool, set: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut set = EncodedSet::decode(set)?;
    for encoded in &mut set.file {
        let file = FileDescriptorProto::decode(encoded.as_slice())?;
        if let Some(dependency) = files_with_types_of(pool, &file) {
            let replacement = FileDescriptorProto {
                name: file.name,
                public_dependency: (0..).take(dependency.len()).collect(),
                dependency,
                syntax: Some("proto3".to_owned()),
                ..FileDescriptorProto::default()
            };
            *encoded = replacement.encode_to_vec();
        }
    }
    Ok(set.encode_to_vec())
}

/// Returns the files of the pool that define all types of a file alike. `None` if there are no such files, or if the
/// pool has a file with this name.
fn files_with_types_of(pool: &DescriptorPool, file: &FileDescriptorProto) -> Option<Vec<String>> {
    if pool.get_file_by_name(file.name()).is_some() || !file.extension.is_empty() {
        return None;
    }
    let full_name = |name: &str| match file.package() {
        "" => name.to_owned(),
        package => format!("{package}.{name}"),
    };
    let mut files = BTreeSet::new();
    for message in &file.message_type {
        let known = pool.get_message_by_name(&full_name(message.name()))?;
        let is_alike = comparable(known.descriptor_proto()) == comparable(message);
        files.insert(is_alike.then(|| known.parent_file().name().to_owned())?);
    }
    for kind in &file.enum_type {
        let known = pool.get_enum_by_name(&full_name(kind.name()))?;
        let is_alike = known.enum_descriptor_proto().value == kind.value;
        files.insert(is_alike.then(|| known.parent_file().name().to_owned())?);
    }
    for service in &file.service {
        let known = pool.get_service_by_name(&full_name(service.name()))?;
        files.insert(known.parent_file().name().to_owned());
    }
    (!files.is_empty()).then(|| files.into_iter().collect())
}

/// Returns a message without what compilers write differently.
fn comparable(message: &DescriptorProto) -> DescriptorProto {
    let mut message = message.clone();
    message.options = None;
    for field in &mut message.field {
        (field.json_name, field.options) = (None, None);
    }
    message.nested_type = message.nested_type.iter().map(comparable).collect();
    message
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
            "istio.mcp.v1alpha1.Resource",
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
