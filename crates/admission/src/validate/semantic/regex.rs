//! The syntax of RE2, the library that Envoy compiles regular expressions with.
//!
//! The checker follows the parser of RE2. The `regex` crate has another syntax: it accepts nested sets and
//! operators on sets, flags such as `x`, `\u{…}`, and two repetitions in a row,
//! which RE2 rejects or reads in another way. It rejects `\C`, `\Q…\E`, octal escapes and a literal `{`, which RE2 accepts.

use crate::{
    clients::{Clients, ENVOY, NONE},
    validate::{findings::Findings, tree::Message},
};

mod set;

use set::{BEYOND_ASCII, Set};

/// The maximum number of repetitions.
const REPEAT_MAX: u32 = 1000;
/// The maximum size of a compiled expression, by the default of `re2.max_program_size.error_level`.
const SIZE_MAX: u32 = 100;
/// The size of the empty expression, and of one that begins with `^`.
const SIZE_OF_EMPTY: u32 = 4;
const SIZE_OF_ANCHORED: u32 = 2;
/// The maximum length of the part of an expression that a message repeats, in letters.
const SHOWN_MAX: usize = 20;
/// The last character of Latin-1, the encoding of Envoy's expressions.
const LATIN1_MAX: u32 = 0xff;
/// The maximum nesting of groups.
const DEPTH_MAX: usize = 1000;

/// Ignoring the case is a part of a regular expression.
pub(super) fn text_matcher<'m>(matcher: &'m Message<'_>, findings: &mut Findings<'m>) {
    if matcher.bits("ignore_case") != 0 && matcher.has("safe_regex") {
        findings.field("ignore_case", |findings| {
            let rule = "cannot be combined with safe_regex";
            findings.refuse_with_fix(
                "regex.ignore_case",
                rule,
                "write (?i) at the start of the expression",
            );
        });
    }
}

/// A regular expression is valid for RE2.
pub(super) fn matcher<'m>(matcher: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Err((clients, rule)) = check(matcher.text("regex")) {
        findings.only(clients, |findings| {
            findings.field("regex", |findings| findings.refuse("regex.syntax", rule));
        });
    }
}

/// The versions of Envoy whose expressions match characters of UTF-8. Those of later versions match bytes.
const WITH_UTF8: Clients = ENVOY.until(39);

/// Checks an expression. Returns the versions of Envoy that reject it, and why.
fn check(pattern: &str) -> Result<(), (Clients, String)> {
    let size = size(pattern).map_err(|rule| (ENVOY, rule))?;
    let is_large = size.bytes > SIZE_MAX;
    let clients = (ENVOY - WITH_UTF8).when(is_large) | WITH_UTF8.when(size.utf8 > SIZE_MAX);
    if clients == NONE {
        return Ok(());
    }
    let size = if is_large { size.bytes } else { size.utf8 };
    let rule = format!(
        "the compiled expression has a size of at least {size}, but Envoy accepts at most {SIZE_MAX} (re2.max_program_size.error_level)"
    );
    Err((clients, rule))
}

/// Checks the syntax of an expression of any size.
pub(in crate::validate) fn syntax(pattern: &str) -> Result<(), String> {
    size(pattern).map(drop)
}

/// The minimum sizes of a compiled expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// The size of an expression that matches bytes.
    bytes: u32,
    /// The size of an expression that matches characters of UTF-8.
    utf8: u32,
}

/// Returns the minimum sizes of the compiled expression.
fn size(pattern: &str) -> Result<Sizes, String> {
    let mut parser = Parser { rest: pattern, ..Parser::default() };
    parser.alternatives()
}

#[derive(Default)]
struct Parser<'a> {
    rest: &'a str,
    /// Some flag `s` precedes, with which `.` may match line ends.
    has_dot_all: bool,
    /// Some flag `i` precedes, which ignores the case.
    has_fold: bool,
    /// Some set may have no character.
    may_have_no_match: bool,
    may_have_no_match_in_utf8: bool,
    /// No `:]` follows.
    has_no_class_end: bool,
}

/// An escape sequence, or an item of a set.
enum Escape {
    Char(char),
    Set(Set),
    /// Something else, with its size.
    Other(u32),
}

