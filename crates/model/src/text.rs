//! Characters that a line of text for people does not show.

/// Whether a terminal or a log viewer acts on the character, or shows nothing for it: control characters,
/// line and paragraph separators, bidirectional controls, zero-width and tag characters.
#[must_use]
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_separators_and_bidi_marks_are_unprintable() {
        for c in
            "\n\u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}\u{200f}\u{feff}"
                .chars()
        {
            assert!(is_unprintable(c), "{c:?}");
        }
        for c in "a é ß 中 🦀 -".chars() {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }
}
