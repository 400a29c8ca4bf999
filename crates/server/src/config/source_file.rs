//! A configuration file with the lines of its keys.

use std::{collections::BTreeMap, ops::Range};

use toml::{
    Table,
    de::{DeTable, DeValue},
};

/// The maximum number of syntax errors that are reported.
const SYNTAX_ERRORS_MAX: usize = 20;

/// The values of a file, and where its sections and keys are.
pub(super) struct SourceFile {
    pub(super) table: Table,
    /// The lines of sections, and of keys in sections.
    lines: BTreeMap<(String, Option<String>), usize>,
}

impl SourceFile {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns the line and the message of each syntax error, at most one per line.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<(usize, String)>> {
        let (document, errors) = DeTable::parse_recoverable(text);
        let mut by_line = BTreeMap::new();
        for error in errors {
            by_line.entry(line_of(text, error.span())).or_insert_with(|| message(&error));
        }
        if !by_line.is_empty() {
            return Err(by_line.into_iter().take(SYNTAX_ERRORS_MAX).collect());
        }
        let table = text.parse().map_err(|error: toml::de::Error| {
            vec![(line_of(text, error.span()), message(&error))]
        })?;
        let mut lines = BTreeMap::new();
        for (section, value) in document.get_ref() {
            let name = section.get_ref().to_string();
            lines.insert((name.clone(), None), line_of(text, Some(section.span())));
            let DeValue::Table(keys) = value.get_ref() else { continue };
            for key in keys.keys() {
                let line = line_of(text, Some(key.span()));
                lines.insert((name.clone(), Some(key.get_ref().to_string())), line);
            }
        }
        Ok(Self { table, lines })
    }

    /// Returns the line of a section, or of a key in it.
    pub(super) fn line(&self, section: &str, key: Option<&str>) -> Option<usize> {
        self.lines.get(&(section.to_owned(), key.map(str::to_owned))).copied()
    }
}

fn message(error: &toml::de::Error) -> String {
    error.message().replace('\n', "; ")
}

fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let at = span.map_or(0, |span| span.start.min(text.len()));
    1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
}
