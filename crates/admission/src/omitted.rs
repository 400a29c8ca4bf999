//! The parts of an Envoy bootstrap that an import does not store.

use crate::{
    node::Node,
    positions,
    problem::{Place, Problem},
};

/// A part of a bootstrap that an import does not store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Omitted {
    /// The key in the bootstrap, as the author wrote it: `admin`.
    pub key: String,
    /// The number of entries of a list; 1 for other values.
    pub n_entries: usize,
    /// The reason, in a few words.
    pub reason: &'static str,
    /// The line and column of the key, from 1.
    pub position: Option<(u32, u32)>,
}

/// The reasons for the keys that have their own.
const REASONS: [(&str, &str); 6] = [
    ("node", "it identifies one Envoy"),
    ("admin", "it is the admin interface of one Envoy"),
    ("dynamic_resources", SOURCE),
    ("config_sources", SOURCE),
    ("default_config_source", SOURCE),
    (
        "layered_runtime",
        "each Envoy needs its layers at startup; publish Runtime resources for RTDS",
    ),
];
const SOURCE: &str = "it names the servers of resources, and each Envoy needs it at startup";
const OTHER: &str = "only the bootstrap of an Envoy can have it";

/// Returns the top-level parts of a bootstrap with content, in the order of the file. `is_stored` selects the
/// parts that the import stores.
///
/// The keys are known fields of the bootstrap, which bounds their number.
pub(crate) fn parts(root: &Node, is_stored: impl Fn(&str) -> bool) -> Vec<Omitted> {
    let Node::Map(entries) = root else { return Vec::new() };
    let parts = entries.iter().filter(|(key, _)| !is_stored(key)).map(|(key, value)| {
        let n_entries = match value {
            Node::Null => 0,
            Node::List(items) => items.len(),
            Node::Map(fields) => fields.len().min(1),
            _ => 1,
        };
        Omitted { key: key.clone(), n_entries, reason: reason(key), position: None }
    });
    parts.filter(|part| part.n_entries > 0).collect()
}

/// Returns the reason for a key in either spelling: `layered_runtime` or `layeredRuntime`.
fn reason(key: &str) -> &'static str {
    let plain = |key: &str| key.replace('_', "").to_ascii_lowercase();
    let own = REASONS.iter().find(|(known, _)| plain(known) == plain(key));
    own.map_or(OTHER, |(_, reason)| reason)
}

/// Adds the positions of the parts.
pub(crate) fn locate(file: &str, content: &str, parts: &mut [Omitted]) {
    let place = Place { file, ..Place::default() };
    let mut problems: Vec<Problem> =
        parts.iter().map(|part| place.problem(&part.key, "")).collect();
    positions::locate(&[(file, content)], &mut problems);
    for part in parts {
        let key = Some(part.key.as_str());
        let found = problems.iter().find(|problem| problem.field_path.as_deref() == key);
        part.position = found.and_then(|problem| problem.position);
    }
}
