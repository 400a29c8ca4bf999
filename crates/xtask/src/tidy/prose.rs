//! The language of our own text: short sentences in documents, and no banned phrases anywhere.
//!
//! The length limit applies to `README.md` and `docs/**/*.md`. The banned phrases apply to all Markdown
//! files, and to the comments, string literals and function names of Rust and proto files.

use crate::source::Source;

/// The maximum number of words in a sentence.
const WORDS_MAX: usize = 25;

/// Files that are not checked, with the reason.
const EXEMPT: &[(&str, &str)] = &[("crates/xtask/src/tidy/prose.rs", "it names the phrases")];

/// Phrases that are not plain English, each with advice.
const BANNED: &[(&str, &str)] = &[
    ("can not", "write `cannot`"),
    ("for ever", "write `forever`"),
    ("anew", "write `again`"),
    ("any more", "write `no longer`"),
    ("any longer", "write `no longer`"),
    ("all the same", "write `anyway`"),
    ("is none", "write `is not` or `does not exist`"),
    ("by then", "name the time"),
    ("so many", "name the number"),
    ("so long", "name the duration"),
    ("that much", "name the amount"),
    ("is told", ACTIVE),
    ("are told", ACTIVE),
    ("was told", ACTIVE),
    ("were told", ACTIVE),
    ("be told", ACTIVE),
    ("been told", ACTIVE),
    ("is said", ACTIVE),
    ("are said", ACTIVE),
    ("was said", ACTIVE),
    ("be said", ACTIVE),
    ("been said", ACTIVE),
    ("is looked at", ACTIVE),
    ("are looked at", ACTIVE),
    ("is taken for", ACTIVE),
    ("are taken for", ACTIVE),
    ("is passed over", ACTIVE),
    ("are passed over", ACTIVE),
];
const ACTIVE: &str = "use the active voice with a named actor";

/// First words of doc comments that have no subject.
const HEADLESS: &[&str] = &["What", "Who", "Of", "That which"];

/// The violations of one file, each with its line.
#[derive(Debug, Default)]
struct Violations {
    sentences: Vec<String>,
    phrases: Vec<String>,
}

/// Returns a complaint for each violation.
pub(super) fn complaints(files: &[Source]) -> Vec<String> {
    let of_file = |file: &Source| {
        let Violations { sentences, phrases } = violations(file);
        let path = file.path.clone();
        sentences.into_iter().chain(phrases).map(move |violation| format!("{path}: {violation}"))
    };
    files.iter().flat_map(of_file).collect()
}

fn violations(file: &Source) -> Violations {
    let mut violations = Violations::default();
    if EXEMPT.iter().any(|(path, _)| *path == file.path) {
        return violations;
    }
    let is_document = file.path == "README.md" || file.path.starts_with("docs/");
    let texts = match file.path.rsplit('.').next() {
        Some("md") => markdown(&file.text),
        Some("rs" | "proto") => code(&file.text),
        _ => Vec::new(),
    };
    for text in &texts {
        if text.kind == Kind::Markdown && is_document {
            violations.sentences.extend(text.long_sentences());
        }
        violations.phrases.extend(text.banned_phrases());
    }
    violations
}

/// The kinds of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A paragraph, list item, heading or table cell.
    Markdown,
    /// A doc comment of Rust.
    Doc,
    /// Another comment.
    Comment,
    /// A string literal.
    Literal,
    /// A function name.
    Name,
}

/// A text without line breaks.
#[derive(Debug, PartialEq, Eq)]
struct Text {
    kind: Kind,
    /// The words, each with its line number.
    words: Vec<(usize, String)>,
}

impl Text {
    fn new(kind: Kind) -> Self {
        Self { kind, words: Vec::new() }
    }

    fn push(&mut self, line: usize, text: &str) {
        self.words.extend(text.split_whitespace().map(|word| (line, word.to_owned())));
    }

    fn long_sentences(&self) -> Vec<String> {
        let sentences = self.words.split_inclusive(|(_, word)| word.ends_with(['.', '!', '?']));
        let long = sentences.filter(|sentence| sentence.len() > WORDS_MAX);
        long.map(|sentence| {
            let start: Vec<_> = sentence.iter().take(6).map(|(_, word)| word.as_str()).collect();
            format!("line {}: {} words: {} …", sentence[0].0, sentence.len(), start.join(" "))
        })
        .collect()
    }

