//! The parts of a pending response.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use chancery_model::{Resource, ResourceName, TypeVersion, has_internal_mark};
use chancery_view::Resources;

use super::{
    delivery::{Pace, PendingResponse},
    interest::Interest,
    kind::Kind,
    names::ClientVersion,
    renewals::Renewals,
    resumption::Resumption,
    work::Work,
};
use crate::{
    Protocol, Response,
    encoding::Encoding,
    resource_error::error_len,
    response::{absent_len, removed_len},
    spelling::Spellings,
};

/// The size at which an atomic response is split: never. The sum of two such sizes does not overflow.
const ATOMIC_BYTES: usize = usize::MAX / 4;

/// The contents of one response.
#[derive(Debug)]
#[must_use]
pub(crate) struct Part {
    pub(crate) resources: Resources,
    pub(crate) heartbeats: Resources,
    pub(crate) removed: Vec<ResourceName>,
    pub(crate) absent: Vec<ResourceName>,
    pub(crate) errors: Vec<ResourceName>,
}

/// The parts of a subscription that decide how its responses are split.
#[derive(Debug, Clone, Copy)]
pub(super) struct Splitter<'a> {
    pub(super) kind: &'a Kind,
    pub(super) interest: &'a Interest,
    pub(super) renewals: &'a Renewals,
}

impl Splitter<'_> {
    /// Returns the spellings for the names of resources in a response. In SotW, the name is in the
    /// body; only a wrapper can have another one, which needs the support of the client (SOTW-113).
    pub(super) fn response_spellings(self) -> Spellings {
        match self.kind.protocol {
            Protocol::Sotw if !self.renewals.has_wrappers() => Spellings::default(),
            Protocol::Sotw | Protocol::Delta | Protocol::Mcp => self.interest.spellings().clone(),
        }
    }

    /// Takes the next part of a pending response, of about `target` bytes. Full states cannot be split
    /// (SOTW-70).
    pub(super) fn take_part(self, pending: &mut PendingResponse, target: usize) -> Part {
        let target = if self.kind.is_full_state() {
            usize::MAX
        } else if pending.is_atomic {
            ATOMIC_BYTES
        } else {
            target
        };
        let (spellings, version) = (self.response_spellings(), &pending.version);
        let reads_constraints = self.interest.variants().has_locators();
        let (protocol, form) = (self.kind.protocol, self.renewals.form());
        let encoding = Encoding::new(protocol, form, reads_constraints, spellings, version);
        let size = |resource: &Resource| encoding.len(resource);
        let (mut removed, set_aside) = take_first_removed(pending, target);
        let first_bytes = removed.iter().map(removed_len).sum::<usize>();
        let left = target.saturating_sub(first_bytes);
        // A part has at least one resource, unless there are removals before it.
        let next = pending.resources.iter().next();
        let fits = removed.is_empty() || next.is_none_or(|next| size(next) <= left);
        let mut resources = if pending.n_removed_first > 0 || !fits {
            Resources::default()
        } else if self.kind.properties.absent_as_alias {
            take_distinct(&mut pending.resources, left, size)
        } else {
            pending.resources.take_front(left, size)
        };
        set_aside.into_iter().for_each(|resource| pending.resources.push(resource));
        if protocol == Protocol::Delta && reads_constraints {
            removed.extend(take_variants(pending, &mut resources));
        }
        let (names, sends_errors) = (self.interest.names(), self.kind.sends_errors);
        let has_error = |name: &ResourceName| sends_errors && names.has_base(name.base());
        // ERR-09: the error is beside the removal, for clients that do not know errors.
        let errors = removed.iter().filter(|name| has_error(name)).cloned().collect();
        let heartbeats = Resources::default();
        let mut part = Part { resources, heartbeats, removed, absent: vec![], errors };
        if pending.resources.is_empty() && pending.n_removed_first == 0 {
            let sizes = part.resources.iter().map(|resource| size(resource));
            let mut used = sizes.sum::<usize>() + first_bytes;
            // OPS-12: if the content fills the part, one heartbeat may exceed it.
            let heartbeat_len = |resource: &Resource| encoding.heartbeat_len(resource);
            let left = target.saturating_sub(used);
            part.heartbeats = pending.heartbeats.take_front(left, heartbeat_len);
            used += part.heartbeats.iter().map(|resource| heartbeat_len(resource)).sum::<usize>();
            // DELTA-53: additions precede removals. OPS-12: names count towards the size, too.
            let mut left = target.saturating_sub(used);
            let alone = part.resources.is_empty();
            let with_error = |name: &ResourceName| {
                if has_error(name) {
                    removed_len(name) + error_len(name)
                } else {
                    removed_len(name)
                }
            };
            let gone = take_names(&mut pending.removed, &mut left, alone, with_error);
            part.errors.extend(gone.iter().filter(|name| has_error(name)).cloned());
            part.removed.extend(gone);
            if pending.removed.is_empty() {
                let alone = alone && part.removed.is_empty();
                part.absent = take_names(&mut pending.absent, &mut left, alone, absent_len);
                let alone = alone && part.absent.is_empty();
                part.errors.extend(take_names(&mut pending.errors, &mut left, alone, error_len));
            }
        }
        if pending.pace == Pace::FirstAtOnce {
            pending.pace = Pace::Wait;
        }
        part
    }

    /// Creates the response with a part of a pending response.
    pub(super) fn response(self, part: Part, of: &PendingResponse, nonce: u64) -> Response {
        let reads_constraints = self.interest.variants().has_locators();
        let spellings = self.interest.spellings();
        let spelled = |names: Vec<ResourceName>| wire_names(names, spellings, reads_constraints);
        let (removed_variants, removed): (Vec<_>, Vec<_>) =
            part.removed.into_iter().partition(|name| reads_constraints && name.is_variant());
        Response {
            protocol: self.kind.protocol,
            type_url: self.kind.type_url.clone(),
            version: of.version.clone(),
            nonce,
            lifetimes: self.renewals.form(),
            spellings: self.response_spellings(),
            resources: part.resources,
            heartbeats: part.heartbeats,
            is_incremental: of.is_incremental,
            is_renewal: of.is_renewal,
            reads_constraints,
            removed: spelled(removed),
            removed_variants,
            absent: spelled(part.absent),
            errors: spelled(part.errors),
            revision: of.revision,
        }
    }
}

