//! Walks through a decoded message and checks the rules of PGV on every field.

use std::collections::HashSet;

use super::{
    findings::{Findings, Step},
    rules::{Bounds, EnumRules, FieldRules, MapRules, RepeatedRules, Rule},
    semantic,
    text::{Violation, check_bytes, check_text},
    tree::{Message, Value, nanos, seconds},
    typed_struct,
    types::{Count, EnumType, FieldKind, FieldType, MessageForm},
};
use crate::problem::Fault;

/// A field with the values that it has in a message.
#[derive(Clone, Copy)]
struct Part<'m, 'a> {
    field: &'a FieldType,
    values: &'m [(usize, Value<'a>)],
    /// The only item of the list that clients use. `None` means all items.
    used: Option<usize>,
}

/// Checks a message and everything in it.
pub(crate) fn message<'m, 'a: 'm>(message: &'m Message<'a>, findings: &mut Findings<'m>) {
    let kind = message.kind;
    match kind.form {
        MessageForm::Plain => {}
        MessageForm::Any => return any(message, findings),
        _ => return,
    }
    if typed_struct::is(message) {
        return typed(message, findings);
    }
    unknown_field(message, findings);
    if kind.is_disabled {
        return;
    }
    findings.unchecked(kind.is_unchecked, |findings| fields(message, findings));
    let is_ignored = findings.is_below(CHAIN_MATCH);
    findings.unused(is_ignored, |findings| semantic::check(message, findings));
}

/// Warns about a field that the type does not have.
fn unknown_field(message: &Message<'_>, findings: &mut Findings<'_>) {
    if let Some(number) = message.unknown_field {
        let rule = format!(
            "has a field with the number {number}, which this release does not know: it was not checked, and REST \
             polls, manifests, and files in JSON and YAML cannot have this resource"
        );
        findings.warn("message.unknown_field", rule);
    }
}

/// The match of a discovered filter chain. Envoy checks only the rules of its proto files, and ignores the rest.
const CHAIN_MATCH: &str = "filter_chain_match";

/// The fields whose content Envoy does not read.
const UNREAD: [&str; 2] = ["retry_policy_typed_config", "typed_filter_metadata"];

/// The type of a filter's configuration in a route with options of its own.
const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// Checks the fields of a message and everything in them.
fn fields<'m, 'a: 'm>(message: &'m Message<'a>, findings: &mut Findings<'m>) {
    let kind = message.kind;
    let used = semantic::used_policy(message);
    // Envoy does not read the configuration of a filter that a route disables.
    let is_disabled = kind.name == FILTER_CONFIG && message.bits("disabled") != 0;
    // The fields with values, and those whose absence may violate a rule, in the order of the type.
    let field = |at: usize, values: &'m [(usize, Value<'a>)], findings: &mut Findings<'m>| {
        let part = Part { field: &kind.fields[at], values, used };
        let is_unread = is_disabled || UNREAD.contains(&part.field.name.as_str());
        findings.field(&part.field.name, |findings| {
            findings.unused(is_unread, |findings| field_values(part, findings));
        });
    };
    let mut absent = kind.checked_if_absent.iter().copied().peekable();
    for (at, values) in message.fields() {
        while let Some(absent) = absent.next_if(|absent| *absent < at) {
            field(absent, &[], findings);
        }
        absent.next_if_eq(&at);
        field(at, values, findings);
    }
    absent.for_each(|absent| field(absent, &[], findings));
    for oneof in kind.oneofs.iter().filter(|oneof| oneof.required) {
        if oneof.members.iter().all(|at| message.at(*at).is_empty()) {
            let names = oneof.members.iter().map(|at| kind.fields[*at].name.as_str());
            let rule = format!("{} is required, but missing", oneof.name);
            let fix = match names.collect::<Vec<&str>>().as_slice() {
                [only] => format!("give {only}"),
                names => format!("give one of {}", names.join(", ")),
            };
            findings.violate_with_fix("oneof.required", rule, fix);
        }
    }
}

/// Checks the content of a `TypedStruct` as the type that it names.
fn typed<'m>(holder: &'m Message<'_>, findings: &mut Findings<'m>) {
    let (name, body) = match typed_struct::encoded(holder) {
        None => return,
        Some(Err(faults)) => return findings.adopt(faults.into_iter()),
        Some(Ok(encoded)) => encoded,
    };
    let types = super::types::types();
    let Some(kind) = types.get(name) else { return };
    let content = match Message::decode(types, kind, &body) {
        Ok(content) => content,
        Err(error) => return findings.refuse("typed_struct", error),
    };
    let mut inner = findings.inner();
    inner.field("value", |inner| message(&content, inner));
    findings.adopt(inner.into_faults().into_iter());
}

