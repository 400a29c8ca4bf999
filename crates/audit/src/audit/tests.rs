use std::{fs, path::Path, time::Instant};

use serde_json::Value;

use super::*;
use crate::{
    event::{Decision, Port},
    rotation::Rotation,
    verify::{Range, verify},
};

/// The time limit of a strict audit log that is expected to refuse.
const STRICT: Duration = Duration::from_millis(300);
const CLOSE: Duration = Duration::from_secs(20);

fn settings(dir: &Path) -> Settings {
    Settings { sinks: vec![SinkSettings::File(dir.join("audit.jsonl"))], ..Settings::default() }
}

fn strict(settings: Settings) -> Settings {
    Settings { mode: Mode::Strict { timeout: CLOSE }, sync_interval: Duration::ZERO, ..settings }
}

fn records(dir: &Path) -> Vec<Value> {
    let path = dir.join("audit.jsonl");
    assert_eq!(verify(std::slice::from_ref(&path), &Range::default()).unwrap().problem, None);
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn event(verb: &'static str) -> Event {
    Event::new(Port::Admin, verb)
}

#[tokio::test]
async fn audit_log_without_sinks_takes_events_and_is_not_strict() {
    let audit = Audit::open(&strict(Settings::default())).unwrap();
    assert!(!audit.is_strict());
    audit.record(event("apply")).await.unwrap();
    audit.note(event("apply"));
    audit.close(CLOSE).await;
}

#[tokio::test]
async fn records_are_on_disk_when_a_strict_audit_log_has_taken_them() {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(&strict(settings(dir.path()))).unwrap();
    assert!(audit.is_strict());
    for verb in ["apply", "delete"] {
        audit.record(event(verb)).await.unwrap();
        assert_eq!(records(dir.path()).last().unwrap()["verb"], verb);
    }
    audit.close(CLOSE).await;
    audit.record(event("apply")).await.unwrap_err();
}

/// A disk that is full for the whole time, as `/dev/full` is.
#[tokio::test]
async fn strict_audit_log_refuses_when_no_sink_takes_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = SinkSettings::Syslog(dir.path().join("nobody"));
    let broken = Settings { sinks: vec![nobody.clone()], ..Settings::default() };
    let mode = Mode::Strict { timeout: STRICT };
    let audit = Audit::open(&Settings { mode, ..strict(broken.clone()) }).unwrap();
    let refused = audit.record(event("apply")).await.unwrap_err();
    assert!(refused.to_string().contains("within 300ms (audit.strict_timeout)"), "{refused}");
    audit.close(CLOSE).await;
    // One working sink is enough.
    let sinks = [vec![nobody], settings(dir.path()).sinks].concat();
    let audit = Audit::open(&strict(Settings { sinks, ..broken.clone() })).unwrap();
    audit.record(event("apply")).await.unwrap();
    audit.close(CLOSE).await;
    let audit = Audit::open(&broken).unwrap();
    audit.record(event("apply")).await.unwrap();
    audit.close(CLOSE).await;
}

#[tokio::test]
async fn strict_audit_log_refuses_at_once_when_all_queues_are_full() {
    let dir = tempfile::tempdir().unwrap();
    let sinks = vec![SinkSettings::Syslog(dir.path().join("nobody"))];
    let audit = Audit::open(&Settings {
        sinks,
        queue_max: 1,
        mode: Mode::Strict { timeout: Duration::from_secs(3600) },
        ..Settings::default()
    });
    let audit = audit.unwrap();
    // The thread holds one record, in addition to the one in the queue.
    let queue = &audit.0.as_ref().unwrap().queues[0];
    let (mut n_taken, start) = (0, Instant::now());
    while n_taken < 2 {
        assert!(start.elapsed() < CLOSE, "{n_taken} records were taken");
        n_taken += usize::from(queue.push(&Arc::new(Entry::new("{}".to_owned(), None))));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::timeout(CLOSE, audit.record(event("apply"))).await.unwrap().unwrap_err();
    audit.close(CLOSE).await;
}

#[tokio::test]
async fn policy_hides_events_except_changes_of_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    let put = |text: &str| {
        fs::write(dir.path().join("new"), text).unwrap();
        fs::rename(dir.path().join("new"), &policy).unwrap();
    };
    put("default = \"none\"\n[[rules]]\nlevel = \"request\"\nverbs = [\"delete\"]\n");
    let settings = Settings { policy_file: Some(policy.clone()), ..settings(dir.path()) };
    let audit = Audit::open(&strict(settings.clone())).unwrap();
    audit.record(event("apply").detail("n", 1)).await.unwrap();
    audit.record(event("delete").detail("n", 1)).await.unwrap();
    put("default = 7");
    let shared = Arc::clone(audit.0.as_ref().unwrap());
    shared.reread_policy();
    put("default = \"metadata\"");
    shared.reread_policy();
    audit.record(event("apply").detail("n", 1)).await.unwrap();
    audit.close(CLOSE).await;
    let records = records(dir.path());
    let verbs: Vec<_> = records.iter().map(|record| record["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["delete", "audit.policy_changed", "audit.policy_changed", "apply"]);
    assert_eq!(records[0]["details"]["n"], 1);
    assert_eq!(
        (&records[1]["decision"], &records[2]["decision"]),
        (&"failed".into(), &"allowed".into())
    );
    assert_eq!(records[3]["details"], Value::Null);
    fs::write(&policy, "default = 7").unwrap();
    let error = Audit::open(&settings).unwrap_err().to_string();
    assert!(error.contains("policy.toml:1: "), "{error}");
}

#[tokio::test]
async fn strangers_cause_a_limited_number_of_records() {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(&settings(dir.path())).unwrap();
    for _ in 0..1000 {
        audit.note_stranger(Event::refused(Port::Xds, "handshake", None, "expired"));
    }
    audit.close(CLOSE).await;
    // The loop may run into a second second.
    let n = records(dir.path()).len();
    assert!((10..=30).contains(&n), "{n}");
}

#[tokio::test]
async fn restarted_audit_log_continues_its_chain_and_reports_a_torn_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    for round in 0..3 {
        let audit = Audit::open(&settings(dir.path())).unwrap();
        audit.note(Event { decision: Decision::Refused("input"), ..event("apply") });
        audit.close(CLOSE).await;
        let n = records(dir.path()).len();
        // The first round has no torn line before it.
        assert_eq!(n, 1 + 2 * round);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{}", &text[..40])).unwrap();
    }
    let text = fs::read_to_string(dir.path().join("audit.jsonl.torn")).unwrap();
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn unusable_file_is_reported_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing").join("audit.jsonl");
    let sinks = vec![SinkSettings::File(path)];
    let settings = Settings { sinks, rotation: Rotation::default(), ..Settings::default() };
    let error = Audit::open(&settings).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot open the audit log ") && error.contains("missing"),
        "{error}"
    );
}
