//! Descriptor pools, decoded once per process on first use.

use std::{
    collections::{BTreeSet, HashSet},
    sync::OnceLock,
};

use prost::{DecodeError, Message};
use prost_reflect::DescriptorPool;
use prost_types::{DescriptorProto, FileDescriptorProto};

use crate::{ENVOY_DESCRIPTORS, MCP_DESCRIPTORS};

fn decode(bytes: &[u8]) -> DescriptorPool {
    DescriptorPool::decode(bytes).expect("the build script wrote valid descriptors")
}

static ENVOY_POOL: OnceLock<DescriptorPool> = OnceLock::new();

/// Decodes the descriptors of the Envoy API, and adds those of the resources in collections of MCP.
fn envoy_api() -> DescriptorPool {
    let mut pool = decode(ENVOY_DESCRIPTORS);
    let files = ["metadata", "resource"].map(|file| format!("istio/mcp/v1alpha1/{file}.proto"));
    let mcp = decode(MCP_DESCRIPTORS);
    for file in files.iter().filter_map(|name| mcp.get_file_by_name(name)) {
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

/// Adds encoded `FileDescriptorSet`s to [`envoy_pool`] (REST-05), as [`with_descriptor_sets`] does. Returns the names of
/// the files that are left out.
///
/// # Errors
/// Returns the index of the invalid set and the reason, or 0 if the pool is already in use.
pub fn add_descriptor_sets(sets: &[Vec<u8>]) -> Result<Vec<String>, (usize, String)> {
    let (pool, left_out) = with_descriptor_sets(sets)?;
    let set = ENVOY_POOL.set(pool).map(|()| left_out);
    set.map_err(|_| (0, "the descriptors are already in use".to_owned()))
}

/// Returns the descriptors of Envoy with those of encoded `FileDescriptorSet`s. Each set needs the files that it imports,
/// unless Envoy's API or an earlier set has them. A file whose types are all defined alike in another file adds
/// nothing.
///
/// A file with the name of a known one is left out. If it defines types otherwise, its name is in the second part.
///
/// # Errors
/// Returns the index of the invalid set and the reason.
pub fn with_descriptor_sets(
    sets: &[Vec<u8>],
) -> Result<(DescriptorPool, Vec<String>), (usize, String)> {
    let (mut pool, mut left_out) = (envoy_api(), Vec::new());
    for (index, set) in sets.iter().enumerate() {
        let set =
            without_known(&pool, set, &mut left_out).map_err(|error| (index, error.to_string()))?;
        pool.decode_file_descriptor_set(set.as_slice())
            .map_err(|error| (index, error.to_string()))?;
    }
    Ok((pool, left_out))
}

/// A `FileDescriptorSet` whose files stay encoded. `prost_types` would drop the options that are extensions.
#[derive(Clone, PartialEq, Message)]
struct EncodedSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    file: Vec<Vec<u8>>,
}

/// Replaces files that the pool has under another name. The replacement imports the file of the pool, for the files
/// that import it. Removes repeated files. Adds the names of files that differ from the file of the pool with their name
/// to `left_out`.
fn without_known(
    pool: &DescriptorPool,
    set: &[u8],
    left_out: &mut Vec<String>,
) -> Result<Vec<u8>, DecodeError> {
    let mut set = EncodedSet::decode(set)?;
    let mut seen = HashSet::new();
    set.file.retain(|encoded| seen.insert(encoded.clone()));
    for encoded in &mut set.file {
        let file = FileDescriptorProto::decode(encoded.as_slice())?;
        if pool.get_file_by_name(file.name()).is_some() && known_files(pool, &file).is_none() {
            left_out.push(file.name().to_owned());
        }
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
    known_files(pool, file).filter(|files| !files.is_empty())
}

/// Returns the files of the pool that define the types of a file alike. `None` if a type is defined otherwise, or not at
/// all.
fn known_files(pool: &DescriptorPool, file: &FileDescriptorProto) -> Option<Vec<String>> {
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
    Some(files.into_iter().collect())
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
    }

    #[test]
    fn repeated_file_is_added_once_and_other_file_of_a_known_name_is_left_out() {
        let file = |name: &str, message: &str| FileDescriptorProto {
            name: Some(name.to_owned()),
            package: Some("acme".to_owned()),
            message_type: vec![DescriptorProto {
                name: Some(message.to_owned()),
                ..DescriptorProto::default()
            }],
            ..FileDescriptorProto::default()
        };
        let set = |files: &[FileDescriptorProto]| {
            EncodedSet { file: files.iter().map(Message::encode_to_vec).collect() }.encode_to_vec()
        };
        let (own, known) = (file("acme/foo.proto", "Foo"), "google/protobuf/any.proto");
        let (pool, left_out) =
            with_descriptor_sets(&[set(&[own.clone(), own]), set(&[file(known, "Any")])]).unwrap();
        assert!(pool.get_message_by_name("acme.Foo").is_some());
        assert!(pool.get_message_by_name("acme.Any").is_none());
        assert_eq!(left_out, [known]);
        let same = envoy_pool().get_file_by_name(known).unwrap().file_descriptor_proto().clone();
        assert_eq!(with_descriptor_sets(&[set(&[same])]).unwrap().1, Vec::<String>::new());
        assert_eq!(with_descriptor_sets(&[Vec::new(), vec![1, 2]]).unwrap_err().0, 1);
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
