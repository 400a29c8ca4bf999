//! The descriptors that a real Envoy links. Chancery knows the same types.

use std::{collections::BTreeMap, env, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use prost::{
    Message as _,
    encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field},
};
use prost_types::FileDescriptorProto;
use regex::bytes::Regex;

use crate::support::envoy;

/// The files that Envoy links, as an encoded `FileDescriptorSet`. The build of `chancery-proto` reads it.
const SET: &str = "../proto/sets/envoy.fds";

/// The packages of messages that configuration can contain. The set also has all imports.
const OF_CONFIGURATION: &str =
    r"^(?:(?:envoy|udpa|xds)\..*\.v[0-9][0-9A-Za-z_]*|grpc\.lookup\.v1)$";

/// Compares the set with the descriptors inside Envoy's binary. `CHANCERY_UPDATE=1` writes the set instead.
#[test]
fn every_type_that_envoy_links_is_known() -> Result<()> {
    let binary = fs::read(envoy::binary()?)?;
    let linked = files_in(&binary)?;
    let mut open: Vec<&str> = Vec::new();
    let of_configuration = regex::Regex::new(OF_CONFIGURATION)?;
    for (name, (_, file)) in &linked {
        if of_configuration.is_match(file.package()) {
            open.push(name);
        }
    }
    ensure!(open.len() > 400, "the binary has only {} files of configuration", open.len());
    let mut wanted = BTreeMap::new();
    while let Some(name) = open.pop() {
        if name.starts_with("google/protobuf/") || wanted.contains_key(name) {
            continue;
        }
        let (encoded, file) = linked.get(name).with_context(|| format!("{name} is missing"))?;
        wanted.insert(name, *encoded);
        open.extend(file.dependency.iter().map(String::as_str));
        for message in &file.message_type {
            let full_name = format!("{}.{}", file.package(), message.name());
            let is_known = chancery_proto::envoy_pool().get_message_by_name(&full_name).is_some();
            ensure!(is_known || env::var_os("CHANCERY_UPDATE").is_some(), "{full_name} is unknown");
        }
    }
    let mut set = Vec::new();
    for encoded in wanted.into_values() {
        encode_key(1, WireType::LengthDelimited, &mut set);
        encode_varint(u64::try_from(encoded.len())?, &mut set);
        set.extend_from_slice(encoded);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SET);
    if env::var_os("CHANCERY_UPDATE").is_some() {
        fs::write(&path, &set)?;
    }
    let is_equal = fs::read(&path)? == set;
    ensure!(
        is_equal,
        "{SET} differs from the installed Envoy; run this test with CHANCERY_UPDATE=1"
    );
    Ok(())
}

/// Returns the encoded files in the binary by name. The generated code of C++ contains each file as one string.
fn files_in(binary: &[u8]) -> Result<BTreeMap<String, (&[u8], FileDescriptorProto)>> {
    let start =
        Regex::new(r"(?-u)\x0a(?:[\x08-\x7f]|[\x80-\xff]\x01)[a-z][A-Za-z0-9_/.-]+\.proto\x12")?;
    let mut files = BTreeMap::new();
    for found in start.find_iter(binary) {
        let encoded = file_at(&binary[found.start()..]);
        // Other strings of the binary can begin alike.
        if let Ok(file) = FileDescriptorProto::decode(encoded) {
            files.insert(file.name().to_owned(), (encoded, file));
        }
    }
    Ok(files)
}

/// Returns the file with which the bytes begin: all fields until one that a file does not have, or a second name.
fn file_at(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    loop {
        let mut next = rest;
        let is_first = rest.len() == bytes.len();
        let is_field = decode_key(&mut next).is_ok_and(|(tag, wire)| {
            let fits = match tag {
                1 => is_first,
                2..=9 | 12 => wire == WireType::LengthDelimited,
                10 | 11 | 14 => wire == WireType::Varint,
                _ => false,
            };
            fits && skip_field(wire, tag, &mut next, DecodeContext::default()).is_ok()
        });
        if !is_field {
            return &bytes[..bytes.len() - rest.len()];
        }
        rest = next;
    }
}
