//! The list of targets. A new decoder of client input gets a row here, and a file in `corpus/`.

use chancery_admission::FileEncoding;

use crate::{Target, files};

/// All targets.
///
/// A request of xDS is read in place. Only its node is decoded, whose values take a hundred bytes each. The
/// readers of files build a tree, and convert it through Envoy's descriptors.
pub const TARGETS: &[Target] = &[
    row("sotw", 2048, (64 << 10, 128), |input| all(input, chancery_xds::fuzz::sotw_request)),
    row("delta", 2048, (64 << 10, 128), |input| all(input, chancery_xds::fuzz::delta_request)),
    row("node", 4096, (64 << 10, 128), |input| all(input, chancery_xds::fuzz::node)),
    // The target keeps all messages of both bodies. An empty message has five bytes.
    row("framing", 2048, (64 << 10, 64), chancery_xds::fuzz::framing),
    row("rest", 4096, (64 << 10, 128), |input| all(input, chancery_xds::fuzz::rest_request)),
    row("file-json", 2048, FILE_MEMORY, |input| file(input, FileEncoding::Json)),
    row("file-yaml", 2048, FILE_MEMORY, |input| file(input, FileEncoding::Yaml)),
    row("file-pb", 2048, FILE_MEMORY, |input| file(input, FileEncoding::Binary)),
    row("file-pb-text", 2048, FILE_MEMORY, |input| file(input, FileEncoding::Text)),
    row("manifest", 2048, FILE_MEMORY, |input| all(input, files::manifest)),
];

/// The memory of a file. Aliases may add 20,000 values and 1 MiB of text to a short one.
const FILE_MEMORY: (usize, usize) = (4 << 20, 1024);

const fn row(
    name: &'static str,
    input_bytes_max: usize,
    memory: (usize, usize),
    decode: fn(&[u8]) -> usize,
) -> Target {
    Target { name, decode, input_bytes_max, memory }
}

fn all(input: &[u8], decode: fn(&[u8])) -> usize {
    decode(input);
    input.len()
}

fn file(input: &[u8], encoding: FileEncoding) -> usize {
    files::read(encoding, input);
    input.len()
}

/// Returns a target by name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
