//! The check of the connected nodes of all replicas.

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use tonic::Status;

use super::{check::Check, server};
use crate::{
    remote::{client::refusal, connector::Channel, fleet::unanswered},
    text::{count, plain},
};

const NAME: &str = "nodes";
/// The states that fail the check, and those with a warning.
const FAILED: [&str; 2] = ["rejected", "silent"];
const WARNED: [&str; 2] = ["unassigned", "waiting"];
/// The maximum number of nodes of a state that are named.
const NAMED_MAX: u32 = 3;
const ADVICE: &str = "`chancery nodes --state STATE` lists them with the reasons";

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
    let counted = list(client, pb::ListNodesRequest { count: true, ..Default::default() }).await?;
    let mut bad = Vec::new();
    for state in FAILED.into_iter().chain(WARNED) {
        let Some(n) = counted.counts.get(state).filter(|n| **n > 0) else { continue };
        let request = pb::ListNodesRequest {
            state: state.to_owned(),
            limit: NAMED_MAX,
            ..Default::default()
        };
        let named = list(client, request).await?.nodes;
        bad.push((state, *n, named.into_iter().map(|node| node.id).collect()));
    }
    Ok(of_counts(&counted, &bad))
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

/// Returns the result. `bad` has the states with a problem, the number of nodes, and the IDs of the first ones.
fn of_counts(counted: &pb::ListNodesResponse, bad: &[(&str, u64, Vec<String>)]) -> Check {
    let in_state = |(state, n, ids): &(&str, u64, Vec<String>)| {
        let ids: Vec<String> = ids.iter().map(|id| plain(id)).collect();
        let more = if *n > ids.len() as u64 { ", …" } else { "" };
        format!("{} {state} ({}{more})", count(*n, "node"), ids.join(", "))
    };
    let mut texts: Vec<String> = bad.iter().map(in_state).collect();
    if !counted.not_asked.is_empty() {
        texts.push(unanswered(&counted.not_asked));
    }
    let has_failed = bad.iter().any(|(state, ..)| FAILED.contains(state));
    match texts.as_slice() {
        _ if has_failed => Check::failed(NAME, texts.join("; "), ADVICE),
        [] => {
            let n = count(counted.counts.values().sum(), "node");
            let replicas = count(counted.replicas, "replica");
            Check::ok(
                NAME,
                format!("{n} on {replicas}: none rejects, is silent, waits or has no assignment"),
            )
        }
        _ if bad.is_empty() => Check::unknown(NAME, texts.join("; ")),
        _ => Check::warning(NAME, texts.join("; "), ADVICE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::doctor::check::Outcome;

    #[test]
    fn nodes_with_problems_are_named_and_missing_replicas_are_unknown() {
        let counts = [("synced".to_owned(), 5), ("rejected".to_owned(), 4)].into();
        let counted = pb::ListNodesResponse { counts, replicas: 3, ..Default::default() };
        let bad = ("rejected", 4, vec!["a".to_owned(), "b".to_owned()]);
        let check = of_counts(&counted, &[bad]);
        assert_eq!(
            (check.outcome, check.detail.as_str()),
            (Outcome::Failed, "4 nodes rejected (a, b, …)")
        );
        assert_eq!(of_counts(&counted, &[]).outcome, Outcome::Ok);
        let waiting = ("waiting", 1, vec!["c".to_owned()]);
        assert_eq!(of_counts(&counted, &[waiting]).outcome, Outcome::Warning);
        let missing = pb::ReplicaNotAsked {
            replica_id: 2,
            message: "is starting".to_owned(),
            ..Default::default()
        };
        let partial = pb::ListNodesResponse { not_asked: vec![missing], ..counted };
        let check = of_counts(&partial, &[]);
        assert_eq!(
            (check.outcome, check.detail.as_str()),
            (Outcome::Unknown, "replica 2 is starting")
        );
    }
}