    fn banned_phrases(&self) -> Vec<String> {
        let text = self.words.iter().map(|(_, word)| word.as_str()).collect::<Vec<_>>().join(" ");
        let opening = HEADLESS.iter().filter(|_| self.kind == Kind::Doc).find(|opening| {
            text.strip_prefix(**opening)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        let opening = opening.map(|opening| {
            (0, format!("{opening:?} opens a doc comment: start with a noun or a verb"))
        });
        let text = text.to_lowercase();
        let banned = BANNED.iter().flat_map(|(phrase, advice)| {
            let is_bounded = |at: &usize| {
                let (before, after) = (&text[..*at], &text[at + phrase.len()..]);
                !before.ends_with(char::is_alphanumeric)
                    && !after.starts_with(char::is_alphanumeric)
            };
            let found = text.match_indices(phrase).map(|(at, _)| at).filter(is_bounded);
            let indices = found.map(|at| text[..at].matches(' ').count()).collect::<Vec<_>>();
            indices.into_iter().map(move |index| (index, format!("{phrase:?}: {advice}")))
        });
        let mut found: Vec<(usize, String)> = opening.into_iter().chain(banned).collect();
        found.sort();
        found
            .into_iter()
            .map(|(index, problem)| format!("line {}: {problem}", self.words[index].0))
            .collect()
    }
}

/// Returns the texts of a Markdown file without its code blocks and link targets.
fn markdown(source: &str) -> Vec<Text> {
    let mut texts = vec![Text::new(Kind::Markdown)];
    let mut is_code = false;
    for (number, line) in (1..).zip(source.lines()) {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        if line.is_empty() || starts_block(line) {
            texts.push(Text::new(Kind::Markdown));
        }
        let line = without_targets(line);
        if line.starts_with('|') {
            for cell in line.split('|').filter(|cell| !is_list_of_ids(cell)) {
                let mut text = Text::new(Kind::Markdown);
                text.push(number, cell);
                texts.push(text);
            }
            texts.push(Text::new(Kind::Markdown));
        } else if let Some(text) = texts.last_mut() {
            text.push(number, &line);
        }
    }
    texts
}

/// Returns whether a table cell lists requirement IDs alone, like `ADS-03, CLI-E-16`.
fn is_list_of_ids(cell: &str) -> bool {
    cell.split_whitespace().all(|id| {
        let number = id.trim_end_matches(',').rsplit_once('-').map(|(_, number)| number);
        number.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Returns whether a line starts a list item, a heading or a table row.
fn starts_block(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['#', '|'])
        || line.starts_with("- ")
        || line.starts_with("* ")
        || (number.len() < line.len() && number.starts_with(". "))
}

/// Removes the targets of links: `[text](target)` becomes `[text]`.
fn without_targets(line: &str) -> String {
    let mut pieces = line.split("](");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| {
        let rest = piece.split_once(')').map_or("", |(_, rest)| rest);
        format!("{text}]{rest}")
    })
}

/// Returns the comments, string literals and function names of Rust or proto source.
fn code(source: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    // The marker and last line of the comment that the next line may continue.
    let mut comment: Option<(&str, usize)> = None;
    let mut is_function = false;
    let (mut rest, mut line) = (source, 1);
    while let Some(c) = rest.chars().next() {
        let len = token_len(rest, c);
        let (token, tail) = rest.split_at(len);
        if let Some((marker, text)) = comment_text(token) {
            if comment != Some((marker, line - 1)) || texts.is_empty() {
                let kind = if marker == "//" { Kind::Comment } else { Kind::Doc };
                texts.push(Text::new(kind));
            }
            if let Some(last) = texts.last_mut() {
                last.push(line, text);
            }
            comment = Some((marker, line));
        } else if !c.is_whitespace() {
            comment = None;
            if token.len() > 1 && token.ends_with(['"', '#']) {
                texts.push(literal(token, line));
            } else if is_function && token != "(" {
                let mut text = Text::new(Kind::Name);
                text.push(line, &token.replace('_', " "));
                texts.push(text);
            }
            is_function = token == "fn";
        }
        line += token.matches('\n').count();
        rest = tail;
    }
    texts
}

/// Splits a comment line into its marker and its text.
fn comment_text(token: &str) -> Option<(&'static str, &str)> {
    ["///", "//!", "//"].into_iter().find_map(|marker| Some((marker, token.strip_prefix(marker)?)))
}

fn literal(token: &str, line: usize) -> Text {
    let mut text = Text::new(Kind::Literal);
    let content = token.replace("\\n", "  ").replace("\\\"", "\" ");
    for (number, part) in (line..).zip(content.split('\n')) {
        text.push(number, part.trim_end_matches('\\').trim_matches('"'));
    }
    text
}

/// Returns the length of the token at the start of `rest`, whose first character is `c`.
fn token_len(rest: &str, c: char) -> usize {
    let end_of = |end: &str, from: usize| {
        rest.get(from..).and_then(|tail| tail.find(end)).map_or(rest.len(), |at| from + at)
    };
    match c {
        '/' if rest.starts_with("//") => end_of("\n", 2),
        '/' if rest.starts_with("/*") => (end_of("*/", 2) + 2).min(rest.len()),
        '"' => {
            let mut is_escaped = false;
            let end = rest.char_indices().skip(1).find(|(_, c)| {
                let is_end = *c == '"' && !is_escaped;
                is_escaped = *c == '\\' && !is_escaped;
                is_end
            });
            end.map_or(rest.len(), |(at, _)| at + 1)
        }
        // A character literal, or the apostrophe of a lifetime.
        '\'' => match rest[1..].chars().next() {
            Some('\\') => (end_of("'", 3) + 1).min(rest.len()),
            Some(c) if rest[1 + c.len_utf8()..].starts_with('\'') => 2 + c.len_utf8(),
            _ => 1,
        },
        _ if c.is_alphanumeric() || c == '_' => {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let hashes = rest[len..].len() - rest[len..].trim_start_matches('#').len();
            if ["r", "br"].contains(&&rest[..len]) && rest[len + hashes..].starts_with('"') {
                let end = format!("\"{}", "#".repeat(hashes));
                (end_of(&end, len + hashes + 1) + end.len()).min(rest.len())
            } else {
                len
            }
        }
        _ => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn counts(path: &str, text: &str) -> (usize, usize) {
        let found = violations(&source(path, text));
        (found.sentences.len(), found.phrases.len())
    }

    fn words(n: usize) -> String {
        vec!["word"; n].join(" ")
    }

    #[test]
    fn sentence_over_the_maximum_is_found_in_documents_only() {
        let long = format!("Short one. {}\nlast.\n", words(WORDS_MAX));
        assert_eq!(counts("docs/a.md", &long), (1, 0));
        assert_eq!(counts("README.md", &long), (1, 0));
        assert_eq!(counts("benches/README.md", &long), (0, 0));
        let found = violations(&source("docs/a.md", &long)).sentences;
        assert_eq!(found, ["line 1: 26 words: word word word word word word …"]);
        assert_eq!(counts("docs/a.md", &format!("{}.\n", words(WORDS_MAX))), (0, 0));
    }

    #[test]
    fn sentence_ends_at_blocks_cells_and_link_targets() {
        let half = words(20);
        for text in [
            format!("{half}\n\n{half}"),
            format!("- {half}\n- {half}"),
            format!("1. {half}\n2. {half}"),
            format!("# {half}\n{half}", half = words(10)),
            format!("| {half} | {half} |\n|---|---|\n| {half} | |"),
            format!("{half} [a](b c d e f g h i)."),
            format!("```text\n{half} {half}\n```\n"),
        ] {
            assert_eq!(counts("docs/a.md", &text), (0, 0), "{text}");
        }
        assert_eq!(counts("docs/a.md", &format!("| {half} {half} |")), (1, 0));
        let ids = "ADS-03, CLI-E-16, ".repeat(20);
        assert_eq!(counts("docs/a.md", &format!("| {ids} |")), (0, 0));
        assert_eq!(counts("docs/a.md", &format!("| {ids} and more |")), (1, 0));
    }

    #[test]
    fn banned_phrase_is_found_across_lines_and_at_word_boundaries() {
        assert_eq!(counts("a.md", "It can\nnot, and is told. Can not!\n"), (0, 3));
        assert_eq!(counts("a.md", "cannot; we can. Not so. Many banew. manymore\n"), (0, 0));
        assert_eq!(counts("a.proto", "// It is told\n// for ever.\nmessage A {}\n"), (0, 2));
        let found = violations(&source("a.md", "x\ny can not z")).phrases;
        assert_eq!(found, ["line 2: \"can not\": write `cannot`"]);
    }

    #[test]
    fn banned_phrase_is_found_in_comments_literals_and_names_of_code() {
        let rust = "//! It can\n//! not.\nfn it_can_not_be() {\n    let s = \"is \\\n        told\"; // anew\n}\n";
        assert_eq!(counts("a.rs", rust), (0, 4));
        let raw = "let a = r#\"say \"can not\" \"#; let b = '\"'; let c: &'a str = x; // anew\n";
        assert_eq!(counts("a.rs", raw), (0, 2));
        assert_eq!(counts("a.rs", "let anew = can(not); // can\n\n// not\n"), (0, 0));
        assert_eq!(counts("a.rs", "let a = \"\\\"\"; let anew = \"\";"), (0, 0));
    }

    #[test]
    fn headless_doc_comment_is_found() {
        assert_eq!(counts("a.rs", "/// What it does.\nfn a() {}\n"), (0, 1));
        assert_eq!(counts("a.rs", "//! Whatever.\n\n// What a comment.\n"), (0, 0));
        assert_eq!(counts("a.rs", "/// That which is.\n/// Of all.\nstruct A;\n"), (0, 1));
    }

    #[test]
    fn each_violation_is_reported_with_its_place() {
        let files = [source("a.md", "x\nanew"), source("docs/b.md", &words(WORDS_MAX + 1))];
        let found = complaints(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], "a.md: line 2: \"anew\": write `again`");
        assert!(found[1].starts_with("docs/b.md: line 1: 26 words: "), "{found:?}");
    }
}