/// Returns the number of letters at the start of an expression that RE2 does not compile, because it compares
/// them first. It is 0 or more after `^`, and `None` without it. Groups and flags in between do not count.
fn prefix_len(pattern: &str) -> Option<u32> {
    let (mut rest, mut n, mut is_anchored) = (pattern, 0, false);
    while let Some(c) = rest.chars().next() {
        let escaped = rest.strip_prefix('\\').and_then(|rest| rest.chars().next());
        if let Some(after) = flags(rest) {
            rest = after;
        } else if let Some(after) = rest.strip_prefix('^').or(rest.strip_prefix("\\A")) {
            is_anchored |= n == 0;
            rest = after;
        } else if escaped == Some('Q') {
            n = u32::MAX;
            break;
        } else if let Some(escaped) = escaped.filter(|c| !"dDsSwWpPbBCz".contains(*c)) {
            n += 1;
            rest = &rest[1 + escaped.len_utf8()..];
        } else if !"\\.[(|*+?$".contains(c) {
            n += u32::from(c != ')');
            rest = &rest[c.len_utf8()..];
        } else {
            break;
        }
    }
    is_anchored.then_some(n)
}

/// Returns what follows `(?i)`, `(?:` or `(?i:`.
fn flags(pattern: &str) -> Option<&str> {
    let rest = pattern.strip_prefix("(?")?;
    let is_flag = |c: char| matches!(c, 'i' | 'm' | 's' | 'U' | '-');
    rest.trim_start_matches(is_flag).strip_prefix([':', ')'])
}

/// A group that is open, or the whole expression.
#[derive(Default)]
struct Group {
    last: Item,
    /// The number of copies that the repetitions make of the last item, and the maximum in the group.
    copies: u32,
    copies_max: u32,
    /// The sizes of the last item and of the alternative so far. Each is at most the size that RE2 computes.
    last_size: Size,
    size: Size,
    /// The size of the longest of the earlier alternatives, if there is one.
    size_max: Option<Size>,
}

/// The minimum size of a part of an expression.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// The size with all ranges of its sets.
    ranges: u32,
    /// The size with one range for each set. RE2 may join the sets of alternatives.
    items: u32,
    /// Both sizes for characters of UTF-8.
    utf8_ranges: u32,
    utf8_items: u32,
}

impl Size {
    fn of(n: u32) -> Self {
        Self { ranges: n, items: n, utf8_ranges: n, utf8_items: n }
    }

    fn of_set(set: Set) -> Self {
        let (utf8_ranges, utf8_items) = (set.utf8_size(), set.beyond().max(1));
        Self { ranges: set.size(), items: 1, utf8_ranges, utf8_items }
    }

    /// Returns the size of any character.
    fn of_any() -> Self {
        let utf8 = BEYOND_ASCII + 1;
        Self { ranges: 1, items: 1, utf8_ranges: utf8, utf8_items: utf8 }
    }

    fn zip(self, other: Self, change: impl Fn(u32, u32) -> u32) -> Self {
        Self {
            ranges: change(self.ranges, other.ranges),
            items: change(self.items, other.items),
            utf8_ranges: change(self.utf8_ranges, other.utf8_ranges),
            utf8_items: change(self.utf8_items, other.utf8_items),
        }
    }

    fn map(self, change: impl Fn(u32) -> u32) -> Self {
        self.zip(self, |size, _| change(size))
    }

