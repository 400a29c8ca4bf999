//! Which names the resources of an input take.
//!
//! Within a scope and a type, a name or an alias belongs to one resource (DELTA-47, DELTA-64): a client
//! that asks for it gets that one. What an input takes twice is refused with both places. What it takes
//! from a resource of the store is not seen here: the model resolves it, the same way on each replica.

use std::collections::HashMap;

use chancery_model::{ResourceDraft, ResourceKey, ScopeName};

use crate::problem::{Fault, Place};

/// Where something was first met: small, because there is one for each resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) file: &'a str,
    pub(crate) document: u32,
    pub(crate) list: &'static str,
    pub(crate) index: usize,
}

impl Origin<'_> {
    pub(crate) fn describe(&self) -> String {
        let resource = Some(format!("{}[{}]", self.list, self.index));
        Place { file: self.file, document: Some(self.document), resource }.to_string()
    }
}

/// The names and aliases that were taken so far.
#[derive(Debug, Default)]
pub(crate) struct Names<'a> {
    names: HashMap<(ScopeName, ResourceKey), Origin<'a>>,
    aliases: HashMap<(ScopeName, ResourceKey), Origin<'a>>,
}

impl<'a> Names<'a> {
    /// Takes the name and the aliases of a resource, or says what has them already.
    pub(crate) fn claim(
        &mut self,
        scope: &ScopeName,
        draft: &ResourceDraft,
        origin: Origin<'a>,
    ) -> Vec<Fault> {
        let mut faults = Vec::new();
        let key = (scope.clone(), draft.key.clone());
        if let Some(first) = self.names.get(&key) {
            let rule = format!(
                "is in scope {:?} of this input already: {}",
                scope.as_str(),
                first.describe()
            );
            return vec![Fault::new(rule)];
        }
        if let Some(first) = self.aliases.get(&key) {
            let rule = format!("its name is an alias of another resource: {}", first.describe());
            faults.push(Fault::new(rule));
        }
        let mut taken = Vec::new();
        for (index, alias) in draft.aliases.iter().enumerate() {
            let alias_key =
                ResourceKey { type_url: draft.key.type_url.clone(), name: alias.clone() };
            let alias_key = (scope.clone(), alias_key);
            let shown = alias.as_str();
            let rule = if alias == &draft.key.name {
                format!("{shown:?} is the name of the resource itself")
            } else if let Some(first) = self.names.get(&alias_key) {
                format!("{shown:?} is the name of another resource: {}", first.describe())
            } else if let Some(first) = self.aliases.get(&alias_key) {
                format!("{shown:?} is an alias of another resource: {}", first.describe())
            } else {
                taken.push(alias_key);
                continue;
            };
            faults.push(Fault::new(rule).within(&format!("aliases[{index}]")));
        }
        if faults.is_empty() {
            self.names.insert(key, origin);
            self.aliases.extend(taken.into_iter().map(|alias| (alias, origin)));
        }
        faults
    }
}
