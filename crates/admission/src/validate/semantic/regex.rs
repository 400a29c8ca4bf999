//! The syntax of RE2, the library that Envoy compiles regular expressions with.
//!
//! The checker follows the parser of RE2. The `regex` crate has another syntax: it accepts nested sets and
//! operators on sets, flags such as `x`, `\u{…}`, and two repetitions in a row,
//! which RE2 rejects or reads in another way. It rejects `\C`, `\Q…\E`, octal escapes and a literal `{`, which RE2 accepts.

use crate::validate::{findings::Findings, tree::Message};

/// The maximum number of repetitions.
const REPEAT_MAX: u32 = 1000;
/// The maximum size of a compiled expression, by the default of `re2.max_program_size.error_level`.
const SIZE_MAX: u32 = 100;
/// The size of the empty expression.
const SIZE_OF_EMPTY: u32 = 4;
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
    if let Err(rule) = check(matcher.text("regex")) {
        findings.field("regex", |findings| findings.refuse("regex.syntax", rule));
    }
}

/// Checks an expression.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    match size(pattern)? {
        size if size > SIZE_MAX => Err(format!(
            "the compiled expression has a size of at least {size}, but Envoy accepts at most {SIZE_MAX} (re2.max_program_size.error_level)"
        )),
        _ => Ok(()),
    }
}

/// Checks the syntax of an expression of any size.
pub(in crate::validate) fn syntax(pattern: &str) -> Result<(), String> {
    size(pattern).map(drop)
}

/// Returns the minimum size of the compiled expression.
fn size(pattern: &str) -> Result<u32, String> {
    let mut parser = Parser { rest: pattern };
    parser.alternatives()
}

struct Parser<'a> {
    rest: &'a str,
}

/// A group that is open, or the whole expression.
#[derive(Default)]
struct Group {
    last: Item,
    /// The number of copies that the repetitions make of the last item, and the maximum in the group.
    copies: u32,
    copies_max: u32,
    /// The size of the last item, of the alternative so far, and of the longest alternative. Each is at
    /// most the size that RE2 computes.
    last_size: u32,
    size: u32,
    size_max: u32,
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