    /// Returns the size in an alternative, whose sets may be joined with others.
    fn joined(self) -> Self {
        let Self { items, utf8_items, .. } = self;
        Self { ranges: items, items, utf8_ranges: utf8_items, utf8_items }
    }
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn alternatives(&mut self) -> Result<Sizes, String> {
        // The groups around the innermost one, which is `group`.
        let mut outer: Vec<Group> = Vec::new();
        let mut group = Group::default();
        let (empty, n_prefix) = match prefix_len(self.rest) {
            Some(n_prefix) => (SIZE_OF_ANCHORED, n_prefix),
            None => (SIZE_OF_EMPTY, 0),
        };
        while let Some(c) = self.next() {
            match c {
                '(' if outer.len() >= DEPTH_MAX => {
                    return Err("the groups are nested too deeply".to_owned());
                }
                '(' => match self.group()? {
                    Opened::Group => outer.push(std::mem::take(&mut group)),
                    // A repetition after the flags concerns the item before them.
                    Opened::Flags if group.last == Item::Repeated => group.last = Item::Single,
                    Opened::Flags => {}
                },
                ')' => {
                    let (copies, size) = (group.copies_max, group.longest());
                    group = outer.pop().ok_or("a `)` has no `(`")?;
                    group.put(copies, size);
                }
                '|' => {
                    group.size_max = Some(group.longest().joined());
                    (group.last, group.size) = (Item::None, Size::default());
                }
                // RE2 joins `a*a` to `a+`.
                '*' => self.repeat(&mut group, "*", 0)?,
                '+' | '?' => self.repeat(&mut group, &c.to_string(), 1)?,
                '{' => match self.counts()? {
                    Some((operator, n)) => self.repeat(&mut group, &operator, n)?,
                    // An incomplete repetition is literal.
                    None => group.put(1, Size::of(1)),
                },
                '[' => {
                    let set = self.set()?;
                    group.put(1, Size::of_set(set));
                }
                '\\' => {
                    let size = match self.escape(false)? {
                        Escape::Char(_) => Size::of(1),
                        Escape::Set(set) => Size::of_set(set),
                        Escape::Other(size) => Size::of(size),
                    };
                    group.put(1, size);
                }
                '.' if !self.has_dot_all => group.put(1, Size::of_set(Set::of('\n').negated())),
                '.' => group.put(1, Size::of_any()),
                // Positions need no instruction at both ends of an expression.
                '^' | '$' => group.put(1, Size::of(0)),
                _ => group.put(1, Size::of(1)),
            }
        }
        // The other case of letters can join ranges.
        let longest = group.longest();
        let size = if self.has_fold { longest.joined() } else { longest };
        // RE2 compiles no expression without a match. `\p{Greek}` has no character of Latin-1.
        let bytes = if self.may_have_no_match { 0 } else { size.ranges };
        let utf8 = if self.may_have_no_match_in_utf8 { 0 } else { size.utf8_ranges };
        let [bytes, utf8] =
            [bytes, utf8].map(|size| size.saturating_sub(n_prefix).saturating_add(empty));
        if outer.is_empty() {
            Ok(Sizes { bytes, utf8 })
        } else {
            Err("a `(` has no `)`".to_owned())
        }
    }

    fn repeat(&mut self, group: &mut Group, operator: &str, n: u32) -> Result<(), String> {
        match group.last {
            Item::None => return Err(format!("nothing precedes the repetition `{operator}`")),
            Item::Repeated => {
                return Err(format!("the repetition `{operator}` follows another one"));
            }
            Item::Single => {}
        }
        self.take("?");
        let copies = group.copies.max(1).saturating_mul(n.max(1));
        if copies > REPEAT_MAX {
            return Err(format!("nested repetitions exceed the maximum of {REPEAT_MAX} in all"));
        }
        // `put` adds the size of the item again, with all copies.
        let last = group.last_size;
        group.size = group.size.zip(last, u32::saturating_sub);
        let size = last.map(|size| size.saturating_mul(n));
        group.put(copies, size);
        group.last = Item::Repeated;
        Ok(())
    }

    /// Reads the rest of `{n}`, `{n,}` or `{n,m}`.
    fn counts(&mut self) -> Result<Option<(String, u32)>, String> {
        let is_inside = |byte: u8| byte.is_ascii_digit() || byte == b',';
        let end = self.rest.bytes().take_while(|byte| is_inside(*byte)).count();
        let (inside, rest) = self.rest.split_at(end);
        let Some(rest) = rest.strip_prefix('}') else { return Ok(None) };
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (min, max) = inside.split_once(',').map_or((inside, Some(inside)), |(min, max)| {
            (min, Some(max).filter(|max| !max.is_empty()))
        });
        if !is_number(min) || !max.is_none_or(is_number) {
            return Ok(None);
        }
        let count = |text: &str| text.parse::<u32>().unwrap_or(u32::MAX);
        let operator = format!("{{{}}}", inside.chars().take(SHOWN_MAX).collect::<String>());
        if count(min) > REPEAT_MAX || max.is_some_and(|max| count(max) > REPEAT_MAX) {
            return Err(format!("the repetition `{operator}` exceeds the maximum of {REPEAT_MAX}"));
        }
        if max.is_some_and(|max| count(max) < count(min)) {
            return Err(format!("the repetition `{operator}` has its bounds in the wrong order"));
        }
        self.rest = rest;
        Ok(Some((operator, max.map_or(count(min), count))))
    }

