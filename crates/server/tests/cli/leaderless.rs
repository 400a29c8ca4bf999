//! A replica without contact to a majority, although all connections are open; and the count of
//! elections.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    cluster::{Replica, index, joined},
    support::{eventually, http_get, signal},
};

/// The metric becomes 0 one second after the last message of a leader, and shows that within a
/// fifth of a second. The rest of the time is for a busy machine.
const SECONDS: Duration = Duration::from_secs(20);

/// Returns the value of a metric without labels.
pub(crate) fn metric(replica: &Replica, name: &str) -> f64 {
    let (_, page) = http_get(&replica.admin, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap().parse().unwrap()
}

fn has_leader(replica: &Replica) -> bool {
    metric(replica, "chancery_raft_has_leader") > 0.5
}

fn wait_for(has: bool, replica: &Replica, what: &str) {
    let start = Instant::now();
    eventually(what, || (has_leader(replica) == has).then_some(()));
    assert!(start.elapsed() < SECONDS, "not within {SECONDS:?}: {what}");
}

/// Two of three replicas stop responding. The third one reports that it has no leader, whether it
/// was leader or follower. It reports a leader again when the others respond.
#[test]
fn silent_leader_is_reported_as_no_leader() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    check_elections_are_counted_by_candidate(&replicas);
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
        wait_for(false, left, "there is no leader");
        let status = left.json(&["cluster", "status"]);
        assert!(status["leader"].is_null(), "{status}");
        let text = left.run(&["cluster", "status"], "").out;
        let checked = left.run(&["cluster", "status", "--check"], "");
        let said =
            format!("error: the server at {} has no leader: it accepts no writes\n", left.admin);
        assert_eq!((checked.code, checked.err), (1, said));
        assert!(checked.out.contains("): no leader, "), "the status is shown anyway");
        assert!(text.contains("): no leader, 1 of 3 voters answer (2 needed)"), "{text}");
        // The replica continues to serve, and is ready.
        assert_eq!(http_get(&left.admin, "/readyz"), (200, "ready\n".to_owned()));
        send(Signal::CONT);
        wait_for(true, left, "there is a leader again");
    }
}

/// The first replica has elected itself. Another one stands for election when leadership is
/// transferred to it.
fn check_elections_are_counted_by_candidate(replicas: &[Replica; 3]) {
    let elections = |replica: &Replica| metric(replica, "chancery_raft_elections_total");
    assert!(elections(&replicas[0]) >= 1.0);
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let next = &replicas[(leader + 1) % 3];
    let before = elections(next);
    let done = replicas[leader].run(&["cluster", "transfer-leader", &next.id.to_string()], "");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(elections(next) > before);
}
