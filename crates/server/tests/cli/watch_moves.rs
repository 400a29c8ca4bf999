//! Watches while replicas end, leave and join: what is lost is an event, and nothing else is.

use rustix::process::Signal;

use crate::{scripted_fleet::Fleet, support::http_get, watch::Watcher, watch_events::publish};

/// A revision that does not exist is refused, unless the replica cannot know. A replica that lags catches up first.
#[test]
fn watch_after_a_revision_that_does_not_exist_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let leader = fleet.leader(0);
    let (other, lagging) = ((leader + 1) % 3, (leader + 2) % 3);
    publish(&fleet.replicas[leader], "1s");
    let text = "revision 999 does not exist; the newest revision is 1";
    for at in [leader, other] {
        let done = fleet.replicas[at].run(&["watch", "--after", "999"], "");
        assert!(done.code == 1 && done.err == format!("error: {text}\n"), "{done:?}");
        let path = "/v1/watch?after_revision=999";
        let (status, body) = http_get(&fleet.replicas[at].admin, path);
        assert!(status == 404 && body.contains(text), "{status} {body}");
    }

    fleet.signal(lagging, Signal::STOP);
    for n in 2..5 {
        publish(&fleet.replicas[leader], &format!("{n}s"));
    }
    fleet.signal(lagging, Signal::CONT);
    let args = ["--kind", "revisions", "--after", "4"];
    let watcher = Watcher::start(&fleet.replicas[lagging].admin, &args);
    assert_eq!(watcher.next("the position")["revision"], 4);
    publish(&fleet.replicas[leader], "5s");
    let event = watcher.wait("the next revision", |event| event.get("made").is_some());
    assert_eq!(event["revision"], 5, "{event}");

    // Without a majority, the revision may exist.
    fleet.replicas[leader].kill();
    fleet.replicas[lagging].kill();
    let args = ["--kind", "revisions", "--after", "6"];
    let watcher = Watcher::start(&fleet.replicas[other].admin, &args);
    assert_eq!(watcher.next("the position")["revision"], 6);
}
