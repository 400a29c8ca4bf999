//! The list of targets. A new decoder of client input gets a row here, and a file in `corpus/`.

use chancery_admission::FileEncoding;

use crate::{Decoded, Target, files, names, requests};

/// All targets.
///
/// The decoders of requests take at most four times the bytes of an input, besides what a limit bounds. The
/// limits of the targets are small: a node of 2 KiB, 64 names.
pub const TARGETS: &[Target] = &[
    row("sotw", 2048, REQUEST, |input, decoded| all(input, |input| requests::sotw(input, decoded))),
    row("delta", 2048, REQUEST, |input, decoded| {
        all(input, |input| requests::delta(input, decoded))
    }),
    row("mcp", 2048, REQUEST, |input, decoded| all(input, |input| requests::mcp(input, decoded))),
    row("node", 4096, REQUEST, |input, _| all(input, chancery_xds::fuzz::node)),
    row("rest", 4096, REQUEST, |input, _| all(input, chancery_xds::fuzz::rest_request)),
    row("framing", 2048, FRAMING, |input, _| chancery_xds::fuzz::framing(input)),
    row("lrs", 2048, REPORT, |input, decoded| {
        all(input, |input| chancery_load::fuzz::load_report(input, decoded))
    }),
    row("names", 1024, NAMES, |input, decoded| all(input, |input| names::read(input, decoded))),
    row("csds", 1024, CSDS, |input, _| all(input, chancery_admin::fuzz::csds_request)),
    row("csds-json", 2048, CSDS, |input, _| all(input, chancery_admin::fuzz::csds_json)),
    row("admin", 1024, REQUEST, |input, _| all(input, chancery_admin::fuzz::admin_request)),
    row("file-json", 2048, FILE, |input, decoded| file(input, FileEncoding::Json, decoded)),
    row("file-yaml", 2048, FILE, |input, decoded| file(input, FileEncoding::Yaml, decoded)),
    row("file-pb", 2048, FILE, |input, decoded| file(input, FileEncoding::Binary, decoded)),
    row("file-pb-text", 2048, FILE, |input, decoded| file(input, FileEncoding::Text, decoded)),
    row("manifest", 2048, FILE, |input, _| all(input, files::manifest)),
    row("bootstrap", 2048, FILE, |input, _| all(input, files::bootstrap)),
    row("token", 2048, TOKEN, |input, _| all(input, chancery_auth::fuzz::token)),
    row("rejection", 4096, REJECTION, |input, _| all(input, chancery_fanout::fuzz::rejection_text)),
];

/// The maximum number of steps for each byte. Manifests take 2,200 in an unoptimized build. A cost that grows with the
/// square of the length exceeds the bound within 32 KiB.
const STEPS_PER_BYTE: f64 = 10_000.0;

/// The maximum memory for a decoded input: a constant, and bytes for each byte of input.
type Memory = (usize, usize);

const REQUEST: Memory = (64 << 10, 4);
/// The target keeps 500 messages, and a copy of those that span pieces.
const FRAMING: Memory = (128 << 10, 4);
/// The sums are limited to 16 KiB. The answer shows them.
const REPORT: Memory = (64 << 10, 4);
const NAMES: Memory = (64 << 10, 4);
/// A request has at most 64 KiB. An empty matcher has two bytes, and takes about 100.
const CSDS: Memory = (64 << 10, 128);
/// A claim may be a tree of JSON, which takes up to 70 bytes for each byte.
const TOKEN: Memory = (64 << 10, 128);
/// A byte of the text has up to eight readings of 12 bytes, and a filter for each length of a secret. The text may
/// hold 1 byte as 3.
const REJECTION: Memory = (64 << 10, 512);
/// Aliases may add 20,000 values and 1 MiB of text to a short file. The tree of a file takes up to 50 bytes for
/// each byte, and the message of a file in the wire format takes up to 85.
const FILE: Memory = (4 << 20, 128);

const fn row(
    name: &'static str,
    input_bytes_max: usize,
    memory: Memory,
    decode: fn(&[u8], Decoded<'_>) -> usize,
) -> Target {
    Target { name, decode, input_bytes_max, memory, steps_per_byte: STEPS_PER_BYTE }
}

fn all(input: &[u8], decode: impl FnOnce(&[u8])) -> usize {
    decode(input);
    input.len()
}

fn file(input: &[u8], encoding: FileEncoding, decoded: Decoded<'_>) -> usize {
    all(input, |input| files::read(encoding, input, decoded))
}

/// Returns a target by name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
