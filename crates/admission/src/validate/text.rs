//! The rules of PGV on text and bytes.

use std::borrow::Cow;

use super::{
    form::Form,
    rules::{BytesRules, TextRules},
};

/// A violated rule: its ID, and a sentence for people. The sentence does not show the value, which may
/// be a secret.
pub(crate) type Violation = (Cow<'static, str>, String);

/// Returns the rules that a text violates.
pub(crate) fn check_text(rules: &TextRules, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    if rules.ignore_empty && text.is_empty() {
        return found;
    }
    let mut check = |id: &'static str, holds: bool, say: &dyn Fn() -> String| {
        if !holds {
            found.push((id.into(), say()));
        }
    };
    if let Some(exact) = &rules.exact {
        check("string.const", text == exact, &|| format!("must be {exact:?}"));
    }
    if rules.len.iter().any(Option::is_some) {
        let n = text.chars().count() as u64;
        check_len(&mut check, STRING_LEN, n, rules.len, "character");
    }
    check_len(&mut check, STRING_BYTES, text.len() as u64, rules.bytes, "byte");
    if let Some(pattern) = &rules.pattern {
        let say = || format!("does not match the regular expression {pattern}");
        check("string.pattern", pattern.is_match(text), &say);
    }
    let (prefix, suffix) = (rules.prefix.as_str(), rules.suffix.as_str());
    let say = |what: &str, part: &str| format!("must {what} {part:?}");
    check("string.prefix", text.starts_with(prefix), &|| say("start with", prefix));
    check("string.suffix", text.ends_with(suffix), &|| say("end with", suffix));
    let part = rules.contains.as_str();
    check("string.contains", text.contains(part), &|| say("contain", part));
    let part = rules.not_contains.as_str();
    let holds = part.is_empty() || !text.contains(part);
    check("string.not_contains", holds, &|| say("not contain", part));
    let holds = rules.within.is_empty() || rules.within.iter().any(|known| known == text);
    check("string.in", holds, &|| format!("must be one of {}", listed(&rules.within)));
    let holds = !rules.without.iter().any(|bad| bad == text);
    check("string.not_in", holds, &|| format!("must be none of {}", listed(&rules.without)));
    if let Some(form) = rules.form {
        check(form.id(), form.holds(text), &|| form.sentence(text));
    }
    found
}

/// Returns the rules that bytes violate.
pub(crate) fn check_bytes(rules: &BytesRules, bytes: &[u8]) -> Vec<Violation> {
    let mut found = Vec::new();
    if rules.ignore_empty && bytes.is_empty() {
        return found;
    }
    let mut check = |id: &'static str, holds: bool, say: &dyn Fn() -> String| {
        if !holds {
            found.push((id.into(), say()));
        }
    };
    let other = || "has other bytes than the rule requires".to_owned();
    let contains =
        |part: &[u8]| part.is_empty() || bytes.windows(part.len()).any(|window| window == part);
    check_len(&mut check, BYTES_LEN, bytes.len() as u64, rules.len, "byte");
    check("bytes.const", rules.exact.as_ref().is_none_or(|exact| exact == bytes), &other);
    check("bytes.prefix", bytes.starts_with(&rules.prefix), &other);
    check("bytes.suffix", bytes.ends_with(&rules.suffix), &other);
    check("bytes.contains", contains(&rules.contains), &other);
    let is_in = |list: &[Vec<u8>]| list.iter().any(|item| item == bytes);
    check("bytes.in", rules.within.is_empty() || is_in(&rules.within), &other);
    check("bytes.not_in", !is_in(&rules.without), &other);
    if let Some(pattern) = &rules.pattern {
        let say = || format!("does not match the regular expression {pattern}");
        check("bytes.pattern", pattern.is_match(bytes), &say);
    }
    let lens: &[usize] = match rules.form {
        Some(Form::Ip) => &[4, 16],
        Some(Form::Ipv4) => &[4],
        Some(Form::Ipv6) => &[16],
        _ => return found,
    };
    let n = bytes.len();
    let say = || format!("has {n} bytes; an IP address has 4 or 16");
    check("bytes.ip", lens.contains(&n), &say);
    found
}

/// The IDs of the rules on the exact, minimum and maximum length.
const STRING_LEN: [&str; 3] = ["string.len", "string.min_len", "string.max_len"];
const STRING_BYTES: [&str; 3] = ["string.len_bytes", "string.min_bytes", "string.max_bytes"];
const BYTES_LEN: [&str; 3] = ["bytes.len", "bytes.min_len", "bytes.max_len"];

/// Records a rule that does not hold.
type Record<'a> = dyn FnMut(&'static str, bool, &dyn Fn() -> String) + 'a;

fn check_len(
    check: &mut Record<'_>,
    ids: [&'static str; 3],
    n: u64,
    [exact, min, max]: [Option<u64>; 3],
    unit: &str,
) {
    let count = |n: u64| if n == 1 { format!("1 {unit}") } else { format!("{n} {unit}s") };
    if let Some(exact) = exact {
        check(ids[0], n == exact, &|| format!("has {}, but must have {exact}", count(n)));
    }
    if let Some(min) = min {
        check(ids[1], n >= min, &|| match (n, min) {
            (0, 1) => "is empty or missing, but is required".to_owned(),
            _ => format!("has {}, but must have at least {min}", count(n)),
        });
    }
    if let Some(max) = max {
        check(ids[2], n <= max, &|| format!("has {}, but may have at most {max}", count(n)));
    }
}

fn listed(items: &[String]) -> String {
    items.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", ")
}