fn any<'m, 'a: 'm>(any: &'m Message<'a>, findings: &mut Findings<'m>) {
    if let Some(content) = &any.content {
        return message(content, findings);
    }
    let url = any.text("type_url");
    if url.is_empty() {
        return;
    }
    let name = url.rsplit('/').next().unwrap_or(url);
    if super::types::types().get(name).is_none() {
        findings.adopt(std::iter::once(unknown(url)));
    }
}

/// Returns the warning about content of an unknown type.
pub(crate) fn unknown(type_url: &str) -> Fault {
    let rule = format!("the type {} is unknown; its content was not checked", short(type_url));
    Fault::warning("any.unknown_type", rule)
}

fn short(text: &str) -> String {
    crate::node::named(text)
}

fn field_values<'m, 'a: 'm>(part: Part<'m, 'a>, findings: &mut Findings<'m>) {
    let Part { field, values, .. } = part;
    if field.is_disallowed && !values.is_empty() {
        let rule = "is a deprecated field that Envoy rejects by default";
        findings.violate("deprecated.field", rule);
    }
    match (&field.rules.rule, field.count) {
        (Some(Rule::Repeated(rules)), Count::List) => list(part, rules, findings),
        (_, Count::List) => {
            let rules = FieldRules::default();
            items(part, &rules, findings);
        }
        (Some(Rule::Map(rules)), Count::Map) => map(part, Some(rules), findings),
        (_, Count::Map) => map(part, None, findings),
        (_, Count::One | Count::Optional) => match values {
            [] if field.is_required() => {
                findings.violate("message.required", "is required, but missing");
            }
            [] if field.is_absent_free() => {}
            [] => {
                let empty = match field.kind {
                    FieldKind::Text | FieldKind::Bytes => Value::Bytes(&[]),
                    _ => Value::Bits(0),
                };
                scalar(&field.kind, &field.rules, &empty, findings);
            }
            [(_, value), ..] => one(&field.kind, &field.rules, value, findings),
        },
    }
}

/// The first duration whose nanoseconds Envoy rejects because they do not fit into 64 bits.
const DURATION_END: i128 = 9_223_372_036 * 1_000_000_000;

/// Checks one value: of a field, of an item of a list, or of an entry of a map.
pub(crate) fn one<'m, 'a: 'm>(
    kind: &FieldKind,
    rules: &FieldRules,
    value: &'m Value<'a>,
    findings: &mut Findings<'m>,
) {
    let Value::Message(inner) = value else {
        return scalar(kind, rules, value, findings);
    };
    if inner.kind.form != MessageForm::Plain {
        unknown_field(inner, findings);
    }
    match (inner.kind.form, &rules.rule) {
        (MessageForm::Wrapper, Some(_)) => {
            let (field, value) = match inner.kind.fields.first() {
                Some(field) => (field, inner.values("value").next()),
                None => return,
            };
            let empty = match field.kind {
                FieldKind::Text | FieldKind::Bytes => Value::Bytes(&[]),
                _ => Value::Bits(0),
            };
            scalar(&field.kind, rules, value.unwrap_or(&empty), findings);
        }
        (MessageForm::Duration, rule) => {
            let nanos = nanos(inner);
            match rule {
                Some(Rule::Duration(bounds)) => {
                    violate_all(out_of_bounds(bounds, "duration", nanos, &seconds), findings);
                }
                // Envoy reads every duration as a positive one.
                _ if nanos < 0 => {
                    let rule = format!("is {}, but must not be negative", seconds(nanos));
                    findings.refuse("duration.negative", rule);
                }
                _ => {}
            }
            if nanos >= DURATION_END {
                let rule = format!(
                    "is {}, but must be less than {}",
                    seconds(nanos),
                    seconds(DURATION_END)
                );
                findings.refuse("duration.range", rule);
            }
        }
        (MessageForm::Timestamp, Some(Rule::Timestamp(bounds))) => {
            let violations = out_of_bounds(bounds, "timestamp", nanos(inner), &|at| {
                format!("the time {} after the epoch", seconds(at))
            });
            violate_all(violations, findings);
        }
        (MessageForm::Any, Some(Rule::Any(rules))) => {
            let url = inner.text("type_url").to_owned();
            if !rules.within.is_empty() && !rules.within.contains(&url)
                || rules.without.contains(&url)
            {
                let rule = format!("the type {} is not allowed here", short(&url));
                findings.violate("any.in", rule);
            }
            any(inner, findings);
        }
        _ if rules.skip => {}
        _ => message(inner, findings),
    }
}

