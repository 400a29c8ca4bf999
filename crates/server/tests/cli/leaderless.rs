//! A replica that hears nobody any more, though all connections are there; and who stands for election.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    cluster::{Replica, index, joined},
    support::{http_get, signal},
};

/// From the last word of a leader to 0 it takes a second, and a fifth until that is told. The rest is for a
/// busy machine.
const SECONDS: Duration = Duration::from_secs(20);

fn metric(replica: &Replica, name: &str) -> f64 {
    let (_, page) = http_get(&replica.admin, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap().parse().unwrap()
}

fn has_leader(replica: &Replica) -> bool {
    metric(replica, "chancery_raft_has_leader") > 0.5
}

fn wait_for(has: bool, replica: &Replica, what: &str) {
    let start = Instant::now();
    while has_leader(replica) != has {
        assert!(start.elapsed() < SECONDS, "not within {SECONDS:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Issue 4: two of three replicas fall silent. The third one says that it has no leader, whether it led or
/// followed; and that it has one when the others speak again.
#[test]
fn a_leader_that_is_silent_is_none() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    elections_are_counted_where_somebody_stood(&replicas);
    for leads in [false, true] {
        let leader = index(&replicas[0].wait_voters(3)["leader"]);
        let left = if leads { leader } else { (leader + 1) % 3 };
        let left = &replicas[left];
        wait_for(true, left, "there is a leader");
        let others = || replicas.iter().filter(|other| other.id != left.id);
        let send = |what| {
            for other in others() {
                signal(other.child.as_ref().unwrap(), what);
            }
        };
        send(Signal::STOP);
        wait_for(false, left, "no leader is heard");
        let status = left.json(&["cluster", "status"]);
        assert!(status["leader"].is_null(), "{status}");
        let text = left.run(&["cluster", "status"], "").out;
        let checked = left.run(&["cluster", "status", "--check"], "");
        let said = format!(
            "error: the server at {} hears no leader: nothing can be written there\n",
            left.admin
        );
        assert_eq!((checked.code, checked.err), (1, said));
        assert!(checked.out.contains("): no leader, "), "the answer is shown all the same");
        assert!(text.contains("): no leader, 1 of 3 voters answer (2 needed)"), "{text}");
        // It serves on, and is ready.
        assert_eq!(http_get(&left.admin, "/readyz"), (200, "ready\n".to_owned()));
        send(Signal::CONT);
        wait_for(true, left, "a leader is heard again");
    }
}

/// The first one has elected itself; another one stands when it is told to.
fn elections_are_counted_where_somebody_stood(replicas: &[Replica; 3]) {
    let elections = |replica: &Replica| metric(replica, "chancery_raft_elections_total");
    assert!(elections(&replicas[0]) >= 1.0);
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let next = &replicas[(leader + 1) % 3];
    let before = elections(next);
    let done = replicas[leader].run(&["cluster", "transfer-leader", &next.id.to_string()], "");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(elections(next) > before);
}
