//! Resources that a client keeps between two streams.
//!
//! A SotW client that reconnects reports the version that it has, but not the resources. It may hold
//! resources that were removed in the meantime and that its routes still refer to. Their removal has
//! to wait on the new stream as it would have on the old one (ADS-08). A delta client lists the
//! resources that it holds. For SotW clients, the server remembers them for a while, or finds the
//! view that has the client's version.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use chancery_model::{ResourceName, TypeUrl, TypeVersion, Version};
use chancery_view::{Differ, Resources, TypeView, difference};

use super::names::{ClientVersion, Names};

/// The resources that a SotW client may hold when its stream ends.
///
/// They are the last accepted response and the unanswered responses of the full-state types that
/// other types refer to. The lists of resources are shared by all clients that were sent them.
#[derive(Debug, Default)]
pub struct ResumeState(pub(crate) Vec<KeptResponse>);

/// One response, with all its resources.
#[derive(Debug)]
pub(crate) struct KeptResponse {
    pub(crate) type_url: TypeUrl,
    pub(crate) version: String,
    pub(crate) resources: Resources,
}

/// The resources of an earlier SotW stream.
#[derive(Debug, Default)]
enum Earlier {
    /// None that matter.
    #[default]
    None,
    /// The version in the client's first request, before [`Resumption::resume_from`].
    Version(String),
    /// The resources of that version, before the first plan.
    Resources(Resources),
    /// The view of that version, before the first plan.
    View(Box<TypeView>),
    /// The version, before the first plan. The replica does not have its resources.
    Unknown(String),
}

/// The state of one type between streams: what the client holds at the start, and what is kept for
/// its next stream.
#[derive(Debug, Default)]
pub(crate) struct Resumption {
    /// Whether the client holds resources from an earlier stream. If so, even the first response of
    /// the type waits for the types before it.
    has_resources: bool,
    earlier: Earlier,
    /// Delta: the resources that the client listed in its first request, or may hold when it starts
    /// a wildcard. The next plan consumes them. A version of `None` is unknown, or was never
    /// assigned by this cluster.
    claimed: BTreeMap<ResourceName, Option<Version>>,
    /// The total length of the names from which `claimed` was built, in bytes.
    claimed_bytes: usize,
    /// The last accepted response, if it is kept for the client's next stream.
    accepted: Option<(TypeVersion, Resources)>,
}

impl Resumption {
    /// Returns whether the client holds resources from an earlier stream.
    pub(crate) fn has_resources(&self) -> bool {
        self.has_resources
    }

    /// Records whether the client holds resources from an earlier stream, according to its first request.
    pub(super) fn set_has_resources(&mut self, has_resources: bool) {
        self.has_resources = has_resources;
    }

    /// Records the version in the client's first SotW request.
    pub(crate) fn set_version(&mut self, version: &str) {
        self.earlier = Earlier::Version(version.to_owned());
    }

    /// Returns whether the first response depends on the resources of an earlier stream.
    pub(crate) fn needs_resume_state(&self) -> bool {
        matches!(self.earlier, Earlier::Version(_))
    }

    /// Finds the resources of the client's version among those of its earlier streams. Of equal
    /// versions, the last one is used. Streams of other replicas are not among them.
    pub(crate) fn resume_from(&mut self, type_url: &TypeUrl, states: &[Arc<ResumeState>]) {
        let Earlier::Version(version) = std::mem::take(&mut self.earlier) else { return };
        let mut all = states.iter().flat_map(|state| &state.0).rev();
        let found = all.find(|kept| kept.type_url == *type_url && kept.version == version);
        self.earlier = match found {
            Some(kept) => Earlier::Resources(kept.resources.clone()),
            None => Earlier::Unknown(version),
        };
    }

    /// Returns the version of the client if [`Resumption::resume_from`] has not found its resources.
    pub(crate) fn unknown_version(&self) -> Option<&str> {
        match &self.earlier {
            Earlier::Unknown(version) => Some(version),
            Earlier::None | Earlier::Version(_) | Earlier::Resources(_) | Earlier::View(_) => None,
        }
    }

    /// Sets the view that has the client's version.
    pub(crate) fn resume_from_view(&mut self, view: TypeView) {
        self.earlier = Earlier::View(Box::new(view));
    }

