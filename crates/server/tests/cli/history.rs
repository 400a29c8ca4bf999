//! Tests of the history and of the ways back, on three replicas.

mod client;
mod model;
mod random;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    cluster::{Replica, joined, joined_with},
    history::random::{Tally, run_history},
    support::{Done, clusters},
};

fn ok(done: &Done) -> &str {
    assert_eq!(done.code, 0, "{done:?}");
    &done.out
}

/// Runs a command that writes, and returns its revision.
fn write(replica: &Replica, args: &[&str], input: &str) -> u64 {
    let args = [args, ["-o", "json"].as_slice()].concat();
    let done = replica.run(&args, input);
    let json: Value = serde_json::from_str(ok(&done)).unwrap();
    json["revision"].as_u64().unwrap()
}

/// Returns the bodies of the resources of a scope, by type and name.
fn content(replica: &Replica, scope: &str) -> BTreeMap<String, Value> {
    let list = replica.json(&["get", "--scope", scope]);
    let resources = list["resources"].as_array().unwrap().iter();
    let key = |one: &Value| format!("{} {}", one["type_url"], one["name"]);
    resources.map(|one| (key(one), one["body"].clone())).collect()
}

/// Each replica shows what a revision changed, compares revisions, and leads back to one.
#[test]
fn every_replica_leads_back_to_an_earlier_revision() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    // On a busy machine, a replica may answer late.
    let confirm = ["--confirm", "unasked"];
    let apply = ["apply", "-f", "-", "--scope", "edge", "--author", "ann", "--prune"];
    let apply = [&apply[..], &confirm].concat();
    let first = write(&replicas[0], &apply, &clusters(&["a", "b"], "1s"));
    let then = content(&replicas[0], "edge");
    let second = write(&replicas[1], &apply, &clusters(&["b", "c"], "2s"));
    let other = ["apply", "-f", "-", "--author", "bob", "--reason", "why not"];
    let third = write(&replicas[2], &other, &clusters(&["b"], "3s"));
    for replica in &replicas {
        let show = replica.run(&["history", "show", &second.to_string()], "");
        let shown = ok(&show);
        for text in [
            "author:        ann",
            "removed  cluster  a",
            "added    cluster  c",
            "- connect_timeout: 1s",
        ] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let revisions = |args: &[&str]| -> Vec<u64> {
            let list = replica.json(&[&["history"], args].concat());
            let entries = list["entries"].as_array().unwrap().iter();
            entries.map(|entry| entry["revision"].as_u64().unwrap()).collect()
        };
        assert_eq!(revisions(&["--scope", "edge"]), [second, first]);
        assert_eq!(revisions(&["--type", "cluster", "--name", "b"]), [third, second, first]);
        assert_eq!(revisions(&["--name", "c"]), [second]);
        assert_eq!(revisions(&["--author", "bob"]), [third]);
        assert_eq!(revisions(&["--since", "1h"]).len(), 3);
        let (from, to) = (first.to_string(), second.to_string());
        let differs = replica.run(&["diff", "--from", &from, "--to", &to], "");
        assert_eq!(differs.code, 2, "{differs:?}");
        assert!(differs.out.contains("3 changes"), "{}", differs.out);
        let equal = replica.run(&["diff", "--from", &to, "--scope", "edge"], "");
        assert_eq!(equal.code, 0, "{equal:?}");
    }
    let back = ["rollback", "edge", "--to", &first.to_string()];
    let dry = replicas[2].run(&[&back[..], &["--dry-run"]].concat(), "");
    assert_eq!(dry.code, 2, "{dry:?}");
    let zero = replicas[2].run(&[&back[..], &["--dry-run", "--exit-zero"]].concat(), "");
    assert_eq!((zero.code, &zero.out), (0, &dry.out));
    let restoring = write(&replicas[2], &back, "");
    assert_eq!(restoring, third + 1);
    replicas[1].kill();
    replicas[1].start_and_wait(&[]);
    for replica in &replicas {
        assert_eq!(content(replica, "edge"), then);
        let entry = replica.json(&["history", "-n", "1"])["entries"][0].clone();
        let reason = format!("rollback of scope edge to revision {first}");
        assert_eq!(
            (entry["revision"].as_u64(), entry["reason"].as_str()),
            (Some(restoring), Some(&*reason))
        );
        let dry = replica.run(&[&back[..], &["--dry-run"]].concat(), "");
        assert_eq!(dry.code, 0, "{dry:?}");
        let blame = replica.run(&["blame", "cluster", "b", "--scope", "edge"], "");
        let line = ok(&blame).lines().find(|line| line.contains("connect_timeout")).unwrap();
        assert!(line.starts_with(&restoring.to_string()), "{blame:?}");
        let line = blame.out.lines().find(|line| line.contains("name: b")).unwrap();
        assert!(line.starts_with(&first.to_string()), "{blame:?}");
    }
}

