//! The names and aliases that the resources of an input claim.
//!
//! Within a scope and a type, a name or alias belongs to one resource, which a client gets when it
//! requests the name (DELTA-47, DELTA-64). If an input claims a name twice, the problem names both
//! places. Conflicts with stored resources do not concern this module: the model resolves them, in the
//! same way on each replica.

use std::collections::HashMap;

use chancery_model::{ResourceDraft, ResourceKey, ScopeName};

use crate::problem::{Fault, Place};

/// The place of an entry of a manifest. It is small, because there is one for each resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) file: &'a str,
    /// The index of the file in the input.
    pub(crate) file_index: usize,
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

/// The names and aliases that were claimed so far.
#[derive(Debug, Default)]
pub(crate) struct Names<'a> {
    names: HashMap<(ScopeName, ResourceKey), Origin<'a>>,
    aliases: HashMap<(ScopeName, ResourceKey), Origin<'a>>,
}

impl<'a> Names<'a> {
    /// Claims the name and the aliases of a resource. Returns a fault for each one that is taken.
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
                "duplicate resource in scope {:?}, first defined in {}",
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
