//! Splits the text of a file into documents.
//!
//! YAML documents are separated first, at markers that the YAML specification allows nowhere else. An error
//! in one document therefore does not hide those of others. A document that consists of comments still has
//! a number.

use std::{cell::Cell, collections::HashSet, ops::Range};

use serde::de::DeserializeSeed;
use serde_saphyr::budget::BudgetBreach;

use crate::{
    node::{Budget, DOCUMENTS_MAX, EXACT_MAX, InputBudget, Node, NodeSeed, named},
    problem::{Place, Problem},
    yaml_scalars,
};

/// One document of a file. Its index starts at 1.
pub(crate) struct Document {
    pub(crate) index: u32,
    pub(crate) root: Node,
    /// The bytes of the document in the file, and the number of lines before them. `None` if it is JSON.
    yaml: Option<(Range<usize>, u32)>,
}

/// The maximum nesting of a document. A protobuf reader stops at 100 messages.
const DEPTH_MAX: usize = 128;

/// The maximum length in bytes of a text that looks like invalid JSON and is read again as YAML. Texts
/// written by hand are shorter.
const FLOW_YAML_BYTES_MAX: usize = 1 << 20;

/// Returns the content of a file without a byte order mark.
fn without_mark(content: &str) -> &str {
    content.strip_prefix('\u{feff}').unwrap_or(content)
}

impl Document {
    /// Returns the text of the document in the content of its file, and the number of lines before it. `None` if it is
    /// JSON.
    pub(crate) fn yaml_in<'c>(&self, content: &'c str) -> Option<(&'c str, u32)> {
        let (bytes, lines_before) = self.yaml.clone()?;
        Some((without_mark(content).get(bytes)?, lines_before))
    }
}

/// Returns the documents of a file that have content, and a problem for each unreadable document.
pub(crate) fn documents(
    file: &str,
    content: &str,
    whole: &mut InputBudget,
) -> Vec<Result<Document, Problem>> {
    let content = without_mark(content);
    if content.contains('\0') {
        let place = Place { file, ..Place::default() };
        return vec![Err(place.problem("", "the file is not text"))];
    }
    let in_file = |problem: Problem| Problem { file: file.to_owned(), ..problem };
    let is_json = file.ends_with(".json");
    let json_problem = if is_json || content.trim_start().starts_with(['{', '[']) {
        match from_json(content, whole) {
            Ok(root) => {
                let rounded = rounded(content, 0, &root).map(|problem| Err(in_file(problem)));
                return rounded.or_else(|| present(1, root, None)).into_iter().collect();
            }
            Err(problem) if is_json || content.len() > FLOW_YAML_BYTES_MAX => {
                return vec![Err(in_file(problem))];
            }
            // `{a: b}` is YAML as well.
            Err(problem) => Some(problem),
        }
    } else {
        None
    };
    let mut documents = Vec::new();
    let Some(chunks) = chunks(content, whole.documents_left()) else {
        let place = Place { file, ..Place::default() };
        let rule = format!("the input has more than {DOCUMENTS_MAX} documents");
        return vec![Err(place.problem("", rule))];
    };
    whole.take_documents(chunks.len());
    for ((index, root), chunk) in (1..).zip(from_yaml(&chunks, whole)).zip(&chunks) {
        match (root, &json_problem) {
            (Ok(root), _) => documents.extend(present(index, root, Some(chunk.place()))),
            // For an author who writes JSON, the error of the JSON parser is the right one.
            (Err(_), Some(problem)) => return vec![Err(in_file(problem.clone()))],
            (Err(problem), None) => {
                documents.push(Err(Problem { document: Some(index), ..in_file(problem) }));
            }
        }
    }
    documents
}

fn present(
    index: u32,
    root: Node,
    yaml: Option<(Range<usize>, u32)>,
) -> Option<Result<Document, Problem>> {
    (!root.is_null()).then_some(Ok(Document { index, root, yaml }))
}

fn from_json(content: &str, whole: &InputBudget) -> Result<Node, Problem> {
    let budget = whole.share(content.len(), 1);
    let mut json = serde_json::Deserializer::from_str(content);
    let node = NodeSeed(&budget).deserialize(&mut json);
    node.and_then(|node| json.end().map(|()| node)).map_err(|error| {
        let text = error.to_string();
        let rule = match text.split(" at line ").next().unwrap_or(&text) {
            "recursion limit exceeded" => too_deep(),
            rule => rule.to_owned(),
        };
        Problem {
            position: Some((to_u32(error.line()), to_u32(error.column()))),
            rule: format!("not JSON: {rule}"),
            ..Problem::default()
        }
    })
}

