//! The questions that replicas ask each other about their clients, and the answers, as messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb_admin;
use chancery_admission::{ConnectedClient, ConnectedClients};
use chancery_model::{ScopeName, Transaction, TypeUrl};
use chancery_raft_proto::v1 as pb;
use chancery_store::{AskLimits, NoAnswer, Unanswered, rules_from_proto, rules_to_proto};
use prost::Message;

use crate::{
    access_effects::AccessEffects,
    node_groups::{ConnectedNodes, Scopes, Users},
};

/// The kind of the question about the nodes that a write concerns.
pub(crate) const WRITE_EFFECTS: &str = "write-effects";
/// The kind of the question about connected clients.
pub(crate) const CLIENTS: &str = "clients";
/// The kind of the question about nodes that ask for collections.
pub(crate) const COLLECTIONS: &str = "collections";

/// The limits of the answers. A write waits for them for at most `timeout`.
pub(crate) const LIMITS: AskLimits = AskLimits {
    timeout: Duration::from_secs(1),
    page_bytes_max: 4 << 20,
    answer_bytes_max: 4 << 20,
};

/// The maximum number of groups of nodes in an answer.
const GROUPS_MAX: usize = 10_000;
/// The maximum number of listed types of a group.
const TYPES_MAX: usize = 64;

/// The question about the nodes that a write concerns.
#[derive(Debug, Clone)]
pub(crate) struct WriteEffectsQuestion {
    /// The changes of assignments and access rules, and nothing else of the write.
    pub(crate) rules: Transaction,
    /// The scopes in which the write may take something from nodes.
    pub(crate) touched: BTreeSet<ScopeName>,
    /// Whether the effects on access are asked for.
    pub(crate) access_effects: bool,
}

/// The nodes of a replica that a write concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WriteEffects {
    pub(crate) nodes: ConnectedNodes,
    /// The number of nodes that `nodes` omits.
    pub(crate) n_omitted: usize,
    pub(crate) access: AccessEffects,
}

impl WriteEffectsQuestion {
    /// Encodes the question.
    pub(crate) fn encode(&self) -> Bytes {
        let question = pb::WriteEffectsQuestion {
            rules: Some(rules_to_proto(&self.rules)),
            scopes: self.touched.iter().map(ToString::to_string).collect(),
            access_effects: self.access_effects,
        };
        question.encode_to_vec().into()
    }

    /// Decodes a question of another replica.
    pub(crate) fn decode(body: Bytes) -> Result<Self, NoAnswer> {
        let question = pb::WriteEffectsQuestion::decode(body).map_err(invalid)?;
        let rules = rules_from_proto(question.rules.unwrap_or_default()).map_err(invalid)?;
        let touched = question.scopes.iter().map(|name| ScopeName::new(name));
        let touched = touched.collect::<Result<_, _>>().map_err(invalid)?;
        Ok(Self { rules, touched, access_effects: question.access_effects })
    }
}

impl WriteEffects {
    /// Encodes the answer. It has the largest groups of nodes.
    pub(crate) fn encode(mut self) -> Bytes {
        if self.nodes.len() > GROUPS_MAX {
            let mut sizes: Vec<usize> = self.nodes.values().map(|users| users.n_nodes).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let least = sizes[GROUPS_MAX - 1];
            let mut n_least = sizes[..GROUPS_MAX].iter().filter(|n| **n == least).count();
            self.nodes.retain(|_, users| {
                let is_kept = users.n_nodes > least || users.n_nodes == least && n_least > 0;
                n_least -= usize::from(is_kept && users.n_nodes == least);
                self.n_omitted += if is_kept { 0 } else { users.n_nodes };
                is_kept
            });
        }
        let answer = pb::WriteEffectsAnswer {
            groups: self.nodes.into_iter().map(group_to_proto).collect(),
            omitted_nodes: self.n_omitted as u64,
            access_effects: self.access.into_iter().map(access_to_proto).collect(),
        };
        answer.encode_to_vec().into()
    }

    /// Decodes the answer of another replica.
    pub(crate) fn decode(body: Bytes) -> Result<Self, NoAnswer> {
        let answer = pb::WriteEffectsAnswer::decode(body).map_err(invalid)?;
        let mut nodes = ConnectedNodes::new();
        for group in answer.groups {
            let (scopes, users) = group_from_proto(group)?;
            nodes.entry(scopes).or_default().add(users);
        }
        let access = answer.access_effects.into_iter().map(|effect| {
            ((effect.node, effect.identity), (!effect.allowed).then_some(effect.reason))
        });
        let n_omitted = usize::try_from(answer.omitted_nodes).unwrap_or(usize::MAX);
        Ok(Self { nodes, n_omitted, access: access.collect() })
    }
}

