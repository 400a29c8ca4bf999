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

/// A set of characters: a bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Set([u128; 2]);

impl Set {
    /// Returns the set of one character.
    pub(super) fn of(c: char) -> Self {
        let mut set = Self::default();
        set.add(c..=c);
        set
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
            self.0[code as usize / 128] |= 1 << (code % 128);
        }
    }

    pub(super) fn add_all(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(bits, other)| *bits |= other);
    }

    pub(super) fn negated(self) -> Self {
        Self(self.0.map(|bits| !bits))
    }

    fn has(self, code: u32) -> bool {
        code <= LAST && self.0[code as usize / 128] & (1 << (code % 128)) != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the number of instructions: one for each range. RE2 leaves out the capital letters if the set has
    /// the same small ones. The size of an empty set is 1 too.
    pub(super) fn size(self) -> u32 {
        let (capital, small) =
            (u32::from(b'A')..=u32::from(b'Z'), u32::from(b'a') - u32::from(b'A'));
        let folds = capital.clone().all(|code| self.has(code) == self.has(code + small));
        let (mut n, mut first) = (0, 0);
        for code in 0..=LAST {
            if !self.has(code) {
                first = code + 1;
            } else if !self.has(code + 1) {
                let is_capital = capital.contains(&first) && capital.contains(&code);
                n += u32::from(!(folds && is_capital));
            }
        }
        n.max(1)
    }
}
