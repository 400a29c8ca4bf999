//! Connected nodes with a problem, on all replicas.

use std::collections::{BTreeMap, BTreeSet};

use chancery_admin_proto::v1 as pb;
use chancery_admission::ClientProfile;
use chancery_raft_proto::v1::NodeSurveyQuestion;

use super::findings::{Findings, Rule, Severity};
use crate::{
    AdminError,
    ctx::Ctx,
    node_list,
    node_survey::{NodeProblem, Survey, survey},
};

/// The maximum number of clients of a node that are named.
const CLIENTS_NAMED_MAX: usize = 4;

/// The problems that are findings. A node that waits for a name has a finding about the reference.
const PROBLEMS: [NodeProblem; 6] = [
    NodeProblem::Unassigned,
    NodeProblem::Rejected,
    NodeProblem::Silent,
    NodeProblem::Behind,
    NodeProblem::Duplicate,
    NodeProblem::Version,
];

/// The connected nodes, and the status of those that findings name.
pub(super) struct Nodes {
    survey: Survey,
    details: BTreeMap<String, pb::NodeStatus>,
}

impl Nodes {
    /// Asks all replicas.
    pub(super) async fn of_fleet(ctx: &Ctx) -> Result<Self, AdminError> {
        let survey = survey(ctx, NodeSurveyQuestion::default(), false).await?;
        let named = PROBLEMS.iter().filter_map(|problem| survey.problems.get(problem));
        let ids: BTreeSet<&String> = named.flat_map(|nodes| &nodes.first).collect();
        let details = details(ctx, ids).await?;
        Ok(Self { survey, details })
    }

    /// Returns the replicas that did not answer.
    pub(super) fn not_asked(&self) -> &[pb::ReplicaNotAsked] {
        &self.survey.not_asked
    }

    /// Adds the nodes that have a problem.
    pub(super) fn find(&self, findings: &mut Findings) {
        for problem in PROBLEMS {
            add(problem, &self.survey, &self.details, findings);
        }
    }
}

/// Returns the status of these nodes by ID.
async fn details(
    ctx: &Ctx,
    ids: BTreeSet<&String>,
) -> Result<BTreeMap<String, pb::NodeStatus>, AdminError> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let limit = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let ids = ids.into_iter().cloned().collect();
    let request = pb::ListNodesRequest { ids, limit, ..pb::ListNodesRequest::default() };
    let nodes = node_list::page_of_all(ctx, &request).await?;
    Ok(nodes.into_iter().map(|node| (node.id.clone(), node)).collect())
}

/// Adds the nodes with one problem: the first ones, and the number of all if there are more.
fn add(
    problem: NodeProblem,
    survey: &Survey,
    details: &BTreeMap<String, pb::NodeStatus>,
    findings: &mut Findings,
) {
    let Some(nodes) = survey.problems.get(&problem) else { return };
    let rule = rule(problem);
    for id in &nodes.first {
        let text = text(problem, survey.revision.0, details.get(id));
        findings.add(rule.of_node(id, text));
    }
    let n_named = nodes.first.len();
    if nodes.n > n_named as u64 {
        let text = format!("{} nodes in total, of which the first {n_named} are named", nodes.n);
        findings.add(rule.with(text));
    }
}

fn rule(problem: NodeProblem) -> Rule {
    let (severity, fix) = match problem {
        NodeProblem::Unassigned => {
            (Severity::Warning, "add an assignment that matches the node, or disconnect the node")
        }
        NodeProblem::Rejected => {
            (Severity::Warning, "correct the resource, or publish its previous version again")
        }
        NodeProblem::Silent => (Severity::Warning, "check the client and its connection"),
        // A removal may wait for half a minute, or longer while a listener drains.
        NodeProblem::Behind => {
            (Severity::Info, "look at the state of each type with `chancery node ID`")
        }
        NodeProblem::Duplicate => (Severity::Warning, "give each client an ID of its own"),
        NodeProblem::Version | NodeProblem::Waiting => {
            (Severity::Info, "declare the clients of its scopes (validation.profiles)")
        }
    };
    Rule { id: problem.rule_id(), severity, fix }
}

