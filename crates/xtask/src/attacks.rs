//! The tests of each attack on the ports, the credentials and the data.
//!
//! The page comes from `attacks/attacks.txt` and from the doc comments of test functions
//! (`/// Attack 24: text`). An attack without a test needs a written reason.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};

use crate::{
    conformance::{
        cited, cited_tests,
        required::lines,
        text::{cell, line, links},
    },
    page::Page,
    paths::Paths,
};

const INTRO: &str = "\
# Attacks

This page lists the attacks that Chancery is designed to resist, the expected response, and the tests that carry out each attack. *Refused* means that
the attacker receives no configuration, and that a metric counts the refusal.

| number | attack | response | tests |
|---|---|---|---|
";

type Test = cited::Test<u32>;

/// An attack of the list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attack {
    what: String,
    answer: String,
    /// The reason why there is no test.
    reason: Option<String>,
}

/// Returns the page.
pub(crate) fn page(paths: &Paths) -> Result<Page> {
    let attacks = parse(include_str!("attacks/attacks.txt")).context("attacks.txt")?;
    let tests = cited_tests(paths, numbers, |_| None)?;
    let (text, problems) = (text(&attacks, &tests), problems(&attacks, &tests));
    Ok(Page { name: "attacks.md", text, problems })
}

/// Parses lines such as `24 every method without a credential -> refused`. An indented line continues the previous one,
/// and one with `no test: ` in front has the reason.
fn parse(text: &str) -> Result<BTreeMap<u32, Attack>> {
    let mut attacks: BTreeMap<u32, Attack> = BTreeMap::new();
    let mut last = None;
    for (at, line) in lines(text) {
        if let Some(more) = line.strip_prefix("  ") {
            let attack = last.and_then(|number| attacks.get_mut(&number));
            let attack = attack.with_context(|| format!("line {at} continues no attack"))?;
            match (more.trim().strip_prefix("no test: "), &mut attack.reason) {
                (Some(reason), None) => attack.reason = Some(reason.to_owned()),
                (None, Some(reason)) => *reason = format!("{reason} {}", more.trim()),
                (None, None) => attack.answer = format!("{} {}", attack.answer, more.trim()),
                (Some(_), Some(_)) => bail!("line {at}: the attack has two reasons"),
            }
            continue;
        }
        let parts = line.split_once(' ').and_then(|(number, text)| {
            let (what, answer) = text.split_once(" -> ")?;
            Some((number.parse().ok()?, what.trim(), answer.trim()))
        });
        let (number, what, answer) = parts
            .with_context(|| format!("line {at}: {line:?} is not `NUMBER attack -> answer`"))?;
        let attack = Attack { what: what.to_owned(), answer: answer.to_owned(), reason: None };
        if attacks.insert(number, attack).is_some() {
            bail!("line {at}: attack {number} occurs twice");
        }
        last = Some(number);
    }
    Ok(attacks)
}

/// Returns the numbers of attacks in a text: `Attack 5`, `Attacks 14, 15 and 17`, `attacks 20 to 22`.
fn numbers(text: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for (at, word) in text.match_indices("ttack") {
        let is_word = matches!(text[..at].chars().next_back(), Some('a' | 'A'));
        let rest = &text[at + word.len()..];
        let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix(' ');
        let (true, Some(mut rest)) = (is_word, rest) else { continue };
        let mut is_range = false;
        while let Some((number, after)) = number(rest) {
            let from = found.last().map_or(number, |last| last + 1);
            found.extend(if is_range { from..=number } else { number..=number });
            let separators = [(", and ", false), (", ", false), (" and ", false), (" to ", true)];
            let next = separators
                .iter()
                .find_map(|(text, is_range)| Some((after.strip_prefix(text)?, *is_range)));
            let Some(next) = next else { break };
            (rest, is_range) = next;
        }
    }
    found
}

/// Returns the number at the start of a text, and the rest of the text.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn problems(attacks: &BTreeMap<u32, Attack>, tests: &[Test]) -> Vec<String> {
    let mut problems = Vec::new();
    for test in tests {
        let unknown = test.ids.iter().filter(|number| !attacks.contains_key(number));
        problems.extend(unknown.map(|number| {
            format!("{} cites attack {number}, which is not in attacks.txt", test.path)
        }));
    }
    let tested: BTreeSet<u32> = tests.iter().flat_map(|test| test.ids.iter().copied()).collect();
    for (number, attack) in attacks {
        match (&attack.reason, tested.contains(number)) {
            (None, false) => problems.push(format!(
                "attack {number} has neither a test that cites it nor a reason in attacks.txt"
            )),
            (Some(_), true) => problems
                .push(format!("attack {number} has a test; remove its reason from attacks.txt")),
            _ => {}
        }
    }
    problems
}

fn text(attacks: &BTreeMap<u32, Attack>, tests: &[Test]) -> String {
    let mut page = INTRO.to_owned();
    for (number, attack) in attacks {
        let of_attack: Vec<&Test> = tests.iter().filter(|test| test.ids.contains(number)).collect();
        let shown = match &attack.reason {
            Some(reason) => cell(reason),
            None => links(&of_attack),
        };
        let (what, answer) = (cell(&attack.what), cell(&attack.answer));
        line(&mut page, format_args!("| {number} | {what} | {answer} | {shown} |"));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, numbers: &[u32]) -> Test {
        Test {
            path: name.to_owned(),
            file: "crates/a/src/lib.rs".to_owned(),
            ids: numbers.iter().copied().collect(),
            shows: String::new(),
        }
    }

    #[test]
    fn compiled_in_list_is_valid() {
        let attacks = parse(include_str!("attacks/attacks.txt")).unwrap();
        assert_eq!(attacks.into_keys().collect::<Vec<_>>(), (1..=69).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_are_parsed_in_all_forms() {
        assert_eq!(numbers("Attack 24: every door"), [24]);
        assert_eq!(numbers("attack 2, 3 and 10: x. Attack 11"), [2, 3, 10, 11]);
        assert_eq!(numbers("Attacks 20 to 22, and property (d): 7 seconds"), [20, 21, 22]);
        assert!(numbers("an attack on 5 ports, attacks of 3").is_empty());
    }

    #[test]
    fn attack_needs_either_test_or_reason() {
        let attacks = parse(
            "1 a -> refused\n2 b -> refused,\n  and counted\n  no test: it is\n  open\n3 c -> x\n",
        );
        let attacks = attacks.unwrap();
        assert_eq!(attacks[&2].answer, "refused, and counted");
        assert_eq!(attacks[&2].reason.as_deref(), Some("it is open"));
        assert!(problems(&attacks, &[test("t", &[1, 3])]).is_empty());
        assert_eq!(
            problems(&attacks, &[test("t", &[1, 2, 4])]),
            [
                "t cites attack 4, which is not in attacks.txt",
                "attack 2 has a test; remove its reason from attacks.txt",
                "attack 3 has neither a test that cites it nor a reason in attacks.txt",
            ]
        );
        let page = text(&attacks, &[test("chancery-a::t", &[1])]);
        assert!(page.contains("| 1 | a | refused | [`a::t`](/crates/a/src/lib.rs) |\n"), "{page}");
        assert!(page.contains("| 2 | b | refused, and counted | it is open |\n"), "{page}");
    }

    #[test]
    fn malformed_list_is_rejected_with_line_number() {
        for list in ["1 a", "a b -> c", "  a", "1 a -> b\n1 c -> d"] {
            assert!(parse(list).unwrap_err().to_string().starts_with("line "), "{list}");
        }
    }
}