/// Every replica shows the labels of a revision and finds it by them, also after a crash and in the checked history.
#[test]
fn labels_select_revisions_on_every_replica() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let apply = ["apply", "-f", "-", "--scope", "edge"];
    let labels = ["--label", "git=4fe1", "--label", "pr=https://git/x/pull/7?a=b", "--label", "v7"];
    let first = write(&replicas[1], &[&apply[..], &labels].concat(), &clusters(&["a"], "1s"));
    let other = ["--label", "git=77aa"];
    let second = write(&replicas[2], &[&apply[..], &other].concat(), &clusters(&["a"], "2s"));
    replicas[0].kill();
    replicas[0].start_and_wait(&[]);
    for replica in &replicas {
        for (label, expected) in [
            ("git=4fe1", vec![first]),
            ("git", vec![second, first]),
            ("v7", vec![first]),
            ("pr=https://git/x/pull/7?a=b", vec![first]),
            ("git=4", vec![]),
        ] {
            let list = replica.json(&["history", "--label", label]);
            let entries = list["entries"].as_array().unwrap().iter();
            let found: Vec<_> = entries.map(|one| one["revision"].as_u64().unwrap()).collect();
            assert_eq!(found, expected, "{label}");
        }
        let shown = replica.run(&["history", "show", &first.to_string()], "");
        let line = "label:         v7,git=4fe1,pr=https://git/x/pull/7?a=b";
        assert!(ok(&shown).lines().any(|one| one == line), "{}", shown.out);
        ok(&replica.run(&["history", "--verify"], ""));
    }
    for (labels, error) in [
        (vec!["a b=c"], "the label key \"a b\" is not allowed"),
        (vec!["a=b,c"], "the value \"b,c\" of the label \"a\" is not allowed"),
        (vec!["a=1", "a=2"], "--label \"a\" is given twice"),
        (vec!["a", "b"], "only one --label without `=` is possible"),
    ] {
        let flags: Vec<&str> = labels.iter().flat_map(|label| ["--label", *label]).collect();
        let refused = replicas[0].run(&[&apply[..], &flags].concat(), &clusters(&["a"], "3s"));
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.err.contains(error), "{refused:?}");
    }
    let newest = replicas[0].json(&["history", "-n", "1"])["entries"][0].clone();
    assert_eq!(newest["revision"].as_u64(), Some(second));
    assert_eq!(newest["labels"]["git"], "77aa");
}

/// A list of the revisions that changed a scope says which changes are no longer kept.
#[test]
fn list_of_changes_says_which_are_no_longer_kept() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined_with(root.path(), |replica| {
        replica.environment = vec![("CHANCERY_STORE_HISTORY_REVISIONS", "2".to_owned())];
    });
    let apply = ["apply", "-f", "-", "--scope", "edge"];
    let seconds = ["1s", "2s", "3s", "4s"];
    let revisions = seconds.map(|text| write(&replicas[0], &apply, &clusters(&["a"], text)));
    for replica in &replicas {
        let list = replica.json(&["history", "--scope", "edge"]);
        let from = list["content_from"].as_u64().unwrap();
        assert!(from >= revisions[0], "{list}");
        let text =
            format!("the history no longer keeps the changes of revision {from} and earlier\n");
        let some = replica.run(&["history", "--scope", "edge"], "");
        assert!(ok(&some).ends_with(&text), "{some:?}");
        // All revisions are in the list.
        assert!(!ok(&replica.run(&["history"], "")).contains("no longer keeps"));
        let page = replica.run(&["history", "--scope", "edge", "-n", "1"], "");
        assert!(!ok(&page).contains("no longer keeps"), "{page:?}");
    }
}