/// Encodes the clients of a replica.
pub(crate) fn encode_clients(clients: &ConnectedClients) -> Bytes {
    let mut kinds: BTreeMap<ConnectedClient, (Vec<String>, Vec<u64>)> = BTreeMap::new();
    for (scope, profiles) in clients {
        for (client, n) in profiles {
            let (scopes, nodes) = kinds.entry(*client).or_default();
            scopes.push(scope.to_string());
            nodes.push(*n);
        }
    }
    let kinds = kinds.into_iter().map(|(client, (scopes, nodes))| {
        let ConnectedClient { profile, patch } = client;
        pb::ClientKind { profile: profile.to_string(), scopes, nodes, patch }
    });
    pb::ClientsAnswer { kinds: kinds.collect() }.encode_to_vec().into()
}

/// Adds the clients of another replica.
pub(crate) fn add_clients(clients: &mut ConnectedClients, body: Bytes) -> Result<(), NoAnswer> {
    let answer = pb::ClientsAnswer::decode(body).map_err(invalid)?;
    for pb::ClientKind { profile, scopes, nodes, patch } in answer.kinds {
        let ConnectedClient { profile, .. } = ConnectedClient::read(&profile).map_err(invalid)?;
        // An earlier release does not count the nodes.
        let nodes = nodes.into_iter().chain(std::iter::repeat(1));
        for (scope, n) in scopes.into_iter().zip(nodes) {
            let scope = ScopeName::new(&scope).map_err(invalid)?;
            let count: &mut u64 = clients
                .entry(scope)
                .or_default()
                .entry(ConnectedClient { profile, patch })
                .or_default();
            *count = count.saturating_add(n);
        }
    }
    Ok(())
}

fn group_to_proto(((before, after), users): ((Scopes, Scopes), Users)) -> pb::NodeGroup {
    let list = |scopes: Scopes| {
        scopes.map(|all| pb::ScopeList { names: all.iter().map(ToString::to_string).collect() })
    };
    let same = before == after;
    pb::NodeGroup {
        before: list(before),
        after: if same { None } else { list(after) },
        same,
        nodes: users.n_nodes as u64,
        sotw_types: users.sotw_types.iter().take(TYPES_MAX).map(ToString::to_string).collect(),
        grpc_nodes: users.n_grpc as u64,
    }
}

fn group_from_proto(group: pb::NodeGroup) -> Result<((Scopes, Scopes), Users), NoAnswer> {
    let list = |scopes: Option<pb::ScopeList>| -> Result<Scopes, NoAnswer> {
        let names = |all: pb::ScopeList| {
            all.names.iter().map(|name| ScopeName::new(name)).collect::<Result<Vec<_>, _>>()
        };
        scopes.map(names).transpose().map_err(invalid)
    };
    let before = list(group.before)?;
    let after = if group.same { before.clone() } else { list(group.after)? };
    let types = group.sotw_types.iter().map(|url| TypeUrl::new(url));
    let sotw_types = types.collect::<Result<_, _>>().map_err(invalid)?;
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let (n_nodes, n_grpc) = (number(group.nodes), number(group.grpc_nodes));
    Ok(((before, after), Users { n_nodes, sotw_types, n_grpc }))
}

fn access_to_proto(
    ((node, identity), refusal): ((String, String), Option<String>),
) -> pb::NodeAccess {
    let allowed = refusal.is_none();
    pb::NodeAccess { node, identity, allowed, reason: refusal.unwrap_or_default() }
}

/// Returns the entry for a replica that has not answered.
pub(crate) fn not_asked(unanswered: &Unanswered) -> pb_admin::ReplicaNotAsked {
    failed(unanswered.replica_id, &unanswered.reason)
}

/// Returns the entry for a replica that has not answered, or whose answer cannot be used.
pub(crate) fn failed(replica_id: u64, reason: &NoAnswer) -> pb_admin::ReplicaNotAsked {
    pb_admin::ReplicaNotAsked {
        replica_id,
        reason: reason.word().to_owned(),
        message: reason.to_string(),
    }
}

