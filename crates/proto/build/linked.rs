//! The files of the sets under `sets`: those that Envoy 1.40 links, and those of Istio's API.
//!
//! The package follows Envoy with a delay. A file of a set therefore replaces the package's file of the same name.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;
use prost::{Message, bytes::Bytes};
use prost_types::FileDescriptorProto;

/// A set whose files stay encoded. `prost_types` would drop the validation rules, which are extensions.
#[derive(Clone, PartialEq, Message)]
struct EncodedSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file: Vec<Bytes>,
}

/// The encoded files by name.
pub(crate) type Linked = BTreeMap<String, Bytes>;

/// Reads all sets in the directory.
pub(crate) fn read(sets: &Path) -> anyhow::Result<Linked> {
    let mut linked = Linked::new();
    for entry in fs::read_dir(sets)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "fds") {
            continue;
        }
        let set = EncodedSet::decode(fs::read(&path)?.as_slice());
        for encoded in set.with_context(|| path.display().to_string())?.file {
            let file = FileDescriptorProto::decode(encoded.as_ref())?;
            linked.insert(file.name().to_owned(), encoded);
        }
    }
    Ok(linked)
}
