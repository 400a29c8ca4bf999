//! The resources that a list of scopes shows: which references they satisfy, and which scope shadows which.

use std::ops::Bound;

use chancery_model::{
    ResourceKey, ResourceName, ScopeName, State, StructuredName, is_structured, types,
};
use chancery_view::View;

/// The resources that nodes with one list of scopes see.
#[derive(Debug)]
pub(crate) struct ReferenceView<'a> {
    state: &'a State,
    scopes: &'a [ScopeName],
    view: View,
}

impl<'a> ReferenceView<'a> {
    pub(crate) fn new(state: &'a State, scopes: &'a [ScopeName]) -> Self {
        Self { state, scopes, view: View::resolve(state, scopes) }
    }

    /// Returns whether a reference to this name leads to a resource: to one of that name or alias, to a
    /// variant, or to a member of the collection. The parameters of nodes are unknown, so that any variant
    /// counts.
    pub(crate) fn has(&self, target: &ResourceKey) -> bool {
        let of_type = self.view.of_type(&target.type_url);
        let name = target.name.base();
        if of_type.get(name).is_some()
            || of_type.layers().any(|layer| !layer.variants.of(name).is_empty())
        {
            return true;
        }
        match target.type_url.as_str() {
            types::SCOPED_ROUTE if name == "*" => of_type.n_resources() > 0,
            types::VIRTUAL_HOST if name.ends_with("/*") => {
                let start = name.trim_end_matches('*');
                of_type.layers().any(|layer| {
                    let from = (Bound::Included(start), Bound::Unbounded);
                    let from = layer.resources.range::<_, str>(from);
                    from.take(1).any(|(name, _)| name.as_str().starts_with(start))
                })
            }
            _ => StructuredName::parse(name)
                .is_ok_and(|glob| glob.is_glob() && of_type.members(&glob).next().is_some()),
        }
    }

    /// Returns the scope from which the nodes receive a resource of this name.
    pub(crate) fn scope_of(&self, target: &ResourceKey) -> Option<&'a ScopeName> {
        self.scopes.iter().find(|scope| {
            let alone = std::slice::from_ref(*scope);
            ReferenceView::new(self.state, alone).has(target)
        })
    }

    /// Returns whether the nodes see the resource of this scope, and not that of an earlier scope.
    pub(crate) fn shows(&self, scope: &ScopeName, key: &ResourceKey) -> bool {
        let top = self.scopes.iter().find(|scope| {
            let collection = self.state.collection(scope, &key.type_url);
            collection.is_some_and(|collection| {
                collection.resources.contains_key(&key.name)
                    || collection.resources.contains_key(key.name.base())
            })
        });
        top == Some(scope) && self.state.get(scope, key).is_some()
    }
}

/// Returns the names by which other resources may refer to a resource: its name, and its collections.
pub(crate) fn names_of(key: &ResourceKey) -> Vec<ResourceName> {
    let base = key.name.base();
    let collection = match key.type_url.as_str() {
        types::SCOPED_ROUTE if !is_structured(base) => Some("*".to_owned()),
        types::VIRTUAL_HOST => base.rsplit_once('/').map(|(route, _)| format!("{route}/*")),
        _ if is_structured(base) => StructuredName::parse(base).ok().map(|name| name.collection()),
        _ => None,
    };
    let collection = collection.and_then(|name| ResourceName::requested(&name).ok());
    [key.name.to_base()].into_iter().chain(collection).collect()
}

/// Returns the last part of a type's name, and the name in quotes: `Cluster "web"`.
pub(crate) fn label(key: &ResourceKey) -> String {
    format!("{} {:?}", key.type_url.short_name(), key.name)
}