    /// Returns whether the client reports the state of version `current` with removed resources that this replica does
    /// not know. Only the first plan calls it, because the client's version is dropped then.
    pub(crate) fn take_is_held(&mut self, current: &TypeVersion) -> bool {
        let held = |version: &str| current.is_held_in(version);
        match std::mem::take(&mut self.earlier) {
            Earlier::Version(version) | Earlier::Unknown(version) => held(&version),
            known @ (Earlier::Resources(_) | Earlier::View(_)) => {
                self.earlier = known;
                false
            }
            Earlier::None => false,
        }
    }

    /// Takes the resources of the earlier stream, for the first plan. Those that `view` has may be missing: only
    /// removed resources matter.
    pub(crate) fn take_resources(&mut self, view: &TypeView, differ: &Differ) -> Resources {
        match std::mem::take(&mut self.earlier) {
            Earlier::Resources(resources) => resources,
            Earlier::View(earlier) => {
                let mut removed = Resources::default();
                removed.push_shared(&difference(differ, &earlier, view).removed.into());
                removed
            }
            Earlier::None | Earlier::Version(_) | Earlier::Unknown(_) => Resources::default(),
        }
    }

    /// Adds a resource that a delta client claims to hold.
    pub(crate) fn claim(&mut self, name: ResourceName, version: Option<Version>) {
        self.claimed_bytes += name.as_str().len();
        self.claimed.insert(name, version);
    }

    /// Returns the resources that a delta client claims to hold. A version of `None` is unknown, or was never
    /// assigned by this cluster.
    pub(crate) fn claimed(&self) -> &BTreeMap<ResourceName, Option<Version>> {
        &self.claimed
    }

    /// Returns the version that the client claims to hold under a name, if it is known.
    pub(crate) fn claimed_version(&self, name: &ResourceName) -> Option<Version> {
        self.claimed.get(name).copied().flatten()
    }

    /// Drops a name from the resources that the client claims to hold.
    pub(crate) fn disclaim(&mut self, name: &ResourceName) {
        self.claimed.remove(name);
    }

    /// Keeps the claims for which `keeps` returns `true`.
    pub(super) fn retain_claims(&mut self, keeps: impl Fn(&ResourceName) -> bool) {
        self.claimed.retain(|name, _| keeps(name));
    }

    /// Drops all claims: a plan covers them.
    pub(crate) fn clear_claims(&mut self) {
        self.claimed.clear();
    }

    /// Claims for a client that starts a wildcard what it may hold: the resources that were sent for the
    /// subscribed names, and those in unanswered responses.
    pub(super) fn on_wildcard_started<'a>(
        &mut self,
        names: &Names,
        unanswered: impl Iterator<Item = &'a Resources>,
    ) {
        let claimed = &mut self.claimed;
        // The client may have dropped resources that it listed but did not subscribe to.
        claimed.values_mut().for_each(|version| *version = None);
        // The key is the resource's own name, even if the client uses an alias.
        claimed.extend(names.iter().filter_map(|(name, held)| {
            let own = held.sent().map_or(name, |resource| resource.name());
            Some((own.clone(), Some(held.version()?)))
        }));
        // Resources in unanswered responses arrive after the client has started the wildcard, so it
        // may keep them. The server does not repeat a removal that is also unanswered (DELTA-44).
        for name in unanswered.flat_map(Resources::iter).map(|resource| resource.name()) {
            if !matches!(names.get(name), Some(ClientVersion::Absent)) {
                claimed.entry(name.clone()).or_insert(None);
            }
        }
    }

    /// Keeps the last accepted response for the client's next stream.
    pub(super) fn on_accepted(&mut self, version: &TypeVersion, resources: Option<Resources>) {
        self.accepted = resources.map(|resources| (version.clone(), resources));
    }

    /// Takes the last accepted response.
    pub(super) fn take_accepted(&mut self) -> Option<(TypeVersion, Resources)> {
        self.accepted.take()
    }

    /// Returns whether a delta client claims to hold a resource of this published name.
    pub(crate) fn claims(&self, name: &ResourceName) -> bool {
        let from = (Bound::Included(name.base()), Bound::Unbounded);
        let mut same_or_later = self.claimed.range::<str, _>(from);
        same_or_later.next().is_some_and(|(claimed, _)| claimed.base() == name.base())
    }

    /// Returns the total length of the names that the client claims to hold, in bytes.
    pub(crate) fn claimed_bytes(&self) -> usize {
        if self.claimed.is_empty() { 0 } else { self.claimed_bytes }
    }
}
