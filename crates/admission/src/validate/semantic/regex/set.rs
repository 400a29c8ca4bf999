//! The characters of a set, and the size that RE2 compiles them to.

use std::ops::RangeInclusive;

/// The last character of Latin-1. Envoy's expressions match bytes.
const LAST: u32 = 0xff;
/// The characters of the classes of Perl and POSIX that RE2 knows.
const DIGIT: &[(u8, u8)] = &[(b'0', b'9')];
const SPACE: &[(u8, u8)] = &[(b'\t', b'\n'), (0xc, b'\r'), (b' ', b' ')];
const WORD: &[(u8, u8)] = &[(b'0', b'9'), (b'A', b'Z'), (b'_', b'_'), (b'a', b'z')];
const ALPHA: &[(u8, u8)] = &[(b'A', b'Z'), (b'a', b'z')];
const CLASSES: [(&str, &[(u8, u8)]); 14] = [
    ("alnum", &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')]),
    ("alpha", ALPHA),
    ("ascii", &[(0, 0x7f)]),
    ("blank", &[(b'\t', b'\t'), (b' ', b' ')]),
    ("cntrl", &[(0, 0x1f), (0x7f, 0x7f)]),
    ("digit", DIGIT),
    ("graph", &[(b'!', b'~')]),
    ("lower", &[(b'a', b'z')]),
    ("print", &[(b' ', b'~')]),
    ("punct", &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')]),
    ("space", &[(b'\t', b'\r'), (b' ', b' ')]),
    ("upper", &[(b'A', b'Z')]),
    ("word", WORD),
    ("xdigit", &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')]),
];

/// The number of instructions for all characters of UTF-8 beyond ASCII.
pub(super) const BEYOND_ASCII: u32 = 6;
/// The last character of ASCII.
const LAST_ASCII: u32 = 0x7f;
/// The minimum number of instructions of a Unicode category in UTF-8, which is that of its ranges. Of two ranges, at
/// most one shares its last instruction with others.
const CATEGORIES: [(&str, u32); 17] = [
    ("C", 700),
    ("L", 650),
    ("Ll", 650),
    ("Lm", 140),
    ("Lo", 500),
    ("Lu", 640),
    ("M", 310),
    ("Mc", 180),
    ("Mn", 340),
    ("N", 137),
    ("Nd", 128),
    ("No", 140),
    ("P", 190),
    ("Po", 180),
    ("S", 230),
    ("Sm", 128),
    ("So", 180),
];

/// A set of characters: a bit for each character of Latin-1.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Set {
    latin1: [u128; 2],
    /// The minimum number of instructions for the characters beyond ASCII in UTF-8.
    beyond: u32,
}

impl Set {
    /// Returns the set of one character.
    pub(super) fn of(c: char) -> Self {
        let mut set = Self::default();
        set.add(c..=c);
        set
    }

    /// Returns a class such as `\p{L}`. Which characters of Latin-1 it has is not known.
    pub(super) fn of_unicode_class(name: &str) -> Self {
        let known = CATEGORIES.iter().find(|(category, _)| *category == name);
        Self { beyond: known.map_or(1, |(_, size)| *size), ..Self::default() }
    }

    /// Returns a class such as `\d`; `None` for another letter.
    pub(super) fn of_perl_class(letter: char) -> Option<Self> {
        let ranges = match letter.to_ascii_lowercase() {
            'd' => DIGIT,
            's' => SPACE,
            'w' => WORD,
            _ => return None,
        };
        let set = Self::of_ranges(ranges);
        Some(if letter.is_ascii_uppercase() { set.negated() } else { set })
    }

    /// Returns a class such as `[:alpha:]` by its name; `None` for an unknown name.
    pub(super) fn of_posix_class(name: &str) -> Option<Self> {
        let known = name.strip_prefix('^');
        let (_, ranges) = CLASSES.iter().find(|(class, _)| *class == known.unwrap_or(name))?;
        let set = Self::of_ranges(ranges);
        Some(if known.is_some() { set.negated() } else { set })
    }

    fn of_ranges(ranges: &[(u8, u8)]) -> Self {
        let mut set = Self::default();
        ranges.iter().for_each(|(low, high)| set.add(char::from(*low)..=char::from(*high)));
        set
    }

    /// Adds a range. Characters outside of Latin-1 never match.
    pub(super) fn add(&mut self, range: RangeInclusive<char>) {
        let last = u32::from(*range.end()).min(LAST);
        for code in u32::from(*range.start())..=last {
            self.latin1[code as usize / 128] |= 1 << (code % 128);
        }
    }

    pub(super) fn add_all(&mut self, other: Self) {
        self.latin1.iter_mut().zip(other.latin1).for_each(|(bits, other)| *bits |= other);
        self.beyond = self.beyond.max(other.beyond);
    }

    pub(super) fn negated(self) -> Self {
        let beyond = match self.beyond {
            0 => BEYOND_ASCII,
            BEYOND_ASCII => 0,
            other => other,
        };
        Self { latin1: self.latin1.map(|bits| !bits), beyond }
    }

    fn has(self, code: u32) -> bool {
        code <= LAST && self.latin1[code as usize / 128] & (1 << (code % 128)) != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.latin1 == [0, 0]
    }

    /// Returns the minimum number of instructions for the characters beyond ASCII in UTF-8.
    pub(super) fn beyond(self) -> u32 {
        self.beyond
    }

    /// Returns the minimum number of instructions for characters of UTF-8.
    pub(super) fn utf8_size(self) -> u32 {
        self.ranges(LAST_ASCII).saturating_add(self.beyond).max(1)
    }

    /// Returns the number of instructions: one for each range. RE2 leaves out the capital letters if the set has
    /// the same small ones. The size of an empty set is 1 too.
    pub(super) fn size(self) -> u32 {
        self.ranges(LAST).max(1)
    }

    /// Returns the number of instructions for the characters up to one.
    fn ranges(self, last: u32) -> u32 {
        let (capital, small) =
            (u32::from(b'A')..=u32::from(b'Z'), u32::from(b'a') - u32::from(b'A'));
        let folds = capital.clone().all(|code| self.has(code) == self.has(code + small));
        let (mut n, mut first) = (0, 0);
        for code in 0..=last {
            if !self.has(code) {
                first = code + 1;
            } else if code == last || !self.has(code + 1) {
                let is_capital = capital.contains(&first) && capital.contains(&code);
                n += u32::from(!(folds && is_capital));
            }
        }
        n
    }
}