/// Returns a problem if the document has a whole number beyond 64 bits. The readers of JSON and YAML
/// round such a number, so it is searched for in the text. The problem has its position, but not the
/// number, which may be a secret.
fn rounded(text: &str, lines_before: u32, root: &Node) -> Option<Problem> {
    let mut large: HashSet<u64> = HashSet::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match node {
            Node::Float(value) if value.abs() > EXACT_MAX => {
                large.insert(value.to_bits());
            }
            Node::List(items) => open.extend(items),
            Node::Map(entries) => open.extend(entries.iter().map(|(_, value)| value)),
            _ => {}
        }
    }
    if large.is_empty() {
        return None;
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_');
    let is_whole = |word: &&str| {
        let digits = word.strip_prefix('-').unwrap_or(word);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_rounded = |word: &&str| {
        word.parse::<f64>().is_ok_and(|value| large.contains(&value.to_bits()))
            && word.parse::<i64>().is_err()
            && word.parse::<u64>().is_err()
    };
    let position = (1..).zip(text.lines()).find_map(|(n, line)| {
        let number = line.split(|c| !is_part(c)).filter(is_whole).find(is_rounded)?;
        let before = line.split_once(number).map_or("", |(before, _)| before);
        Some((lines_before + n, to_u32(before.chars().count() + 1)))
    })?;
    let rule = "a whole number beyond 64 bits would be rounded; put it in quotes if it is text";
    Some(Problem { position: Some(position), rule: rule.to_owned(), ..Problem::default() })
}

fn too_deep() -> String {
    format!("nested deeper than {DEPTH_MAX} levels")
}

/// Converts a line or column number. Files have fewer than 2^32 lines.
fn to_u32(n: impl TryInto<u32>) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

/// A part of a file that is one document.
struct Chunk<'a> {
    text: &'a str,
    /// The position of the text in the file.
    start: usize,
    /// The number of lines before it in the file.
    lines_before: u32,
}

impl Chunk<'_> {
    fn place(&self) -> (Range<usize>, u32) {
        (self.start..self.start + self.text.len(), self.lines_before)
    }
}

/// Splits before a line that starts with `---`, and after one that starts with `...`. Blank lines, comments
/// and directives between documents belong to the next one. Returns `None` for more than `max` documents.
fn chunks(content: &str, max: usize) -> Option<Vec<Chunk<'_>>> {
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
                chunks.push(Chunk { text: &content[start..at], start, lines_before });
                (start, lines_before) = (at, line);
            }
            is_open = true;
        } else if !text.trim().is_empty() && !text.starts_with(['#', '%']) {
            is_open = true;
        }
        if chunks.len() > max {
            return None;
        }
        at += text.len();
        line += 1;
        if marker("...") {
            chunks.push(Chunk { text: &content[start..at], start, lines_before });
            (start, lines_before, is_open) = (at, line, false);
        }
    }
    if is_open {
        chunks.push(Chunk { text: &content[start..], start, lines_before });
    }
    (chunks.len() <= max).then_some(chunks)
}

/// Returns the text of each document with its index, and the number of lines before it.
pub(crate) fn texts(content: &str) -> impl Iterator<Item = (u32, &str, u32)> {
    let chunks = chunks(content, DOCUMENTS_MAX).unwrap_or_default();
    (1..).zip(chunks).map(|(index, chunk)| (index, chunk.text, chunk.lines_before))
}

/// The stack size of a thread that reads YAML. The reader needs up to 40 KB for each level, so
/// [`DEPTH_MAX`] levels would overflow the default of 2 MB.
const STACK_BYTES: usize = 16 << 20;

thread_local! {
    /// Whether the stack of the thread has [`STACK_BYTES`].
    static HAS_LARGE_STACK: Cell<bool> = const { Cell::new(false) };
}

/// Declares that the stack of the current thread has [`STACK_BYTES`].
pub(crate) fn declare_large_stack() {
    HAS_LARGE_STACK.set(true);
}

/// Runs `work` on a thread with a large stack. This is the current thread if it has one. Starting a thread
/// takes longer than reading a short document, so an input of many files starts one thread for all of them.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Problem> {
    if HAS_LARGE_STACK.get() {
        return Ok(work());
    }
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("yaml".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || {
                declare_large_stack();
                work()
            });
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err("the reader failed; please report it".to_owned()),
            Err(error) => Err(format!("cannot start a thread to read the input: {error}")),
        }
    });
    done.map_err(|rule| Problem { rule, ..Problem::default() })
}