pub(crate) fn invalid(error: impl std::fmt::Display) -> NoAnswer {
    NoAnswer::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chancery_model::{
        AccessOp, Assignment, AssignmentOp, Glob, NodeMatcher, ResourceDraft, ResourceKey,
        ResourceName, ScopeTemplate, Upsert, types,
    };

    use super::*;

    fn scopes(names: &[&str]) -> Vec<ScopeName> {
        names.iter().map(|name| ScopeName::new(name).unwrap()).collect()
    }

    fn users(n_nodes: usize) -> Users {
        let sotw_types = BTreeSet::from([TypeUrl::from_static(types::CLUSTER)]);
        Users { n_nodes, sotw_types, n_grpc: 1 }
    }

    /// A question has the changed rules, and nothing else of the write.
    #[test]
    fn question_has_the_rules_of_a_write_without_its_resources() {
        let rule = Assignment {
            name: Arc::from("edge"),
            priority: 3,
            matcher: NodeMatcher { id: Some(Glob::new("e*")), ..NodeMatcher::default() },
            scopes: vec![ScopeTemplate::parse("node/{node.id}").unwrap()],
        };
        let rules = Transaction {
            assignments: vec![AssignmentOp::Put(rule), AssignmentOp::Delete("old".into())],
            access: vec![AccessOp::DeleteRule("team".into())],
            ..Transaction::default()
        };
        let key = ResourceKey {
            type_url: TypeUrl::from_static(types::SECRET),
            name: ResourceName::new("key").unwrap(),
        };
        let draft = ResourceDraft::new(key, Bytes::from_static(b"PRIVATE"));
        let scope = ScopeName::new("edge").unwrap();
        let write = Transaction { upserts: vec![Upsert { scope, draft }], ..rules.clone() };
        let touched: BTreeSet<ScopeName> = scopes(&["edge", "base"]).into_iter().collect();
        let question = WriteEffectsQuestion { rules: write, touched, access_effects: true };
        let body = question.encode();
        assert!(!body.windows(7).any(|part| part == b"PRIVATE"));
        let decoded = WriteEffectsQuestion::decode(body).unwrap();
        assert_eq!(
            (decoded.rules.assignments, decoded.rules.access),
            (rules.assignments, rules.access)
        );
        assert_eq!((decoded.touched, decoded.access_effects), (question.touched, true));
    }

    #[test]
    fn answer_keeps_groups_and_access_effects() {
        let (edge, blue) = (Some(scopes(&["edge"])), Some(scopes(&["blue", "base"])));
        let nodes = ConnectedNodes::from([
            ((edge.clone(), edge.clone()), users(1)),
            ((edge.clone(), blue), users(2)),
            ((edge, None), users(3)),
            ((None, Some(Vec::new())), Users { n_nodes: 4, ..Users::default() }),
        ]);
        let access = AccessEffects::from([
            (("e1".to_owned(), "a".to_owned()), None),
            (("e2".to_owned(), "b".to_owned()), Some("no rule".to_owned())),
        ]);
        let effects = WriteEffects { nodes, n_omitted: 0, access };
        assert_eq!(WriteEffects::decode(effects.clone().encode()).unwrap(), effects);
    }

    /// The answer is bounded, however many views a replica has. It keeps the largest groups, and counts the others.
    #[test]
    fn answer_omits_the_smallest_of_too_many_groups() {
        let group = |n: usize| {
            let own = Some(scopes(&[&format!("node/{n}")]));
            ((own.clone(), own), users(if n.is_multiple_of(1000) { 7 } else { 1 }))
        };
        let n_all = 100_000;
        let nodes: ConnectedNodes = (0..n_all).map(group).collect();
        let body = WriteEffects { nodes, ..WriteEffects::default() }.encode();
        assert!(body.len() < LIMITS.page_bytes_max, "{}", body.len());
        let answer = WriteEffects::decode(body).unwrap();
        assert_eq!(answer.nodes.len(), GROUPS_MAX);
        let n_large = answer.nodes.values().filter(|users| users.n_nodes == 7).count();
        assert_eq!((n_large, answer.n_omitted), (100, n_all - GROUPS_MAX));
    }

    #[test]
    fn clients_of_several_replicas_are_merged() {
        let one = |scope: &str, profile: &str| {
            let profiles = BTreeMap::from([(ConnectedClient::read(profile).unwrap(), 2)]);
            ConnectedClients::from([(ScopeName::new(scope).unwrap(), profiles)])
        };
        let mut clients = one("mesh", "grpc-go@1.85.0");
        let envoy = || one("mesh", "envoy@1.20.3");
        for other in [envoy(), one("edge", "grpc-cpp"), envoy()] {
            add_clients(&mut clients, encode_clients(&other)).unwrap();
        }
        let of = |scope: &str| {
            let profiles = &clients[&ScopeName::new(scope).unwrap()];
            profiles.iter().map(|(client, n)| format!("{n} {client}")).collect::<Vec<_>>()
        };
        assert_eq!(
            (of("mesh"), of("edge")),
            (vec!["4 envoy@1.20.3".into(), "2 grpc-go@1.85.0".into()], vec!["2 grpc-cpp".into()])
        );
    }

    /// A replica of another release, or with a fault, may send anything.
    #[test]
    fn damaged_message_is_an_error() {
        let bytes = || Bytes::from_static(b"\x0a\x03edg");
        assert!(matches!(WriteEffects::decode(bytes()), Err(NoAnswer::Failed(_))));
        assert!(matches!(WriteEffectsQuestion::decode(bytes()), Err(NoAnswer::Failed(_))));
        let kind = pb::ClientKind { profile: "telnet".to_owned(), ..pb::ClientKind::default() };
        let unknown = pb::ClientsAnswer { kinds: vec![kind] }.encode_to_vec().into();
        assert!(add_clients(&mut ConnectedClients::new(), unknown).is_err());
    }
}