/// Returns the message about a node. `node` is `None` if the node has left meanwhile.
fn text(problem: NodeProblem, revision: u64, node: Option<&pb::NodeStatus>) -> String {
    // The node may have another state by now.
    let reason = |state: &str| {
        let condition = node?.condition.as_ref().filter(|one| one.state == state)?;
        (!condition.message.is_empty()).then_some(condition.message.as_str())
    };
    match problem {
        NodeProblem::Unassigned => {
            "no assignment matches the node, so that it receives no changes".to_owned()
        }
        NodeProblem::Rejected => match reason("rejected") {
            Some(message) => format!("rejects its newest response: {message}"),
            None => "rejects its newest response".to_owned(),
        },
        NodeProblem::Silent => {
            let of_type = reason("silent").map(|name| format!(" with {name}")).unwrap_or_default();
            format!("has left a response{of_type} unanswered for more than 10 seconds")
        }
        NodeProblem::Behind => {
            format!("has not acknowledged revision {revision}, which is more than 10 seconds old")
        }
        NodeProblem::Duplicate => duplicate(node),
        NodeProblem::Version | NodeProblem::Waiting => version(node),
    }
}

/// Returns the clients that use one ID.
fn duplicate(node: Option<&pb::NodeStatus>) -> String {
    let Some(node) = node.filter(|node| node.duplicates > 0) else {
        return "several clients use this ID at the same time".to_owned();
    };
    let clients: BTreeSet<(u64, &str)> =
        node.streams.iter().map(|stream| (stream.replica_id, stream.peer.as_str())).collect();
    let named = clients.iter().take(CLIENTS_NAMED_MAX);
    let mut named: Vec<String> =
        named.map(|(replica_id, peer)| format!("{peer} on replica {replica_id}")).collect();
    if clients.len() > CLIENTS_NAMED_MAX {
        named.push("…".to_owned());
    }
    let n = node.duplicates;
    format!("{n} clients use this ID at the same time: {}", named.join(", "))
}

/// Returns the profile for which the resources of a node are checked, because the user agent of a client gives no
/// better one.
fn version(node: Option<&pb::NodeStatus>) -> String {
    let Some(node) = node else { return "its version is unknown".to_owned() };
    let of_clients = node.streams.iter().map(|stream| stream.user_agent.as_str());
    let unknown = of_clients.rev().find(|user_agent| {
        ClientProfile::of_known_user_agent(user_agent).is_none_or(|known| known.version.is_none())
    });
    let user_agent = unknown.unwrap_or(&node.user_agent);
    let profile = ClientProfile::of_user_agent(user_agent);
    match ClientProfile::of_known_user_agent(user_agent) {
        None if user_agent.is_empty() => {
            "names no user agent, so that its resources are checked as for Envoy".to_owned()
        }
        None => format!(
            "the user agent {user_agent:?} is that of no known client, so that its resources are checked as for Envoy"
        ),
        Some(_) => format!(
            "the user agent {user_agent:?} has no known version, so that its resources are checked as for a recent {profile}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_about_the_client_without_a_known_version() {
        let stream = |user_agent: &str| pb::StreamStatus {
            user_agent: user_agent.to_owned(),
            ..Default::default()
        };
        let streams = vec![stream("envoy/1.40.0"), stream("gRPC Go/x"), stream("envoy/1.40.0")];
        let user_agent = "envoy/1.40.0".to_owned();
        let text = version(Some(&pb::NodeStatus { user_agent, streams, ..Default::default() }));
        assert!(text.starts_with("the user agent \"gRPC Go/x\" has no known version"), "{text}");
    }

    #[test]
    fn text_says_what_the_user_agent_does_not() {
        let of = |user_agent: &str| {
            let user_agent = user_agent.to_owned();
            version(Some(&pb::NodeStatus { user_agent, ..Default::default() }))
        };
        assert_eq!(of(""), "names no user agent, so that its resources are checked as for Envoy");
        let text = of("chancery-mirror/1.0");
        assert!(text.contains("\"chancery-mirror/1.0\" is that of no known client"), "{text}");
        let text = of("gRPC C-core linux/C-core 58.0.0");
        assert!(
            text.ends_with(
                "has no known version, so that its resources are checked as for a recent grpc-cpp"
            ),
            "{text}"
        );
    }
}