fn from_yaml(chunks: &[Chunk<'_>], whole: &mut InputBudget) -> Vec<Result<Node, Problem>> {
    if chunks.is_empty() {
        return Vec::new();
    }
    let n_with_aliases = chunks.iter().filter(|chunk| chunk.text.contains('*')).count();
    let read_all = move || -> Vec<Result<Node, Problem>> {
        let read = |chunk: &Chunk<'_>| {
            let budget = whole.share(chunk.text.len(), n_with_aliases);
            let read = document_from_yaml(chunk, &budget);
            whole.settle(&budget);
            read.and_then(|root| {
                let problem = rounded(chunk.text, chunk.lines_before, &root);
                let ambiguous = || {
                    let number = yaml_scalars::ambiguous_number(chunk.text, chunk.lines_before);
                    number.or_else(|| yaml_scalars::shared_key(chunk.text, chunk.lines_before))
                };
                problem.or_else(ambiguous).map_or(Ok(root), Err)
            })
        };
        chunks.iter().map(read).collect()
    };
    on_large_stack(read_all).unwrap_or_else(|problem| vec![Err(problem)])
}

fn document_from_yaml(chunk: &Chunk<'_>, budget: &Budget) -> Result<Node, Problem> {
    let len = chunk.text.len();
    // Without aliases, a document can exceed only the depth limit. With aliases, these limits also bound the
    // work of the reader before this crate sees a value (merge keys, repeated keys). A value is at most three
    // events: a key and two ends.
    let (events, text) = (3 * budget.values, budget.text);
    let mut limits = serde_saphyr::Budget::default();
    limits.max_depth = DEPTH_MAX;
    limits.max_events = 4 * len + events + 100;
    limits.max_nodes = 2 * len + events + 100;
    limits.max_total_scalar_bytes = 2 * len + text;
    limits.max_recorded_anchor_events = 2 * len + events;
    limits.max_recorded_anchor_bytes = 2 * len + text;
    limits.max_anchors = 100_000;
    limits.max_aliases = 100_000;
    limits.enforce_alias_anchor_ratio = false;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(limits);
    // `no` and `on` are text, as in YAML 1.2 of 2009.
    options.strict_booleans = true;
    options.emit_comments = false;
    // `NodeSeed` rejects them with its own message.
    options.non_finite_float_policy = serde_saphyr::options::NonFiniteFloatPolicy::PassThrough;
    options.reject_unsupported_tags = true;
    options.with_snippet = false;
    options.alias_limits.max_total_replayed_events = events;
    options.alias_limits.max_replay_stack_depth = 16;
    serde_saphyr::with_deserializer_from_str_with_options(chunk.text, options, |yaml| {
        NodeSeed(budget).deserialize(yaml)
    })
    .map_err(|error| {
        let position = error.location().map(|location| {
            (chunk.lines_before + to_u32(location.line()), to_u32(location.column()))
        });
        Problem { position, rule: format!("not YAML: {}", one_line(&error)), ..Problem::default() }
    })
}

/// Returns the message of an error on one line, without the place that it repeats.
fn one_line(error: &serde_saphyr::Error) -> String {
    match error.without_snippet() {
        serde_saphyr::Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            return too_deep();
        }
        serde_saphyr::Error::Budget { breach, .. } => {
            return format!("aliases or anchors exceed a limit ({breach:?})");
        }
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            return format!("the key {} is given twice", named(key));
        }
        _ => {}
    }
    let text = error.to_string();
    let text = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unreadable");
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let text = match text.split_once(": ") {
        Some((place, rest)) if place.starts_with("line ") => rest,
        _ => text,
    };
    // A secret that starts with `!` is a tag if it is not quoted.
    if text.contains("unsupported tag") {
        return "unsupported tag; quote a value that starts with `!`".to_owned();
    }
    // Only keys are read as text, whatever they are.
    if text.starts_with("expected string scalar") {
        return "a key of a map is neither text nor a number".to_owned();
    }
    // The parser has its own limit for flow collections.
    if text.starts_with("recursion limit exceeded") {
        return too_deep();
    }
    // Limits that are exceeded during the replay of an alias are reported as text.
    if text.starts_with("budget breached") || text.starts_with("alias replay limit") {
        return "the aliases expand to too many values".to_owned();
    }
    let ends = [" at line ", " (defined", " (used"];
    let end = ends.into_iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].to_owned()
}