    /// Reads what follows `(` and is not a part of the group.
    fn group(&mut self) -> Result<Opened, String> {
        if !self.take("?") {
            return Ok(Opened::Group);
        }
        for looking in ["=", "!", "<=", "<!"] {
            if self.rest.starts_with(looking) {
                return Err(format!("RE2 has no look-around `(?{looking}`"));
            }
        }
        if self.take("P<") || self.take("<") {
            let (name, rest) =
                self.rest.split_once('>').ok_or("the name of a group does not end")?;
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_word) {
                return Err("a group has an invalid name".to_owned());
            }
            self.rest = rest;
            return Ok(Opened::Group);
        }
        let (mut is_negative, mut has_flag) = (false, false);
        loop {
            match self.next() {
                Some(flag @ ('i' | 'm' | 's' | 'U')) => {
                    self.has_dot_all |= flag == 's';
                    self.has_fold |= flag == 'i';
                    has_flag = true;
                }
                Some('-') if !is_negative => (is_negative, has_flag) = (true, false),
                // `(?)` sets no flag.
                Some(end @ (':' | ')')) if !is_negative || has_flag => {
                    return Ok(if end == ':' { Opened::Group } else { Opened::Flags });
                }
                Some(c) => return Err(format!("RE2 has no group `(?{c}`")),
                None => return Err("a `(?` does not end".to_owned()),
            }
        }
    }

    /// Reads the rest of a set.
    fn set(&mut self) -> Result<Set, String> {
        let is_negated = self.take("^");
        let mut set = Set::default();
        let mut is_first = true;
        loop {
            // The first `]` is literal.
            if !is_first && self.take("]") {
                let set = if is_negated { set.negated() } else { set };
                self.may_have_no_match |= set.is_empty();
                self.may_have_no_match_in_utf8 |= set.is_empty() && set.beyond() == 0;
                return Ok(set);
            }
            is_first = false;
            if self.rest.starts_with("[:")
                && let Some(class) = self.class()?
            {
                set.add_all(class);
                continue;
            }
            let low = match self.set_item()? {
                Escape::Char(low) => low,
                Escape::Set(class) => {
                    set.add_all(class);
                    // RE2 reads a `-` after a class as a literal, and not as a range.
                    continue;
                }
                Escape::Other(_) => continue,
            };
            let rest = self.rest.strip_prefix('-');
            let Some(rest) = rest.filter(|rest| !rest.is_empty() && !rest.starts_with(']')) else {
                set.add(low..=low);
                continue;
            };
            // A range.
            self.rest = rest;
            match self.set_item()? {
                Escape::Char(high) if low <= high => set.add(low..=high),
                _ => return Err("a range in a set has its bounds in the wrong order".to_owned()),
            }
        }
    }

    /// Reads `[:alpha:]`. Returns `None` if it is not a class.
    fn class(&mut self) -> Result<Option<Set>, String> {
        if self.has_no_class_end {
            return Ok(None);
        }
        let Some((name, rest)) = self.rest[2..].split_once(":]") else {
            self.has_no_class_end = true;
            return Ok(None);
        };
        let Some(set) = Set::of_posix_class(name) else {
            let name = name.strip_prefix('^').unwrap_or(name);
            let shown: String = name.chars().take(SHOWN_MAX).collect();
            return Err(format!("there is no class `[:{shown}:]`"));
        };
        self.rest = rest;
        Ok(Some(set))
    }

    /// Reads an item of a set.
    fn set_item(&mut self) -> Result<Escape, String> {
        match self.next() {
            Some('\\') => self.escape(true),
            Some(c) => Ok(Escape::Char(c)),
            None => Err("a `[` has no `]`".to_owned()),
        }
    }

    /// Reads what follows a backslash.
    fn escape(&mut self, in_set: bool) -> Result<Escape, String> {
        let c = self.next().ok_or("a `\\` ends the expression")?;
        if let Some(class) = Set::of_perl_class(c) {
            return Ok(Escape::Set(class));
        }
        let code = match c {
            'p' | 'P' => {
                let name = self.unicode_class()?;
                self.may_have_no_match = true;
                return Ok(Escape::Set(Set::of_unicode_class(name)));
            }
            // RE2 joins positions that are repeated.
            'A' | 'z' | 'b' | 'B' if !in_set => return Ok(Escape::Other(0)),
            'C' if !in_set => return Ok(Escape::Other(1)),
            'Q' if !in_set => {
                // Everything up to `\E` is literal.
                self.rest = self.rest.split_once("\\E").map_or("", |(_, rest)| rest);
                return Ok(Escape::Other(1));
            }
            'a' => '\u{7}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '0'..='7' => self.octal(c)?,
            'x' => self.hexadecimal()?,
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => c,
            c => return Err(format!("RE2 has no escape `\\{c}`")),
        };
        Ok(Escape::Char(code))
    }

    /// Reads the rest of `\012`.
    fn octal(&mut self, first: char) -> Result<char, String> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'7');
        let n_digits = self.rest.bytes().take(2).take_while(is_digit).count();
        // `\1` to `\7` alone would be a reference to a group.
        if first != '0' && n_digits == 0 {
            return Err(format!("RE2 has no reference `\\{first}` to a group"));
        }
        let (digits, rest) = self.rest.split_at(n_digits);
        let code = u32::from_str_radix(&format!("{first}{digits}"), 8).unwrap_or(u32::MAX);
        self.rest = rest;
        if code > LATIN1_MAX {
            return Err(format!("`\\{first}{digits}` is not a character of Latin-1"));
        }
        char::from_u32(code).ok_or_else(|| "an octal escape is not a character".to_owned())
    }

    fn hexadecimal(&mut self) -> Result<char, String> {
        let broken = || {
            "`\\x` needs two hexadecimal digits, and Envoy's expressions are in Latin-1".to_owned()
        };
        let (digits, rest) = match self.rest.strip_prefix('{') {
            Some(inside) => inside.split_once('}').ok_or_else(broken)?,
            None => self.rest.split_at_checked(2).ok_or_else(broken)?,
        };
        let is_code = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let code =
            u32::from_str_radix(digits, 16).ok().filter(|code| is_code && *code <= LATIN1_MAX);
        self.rest = rest;
        code.and_then(char::from_u32).ok_or_else(broken)
    }

    /// Reads the name of a class such as `\p{Greek}`.
    fn unicode_class(&mut self) -> Result<&'a str, String> {
        let name = match self.rest.strip_prefix('{') {
            Some(inside) => {
                let (name, rest) = inside.split_once('}').ok_or("`\\p{` does not end")?;
                self.rest = rest;
                name.strip_prefix('^').unwrap_or(name)
            }
            None => {
                let end = self.rest.chars().next().map_or(0, char::len_utf8);
                let (name, rest) = self.rest.split_at(end);
                self.rest = rest;
                name
            }
        };
        // The names of scripts are words; those of categories have one or two letters.
        let is_category =
            matches!(name.as_bytes(), [b'C' | b'L' | b'M' | b'N' | b'P' | b'S' | b'Z', ..]);
        let is_word = name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        let is_known = name == "Any" || is_category && name.len() <= 2 || name.len() > 2 && is_word;
        if is_known {
            Ok(name)
        } else {
            Err("there is no such class of Unicode characters".to_owned())
        }
    }
}

