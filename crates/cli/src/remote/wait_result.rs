//! The result of a wait, as text.

use chancery_admin::HIDDEN_SCOPE;
use chancery_admin_proto::v1 as pb;

use super::fleet::unanswered;
use crate::{
    exit::Exit,
    failure::Failure,
    text::{count, plain, short_type},
};

/// Returns the number of sessions that were asked, and of those that acknowledged, with the time of the wait.
pub(super) fn in_words(wait: &pb::WaitResult) -> String {
    let left = match wait.left {
        0 => String::new(),
        n => format!("; {} left before answering", count(n, "session")),
    };
    let replicas = match wait.replicas {
        0 | 1 => String::new(),
        n => format!(" on {n} replicas"),
    };
    let others = match wait.not_asked.as_slice() {
        [] => String::new(),
        missing => format!("; {}", unanswered(missing)),
    };
    let (k, n) = (wait.acknowledged, count(wait.asked, "session"));
    format!("{k} of {n}{replicas} acknowledged after {} ms{left}{others}", wait.waited_ms)
}

/// Returns the failure of a wait that does not know all sessions. `done` is what was done before.
pub(super) fn not_all_asked(done: &str, wait: &pb::WaitResult) -> Failure {
    let line =
        format!("{done}, but it is unknown whether all sessions have it: {}", in_words(wait));
    Failure::with_exit(Exit::NotAllAsked, line)
}

/// Returns the failure of a command about changes that freezes hold.
pub(super) fn held(held: &[pb::HeldBy]) -> Failure {
    let line = |by: &pb::HeldBy| {
        let pb::HeldBy { scope, revision, author, reason, .. } = by;
        if scope == HIDDEN_SCOPE {
            return format!(
                "held: a freeze since revision {revision} holds the change back from clients; you may not see its \
                 scope; ask somebody with the right `freeze`"
            );
        }
        let (what, thaw) = match scope.as_str() {
            "" => ("all scopes are".to_owned(), "--all".to_owned()),
            scope => (format!("scope {scope:?} is"), scope.to_owned()),
        };
        let author =
            if author.is_empty() { String::new() } else { format!(" by {}", plain(author)) };
        let reason =
            if reason.is_empty() { String::new() } else { format!(" ({})", plain(reason)) };
        format!(
            "held: {what} frozen since revision {revision}{author}{reason}; clients receive the change \
             when the freeze ends; to end the freeze now, run `chancery thaw {thaw}`"
        )
    };
    Failure::lines_with_exit(Exit::Held, held.iter().map(line))
}

/// Returns one line for each listed session that has not acknowledged.
pub(super) fn session_lines(wait: &pb::WaitResult) -> Vec<String> {
    let mut lines: Vec<String> = wait.unsettled.iter().map(|one| line(one, wait)).collect();
    // Several shards of a replica may have the same reason.
    lines.dedup();
    lines
}

/// Returns the lines of the sessions that have not acknowledged, and of the replicas that have not answered.
pub(super) fn unsettled_lines(wait: &pb::WaitResult) -> Vec<String> {
    let mut lines = session_lines(wait);
    if wait.unsettled_omitted > 0 {
        lines.push(format!("and {} more", wait.unsettled_omitted));
    }
    if let missing @ [_, ..] = wait.not_asked.as_slice() {
        lines.push(unanswered(missing));
    }
    if lines.is_empty() {
        lines.push("the wait ended before all sessions had acknowledged".to_owned());
    }
    lines
}

fn line(unsettled: &pb::Unsettled, wait: &pb::WaitResult) -> String {
    let type_name = short_type(&unsettled.type_url);
    let place = match unsettled.replica_id {
        id if wait.replicas > 1 => format!(" on replica {id}"),
        _ => String::new(),
    };
    let (node, message) = (&unsettled.node, plain(&unsettled.message));
    match (unsettled.state.as_str(), message.as_str()) {
        ("nacked", _) => format!("node {node:?}{place} has rejected {type_name}: {message}"),
        ("unassigned", _) => format!("node {node:?}{place}: {message}"),
        ("pending", "") => {
            format!(
                "node {node:?}{place} has not acknowledged {type_name} within {} ms",
                wait.waited_ms
            )
        }
        ("pending", _) => format!(
            "node {node:?}{place} has not acknowledged {type_name} within {} ms; it {message}",
            wait.waited_ms
        ),
        _ => format!("{message}{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_session_is_named_with_its_replica_and_what_it_waits_for() {
        let unsettled = pb::Unsettled {
            node: "edge-1".into(),
            type_url: chancery_model::types::CLUSTER.into(),
            state: "pending".into(),
            message: "waits for endpoint \"web\", which no scope of the node has".into(),
            replica_id: 2,
        };
        let missing = pb::ReplicaNotAsked {
            replica_id: 3,
            message: "did not answer within 2s".into(),
            ..Default::default()
        };
        let wait = pb::WaitResult {
            waited_ms: 50,
            asked: 6,
            acknowledged: 5,
            replicas: 2,
            unsettled: vec![unsettled],
            not_asked: vec![missing],
            ..Default::default()
        };
        assert_eq!(
            in_words(&wait),
            "5 of 6 sessions on 2 replicas acknowledged after 50 ms; replica 3 did not answer within 2s"
        );
        assert_eq!(
            unsettled_lines(&wait),
            [
                "node \"edge-1\" on replica 2 has not acknowledged cluster within 50 ms; it waits for endpoint \"web\", \
                 which no scope of the node has",
                "replica 3 did not answer within 2s",
            ]
        );
    }
}