fn list<'m, 'a: 'm>(part: Part<'m, 'a>, rules: &RepeatedRules, findings: &mut Findings<'m>) {
    let n = part.values.len() as u64;
    if n == 0 && rules.ignore_empty {
        return;
    }
    count(["repeated.min_items", "repeated.max_items"], n, rules.min, rules.max, "item", findings);
    if rules.unique {
        let mut seen = HashSet::new();
        for (index, (_, value)) in part.values.iter().enumerate() {
            let key = match value {
                Value::Bits(bits) => (Some(*bits), &[][..]),
                Value::Bytes(bytes) => (None, *bytes),
                Value::Message(_) => break,
            };
            if !seen.insert(key) {
                findings.at(Step::Index(index), |findings| {
                    findings.violate("repeated.unique", "repeats an earlier item");
                });
            }
        }
    }
    items(part, &rules.items, findings);
}

fn items<'m, 'a: 'm>(part: Part<'m, 'a>, rules: &FieldRules, findings: &mut Findings<'m>) {
    let is_scalar = !matches!(part.field.kind, FieldKind::Message(_) | FieldKind::Enum(_));
    if is_scalar && rules.rule.is_none() {
        return;
    }
    for (index, (_, value)) in part.values.iter().enumerate() {
        let is_unused = part.used.is_some_and(|used| used != index);
        findings.at(Step::Index(index), |findings| {
            findings.unused(is_unused, |findings| one(&part.field.kind, rules, value, findings));
        });
    }
}

fn map<'m, 'a: 'm>(part: Part<'m, 'a>, rules: Option<&MapRules>, findings: &mut Findings<'m>) {
    let none = MapRules::default();
    let rules = rules.unwrap_or(&none);
    let n = part.values.len() as u64;
    if n == 0 && rules.ignore_empty {
        return;
    }
    count(["map.min_pairs", "map.max_pairs"], n, rules.min, rules.max, "entry", findings);
    for (_, value) in part.values {
        let Value::Message(entry) = value else { continue };
        let [key, content] = entry.kind.fields.as_slice() else { continue };
        let step = match key.kind {
            FieldKind::Text => Step::Key(entry.text("key")),
            _ => Step::Index(usize::try_from(entry.bits("key")).unwrap_or(usize::MAX)),
        };
        findings.at(step, |findings| {
            let found = entry.values("key").next();
            let empty = match key.kind {
                FieldKind::Text => Value::Bytes(&[]),
                _ => Value::Bits(0),
            };
            scalar(&key.kind, &rules.keys, found.unwrap_or(&empty), findings);
            if let Some(value) = entry.values("value").next() {
                one(&content.kind, &rules.values, value, findings);
            }
        });
    }
}

