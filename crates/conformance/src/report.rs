//! The report of a run, for people and for programs.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{case::Basis, outcome::Failed};

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The server behaves as required.
    Passed,
    /// The server violates a requirement.
    Failed(Failed),
    /// The adapter failed, so that the case shows nothing about the server.
    Undecided(Failed),
    /// The server does not offer what the case needs, for this reason.
    Skipped(String),
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Undecided(_) => "undecided",
            Self::Skipped(_) => "skipped",
        }
    }
}

/// A case that has run.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name of the case.
    pub name: String,
    /// The IDs of the requirements that it shows.
    pub requirements: &'static [&'static str],
    /// The origin of the rule.
    pub basis: Basis,
    /// The behavior, in one sentence.
    pub shows: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// The time that the case took.
    pub duration: Duration,
    /// The messages of a failed case: `>` is a request, `<` a response.
    pub log: Vec<String>,
}

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The cases that ran, in the order of the table.
    pub entries: Vec<Entry>,
    /// The number of cases that were to run. It is greater than the number of entries after an interruption.
    pub n_selected: usize,
    /// The reason why the adapter could not remove what it had created.
    pub leftover: Option<String>,
    /// The reason why the run ended early: the adapter could no longer publish anything.
    pub adapter_failure: Option<String>,
    /// The time of the run.
    pub duration: Duration,
}

/// The number of cases by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    undecided: usize,
    skipped: usize,
}

impl Counts {
    fn of<'a>(entries: impl Iterator<Item = &'a Entry>) -> Self {
        entries.fold(Self::default(), |mut counts, entry| {
            match entry.verdict {
                Verdict::Passed => counts.passed += 1,
                Verdict::Failed(_) => counts.failed += 1,
                Verdict::Undecided(_) => counts.undecided += 1,
                Verdict::Skipped(_) => counts.skipped += 1,
            }
            counts
        })
    }
}

impl Report {
    /// Returns whether all selected cases ran and were decided, and none failed.
    #[must_use]
    pub fn is_success(&self) -> bool {
        let all_ran = self.entries.len() == self.n_selected;
        let Counts { failed, undecided, .. } = Counts::of(self.entries.iter());
        all_ran && failed == 0 && undecided == 0 && self.leftover.is_none()
    }

    /// Returns the number of cases that failed.
    #[must_use]
    pub fn n_failed(&self) -> usize {
        Counts::of(self.entries.iter()).failed
    }

    /// Returns the number of cases that show nothing, because the adapter failed.
    #[must_use]
    pub fn n_undecided(&self) -> usize {
        Counts::of(self.entries.iter()).undecided
    }

