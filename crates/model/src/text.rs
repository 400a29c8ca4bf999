//! Text from outside in a line for people.

use std::fmt::{self, Write as _};

/// Returns whether a terminal or a log viewer acts on the character, or shows nothing for it.
///
/// These are control characters, separators of lines and paragraphs, and what Unicode 16 calls a format character (Cf)
/// or default-ignorable. Examples are bidirectional controls, zero-width characters, fillers and tags.
#[must_use]
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Text of a client or an author in a log or on a terminal: unprintable characters are escaped as in Rust
/// (`\n`, `\u{202e}`), so the text stays one line and cannot steer what shows it.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_unprintable(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_separators_and_invisible_characters_are_escaped() {
        let controls = "\n\r\t\u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}\u{202e}\u{2066}";
        let invisible =
            "\u{200b}\u{200f}\u{feff}\u{34f}\u{115f}\u{3164}\u{ffa0}\u{fe0f}\u{e0041}\u{600}";
        for c in controls.chars().chain(invisible.chars()) {
            let text = format!("a{c}b");
            assert_eq!(Printable(&text).to_string(), format!("a{}b", c.escape_default()));
        }
        let plain = "a é ß 中 한 🦀 - \\ \"";
        assert_eq!(Printable(plain).to_string(), plain);
    }
}
