//! The references of a resource: the names of other resources in its body.
//!
//! Tables name the fields with references (`table`). A plan lists which fields of each message lead to
//! such a field, according to the descriptors (`plan`). The walk skips all other fields without parsing them.

mod chains;
mod plan;
mod table;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::BTreeSet, fmt};

use chancery_model::{ResourceKey, ResourceName, TypeUrl, canonical_name, types};

use self::{
    plan::{Action, Message, Plan, Request, Step},
    table::{COLLECTION_MEMBER, Name},
};
use crate::{
    inspect::DEPTH_MAX,
    problem::shortened,
    wire::{Raw, Reader, last, last_text},
};

/// A reference to another resource.
#[derive(Debug)]
pub struct Reference<'a> {
    /// The type of the other resource.
    pub type_url: &'a TypeUrl,
    /// The canonical name of the other resource, or of a collection: a glob collection, `<name>/*` for the
    /// virtual hosts of a route configuration, or `*` for all scoped routes.
    pub name: Cow<'a, str>,
    /// The name as the resource has it.
    pub(crate) written: &'a str,
    /// The field with the name.
    pub field: &'a FieldPath<'a>,
}

impl Reference<'_> {
    /// Returns the key of the other resource; `None` if no resource can have the name.
    #[must_use]
    pub fn key(&self) -> Option<ResourceKey> {
        let name = ResourceName::new(&self.name).ok()?;
        Some(ResourceKey { type_url: self.type_url.clone(), name })
    }
}

/// The path of a field in a resource. `Display` shows it as `filters[0].typed_config.cluster`, and shortens long
/// paths.
#[derive(Debug, Clone, Copy)]
pub struct FieldPath<'a> {
    outer: Option<&'a FieldPath<'a>>,
    field: &'a str,
    /// The position in a list.
    index: Option<usize>,
    /// The key in a map.
    key: Option<&'a str>,
}

impl FieldPath<'_> {
    /// Returns the field of the resource itself with which the path begins.
    fn root(&self) -> &str {
        let mut path = self;
        while let Some(outer) = path.outer {
            path = outer;
        }
        path.field
    }

    /// Returns the whole path as text.
    #[must_use]
    pub fn whole(&self) -> String {
        let mut fields = vec![self];
        while let Some(outer) = fields.last().and_then(|last| last.outer) {
            fields.push(outer);
        }
        let mut path = String::new();
        for Self { field, index, key, .. } in fields.into_iter().rev() {
            let dot = if path.is_empty() { "" } else { "." };
            let index = index.map(|index| format!("[{index}]")).unwrap_or_default();
            let key = key.map(|key| format!("[{key:?}]")).unwrap_or_default();
            path.extend([dot, field, &index, &key]);
        }
        path
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shortened(self.whole()))
    }
}

/// Returns whether resources of a type may contain references.
#[must_use]
pub fn may_refer(type_url: &TypeUrl) -> bool {
    Plan::get().find(type_url.message_name()).is_some()
}

/// Calls `found` with each reference of a resource, in the order of its bytes.
///
/// The name of a resource that a client requests from another server, or from a file, is not a reference. The
/// clusters that a header, a plugin or a `TypedStruct` selects are unknown. The walk ends at a body that does
/// not parse.
pub fn for_each_reference(key: &ResourceKey, body: &[u8], mut found: impl FnMut(&Reference<'_>)) {
    let plan = Plan::get();
    if let Some(at) = plan.find(key.type_url.message_name()) {
        let mut walk =
            Walk { plan, own_name: key.name.base(), own_chains: None, found: &mut found };
        let chains = plan.chains.as_ref().filter(|_| key.type_url.as_str() == types::LISTENER);
        if let Some((chains, (config, source))) =
            chains.and_then(|chains| Some((chains, chains.source(body)?)))
            && walk.is_this_server(config, source)
        {
            walk.own_chains = Some(chains.own(body));
        }
        // A stored body has passed admission, so that it parses.
        walk.message(at, body, None, 0);
    }
}

/// Returns the names of the filter chains that a listener requests (FCDS).
pub(crate) fn requested_chains(key: &ResourceKey, body: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let chains = Plan::get().chains.as_ref();
    if chains.and_then(|chains| chains.source(body)).is_some() {
        for_each_reference(key, body, |reference| {
            if reference.type_url.as_str() == types::FILTER_CHAIN {
                names.push(reference.name.clone().into_owned());
            }
        });
    }
    names
}

struct Walk<'a> {
    plan: &'static Plan,
    /// The name of the resource.
    own_name: &'a str,
    /// The names of the chains of a listener that requests others. `None` for other resources.
    own_chains: Option<BTreeSet<&'a str>>,
    found: &'a mut dyn FnMut(&Reference<'_>),
}