    /// Returns the summary: one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let Counts { passed, failed, undecided, skipped } = Counts::of(self.entries.iter());
        let undecided = match undecided {
            0 => String::new(),
            n => format!(", {n} undecided"),
        };
        let not_run = match self.n_selected - self.entries.len().min(self.n_selected) {
            0 => String::new(),
            n => format!(", {n} not run"),
        };
        let seconds = self.duration.as_secs_f64();
        format!(
            "{passed} passed, {failed} failed, {skipped} skipped{undecided}{not_run} in {seconds:.1}s"
        )
    }

    /// Writes the report for people: a table by area, the failures, and the reasons of skipped cases.
    ///
    /// # Errors
    /// Fails if `out` fails.
    pub fn write_text(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let mut areas: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.entries {
            areas.entry(area(&entry.name)).or_default().push(entry);
        }
        let [passed, failed, undecided, skipped] = ["PASSED", "FAILED", "UNDECIDED", "SKIPPED"];
        writeln!(out, "{:<20} {passed:>7} {failed:>7} {undecided:>9} {skipped:>7}", "AREA")?;
        for (area, entries) in &areas {
            let counts = Counts::of(entries.iter().copied());
            let Counts { passed, failed, undecided, skipped } = counts;
            writeln!(out, "{area:<20} {passed:>7} {failed:>7} {undecided:>9} {skipped:>7}")?;
        }
        for entry in &self.entries {
            let (word, failed) = match &entry.verdict {
                Verdict::Failed(failed) => ("FAILED", failed),
                Verdict::Undecided(failed) => ("UNDECIDED", failed),
                Verdict::Passed | Verdict::Skipped(_) => continue,
            };
            let (requirement, basis) = (&failed.requirement, entry.basis.name());
            writeln!(out, "\n{word} {} ({requirement}, {basis})", entry.name)?;
            writeln!(out, "  {}", entry.shows)?;
            writeln!(out, "  expected: {}", failed.expected)?;
            writeln!(out, "  observed: {}", failed.observed)?;
            entry.log.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for entry in &self.entries {
            if let Verdict::Skipped(reason) = &entry.verdict {
                reasons.entry(reason).or_default().push(&entry.name);
            }
        }
        for (reason, names) in reasons {
            writeln!(out, "\nSKIPPED {} cases: {reason}", names.len())?;
            names.iter().try_for_each(|name| writeln!(out, "  {name}"))?;
        }
        writeln!(out, "\n{}", self.summary())?;
        match &self.leftover {
            Some(reason) => writeln!(out, "the adapter could not clean up: {reason}"),
            None => Ok(()),
        }
    }

    /// Returns the report for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Counts { passed, failed, undecided, skipped } = Counts::of(self.entries.iter());
        json!({
            "passed": passed,
            "failed": failed,
            "undecided": undecided,
            "skipped": skipped,
            "not_run": self.n_selected - self.entries.len().min(self.n_selected),
            "seconds": self.duration.as_secs_f64(),
            "leftover": self.leftover,
            "cases": self.entries.iter().map(entry_json).collect::<Vec<_>>(),
        })
    }

    /// Returns the report as JUnit XML.
    #[must_use]
    pub fn to_junit(&self) -> String {
        let Counts { failed, undecided, skipped, .. } = Counts::of(self.entries.iter());
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let n = self.entries.len();
        let seconds = self.duration.as_secs_f64();
        xml += &format!(
            "<testsuite name=\"xds-conformance\" tests=\"{n}\" failures=\"{failed}\" \
             errors=\"{undecided}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">\n"
        );
        self.entries.iter().for_each(|entry| xml += &entry_junit(entry));
        xml + "</testsuite>\n"
    }
}

/// Returns the first part of a case's name, with the variant.
fn area(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [area, variant @ ("sotw" | "delta"), ..] => format!("{area}/{variant}"),
        [area, ..] => (*area).to_owned(),
        [] => String::new(),
    }
}

fn entry_json(entry: &Entry) -> Value {
    let mut json = json!({
        "name": entry.name,
        "requirements": entry.requirements,
        "basis": entry.basis.name(),
        "shows": entry.shows,
        "result": entry.verdict.word(),
        "seconds": entry.duration.as_secs_f64(),
    });
    match &entry.verdict {
        Verdict::Passed => {}
        Verdict::Skipped(reason) => json["reason"] = reason.as_str().into(),
        Verdict::Failed(failed) | Verdict::Undecided(failed) => {
            json["requirement"] = failed.requirement.as_str().into();
            json["expected"] = failed.expected.as_str().into();
            json["observed"] = failed.observed.as_str().into();
            json["log"] = entry.log.clone().into();
        }
    }
    json
}

fn entry_junit(entry: &Entry) -> String {
    let (name, area) = (Xml(&entry.name), area(&entry.name));
    let seconds = entry.duration.as_secs_f64();
    let head = format!("  <testcase classname=\"{area}\" name=\"{name}\" time=\"{seconds:.3}\"");
    let inner = match &entry.verdict {
        Verdict::Passed => return format!("{head}/>\n"),
        Verdict::Skipped(reason) => format!("<skipped message=\"{}\"/>", Xml(reason)),
        Verdict::Failed(failed) | Verdict::Undecided(failed) => {
            let is_failure = matches!(entry.verdict, Verdict::Failed(_));
            let element = if is_failure { "failure" } else { "error" };
            let Failed { requirement, expected, observed } = failed;
            let text = format!("{requirement}: expected {expected}; observed {observed}");
            let log = entry.log.join("\n");
            format!("<{element} message=\"{}\">{}</{element}>", Xml(&text), Xml(&log))
        }
    };
    format!("{head}>{inner}</testcase>\n")
}