fn count(
    ids: [&'static str; 2],
    n: u64,
    min: Option<u64>,
    max: Option<u64>,
    unit: &str,
    findings: &mut Findings<'_>,
) {
    let plural = |n: u64| match (unit, n) {
        (unit, 1) => format!("1 {unit}"),
        ("entry", n) => format!("{n} entries"),
        (unit, n) => format!("{n} {unit}s"),
    };
    if let Some(min) = min.filter(|min| n < *min) {
        findings.violate(ids[0], format!("has {}, but must have at least {min}", plural(n)));
    }
    if let Some(max) = max.filter(|max| n > *max) {
        findings.violate(ids[1], format!("has {}, but may have at most {max}", plural(n)));
    }
}

fn scalar(kind: &FieldKind, rules: &FieldRules, value: &Value<'_>, findings: &mut Findings<'_>) {
    match (value, &rules.rule) {
        (Value::Bytes(bytes), Some(Rule::Text(rules))) => {
            let text = std::str::from_utf8(bytes).unwrap_or_default();
            violate_all(check_text(rules, text), findings);
        }
        (Value::Bytes(bytes), Some(Rule::Bytes(rules))) => {
            violate_all(check_bytes(rules, bytes), findings);
        }
        (Value::Bits(bits), Some(Rule::Int(name, bounds))) => {
            let value = int(kind, *bits);
            if !(bounds.ignore_empty && value == 0) {
                violate_all(
                    out_of_bounds(bounds, name, value, &|value| value.to_string()),
                    findings,
                );
            }
        }
        (Value::Bits(bits), Some(Rule::Float(name, bounds))) => {
            let value = float(kind, *bits);
            if !(bounds.ignore_empty && value == 0.0) {
                violate_all(
                    out_of_bounds(bounds, name, value, &|value| value.to_string()),
                    findings,
                );
            }
        }
        (Value::Bits(bits), Some(Rule::Bool(exact))) if (*bits != 0) != *exact => {
            findings.violate("bool.const", format!("must be {exact}"));
        }
        (Value::Bits(bits), rule) => {
            if let FieldKind::Enum(kind) = kind {
                let rules = match rule {
                    Some(Rule::Enum(rules)) => Some(rules),
                    _ => None,
                };
                enumerated(kind, rules, *bits, findings);
            }
        }
        _ => {}
    }
}

fn enumerated(kind: &EnumType, rules: Option<&EnumRules>, bits: u64, findings: &mut Findings<'_>) {
    let number = i32::from_le_bytes(low(bits));
    let known = kind.values.iter().find(|(value, ..)| *value == number);
    let shown = known.map_or_else(|| number.to_string(), |(_, name, _)| name.clone());
    if known.is_some_and(|(.., is_disallowed)| *is_disallowed) {
        let rule = format!("{shown} is a deprecated value that Envoy rejects by default");
        findings.violate("deprecated.enum", rule);
    }
    let Some(rules) = rules else { return };
    if rules.defined_only && known.is_none() {
        findings.violate("enum.defined_only", format!("{} has no value {number}", kind.name));
    }
    if rules.exact.is_some_and(|exact| exact != number) {
        findings.violate("enum.const", format!("{shown} is not allowed here"));
    }
    if !rules.within.is_empty() && !rules.within.contains(&number) {
        findings.violate("enum.in", format!("{shown} is not allowed here"));
    }
    if rules.without.contains(&number) {
        findings.violate("enum.not_in", format!("{shown} is not allowed here"));
    }
}

fn violate_all(violations: Vec<Violation>, findings: &mut Findings<'_>) {
    for (id, rule) in violations {
        findings.violate(id, rule);
    }
}

fn low(bits: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    [a, b, c, d]
}

fn int(kind: &FieldKind, bits: u64) -> i128 {
    match kind {
        FieldKind::Signed | FieldKind::Sfixed64 => i64::from_le_bytes(bits.to_le_bytes()).into(),
        FieldKind::Zigzag => {
            let value = i64::from_le_bytes((bits >> 1).to_le_bytes());
            (if bits & 1 == 0 { value } else { !value }).into()
        }
        FieldKind::Sfixed32 => i32::from_le_bytes(low(bits)).into(),
        _ => bits.into(),
    }
}

fn float(kind: &FieldKind, bits: u64) -> f64 {
    match kind {
        FieldKind::Float => f32::from_le_bytes(low(bits)).into(),
        _ => f64::from_bits(bits),
    }
}

/// Returns the bounds that a value violates. `kind` is the first part of the IDs of the rules.
fn out_of_bounds<T: PartialOrd + Copy>(
    bounds: &Bounds<T>,
    kind: &str,
    value: T,
    show: &dyn Fn(T) -> String,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut check = |rule: &str, holds: bool, must: &dyn Fn() -> String| {
        if !holds {
            let text = format!("is {}, but must be {}", show(value), must());
            found.push((format!("{kind}.{rule}").into(), text));
        }
    };
    if let Some(exact) = bounds.exact {
        check("const", value == exact, &|| show(exact));
    }
    let above = |bound: T, open: bool| if open { value > bound } else { value >= bound };
    let below = |bound: T, open: bool| if open { value < bound } else { value <= bound };
    let lower = bounds.gt.map(|gt| ("gt", gt, true)).or(bounds.gte.map(|gte| ("gte", gte, false)));
    let upper = bounds.lt.map(|lt| ("lt", lt, true)).or(bounds.lte.map(|lte| ("lte", lte, false)));
    let least = |bound: T, open| {
        if open {
            format!("greater than {}", show(bound))
        } else {
            format!("at least {}", show(bound))
        }
    };
    let most = |bound: T, open| {
        if open { format!("less than {}", show(bound)) } else { format!("at most {}", show(bound)) }
    };
    match (lower, upper) {
        // The bounds exclude a range.
        (Some((rule, low, open)), Some((_, high, high_open))) if high < low => {
            let holds = above(low, open) || below(high, high_open);
            check(rule, holds, &|| format!("{} or {}", most(high, high_open), least(low, open)));
        }
        (lower, upper) => {
            if let Some((rule, bound, open)) = lower {
                check(rule, above(bound, open), &|| least(bound, open));
            }
            if let Some((rule, bound, open)) = upper {
                check(rule, below(bound, open), &|| most(bound, open));
            }
        }
    }
    let listed = |items: &[T]| items.iter().map(|item| show(*item)).collect::<Vec<_>>().join(", ");
    let holds = bounds.within.is_empty() || bounds.within.contains(&value);
    check("in", holds, &|| format!("one of {}", listed(&bounds.within)));
    let holds = !bounds.without.contains(&value);
    check("not_in", holds, &|| format!("none of {}", listed(&bounds.without)));
    found
}
