//! The check of the hash chain of the history.

use std::str::FromStr;

use chancery_admin_proto::v1 as pb;
use chancery_model::{Revision, Summary, TransactionMeta};
use chancery_store::HistoryHash;
use serde_json::json;

use crate::{
    answer::{Answer, Output},
    failure::Failure,
    text::count,
};

/// A revision with its hash. The text form is `REVISION:HASH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HistoryHead {
    revision: u64,
    hash: HistoryHash,
}

impl FromStr for HistoryHead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once(':').and_then(|(revision, hash)| {
            Some(Self { revision: revision.parse().ok()?, hash: hash.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            "expected REVISION:HASH with a SHA-256 hash of 64 hexadecimal digits".to_owned()
        })
    }
}

/// The result of a check.
#[derive(Debug, Default)]
struct Checked {
    /// The number of checked revisions.
    n: u64,
    /// The number of revisions before the chain.
    n_without: u64,
    first: Option<u64>,
    head: Option<HistoryHead>,
}

/// Checks the entries, which are newest first, and shows the result.
pub(super) fn run(
    entries: &[pb::HistoryEntry],
    expected: Option<&HistoryHead>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let checked = check(entries, expected).map_err(Failure::new)?;
    let head = checked.head.map(|head| format!("{}:{}", head.revision, head.hash));
    let json = json!({
        "valid": true,
        "revisions": checked.n,
        "without_hash": checked.n_without,
        "first": checked.first,
        "head": head,
    });
    match answer.output {
        Output::Json | Output::Sarif => answer.json(&json),
        Output::Yaml => answer.yaml(&json),
        Output::Text | Output::Wide => answer.text(|out| {
            let (Some(first), Some(last), Some(head)) = (checked.first, checked.head, head) else {
                return writeln!(out, "no revisions with hashes");
            };
            writeln!(out, "{}: {first} to {}", count(checked.n, "valid revision"), last.revision)?;
            if checked.n_without > 0 {
                writeln!(
                    out,
                    "{} before them, without hashes",
                    count(checked.n_without, "revision")
                )?;
            }
            writeln!(out, "head {head}")
        }),
    }
}

/// Checks each entry and its connection with the one before.
fn check(entries: &[pb::HistoryEntry], expected: Option<&HistoryHead>) -> Result<Checked, String> {
    let mut checked = Checked::default();
    let mut is_found = false;
    for entry in entries.iter().rev() {
        let revision = entry.revision;
        if entry.hash.is_empty() && checked.head.is_none() {
            checked.n_without += 1;
            continue;
        }
        let read = |text: &str| {
            text.parse::<HistoryHash>()
                .map_err(|_| format!("revision {revision} has no valid hash: {text:?}"))
        };
        let (previous, hash) = (read(&entry.previous_hash)?, read(&entry.hash)?);
        if let Some(before) = checked.head {
            let follows = entry.restored_from.unwrap_or(revision.saturating_sub(1));
            if follows != before.revision {
                return Err(format!(
                    "revision {revision} follows revision {}, but revision {follows} is missing",
                    before.revision
                ));
            }
            if previous != before.hash {
                return Err(format!(
                    "revision {revision} was written after another revision {}: the history has its hash {}, and \
                     revision {revision} the hash {previous}",
                    before.revision, before.hash
                ));
            }
        }
        let computed = computed(entry, previous);
        if computed != hash {
            return Err(format!(
                "revision {revision} was changed: its content has the hash {computed}, not {hash}"
            ));
        }
        if let Some(expected) = expected.filter(|expected| expected.revision == revision) {
            if expected.hash != hash {
                return Err(format!(
                    "the history differs: revision {revision} has the hash {hash}, not {}",
                    expected.hash
                ));
            }
            is_found = true;
        }
        checked.n += 1;
        checked.first.get_or_insert(revision);
        checked.head = Some(HistoryHead { revision, hash });
    }
    match expected {
        Some(expected) if !is_found => {
            Err(format!("the history has no revision {} with a hash", expected.revision))
        }
        _ => Ok(checked),
    }
}