/// Text in XML, with escapes. Control characters, which XML 1.0 cannot contain, become spaces.
struct Xml<'a>(&'a str);

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\n' => f.write_char('\n'),
            c if c.is_control() => f.write_char(' '),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, verdict: Verdict) -> Entry {
        Entry {
            name: name.into(),
            requirements: &["SOTW-01"],
            basis: Basis::Protocol,
            shows: "It works.",
            verdict,
            duration: Duration::from_millis(5),
            log: vec!["> CDS [A]".into()],
        }
    }

    fn report(verdicts: Vec<Verdict>) -> Report {
        let entries: Vec<Entry> = verdicts.into_iter().map(|it| entry("sotw/x", it)).collect();
        let (n_selected, duration) = (entries.len(), Duration::from_secs(1));
        Report { entries, n_selected, leftover: None, adapter_failure: None, duration }
    }

    fn failed() -> Verdict {
        Verdict::Failed(Failed {
            requirement: "SOTW-23".into(),
            expected: "silence & peace".into(),
            observed: "CDS [\"A\"]".into(),
        })
    }

    #[test]
    fn only_a_complete_run_without_failures_is_a_success() {
        assert!(report(vec![Verdict::Passed]).is_success());
        assert!(!report(vec![Verdict::Passed, failed()]).is_success());
        let all = report(vec![Verdict::Passed]);
        assert!(!Report { n_selected: 2, ..all.clone() }.is_success());
        assert!(!Report { leftover: Some("no".into()), ..all }.is_success());
    }

    /// A lost adapter was reported as a server that does not conform.
    #[test]
    fn case_with_a_failed_adapter_is_undecided() {
        let failed = Failed {
            requirement: "adapter".into(),
            expected: "the adapter publishes the state".into(),
            observed: "connection refused".into(),
        };
        let report = report(vec![Verdict::Passed, Verdict::Undecided(failed)]);
        assert!(!report.is_success());
        assert_eq!((report.n_failed(), report.n_undecided()), (0, 1));
        assert_eq!(report.summary(), "1 passed, 0 failed, 0 skipped, 1 undecided in 1.0s");
        let json = report.to_json();
        assert_eq!(
            (&json["undecided"], &json["cases"][1]["result"]),
            (&1.into(), &"undecided".into())
        );
        let xml = report.to_junit();
        assert!(xml.contains("failures=\"0\" errors=\"1\"") && xml.contains("</error>"), "{xml}");
        let mut text = Vec::new();
        report.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("UNDECIDED sotw/x (adapter, protocol)"), "{text}");
    }

    #[test]
    fn skipped_case_does_not_count_as_passed() {
        let report = report(vec![Verdict::Passed, Verdict::Skipped("no REST".into())]);
        assert_eq!(report.summary(), "1 passed, 0 failed, 1 skipped in 1.0s");
        assert_eq!(
            (&report.to_json()["passed"], &report.to_json()["skipped"]),
            (&1.into(), &1.into())
        );
        assert!(report.to_junit().contains("<skipped message=\"no REST\"/>"));
    }

    #[test]
    fn failure_names_requirement_expectation_and_observation() {
        let report = report(vec![failed()]);
        let mut text = Vec::new();
        report.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in ["SOTW-23", "expected: silence & peace", "observed: CDS [\"A\"]", "> CDS [A]"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let xml = report.to_junit();
        assert!(
            xml.contains("SOTW-23: expected silence &amp; peace; observed CDS [&quot;A&quot;]"),
            "{xml}"
        );
        let json = report.to_json();
        assert_eq!((&json["failed"], &json["cases"][0]["result"]), (&1.into(), &"failed".into()));
    }
}