/// `undo` keeps what later revisions changed, and names the one with which it conflicts.
#[test]
fn undo_takes_back_one_revision_or_names_the_conflict() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    let apply = ["apply", "-f", "-"];
    write(&replicas[0], &apply, &clusters(&["a", "b", "c"], "1s"));
    let changed = write(&replicas[1], &apply, &clusters(&["a", "b"], "2s"));
    let later = write(&replicas[2], &apply, &clusters(&["b"], "3s"));
    write(&replicas[0], &apply, &clusters(&["c"], "4s"));
    let refused = replicas[1].run(&["undo", &changed.to_string()], "");
    assert_eq!(refused.code, 1, "{refused:?}");
    let conflict = format!("Cluster \"b\" in scope \"default\" (revision {later})");
    assert!(refused.err.contains(&conflict) && !refused.err.contains("\"a\""), "{refused:?}");
    write(&replicas[1], &["undo", &later.to_string()], "");
    write(&replicas[2], &["undo", &changed.to_string()], "");
    let timeouts: Vec<Value> = content(&replicas[0], "default")
        .into_values()
        .map(|body| body["connect_timeout"].clone())
        .collect();
    assert_eq!(timeouts, ["1s", "1s", "4s"]);
    let nothing = replicas[0].run(&["undo", &changed.to_string(), "--dry-run"], "");
    assert_eq!(nothing.code, 0, "{nothing:?}");
    let misspelled = [
        (&["rollback", "nowhere", "--to", "1"][..], "no resource in scope \"nowhere\" exists at"),
        (
            &["rollback", "default", "secret", "--to", "1"],
            "no Secret in scope \"default\" exists at revision ",
        ),
        (
            &["rollback", "default", "cluster", "nothing", "--to", "1"],
            "Cluster \"nothing\" in scope \"default\" does not exist at revision ",
        ),
        (
            &["diff", "--from", "1", "--scope", "nowhere"],
            "no resource in scope \"nowhere\" exists at",
        ),
    ];
    for (args, text) in misspelled {
        let done = replicas[2].run(args, "");
        assert!(done.code == 1 && done.err.contains(text), "{args:?}: {done:?}");
    }
    let frozen = write(&replicas[1], &["freeze", "edge"], "").to_string();
    let freeze = replicas[2].run(&["undo", &frozen], "");
    assert_eq!(freeze.code, 1, "{freeze:?}");
    assert!(freeze.err.contains("if it began a freeze, run `chancery thaw`"), "{freeze:?}");
    let zero = replicas[0].run(&["undo", "0"], "");
    assert!(zero.code == 1 && zero.err.contains("revision 0: it does not exist"), "{zero:?}");
    let unknown = replicas[0].run(&["undo", "999"], "");
    assert_eq!(unknown.code, 1, "{unknown:?}");
}

/// Random histories with kills of replicas, snapshots, changes of the leader, restores and small limits of what is kept: a
/// rollback gives the content of then, `undo` reverts one revision or names the conflicts, and all replicas and a client have
/// the result. All replicas keep the same revisions. 4 histories, or 200 with `CHANCERY_TEST_LONG`;
/// `CHANCERY_TEST_SEED=<seed>` repeats one.
#[test]
fn random_histories_lead_back() {
    let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
    let seed = std::env::var("CHANCERY_TEST_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = match seed {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 200 } else { 4 },
    };
    let is_one = seed.is_some();
    let mut sum = Tally::default();
    for seed in seeds {
        sum += run_history(seed);
    }
    println!("{sum:?}");
    assert!(is_one || sum.has_all(), "{sum:?}");
}