/// The item before the current position.
#[derive(PartialEq, Eq, Default)]
enum Item {
    /// Nothing that can be repeated.
    #[default]
    None,
    Single,
    Repeated,
}

impl Group {
    /// Adds an item that contains `copies` copies of its parts.
    fn put(&mut self, copies: u32, size: Size) {
        self.last_size = size;
        self.size = self.size.zip(size, u32::saturating_add);
        self.last = Item::Single;
        self.copies = copies;
        self.copies_max = self.copies_max.max(copies);
    }

    /// Returns the size of the longest alternative.
    fn longest(&self) -> Size {
        self.size_max.map_or(self.size, |max| max.zip(self.size.joined(), u32::max))
    }
}

/// The part of an expression that a `(` begins.
enum Opened {
    Group,
    /// Flags alone.
    Flags,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const ACCEPTED: &[&str] = &[
        "", "a|b", "^/a/[^/]+$", "(a)(?:b)(?P<n>c)(?<m>d)", "(?i)a(?-i:b)", "a*?b+?c??", "a{2}b{2,}c{2,3}",
        "a{", "a{,2}", "a{x}", "{", "]", "[]a]", "[^]a]", "[a-]", "[-a]", "[\\d-z]",
        "[[:alpha:][:^digit:]]", "[a&&b]", "[[a]", "\\d\\D\\w\\W\\s\\S\\b\\B\\A\\z",
        "\\x41\\x{fe}\\012\\0\\_", "\\pL\\PN\\p{Greek}\\p{^Lu}", "\\C", "\\.\\-\\/\\%", "(|a)", "(?)",
        "(?P<n>a)(?P<n>b)", "\\_", "[a-z]{96}", "()*", "(a{10}){9}", "é+", "\\a\\f\\n\\r\\t\\v",
        "\\Qa(b\\E", "[[:a]", "{{1,", "\\377",
    ];
    #[rustfmt::skip]
    const REFUSED: &[&str] = &[
        "(", ")", "(a", "a)", "*", "a**", "a+*", "a{2}{3}", "|*", "(*)", "(?=a)", "(?!a)", "(?<=a)",
        "(?<!a)", "(?x)a", "(?u)a", "(?i-)", "(?", "(?P=n)a", "(?P<n", "(?P<>a)", "(?P<n m>a)", "[", "[a",
        "[]", "[z-a]", "[[:foo:]]", "\\", "\\1", "\\8", "\\E", "\\y", "\\u0041", "\\xg0", "\\x{263a}",
        "\\Z", "\\G", "\\pX", "\\p{G", "a{1001}", "[a-z]{97}", "(a{10}){10}", "[a-\\d]", "a{2,1}",
        "(a{100}){100}", "[\\A]", "[[:", "\\400", "\\777", "[[:alpha:]",
    ];
    /// The size that RE2 reports, and that of the checker, which may be smaller.
    const SIZES: &[(&str, u32, u32)] = &[
        ("", 4, 4),
        ("[^a]{50}", 104, 104),
        (".{90}", 184, 184),
        ("(?s).{90}", 94, 94),
        ("\\w{95}", 289, 289),
        ("\\W{20}", 104, 104),
        ("[a-zA-Z]{96}", 100, 100),
        ("[aeiou]{10}", 54, 54),
        ("[[:^alnum:]_]{10}", 44, 44),
        ("[à-ü]{3}", 7, 7),
        ("\\pL{2}", 18, 4),
        ("^[a-z]{97}$", 99, 99),
        ("^/api/v[0-9]+/users/[a-zA-Z0-9-]{36}/orders$", 128, 125),
        ("(ab|cd){25}", 154, 54),
        ("x^y$", 6, 6),
        ("^abcdefgh", 4, 2),
        ("(?i)^(?:abc)d", 4, 2),
        ("^a\\.b[0-9]", 3, 3),
    ];

