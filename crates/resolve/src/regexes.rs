//! Regular expressions in the syntax of RE2, which Envoy uses.
//!
//! The crate `regex` differs from RE2 in details. This module translates those that have an
//! equivalent, and rejects the others. Texts outside of ASCII are not decided: RE2 matches characters, and this module matches bytes.

use regex::bytes::{Captures, Regex, RegexBuilder};

/// The maximum size of a compiled expression in bytes.
const SIZE_MAX: usize = 1 << 20;

/// Returns whether an expression matches the whole text.
pub(crate) fn is_full_match(pattern: &str, text: &str) -> Result<bool, String> {
    check_text(text)?;
    let whole = compile(pattern, &format!(r"\A(?:{})\z", translate(pattern)?))?;
    Ok(whole.is_match(text.as_bytes()))
}

/// Replaces all matches of an expression. In the replacement, `\1` is the first group, and `\0` the whole match.
pub(crate) fn replace_all(pattern: &str, text: &str, with: &str) -> Result<String, String> {
    check_text(text)?;
    let replace = |captures: &Captures<'_>| expand(with, captures);
    let part = compile(pattern, &translate(pattern)?)?;
    let replaced = part.replace_all(text.as_bytes(), replace).into_owned();
    String::from_utf8(replaced).map_err(|_| "the result is not text".to_owned())
}

fn compile(pattern: &str, translated: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(translated).unicode(false).size_limit(SIZE_MAX).build();
    built.map_err(|_| format!("the regular expression {pattern:?} is not evaluated here"))
}

fn check_text(text: &str) -> Result<(), String> {
    if text.is_ascii() {
        Ok(())
    } else {
        Err("regular expressions are not evaluated for text outside of ASCII".to_owned())
    }
}

fn expand(with: &str, captures: &Captures<'_>) -> Vec<u8> {
    let (mut out, mut chars) = (Vec::new(), with.chars());
    let push = |out: &mut Vec<u8>, c: char| {
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    };
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(&mut out, c);
            continue;
        }
        match chars.next() {
            Some(digit) if digit.is_ascii_digit() => {
                let group = digit.to_digit(10).unwrap_or_default() as usize;
                out.extend_from_slice(captures.get(group).map_or(b"", |group| group.as_bytes()));
            }
            Some(other) => push(&mut out, other),
            None => {}
        }
    }
    out
}

/// Translates an expression of RE2.
fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let taken = match c {
            '\\' => translate_escape(rest, &mut out)?,
            '[' => translate_class(rest, &mut out)?,
            '{' if !is_repetition(rest) => {
                out.push_str(r"\{");
                1
            }
            _ => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    Ok(out)
}

/// Translates an escape at the start of `rest`. Returns its length.
fn translate_escape(rest: &str, out: &mut String) -> Result<usize, String> {
    let Some(c) = rest[1..].chars().next() else {
        return Err("the regular expression ends with a backslash".to_owned());
    };
    match c {
        'Q' => {
            let literal = &rest[2..];
            let end = literal.find(r"\E");
            out.push_str(&regex::escape(&literal[..end.unwrap_or(literal.len())]));
            return Ok(end.map_or(rest.len(), |end| end + 4));
        }
        // In RE2, these are plain characters.
        '<' | '>' => out.push(c),
        'C' | '0'..='9' => {
            return Err(format!("the regular expression has \\{c}, which is not evaluated here"));
        }
        _ => {
            out.push('\\');
            out.push(c);
        }
    }
    Ok(1 + c.len_utf8())
}

/// Translates a character class at the start of `rest`. Returns its length. The crate `regex` has operators in classes,
/// whose characters are plain in RE2.
fn translate_class(rest: &str, out: &mut String) -> Result<usize, String> {
    let unclosed = || "the regular expression has an unclosed class".to_owned();
    let mut at = 1;
    out.push('[');
    if rest[at..].starts_with('^') {
        out.push('^');
        at += 1;
    }
    let start = at;
    loop {
        let c = rest[at..].chars().next().ok_or_else(unclosed)?;
        let tail = &rest[at..];
        match c {
            ']' if at > start => {
                out.push(']');
                return Ok(at + 1);
            }
            '\\' => {
                at += translate_escape(tail, out)?;
                continue;
            }
            '[' if tail.starts_with("[:") => {
                let end = tail.find(":]").ok_or_else(unclosed)? + 2;
                out.push_str(&tail[..end]);
                at += end;
                continue;
            }
            '-' if tail.starts_with("--") => {
                return Err(
                    "the regular expression has `--` in a class, which is not evaluated here"
                        .to_owned(),
                );
            }
            ']' | '[' | '&' | '~' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
        at += c.len_utf8();
    }
}

/// Returns whether the text starts with a repetition: `{2}`, `{2,}` or `{2,3}`.
fn is_repetition(text: &str) -> bool {
    let Some((inner, _)) = text[1..].split_once('}') else { return false };
    let (min, max) = inner.split_once(',').unwrap_or((inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !min.is_empty() && is_number(min) && is_number(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        is_full_match(pattern, text).unwrap()
    }

    #[test]
    fn expression_matches_whole_text_in_re2_syntax() {
        for (pattern, text) in [
            ("/a.*", "/a/b"),
            ("a|ab", "ab"),
            (r"/v\d+/\w+", "/v12/x_1"),
            (r"\Qa.b\E+", "a.bb"),
            (r"[[&~]+", "[&~"),
            (r"[[:alpha:]\d]+", "a1"),
            (r"[]a]+", "]a"),
            (r"a{,2}", "a{,2}"),
            (r"a{2,}", "aaa"),
            (r"\<a\>", "<a>"),
            (r"(?i)abc", "ABC"),
            (r"(?P<x>a)b", "ab"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("/a", "/a/b"), ("b", "ab"), (r"a.b", "a\nb"), ("[^]a]", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn expression_without_equivalent_is_rejected() {
        for pattern in [r"\C", r"\pL", r"\101", "[a--]", "(", "[a", "\\"] {
            assert!(is_full_match(pattern, "a").is_err(), "{pattern}");
        }
        assert!(is_full_match("a", "ä").is_err());
    }

    #[test]
    fn replacement_has_groups() {
        let pattern = "^/([^/]+)/(.*)$";
        assert_eq!(replace_all(pattern, "/a/b", r"/\2/\1/\0\\$1").unwrap(), r"/b/a//a/b\$1");
        assert_eq!(replace_all("o", "foo", "0").unwrap(), "f00");
    }
}
