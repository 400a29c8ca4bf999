//! A configuration file with the lines of its keys.

use std::{collections::BTreeMap, ops::Range};

use toml::{
    Table,
    de::{DeTable, DeValue, Error},
};

/// The values of a file, and where its sections and keys are.
pub(crate) struct SourceFile {
    pub(crate) table: Table,
    /// The lines of sections, and of keys in sections.
    lines: BTreeMap<(String, Option<String>), usize>,
}

impl SourceFile {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns the syntax errors by line, at most one per line.
    pub(crate) fn parse(text: &str) -> Result<Self, BTreeMap<usize, Error>> {
        let starts = Lines::of(text);
        let (document, errors) = DeTable::parse_recoverable(text);
        let mut by_line = BTreeMap::new();
        for error in errors {
            by_line.entry(starts.at(error.span())).or_insert(error);
        }
        if !by_line.is_empty() {
            return Err(by_line);
        }
        let table = text
            .parse()
            .map_err(|error: Error| BTreeMap::from([(starts.at(error.span()), error)]))?;
        let mut lines = BTreeMap::new();
        for (section, value) in document.get_ref() {
            let name = section.get_ref().to_string();
            lines.insert((name.clone(), None), starts.at(Some(section.span())));
            let DeValue::Table(keys) = value.get_ref() else { continue };
            for key in keys.keys() {
                let line = starts.at(Some(key.span()));
                lines.insert((name.clone(), Some(key.get_ref().to_string())), line);
            }
        }
        Ok(Self { table, lines })
    }

    /// Returns the line of a section, or of a key in it.
    pub(crate) fn line(&self, section: &str, key: Option<&str>) -> Option<usize> {
        self.lines.get(&(section.to_owned(), key.map(str::to_owned))).copied()
    }
}

/// The offsets at which the lines of a text begin, except the first line.
///
/// A search from the start of the text for each key takes quadratic time.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    /// Returns the line, counted from 1, at which a part of the text begins.
    fn at(&self, span: Option<Range<usize>>) -> usize {
        let at = span.map_or(0, |span| span.start);
        1 + self.0.partition_point(|start| *start <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_an_offset_is_counted_from_1() {
        let lines = Lines::of("a\n\nbc\n");
        let found: Vec<_> = (0..8).map(|at| lines.at(Some(at..at))).collect();
        assert_eq!(found, [1, 1, 2, 3, 3, 3, 4, 4]);
        assert_eq!(lines.at(None), 1);
    }
}
