//! The check of the connected nodes of all replicas.

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use tonic::Status;

use super::{check::Check, server};
use crate::{
    remote::{client::refusal, connector::Channel, fleet::unanswered},
    text::{count, plain},
};

const NAME: &str = "nodes";
/// The rules whose findings fail the check, those with a warning, and those that are only named. Each has its words.
const FAILED: [(&str, &str); 2] = [("node.rejected", "rejected"), ("node.silent", "silent")];
const WARNED: [(&str, &str); 4] = [
    ("node.unassigned", "unassigned"),
    ("node.behind", "behind"),
    ("node.waiting", "waiting"),
    ("node.duplicate", "with several clients"),
];
const NOTED: [(&str, &str); 1] = [("node.version", "of an unknown version")];
/// The maximum number of nodes of a rule that are named.
const NAMED_MAX: usize = 3;
const ADVICE: &str =
    "`chancery analyze` names them with the reasons, and `chancery node ID` shows one";

/// Checks whether nodes reject a response, do not answer, have no assignment, or wait for names.
pub(super) async fn check(client: &mut AdminClient<Channel>) -> Check {
    let checked = tokio::time::timeout(server::TIMEOUT, check_all(client)).await;
    match checked {
        Ok(Ok(check)) => check,
        Ok(Err(status)) => Check::unknown(NAME, refusal(&status).lines.join("; ")),
        Err(_) => {
            let text = format!("the replicas have not answered within {:?}", server::TIMEOUT);
            Check::unknown(NAME, text)
        }
    }
}

async fn check_all(client: &mut AdminClient<Channel>) -> Result<Check, Status> {
    let request = pb::ListNodesRequest { count: true, ..Default::default() };
    Ok(of_counts(&list(client, request).await?))
}

/// Returns the pieces of a list as one.
async fn list(
    client: &mut AdminClient<Channel>,
    request: pb::ListNodesRequest,
) -> Result<pb::ListNodesResponse, Status> {
    let mut pieces = client.list_nodes(request).await?.into_inner();
    let mut all = pb::ListNodesResponse::default();
    while let Some(mut piece) = pieces.message().await? {
        all.nodes.append(&mut piece.nodes);
        all = pb::ListNodesResponse { nodes: all.nodes, ..piece };
    }
    Ok(all)
}

/// Returns the result.
fn of_counts(counted: &pb::ListNodesResponse) -> Check {
    let texts = |rules: &[(&str, &str)]| -> Vec<String> {
        rules.iter().filter_map(|(rule, words)| found(counted, rule, words)).collect()
    };
    let (failed, warned) = (texts(&FAILED), texts(&WARNED));
    let (has_failed, has_warned) = (!failed.is_empty(), !warned.is_empty());
    let missing = (!counted.not_asked.is_empty()).then(|| unanswered(&counted.not_asked));
    let is_incomplete = missing.is_some();
    let all = [failed, warned, texts(&NOTED), missing.into_iter().collect()].concat().join("; ");
    if has_failed {
        return Check::failed(NAME, all, ADVICE);
    }
    if has_warned {
        return Check::warning(NAME, all, ADVICE);
    }
    if is_incomplete {
        return Check::unknown(NAME, all);
    }
    let n = count(counted.counts.values().sum(), "node");
    let replicas = count(counted.replicas, "replica");
    let none = "none rejects, is silent, is behind, waits, has no assignment or shares its ID";
    let noted = if all.is_empty() { all } else { format!("; {all}") };
    Check::ok(NAME, format!("{n} on {replicas}: {none}{noted}"))
}

/// Returns the number of nodes that a rule finds, and the first IDs: `4 nodes rejected (a, b, c, …)`.
fn found(counted: &pb::ListNodesResponse, rule: &str, words: &str) -> Option<String> {
    let Some(problem) = counted.problems.iter().find(|problem| problem.rule_id == rule) else {
        // Replicas of earlier releases only count states.
        let n = counted.counts.get(words).filter(|n| **n > 0 && counted.problems.is_empty())?;
        return Some(format!("{} {words}", count(*n, "node")));
    };
    let ids = problem.ids.iter().take(NAMED_MAX);
    let mut ids: Vec<String> = ids.map(|id| plain(id)).collect();
    if problem.nodes > ids.len() as u64 {
        ids.push("…".to_owned());
    }
    Some(format!("{} {words} ({})", count(problem.nodes, "node"), ids.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::doctor::check::Outcome;

    fn problem(rule_id: &str, nodes: u64, ids: &[&str]) -> pb::NodeProblem {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        pb::NodeProblem { rule_id: rule_id.to_owned(), nodes, ids }
    }

    fn checked(problems: Vec<pb::NodeProblem>) -> (Outcome, String) {
        let counts = [("synced".to_owned(), 5), ("waiting".to_owned(), 1)].into();
        let check = of_counts(&pb::ListNodesResponse {
            counts,
            problems,
            replicas: 3,
            ..Default::default()
        });
        (check.outcome, check.detail)
    }

    #[test]
    fn nodes_with_problems_are_counted_and_the_first_are_named() {
        let rejected = problem("node.rejected", 4, &["a", "b", "c", "d"]);
        let duplicate = problem("node.duplicate", 1, &["e"]);
        let version = problem("node.version", 2, &["f", "g"]);
        let (outcome, detail) = checked(vec![rejected, duplicate.clone(), version.clone()]);
        assert_eq!(
            (outcome, detail.as_str()),
            (
                Outcome::Failed,
                "4 nodes rejected (a, b, c, …); 1 node with several clients (e); 2 nodes of an unknown version (f, g)"
            )
        );
        for one in
            [duplicate, problem("node.behind", 1, &["h"]), problem("node.unassigned", 1, &["i"])]
        {
            assert_eq!(checked(vec![one]).0, Outcome::Warning);
        }
        // It depends on the client whether its resources are right, so this is no warning.
        let (outcome, detail) = checked(vec![version]);
        assert_eq!(outcome, Outcome::Ok);
        assert!(detail.starts_with("6 nodes on 3 replicas: none rejects, "), "{detail}");
        assert!(detail.ends_with("; 2 nodes of an unknown version (f, g)"), "{detail}");
    }

    /// A replica of an earlier release answers without `problems`.
    #[test]
    fn states_count_if_the_replica_names_no_problems() {
        assert_eq!(checked(Vec::new()), (Outcome::Warning, "1 node waiting".to_owned()));
        let other = checked(vec![problem("node.version", 1, &["a"])]);
        assert_eq!(other.0, Outcome::Ok);
    }

    #[test]
    fn missing_replicas_are_unknown() {
        let missing = pb::ReplicaNotAsked {
            replica_id: 2,
            message: "is starting".to_owned(),
            ..Default::default()
        };
        let partial = pb::ListNodesResponse { not_asked: vec![missing], ..Default::default() };
        let check = of_counts(&partial);
        assert_eq!(
            (check.outcome, check.detail.as_str()),
            (Outcome::Unknown, "replica 2 is starting")
        );
    }
}
