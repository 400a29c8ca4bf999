//! The rules with shorter durations.
//!
//! An hour of a rule becomes a minute: [`FACTOR`] divides every range (`[5m]`), every `offset` and every `for`. A `for` is at least [`WAIT_MIN`].
//! With the scrape interval of 1 s, a range then has as many samples as with an interval of 1 min.
//!
//! A threshold that is a duration is divided only if the time must pass before the alert fires ([`THRESHOLDS`]).
//! All other thresholds stay as they are:
//!
//! - Latencies (5 s until a client acknowledges, 250 ms for a sync): the fault causes the real latency.
//! - The time until a certificate expires: a scenario creates a certificate that expires within a day.
//! - The age of the keys of an issuer: replicas request them every 5 minutes, whatever the rules say.
//! - Counts and rates: the fault happens often enough within the shorter range.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// The number by which durations are divided.
pub(super) const FACTOR: u64 = 60;

/// The minimum of a `for`, in milliseconds. On a busy machine, scrapes and elections may be late by a second or two.
const WAIT_MIN: u64 = 3000;

/// The thresholds that are divided: the alert, the text in its query, and the text that replaces it.
const THRESHOLDS: &[(&str, &str, &str)] = &[
    ("ChanceryClientSilent", "> 120", "> 2"),
    ("ChanceryAuditBehind", "> 60", "> 1"),
    ("ChanceryDiskFillsSoon", "24 * 3600", "24 * 60"),
];

/// Returns a rule file with shorter durations, in JSON, which is also YAML.
pub(super) fn rules(yaml: &str) -> Result<String> {
    let mut file: Value = serde_saphyr::from_str(yaml).context("parse the rules")?;
    let groups = file["groups"].as_array_mut().context("the file has no groups")?;
    let rules = groups.iter_mut().filter_map(|group| group["rules"].as_array_mut()).flatten();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap_or_default().to_owned();
        let expr = rule["expr"].as_str().context("a rule has no query")?;
        let mut expr = query(expr).with_context(|| format!("the query of {name}"))?;
        for (_, from, to) in THRESHOLDS.iter().filter(|(alert, ..)| *alert == name) {
            ensure!(expr.contains(from), "the query of {name} has no {from:?}; correct THRESHOLDS");
            expr = expr.replace(from, to);
        }
        rule["expr"] = json!(expr);
        if let Some(wait) = rule["for"].as_str() {
            rule["for"] = json!(format!("{}ms", milliseconds(wait)?.max(WAIT_MIN)));
        }
    }
    Ok(file.to_string())
}

/// Returns a query with shorter ranges and offsets. Texts in quotes stay as they are.
fn query(text: &str) -> Result<String> {
    let mut scaled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '[']).into_iter().chain(rest.find("offset ")).min() {
        let (before, found) = rest.split_at(at);
        scaled.push_str(before);
        let (open, end) = match found.as_bytes().first() {
            Some(b'"') => ("\"", found[1..].find('"').map(|at| at + 1)),
            Some(b'[') => ("[", found.find(']')),
            _ => (
                "offset ",
                Some(found[7..].find([')', ' ', '\n']).map_or(found.len(), |at| at + 7)),
            ),
        };
        let end = end.with_context(|| format!("{found:?} has no end"))?;
        let content = &found[open.len()..end];
        let content = if open == "\"" { content.to_owned() } else { duration(content)? };
        scaled.push_str(open);
        scaled.push_str(&content);
        // The closing quote would begin the next text.
        let skipped = usize::from(open == "\"");
        scaled.push_str(&found[end..end + skipped]);
        rest = &found[end + skipped..];
    }
    scaled.push_str(rest);
    Ok(scaled)
}

/// Returns a shorter duration.
fn duration(text: &str) -> Result<String> {
    Ok(format!("{}ms", milliseconds(text)?))
}

/// Returns the milliseconds of a shorter duration.
fn milliseconds(text: &str) -> Result<u64> {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let number: u64 = number.parse().with_context(|| format!("parse the duration {text:?}"))?;
    let seconds = match unit {
        "s" => number,
        "m" => number * 60,
        "h" => number * 3600,
        "d" => number * 86400,
        _ => bail!("the duration {text:?} has an unknown unit"),
    };
    Ok(seconds * 1000 / FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_offsets_become_shorter_and_texts_stay() {
        let scaled = query("rate(a{le=~\"4|4[.]0\"}[5m]) < 2 * (a offset 1h) and b offset 3h\n> 0");
        let expected =
            "rate(a{le=~\"4|4[.]0\"}[5000ms]) < 2 * (a offset 60000ms) and b offset 180000ms\n> 0";
        assert_eq!(scaled.unwrap(), expected);
        assert!(query("rate(a[5x])").is_err());
    }

    #[test]
    fn waits_and_listed_thresholds_become_shorter() {
        let file =
            "groups: [{name: g, rules: [{alert: ChanceryClientSilent, expr: 'a > 120', for: 5m}]}]";
        let scaled: Value = serde_json::from_str(&rules(file).unwrap()).unwrap();
        let rule = &scaled["groups"][0]["rules"][0];
        assert_eq!((&rule["expr"], &rule["for"]), (&json!("a > 2"), &json!("5000ms")));
        let error = rules(&file.replace("120", "90")).unwrap_err().to_string();
        assert_eq!(error, "the query of ChanceryClientSilent has no \"> 120\"; correct THRESHOLDS");
    }
}
