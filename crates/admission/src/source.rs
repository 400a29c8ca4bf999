//! From the text of a file to its documents.
//!
//! YAML documents are cut apart first, at the markers that the YAML specification allows nowhere
//! else: so an error in one document does not hide the others, and a document that is only comments
//! counts as one.

use serde::de::DeserializeSeed;

use crate::{
    node::{Budget, Node, NodeSeed},
    problem::{Place, Problem, Report},
};

/// One document of a file, counted from 1.
pub(crate) struct Document {
    pub(crate) index: usize,
    pub(crate) root: Node,
}

/// Nesting at which a document is refused. A protobuf reader stops at 100 messages.
const DEPTH_MAX: usize = 128;

/// The documents of a file that have content, and problems for those that can not be read.
pub(crate) fn documents(file: &str, content: &str, report: &mut Report) -> Vec<Document> {
    let content = content.strip_prefix('\u{feff}').unwrap_or(content);
    if content.contains('\0') {
        report.add(Place { file, ..Place::default() }.problem("", "the file is not text"));
        return Vec::new();
    }
    let json = if is_json(file, content) {
        match from_json(content) {
            Ok(root) => return present(1, root).into_iter().collect(),
            // `{a: b}` is YAML as well.
            Err(problem) => Some(problem),
        }
    } else {
        None
    };
    let mut documents = Vec::new();
    for (place, chunk) in chunks(content).into_iter().enumerate() {
        let index = place + 1;
        match (from_yaml(&chunk), &json) {
            (Ok(root), _) => documents.extend(present(index, root)),
            // Who writes JSON is told what JSON says.
            (Err(_), Some(problem)) => {
                report.add(Problem { file: file.to_owned(), ..problem.clone() });
                return documents;
            }
            (Err(problem), None) => {
                report.add(Problem { file: file.to_owned(), document: Some(index), ..problem })
            }
        }
    }
    documents
}

fn present(index: usize, root: Node) -> Option<Document> {
    (!root.is_null()).then_some(Document { index, root })
}

fn is_json(file: &str, content: &str) -> bool {
    file.ends_with(".json") || content.trim_start().starts_with(['{', '['])
}

fn from_json(content: &str) -> Result<Node, Problem> {
    let budget = Budget::for_document(content.len());
    let mut json = serde_json::Deserializer::from_str(content);
    let node = NodeSeed(&budget).deserialize(&mut json);
    node.and_then(|node| json.end().map(|()| node)).map_err(|error| {
        let text = error.to_string();
        let rule = text.split(" at line ").next().unwrap_or(&text);
        Problem {
            position: Some((to_u64(error.line()), to_u64(error.column()))),
            rule: format!("not JSON: {rule}"),
            ..Problem::default()
        }
    })
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A part of a file that is one document.
struct Chunk<'a> {
    text: &'a str,
    /// Lines of the file before it.
    lines_before: u64,
}

/// Cuts before a line that starts with `---` and after one that starts with `...`. A part of blank
/// lines, comments and directives belongs to the document that follows.
fn chunks(content: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let (mut start, mut at, mut line, mut lines_before) = (0, 0, 0, 0);
    let mut is_open = false;
    for text in content.split_inclusive('\n') {
        let marker = |marker: &str| {
            text.strip_prefix(marker)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        };
        if marker("---") {
            if is_open {
                chunks.push(Chunk { text: &content[start..at], lines_before });
                (start, lines_before) = (at, line);
            }
            is_open = true;
        } else if !text.trim().is_empty() && !text.starts_with(['#', '%']) {
            is_open = true;
        }
        at += text.len();
        line += 1;
        if marker("...") {
            chunks.push(Chunk { text: &content[start..at], lines_before });
            (start, lines_before, is_open) = (at, line, false);
        }
    }
    if is_open {
        chunks.push(Chunk { text: &content[start..], lines_before });
    }
    chunks
}

fn from_yaml(chunk: &Chunk<'_>) -> Result<Node, Problem> {
    let len = chunk.text.len();
    // What takes memory is limited relative to the size of the input: without aliases no limit can be
    // reached but that of the depth.
    let mut budget = serde_saphyr::Budget::default();
    budget.max_depth = DEPTH_MAX;
    budget.max_events = 4 * len + 1_000_000;
    budget.max_nodes = 2 * len + 1_000_000;
    budget.max_total_scalar_bytes = 2 * len + (64 << 20);
    budget.max_anchors = 100_000;
    budget.max_aliases = 100_000;
    budget.enforce_alias_anchor_ratio = false;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    // `no` and `on` are words; the specification made them so in 2009.
    options.strict_booleans = true;
    options.emit_comments = false;
    options.reject_unsupported_tags = true;
    options.with_snippet = false;
    options.alias_limits.max_total_replayed_events = len + 1_000_000;
    options.alias_limits.max_replay_stack_depth = 16;
    let budget = Budget::for_document(len);
    serde_saphyr::with_deserializer_from_str_with_options(chunk.text, options, |yaml| {
        NodeSeed(&budget).deserialize(yaml)
    })
    .map_err(|error| {
        let position = error.location().map(|location| {
            (chunk.lines_before + u64::from(location.line()), u64::from(location.column()))
        });
        Problem { position, rule: format!("not YAML: {}", one_line(&error)), ..Problem::default() }
    })
}

/// The message without the place that it repeats, on one line.
fn one_line(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let text = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unreadable");
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let text = match text.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest,
        _ => text,
    };
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text.to_owned(),
    }
}