    /// The verdicts are those of Envoy 1.40.
    #[test]
    fn syntax_of_re2_is_accepted_and_nothing_else() {
        let newest = ENVOY.since(40);
        let is_refused =
            |pattern: &str| check(pattern).is_err_and(|(clients, _)| clients.intersects(newest));
        for pattern in ACCEPTED {
            assert!(!is_refused(pattern), "{pattern}");
        }
        for pattern in REFUSED {
            assert!(is_refused(pattern), "{pattern}");
        }
    }

    #[test]
    fn size_is_at_most_that_of_re2() {
        for (pattern, re2, own) in SIZES {
            assert!(own <= re2, "{pattern}");
            assert_eq!(size(pattern).map(|size| size.bytes), Ok(*own), "{pattern}");
        }
        assert_eq!(check(&format!("^{}", "a".repeat(200))), Ok(()), "Envoy accepts it");
    }

    /// Envoy 1.36 to 1.38 count 8 instructions for `.`, and later versions 2.
    #[test]
    fn size_counts_characters_of_utf8_before_envoy_1_39() {
        let refusing = |pattern: &str| check(pattern).err().map(|(clients, _)| clients);
        assert_eq!(size("/users/.{36}/orders"), Ok(Sizes { bytes: 90, utf8: 306 }));
        for (pattern, expected) in [
            ("/users/.{36}/orders", Some(ENVOY.until(39))),
            ("/users/.{10}/orders", None),
            ("/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+/\\S+", Some(ENVOY.until(39))),
            ("/\\p{L}+", Some(ENVOY.until(39))),
            ("/\\p{Zs}+", None),
            ("(?s).{14}", Some(ENVOY.until(39))),
            ("(?s).{13}", None),
            ("[a-z]{96}", None),
            ("[a-z]{97}", Some(ENVOY)),
            ("\\w{95}", Some(ENVOY)),
            ("(a|.){20}", Some(ENVOY.until(39))),
            ("(", Some(ENVOY)),
        ] {
            assert_eq!(refusing(pattern), expected, "{pattern} {:?}", size(pattern));
        }
    }

    /// The time must not grow with the square of the length; this test would take minutes.
    #[test]
    fn long_expression_takes_linear_time() {
        for part in ["[:", "{", "{1", "(?P<", "\\x{", "[[:a"] {
            drop(size(&format!("[{}", part.repeat(500_000))));
            drop(size(&part.repeat(500_000)));
        }
    }
}