impl Walk<'_> {
    fn message(&mut self, at: usize, body: &[u8], outer: Option<&FieldPath<'_>>, depth: usize) {
        let Some(Message { steps, request, is_map_entry }) =
            self.plan.messages.get(at).filter(|_| depth < DEPTH_MAX)
        else {
            return;
        };
        if let Some(request) = request {
            self.request(request, body, outer);
        }
        // The counts of the lists, by step.
        let mut counts: Vec<(usize, usize)> = Vec::new();
        let mut reader = Reader(body);
        while let Ok(Some((number, raw))) = reader.next() {
            let Raw::Len(content) = raw else { continue };
            let Some(step_at) = steps.iter().position(|step| step.number == number) else {
                continue;
            };
            let step = &steps[step_at];
            let index = step.is_list.then(|| next_index(&mut counts, step_at));
            let key = step.is_map.then(|| last_text(content, 1).unwrap_or_default());
            let field = match outer.filter(|_| *is_map_entry) {
                // The path of the entry has the key, and is that of the value.
                Some(entry) => *entry,
                None => FieldPath { outer, field: &step.field, index, key },
            };
            self.step(step, content, body, &field, depth);
        }
    }

    fn step(
        &mut self,
        step: &Step,
        content: &[u8],
        around: &[u8],
        field: &FieldPath<'_>,
        depth: usize,
    ) {
        match &step.action {
            Action::Name(type_url) => {
                self.found(type_url, std::str::from_utf8(content).unwrap_or_default(), field);
            }
            Action::Nested(inner) => self.message(*inner, content, Some(field), depth + 1),
            Action::Any => {
                let type_url = last_text(content, 1).unwrap_or_default();
                let name = type_url.rsplit('/').next().unwrap_or(type_url);
                if let Some(own) = &self.own_chains
                    && let Some(chain) = chains::named(name, content, field.root())
                    && !own.contains(chain)
                {
                    self.found(&TypeUrl::from_static(types::FILTER_CHAIN), chain, field);
                }
                if let Some((inner, body)) = self.plan.find(name).zip(last(content, 2)) {
                    self.message(inner, body, Some(field), depth + 2);
                }
            }
            Action::Extension { name, source, type_url, inner } => {
                if self.is_this_server(content, *source) {
                    self.found(type_url, last_text(around, *name).unwrap_or_default(), field);
                }
                self.message(*inner, content, Some(field), depth + 1);
            }
        }
    }

    fn request(&mut self, request: &Request, body: &[u8], outer: Option<&FieldPath<'_>>) {
        if !self.is_this_server(body, request.source) {
            return;
        }
        let (text, field) = match request.field {
            None => ("", ""),
            Some((number, field)) => (last_text(body, number).unwrap_or_default(), field),
        };
        let name = match request.name {
            Name::FieldOrOwn(_) if text.is_empty() => Cow::Borrowed(self.own_name),
            Name::FieldOrAll(_) if text.is_empty() => Cow::Borrowed("*"),
            Name::BelowOwn => Cow::Owned(format!("{}/*", self.own_name)),
            _ => Cow::Borrowed(text),
        };
        let inner = FieldPath { outer, field, index: None, key: None };
        let field = if field.is_empty() { outer.unwrap_or(&inner) } else { &inner };
        let is_glob = || name.split(['?', '#']).next().is_some_and(|id| id.ends_with("/*"));
        match request.name {
            Name::List(_) if is_glob() => {
                self.found(&TypeUrl::from_static(COLLECTION_MEMBER), &name, field);
            }
            _ => self.found(&request.type_url, &name, field),
        }
    }

    fn found(&mut self, type_url: &TypeUrl, name: &str, field: &FieldPath<'_>) {
        if !name.is_empty() {
            let canonical = canonical_name(name);
            (self.found)(&Reference { type_url, name: canonical, written: name, field });
        }
    }

    /// Returns whether the `ConfigSource` in a field of a message names the server of the resource.
    fn is_this_server(&self, message: &[u8], source: u32) -> bool {
        let source = last(message, source).unwrap_or_default();
        self.plan.this_server.iter().any(|number| last(source, *number).is_some())
    }
}

/// Returns the index of the next element of a list.
fn next_index(counts: &mut Vec<(usize, usize)>, step: usize) -> usize {
    match counts.iter_mut().find(|(of, _)| *of == step) {
        Some((_, n)) => {
            *n += 1;
            *n
        }
        None => {
            counts.push((step, 0));
            0
        }
    }
}