/// Clears the requests that a part of a response answers. The client sent them after the session had planned the
/// response.
pub(super) fn clear_requests(
    part: &Part,
    version: &TypeVersion,
    interest: &mut Interest,
    work: &mut Work,
    resumption: &mut Resumption,
) {
    if !work.requested().is_empty() || !work.resent().is_empty() {
        let version = Arc::new(version.clone());
        for resource in part.resources.iter() {
            let names = interest.names_for(resource).filter(|name| work.is_marked(name));
            let names: Vec<ResourceName> = names.cloned().collect();
            for name in &names {
                work.on_resent(name);
                let sent = ClientVersion::sent_in(resource, &version);
                if work.on_answered(name) && interest.set_version(name, sent).is_some() {
                    // The resource may have changed since the plan. If the client unsubscribed in
                    // between, the mark of that change was lost.
                    work.on_changed(name.clone());
                    if interest.is_wildcard() && interest.base().is_none() {
                        // DELTA-52: the first plan of the wildcard does not repeat it.
                        resumption.claim(resource.name().clone(), Some(resource.version()));
                    }
                }
            }
        }
        work.review_urgency();
    }
    if !work.requested().is_empty() {
        for name in part.removed.iter().chain(&part.absent) {
            if work.on_answered(name) && interest.set_version(name, ClientVersion::Absent).is_some()
            {
                work.on_changed(name.clone());
            }
        }
        work.review_urgency();
    }
}