fn computed(entry: &pb::HistoryEntry, previous: HistoryHash) -> HistoryHash {
    let meta = TransactionMeta {
        label: Some(entry.label.as_str().into()),
        author: entry.author.clone(),
        reason: entry.reason.clone(),
        time_ms: entry.time_ms,
        validation: entry.validation.clone(),
        confirmed: entry.confirmed.clone(),
        source: entry.source.clone(),
        labels: entry.labels.clone(),
    };
    let revision = Revision(entry.revision);
    let summary = Summary {
        revision,
        changed: entry.changed,
        removed: entry.removed,
        unchanged: entry.unchanged,
        assignments: entry.assignments,
        access: entry.access,
    };
    previous.next(revision, entry.restored_from.map(Revision), &meta, &summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a history of five revisions, newest first. The last one is from a restore.
    fn history() -> Vec<pb::HistoryEntry> {
        let mut entries: Vec<pb::HistoryEntry> = Vec::new();
        let mut previous = HistoryHash::ZERO;
        for (revision, restored_from) in
            [(1, None), (2, None), (3, None), (4, None), (1 << 32, Some(4))]
        {
            let mut entry = pb::HistoryEntry {
                revision,
                restored_from,
                author: "anna".to_owned(),
                changed: revision,
                previous_hash: previous.to_string(),
                ..Default::default()
            };
            previous = computed(&entry, previous);
            entry.hash = previous.to_string();
            entries.insert(0, entry);
        }
        entries
    }

    #[test]
    fn whole_history_is_valid_and_its_head_is_shown() {
        let history = history();
        let checked = check(&history, None).unwrap();
        assert_eq!((checked.n, checked.first, checked.n_without), (5, Some(1), 0));
        let head = checked.head.unwrap();
        assert_eq!(head.revision, 1 << 32);
        check(&history, Some(&head)).unwrap();
        let older = HistoryHead { revision: 2, hash: history[3].hash.parse().unwrap() };
        check(&history, Some(&older)).unwrap();
        let text = format!("{}:{}", head.revision, head.hash);
        assert_eq!(text.parse(), Ok(head));
        "7:ab".parse::<HistoryHead>().unwrap_err();
    }

    /// Attack 58: a changed, removed or replaced entry is named.
    #[test]
    fn changed_history_is_named_by_revision() {
        let fails = |change: fn(&mut Vec<pb::HistoryEntry>), text: &str| {
            let mut history = history();
            change(&mut history);
            let error = check(&history, None).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        fails(|all| all[3].author = "eve".to_owned(), "revision 2 was changed");
        fails(|all| all[3].changed += 1, "revision 2 was changed");
        fails(
            |all| drop(all.remove(2)),
            "revision 4 follows revision 2, but revision 3 is missing",
        );
        fails(|all| all[1].hash.clear(), "revision 4 has no valid hash");
        fails(
            |all| {
                all[3].author = "eve".to_owned();
                all[3].hash = computed(&all[3], all[3].previous_hash.parse().unwrap()).to_string();
            },
            "revision 3 was written after another revision 2",
        );
    }

    #[test]
    fn head_from_elsewhere_must_match() {
        let history = history();
        let other = HistoryHead { revision: 3, hash: HistoryHash::ZERO };
        assert!(
            check(&history, Some(&other)).unwrap_err().contains("the history differs: revision 3")
        );
        let absent = HistoryHead { revision: 9, hash: HistoryHash::ZERO };
        let error = check(&history, Some(&absent)).unwrap_err();
        assert_eq!(error, "the history has no revision 9 with a hash");
        let mut upgraded = history;
        upgraded.iter_mut().skip(3).for_each(|entry| {
            entry.hash.clear();
            entry.previous_hash.clear();
        });
        let checked = check(&upgraded, None).unwrap();
        assert_eq!((checked.n, checked.n_without, checked.first), (3, 2, Some(3)));
    }
}
