//! Tables with aligned columns.

use std::io::{self, Write};

use super::text::plain;

/// Rows of cells under headings. Each column is as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with headings.
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row. An empty cell is shown as `-`.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.map(|cell| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                // Names are foreign text and must not control the terminal.
                plain(&cell)
            }
        });
        self.rows.push(cells.to_vec());
    }

    /// Returns whether the table has no rows below the headings.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Writes the table, with `indent` before each line.
    pub(crate) fn write(&self, out: &mut dyn Write, indent: &str) -> io::Result<()> {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                let missing = width - cell.chars().count();
                line.extend(std::iter::repeat_n(' ', missing + 2));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", "N"]);
        table.row(["a".into(), "1".into()]);
        table.row(["longer\u{1b}[31m".into(), String::new()]);
        let mut out = Vec::new();
        table.write(&mut out, "  ").unwrap();
        let expected = "  NAME              N\n  a                 1\n  longer\\u{1b}[31m  -\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
