//! The views that a write concerns, and the nodes that have them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_admission::{ClientKind, ClientProfile};
use chancery_fanout::StreamStatus;
use chancery_model::{Assignment, Identity, Node, ScopeName, State, TypeUrl};
use chancery_protocol::Protocol;

/// A stream of a connected node.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) node: Arc<Node>,
    /// The types to which the stream subscribes, if it is a SotW stream.
    pub(crate) sotw_types: Vec<TypeUrl>,
    pub(crate) identity: Option<Arc<Identity>>,
}

impl Client {
    /// Returns the client of a stream.
    pub(crate) fn of(stream: &StreamStatus) -> Self {
        let types = stream.subscriptions.iter().map(|one| one.type_url.clone());
        let sotw_types = match stream.protocol {
            Protocol::Sotw => types.collect(),
            Protocol::Delta | Protocol::Mcp => Vec::new(),
        };
        Self { node: Arc::clone(&stream.node), sotw_types, identity: stream.identity.clone() }
    }
}

/// A list of scopes; `None` if no assignment matches.
pub(crate) type Scopes = Option<Vec<ScopeName>>;

/// The connected nodes that a write concerns, by their scopes before and after it.
pub(crate) type ConnectedNodes = BTreeMap<(Scopes, Scopes), Users>;

/// The nodes that have the same scopes before a write, and the same after it.
#[derive(Debug)]
pub(crate) struct NodeGroup {
    pub(crate) before: Scopes,
    pub(crate) after: Scopes,
    pub(crate) users: Users,
}

/// The connected nodes of a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Users {
    /// The number of nodes. A node that is connected to two replicas counts twice.
    pub(crate) n_nodes: usize,
    /// The types to which they subscribe over SotW.
    pub(crate) sotw_types: BTreeSet<TypeUrl>,
    /// The number of gRPC clients.
    pub(crate) n_grpc: usize,
}

impl Users {
    /// Adds the nodes of another replica.
    pub(crate) fn add(&mut self, other: Self) {
        self.n_nodes += other.n_nodes;
        self.n_grpc += other.n_grpc;
        self.sotw_types.extend(other.sotw_types);
    }
}

/// Groups the connected nodes whose scopes a write changes, or whose view has one of the `touched` scopes.
pub(crate) fn connected_nodes(
    clients: &[Client],
    before: &State,
    after: &State,
    touched: &BTreeSet<ScopeName>,
) -> ConnectedNodes {
    /// The IDs of nodes, the types that they request over SotW, and the IDs of gRPC clients.
    type Found<'a> = (BTreeSet<&'a str>, BTreeSet<TypeUrl>, BTreeSet<&'a str>);
    let same_rules = Arc::ptr_eq(&before.assignments, &after.assignments);
    let mut groups: BTreeMap<(Scopes, Scopes), Found<'_>> = BTreeMap::new();
    for Client { node, sotw_types, .. } in clients {
        let old = scopes_of(before, node);
        let new = if same_rules { old.clone() } else { scopes_of(after, node) };
        if is_concerned(&old, &new, touched) {
            let (nodes, types, grpc) = groups.entry((old, new)).or_default();
            nodes.insert(&node.id);
            types.extend(sotw_types.iter().cloned());
            if ClientProfile::of_user_agent(&node.user_agent).kind != ClientKind::Envoy {
                grpc.insert(&node.id);
            }
        }
    }
    let users = |(nodes, sotw_types, grpc): Found<'_>| Users {
        n_nodes: nodes.len(),
        sotw_types,
        n_grpc: grpc.len(),
    };
    groups.into_iter().map(|(scopes, found)| (scopes, users(found))).collect()
}

/// Returns whether a write concerns nodes with these scopes before and after it.
fn is_concerned(old: &Scopes, new: &Scopes, touched: &BTreeSet<ScopeName>) -> bool {
    old != new || old.iter().flatten().any(|scope| touched.contains(scope))
}

/// Returns the groups of connected nodes whose scopes a write changes, or whose view has one of the `touched`
/// scopes. Adds the views with such scopes that no connected node has: those of assignments without variables, and
/// last the remaining scopes, each alone.
pub(crate) fn groups(
    connected: &ConnectedNodes,
    after: &State,
    touched: &BTreeSet<ScopeName>,
) -> Vec<NodeGroup> {
    let concerned = connected.iter().filter(|((old, new), _)| is_concerned(old, new, touched));
    let mut groups: ConnectedNodes =
        concerned.map(|(scopes, users)| (scopes.clone(), users.clone())).collect();
    let is_touched = |scopes: &[ScopeName]| scopes.iter().any(|scope| touched.contains(scope));
    let fixed = after.assignments.rules.iter().filter_map(fixed_scopes);
    let fixed: Vec<Vec<ScopeName>> = fixed.filter(|scopes| is_touched(scopes)).collect();
    for scopes in fixed {
        groups.entry((Some(scopes.clone()), Some(scopes))).or_default();
    }
    let seen: BTreeSet<ScopeName> =
        groups.keys().filter_map(|(_, after)| after.as_ref()).flatten().cloned().collect();
    for scope in touched.difference(&seen) {
        let alone = Some(vec![scope.clone()]);
        groups.entry((alone.clone(), alone)).or_default();
    }
    groups.into_iter().map(|((before, after), users)| NodeGroup { before, after, users }).collect()
}

/// Returns the scopes of an assignment; `None` if they depend on the node.
pub(crate) fn fixed_scopes(rule: &Assignment) -> Option<Vec<ScopeName>> {
    let node = Node::default();
    let is_fixed = rule.scopes.iter().all(|template| template.resolve(&node).is_some());
    is_fixed.then(|| rule.scopes_for(&node))
}

/// Returns whether a node with this assignment may have a scope of this name. The values of variables are unknown.
pub(crate) fn may_have(rule: &Assignment, scope: &ScopeName) -> bool {
    rule.scopes.iter().any(|template| template.may_resolve_to(scope))
}

fn scopes_of(state: &State, node: &Node) -> Scopes {
    state.assignments.for_node(node).map(|rule| rule.scopes_for(node))
}

#[cfg(test)]
mod tests {
    use chancery_model::ScopeTemplate;

    use super::*;

    #[test]
    fn assignment_may_have_the_scopes_that_its_templates_can_name() {
        let parse = |source: &str| ScopeTemplate::parse(source).unwrap();
        let rule = Assignment {
            scopes: vec![parse("node/{node.id}/own"), parse("shared")],
            ..chancery_model::default_assignment()
        };
        let may_have = |scope: &str| may_have(&rule, &ScopeName::new(scope).unwrap());
        for scope in ["node/e1/own", "shared"] {
            assert!(may_have(scope), "{scope}");
        }
        for scope in ["node/e1", "node/own", "node/a/b/own", "other/e1/own", "shared/e1", "default"]
        {
            assert!(!may_have(scope), "{scope}");
        }
    }
}
