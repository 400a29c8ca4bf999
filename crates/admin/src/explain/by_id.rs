//! The properties and resources that the ID of a node alone determines.
//!
//! The cluster, the locality and the metadata of a node without a stream to this replica are unknown. An
//! empty value would be a wrong guess, so a condition on such a value is neither true nor false.

use chancery_admin_proto::v1 as pb;
use chancery_model::{Assignment, DynamicParameters, Node, ResourceKey, ScopeName, State};

/// The properties of a node that its ID does not determine.
pub(super) const UNKNOWN: [&str; 6] =
    ["cluster", "locality", "metadata", "dynamic_parameters", "identity", "subscriptions"];

/// The assignment of a node, as far as its ID determines it.
pub(super) enum Decision<'a> {
    /// This assignment matches, whatever else is true for the node.
    Matches(&'a Assignment),
    /// No assignment can match.
    NoMatch,
    /// The first of these assignments that matches decides, if any does.
    Open(Vec<&'a Assignment>),
}

/// Tries the assignments up to the first one that matches for certain.
pub(super) fn decide<'a>(state: &'a State, id: &str) -> (Vec<pb::AssignmentTrial>, Decision<'a>) {
    let node = Node { id: id.to_owned(), ..Node::default() };
    let (mut trials, mut open) = (Vec::new(), Vec::new());
    for rule in &state.assignments.rules {
        let by_id = rule.matcher.id_alone().mismatch(&node);
        let conditions = rule.matcher.beyond_id();
        let is_match = by_id.is_none() && conditions.is_empty();
        let (unknown, reason) = match by_id {
            Some(mismatch) => (false, mismatch),
            None if !is_match => (true, format!("unknown: {}", conditions.join(", "))),
            None if !open.is_empty() => {
                (true, "its conditions hold, but an earlier assignment may match".to_owned())
            }
            None => (false, String::new()),
        };
        trials.push(pb::AssignmentTrial {
            name: rule.name.to_string(),
            priority: rule.priority,
            matched: is_match && !unknown,
            reason,
            unknown,
        });
        if is_match && !unknown {
            return (trials, Decision::Matches(rule));
        }
        if unknown {
            open.push(rule);
        }
        if is_match {
            break;
        }
    }
    let decision = if open.is_empty() { Decision::NoMatch } else { Decision::Open(open) };
    (trials, decision)
}

/// Returns the scopes that the ID determines, and the other templates of the assignment.
pub(super) fn scopes<'a>(rule: &'a Assignment, node: &Node) -> (Vec<ScopeName>, Vec<&'a str>) {
    let open = rule.scopes.iter().filter(|template| template.needs_more_than_id());
    (rule.scopes_for(node), open.map(|template| template.as_str()).collect())
}

/// Marks a scope whose name is unknown, and removes the report about shadowing: an unknown scope may come first.
pub(super) fn hide_unknown(scope: &mut pb::ScopeTrial, open: &[&str]) {
    scope.unknown = open.contains(&scope.template.as_str());
    scope.shadowed_by.clear();
}

/// Returns whether a resource has variants in the scopes, and no parameters are given that select one.
pub(super) fn has_unknown_variant(
    state: &State,
    seen: &[ScopeName],
    key: Option<&ResourceKey>,
    parameters: &DynamicParameters,
) -> bool {
    let Some(key) = key.filter(|_| parameters.is_empty()) else { return false };
    let mut collections = seen.iter().filter_map(|scope| state.collection(scope, &key.type_url));
    collections.any(|collection| !collection.variants.of(key.name.as_str()).is_empty())
}

/// Returns the sentence about an assignment that the ID does not determine.
pub(super) fn open_assignments(open: &[&Assignment]) -> String {
    let names: Vec<String> = open.iter().map(|rule| format!("{:?}", rule.name)).collect();
    match names.as_slice() {
        [one] => format!(
            "Assignment {one} may match the node: whether it does depends on values that are unknown here. No other \
             assignment can."
        ),
        all => format!(
            "The first of these assignments that matches gives the node its scopes, and that depends on values that \
             are unknown here: {}.",
            all.join(", ")
        ),
    }
}
