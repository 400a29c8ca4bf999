//! Upper bounds of the sizes of views, in bytes or resources, whichever nodes are connected.

use std::{collections::BTreeMap, ops::Bound};

use chancery_model::{Node, ScopeName, State, TypeUrl};

/// Upper bounds of the size of a type in the views of the assignments.
pub(super) struct ViewSizes<'a> {
    state: &'a State,
    /// Returns the size of a type in a scope.
    measure: Measure,
    rules: Vec<Templates<'a>>,
    /// The size of the largest scope whose name has a prefix, by type and prefix.
    largest: BTreeMap<(TypeUrl, &'a str), u64>,
}

/// A size of a type in a scope, with all variants.
type Measure = fn(&State, &ScopeName, &TypeUrl) -> u64;

/// The scope templates of an assignment.
struct Templates<'a> {
    /// The scopes of templates without variables.
    fixed: Vec<ScopeName>,
    /// The text before the first variable of each other template.
    prefixes: Vec<&'a str>,
}

impl<'a> ViewSizes<'a> {
    pub(super) fn of(state: &'a State, measure: Measure) -> Self {
        let node = Node::default();
        let rules = state.assignments.rules.iter().map(|rule| {
            let sources = rule.scopes.iter().map(|template| template.as_str());
            let prefixes = sources.filter_map(|source| Some(source.split_once('{')?.0)).collect();
            Templates { fixed: rule.scopes_for(&node), prefixes }
        });
        Self { state, measure, rules: rules.collect(), largest: BTreeMap::new() }
    }

    /// Returns an upper bound of the size of a type in views that have `scope`. It assumes that a node has the
    /// largest scope of each further template with variables. The cost is O(assignments), and once per type and
    /// template O(scopes with its prefix).
    pub(super) fn max(&mut self, scope: &ScopeName, type_url: &TypeUrl) -> u64 {
        let (state, measure) = (self.state, self.measure);
        let own = measure(state, scope, type_url);
        let mut max = own;
        for Templates { fixed, prefixes } in &self.rules {
            let fixed_size =
                || -> u64 { fixed.iter().map(|scope| measure(state, scope, type_url)).sum() };
            let mut others = |own_at: Option<usize>| -> u64 {
                let others = prefixes.iter().enumerate().filter(|(at, _)| Some(*at) != own_at);
                let sizes = others.map(|(_, prefix)| {
                    let largest = self.largest.entry((type_url.clone(), *prefix));
                    *largest.or_insert_with(|| largest_scope(state, prefix, type_url, measure))
                });
                sizes.sum()
            };
            if fixed.contains(scope) {
                max = max.max(fixed_size() + others(None));
                continue;
            }
            for (at, prefix) in prefixes.iter().enumerate() {
                if scope.as_str().starts_with(prefix) {
                    max = max.max(fixed_size() + own + others(Some(at)));
                }
            }
        }
        max
    }
}

/// Returns the size of a type in a scope in bytes.
pub(super) fn scope_bytes(state: &State, scope: &ScopeName, type_url: &TypeUrl) -> u64 {
    state.collection(scope, type_url).map_or(0, |collection| collection.sotw_bytes)
}

/// Returns the number of resources of a type in a scope.
pub(super) fn scope_resources(state: &State, scope: &ScopeName, type_url: &TypeUrl) -> u64 {
    state.collection(scope, type_url).map_or(0, |all| all.resources.len() as u64)
}

fn largest_scope(state: &State, prefix: &str, type_url: &TypeUrl, measure: Measure) -> u64 {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    let scopes = state.scopes.range::<_, str>(from).map(|(scope, _)| scope);
    let scopes = scopes.take_while(|scope| scope.as_str().starts_with(prefix));
    scopes.map(|scope| measure(state, scope, type_url)).max().unwrap_or_default()
}
