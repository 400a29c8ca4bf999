//! Names and versions of resources, each kept once for all clients.

use std::collections::HashMap;

/// Numbers for texts, in the order of their first use.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Box<[u8]>, u32>,
    texts: Vec<Box<[u8]>>,
}

impl Names {
    /// Returns the number of a text.
    pub(crate) fn number(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.into(), number);
        self.texts.push(text.into());
        number
    }

    /// Returns the text of a number.
    pub(crate) fn text(&self, number: u32) -> String {
        let text = usize::try_from(number).ok().and_then(|number| self.texts.get(number));
        text.map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_one_number() {
        let mut names = Names::default();
        assert_eq!((names.number(b"a"), names.number(b"b"), names.number(b"a")), (0, 1, 0));
        assert_eq!((names.text(1).as_str(), names.text(9).as_str()), ("b", ""));
    }
}