/// Takes the removals that go out before the resources. The resources that have a removed name as an alias are
/// returned. They wait for the next response (DELTA-47).
fn take_first_removed(
    pending: &mut PendingResponse,
    target: usize,
) -> (Vec<ResourceName>, Vec<Arc<Resource>>) {
    if pending.n_removed_first == 0 {
        return (Vec::new(), Vec::new());
    }
    let mut rest = pending.removed.split_off(pending.n_removed_first);
    let mut left = target;
    let taken = take_names(&mut pending.removed, &mut left, true, removed_len);
    pending.n_removed_first = pending.removed.len();
    pending.removed.append(&mut rest);
    let gone: BTreeSet<&ResourceName> = taken.iter().collect();
    let is_beside = |resource: &Resource| {
        let mut names = std::iter::once(resource.name()).chain(resource.aliases());
        names.any(|name| gone.contains(name))
    };
    let aside = pending.resources.iter().filter(|resource| is_beside(resource));
    let aside: Vec<Arc<Resource>> = aside.cloned().collect();
    if !aside.is_empty() {
        pending.resources.retain(|resource| !is_beside(resource));
    }
    (taken, aside)
}

/// Takes resources for one response of a type with aliases. If two resources have a name in common,
/// the second one waits for the next response (DELTA-47).
fn take_distinct(
    resources: &mut Resources,
    bytes: usize,
    size: impl Fn(&Resource) -> usize,
) -> Resources {
    let mut seen = BTreeSet::new();
    resources.take_front(bytes, |resource| {
        let names = || std::iter::once(resource.name()).chain(resource.aliases());
        if names().any(|name| seen.contains(name)) {
            // A size that exceeds the response ends it here.
            return bytes.max(1);
        }
        seen.extend(names().cloned());
        size(resource)
    })
}

/// Takes the removals of the variants that those in a part replace, and adds the other new variants of
/// their names to the part. A replacement is thus in one response (DYN-07).
///
/// The cost is O(part + removals), and O(unsent resources) for a part with a replacement.
fn take_variants(pending: &mut PendingResponse, taken: &mut Resources) -> Vec<ResourceName> {
    if pending.removed.is_empty() {
        return Vec::new();
    }
    let names = taken.iter().flat_map(|one| std::iter::once(one.base_name()).chain(one.aliases()));
    let names: BTreeSet<&str> = names.map(ResourceName::as_str).collect();
    let (now, later): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut pending.removed)
        .into_iter()
        .partition(|gone| names.contains(gone.base()));
    pending.removed = later;
    let replaced: BTreeSet<&str> = now.iter().map(ResourceName::base).collect();
    if !replaced.is_empty() {
        let is_replaced = |resource: &Resource| replaced.contains(resource.base_name().as_str());
        let rest = pending.resources.iter().filter(|resource| is_replaced(resource));
        rest.for_each(|resource| taken.push(Arc::clone(resource)));
        pending.resources.retain(|resource| !is_replaced(resource));
    }
    now.into()
}

/// Takes names from the front while they fit into the bytes that are `left` in a response. If the
/// first name does not fit but would be alone in the response, it is taken anyway.
fn take_names(
    names: &mut VecDeque<ResourceName>,
    left: &mut usize,
    alone: bool,
    size: impl Fn(&ResourceName) -> usize,
) -> Vec<ResourceName> {
    let mut n = 0;
    for name in names.iter() {
        match left.checked_sub(size(name)) {
            Some(rest) => *left = rest,
            None if alone && n == 0 => *left = 0,
            None => break,
        }
        n += 1;
    }
    names.drain(..n).collect()
}

/// Returns names as the client knows them: as it spells them, and variants with their constraints if it
/// reads them. No name occurs twice.
fn wire_names(
    names: Vec<ResourceName>,
    spellings: &Spellings,
    reads_constraints: bool,
) -> Vec<ResourceName> {
    let is_bare = |name: &ResourceName| !has_internal_mark(name.as_str());
    if spellings.is_empty() && names.iter().all(is_bare) {
        return names;
    }
    let mut seen = BTreeSet::new();
    let known = names.into_iter().map(|name| {
        if name.is_variant() && reads_constraints { name } else { spellings.spell(name.to_base()) }
    });
    known.filter(|name| seen.insert(name.clone())).collect()
}