    fn alternatives(&mut self) -> Result<u32, String> {
        // The groups around the innermost one, which is `group`.
        let mut outer: Vec<Group> = Vec::new();
        let mut group = Group::default();
        while let Some(c) = self.next() {
            match c {
                '(' if outer.len() >= DEPTH_MAX => {
                    return Err("the groups are nested too deeply".to_owned());
                }
                '(' => match self.group()? {
                    Opened::Group => outer.push(std::mem::take(&mut group)),
                    // Flags for the rest of the group.
                    Opened::Flags => group.last = Item::None,
                },
                ')' => {
                    let (copies, size) = (group.copies_max, group.longest());
                    group = outer.pop().ok_or("a `)` has no `(`")?;
                    group.put(copies, size);
                }
                '|' => {
                    group.size_max = group.longest();
                    (group.last, group.size) = (Item::None, 0);
                }
                '*' | '+' | '?' => self.repeat(&mut group, &c.to_string(), 1)?,
                '{' => match self.counts()? {
                    Some((operator, n)) => self.repeat(&mut group, &operator, n)?,
                    // An incomplete repetition is literal.
                    None => group.put(1, 1),
                },
                '[' => {
                    self.set()?;
                    group.put(1, 1);
                }
                '\\' => {
                    self.escape(false)?;
                    group.put(1, 1);
                }
                _ => group.put(1, 1),
            }
        }
        let size = group.longest().saturating_add(SIZE_OF_EMPTY);
        match outer.is_empty() {
            false => Err("a `(` has no `)`".to_owned()),
            true => Ok(size),
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
        group.size -= group.last_size;
        let size = group.last_size.saturating_mul(n);
        group.put(copies, size);
        group.last = Item::Repeated;
        Ok(())
    }

    /// Reads the rest of `{n}`, `{n,}` or `{n,m}`.
    fn counts(&mut self) -> Result<Option<(String, u32)>, String> {
        let Some((inside, rest)) = self.rest.split_once('}') else { return Ok(None) };
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (min, max) = inside.split_once(',').map_or((inside, Some(inside)), |(min, max)| {
            (min, Some(max).filter(|max| !max.is_empty()))
        });
        if !is_number(min) || !max.is_none_or(is_number) {
            return Ok(None);
        }
        let count = |text: &str| text.parse::<u32>().unwrap_or(u32::MAX);
        let operator = format!("{{{inside}}}");
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
                Some('i' | 'm' | 's' | 'U') => has_flag = true,
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
    fn set(&mut self) -> Result<(), String> {
        self.take("^");
        let mut is_first = true;
        loop {
            // The first `]` is literal.
            if !is_first && self.take("]") {
                return Ok(());
            }
            is_first = false;
            if self.rest.starts_with("[:") && self.class()? {
                continue;
            }
            let low = self.set_item()?;
            let Some(rest) = self.rest.strip_prefix('-') else { continue };
            if rest.starts_with(']') || rest.is_empty() {
                continue;
            }
            // A range.
            let Some(low) = low else { continue };
            self.rest = rest;
            let high = self.set_item()?;
            if high.is_none_or(|high| high < low) {
                return Err("a range in a set has its bounds in the wrong order".to_owned());
            }
        }
    }

    /// Reads `[:alpha:]`. Returns false if it is not the name of a class.
    fn class(&mut self) -> Result<bool, String> {
        const CLASSES: [&str; 14] = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print",
            "punct", "space", "upper", "word", "xdigit",
        ];
        let Some((name, rest)) = self.rest[2..].split_once(":]") else { return Ok(false) };
        let known = name.strip_prefix('^').unwrap_or(name);
        if !CLASSES.contains(&known) {
            return Err(format!(
                "there is no class `[:{}:]`",
                known.chars().take(20).collect::<String>()
            ));
        }
        self.rest = rest;
        Ok(true)
    }

    /// Reads an item of a set; `None` for a class of characters.
    fn set_item(&mut self) -> Result<Option<char>, String> {
        match self.next() {
            Some('\\') => self.escape(true),
            Some(c) => Ok(Some(c)),
            None => Err("a `[` has no `]`".to_owned()),
        }
    }

    /// Reads what follows a backslash; `None` for something other than one character.
    fn escape(&mut self, in_set: bool) -> Result<Option<char>, String> {
        let c = self.next().ok_or("a `\\` ends the expression")?;
        match c {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => Ok(None),
            'p' | 'P' => self.unicode_class().map(|()| None),
            'A' | 'z' | 'b' | 'B' | 'C' if !in_set => Ok(None),
            'Q' if !in_set => {
                // Everything up to `\E` is literal.
                self.rest = self.rest.split_once("\\E").map_or("", |(_, rest)| rest);
                Ok(None)
            }
            'a' => Ok(Some('\u{7}')),
            'f' => Ok(Some('\u{c}')),
            'n' => Ok(Some('\n')),
            'r' => Ok(Some('\r')),
            't' => Ok(Some('\t')),
            'v' => Ok(Some('\u{b}')),
            '0'..='7' => {
                let digits = self
                    .rest
                    .bytes()
                    .take(2)
                    .take_while(|byte| matches!(byte, b'0'..=b'7'))
                    .count();
                // `\1` to `\7` alone would be a reference to a group.
                if c != '0' && digits == 0 {
                    return Err(format!("RE2 has no reference `\\{c}` to a group"));
                }
                let code = format!("{c}{}", &self.rest[..digits]);
                self.rest = &self.rest[digits..];
                Ok(u32::from_str_radix(&code, 8).ok().and_then(char::from_u32))
            }
            'x' => self.hexadecimal(),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Ok(Some(c)),
            c => Err(format!("RE2 has no escape `\\{c}`")),
        }
    }

    fn hexadecimal(&mut self) -> Result<Option<char>, String> {
        let broken = || {
            "`\\x` needs two hexadecimal digits, and Envoy's expressions are in Latin-1".to_owned()
        };
        let (digits, rest) = match self.rest.strip_prefix('{') {
            Some(inside) => inside.split_once('}').ok_or_else(broken)?,
            None => self.rest.split_at_checked(2).ok_or_else(broken)?,
        };
        let is_code = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let code = u32::from_str_radix(digits, 16).ok().filter(|code| is_code && *code <= 0xff);
        self.rest = rest;
        code.map(char::from_u32).ok_or_else(broken)
    }

    fn unicode_class(&mut self) -> Result<(), String> {
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
        match is_known {
            true => Ok(()),
            false => Err("there is no such class of Unicode characters".to_owned()),
        }
    }
}

/// The item before the current position.
#[derive(Default)]
enum Item {
    /// Nothing that can be repeated.
    #[default]
    None,
    Single,
    Repeated,
}

impl Group {
    /// Adds an item that contains `copies` copies of its parts.
    fn put(&mut self, copies: u32, size: u32) {
        self.last_size = size;
        self.size = self.size.saturating_add(size);
        self.last = Item::Single;
        self.copies = copies;
        self.copies_max = self.copies_max.max(copies);
    }

    /// Returns the size of the longest alternative.
    fn longest(&self) -> u32 {
        self.size_max.max(self.size)
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
        "\\Qa(b\\E",
    ];
    #[rustfmt::skip]
    const REFUSED: &[&str] = &[
        "(", ")", "(a", "a)", "*", "a**", "a+*", "a{2}{3}", "|*", "(*)", "(?=a)", "(?!a)", "(?<=a)",
        "(?<!a)", "(?x)a", "(?u)a", "(?i-)", "(?", "(?P=n)a", "(?P<n", "(?P<>a)", "(?P<n m>a)", "[", "[a",
        "[]", "[z-a]", "[[:foo:]]", "\\", "\\1", "\\8", "\\E", "\\y", "\\u0041", "\\xg0", "\\x{263a}",
        "\\Z", "\\G", "\\pX", "\\p{G", "a{1001}", "[a-z]{97}", "(a{10}){10}", "[a-\\d]", "a{2,1}",
        "(a{100}){100}", "[\\A]",
    ];

    /// The verdicts are those of Envoy 1.40.
    #[test]
    fn syntax_of_re2_is_accepted_and_nothing_else() {
        for pattern in ACCEPTED {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
        for pattern in REFUSED {
            assert!(check(pattern).is_err(), "{pattern}");
        }
    }
}
