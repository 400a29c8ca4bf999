//! The references of one resource, in both directions, for operators.

use std::collections::BTreeSet;

use chancery_admin_proto::v1 as pb;
use chancery_admission::for_each_reference;
use chancery_model::{Resource, ResourceKey, ResourceName, ScopeName, State};

use super::{
    index::ReferenceIndex,
    reference_view::{ReferenceView, names_of},
    settings::ReferenceSettings,
};

/// The maximum number of listed references in each direction.
const SHOWN_MAX: usize = 100;

/// The references of one resource.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The resources to which it refers.
    pub(crate) referents: Vec<pb::Reference>,
    pub(crate) n_referents_omitted: u64,
    /// The resources that refer to it.
    pub(crate) referrers: Vec<pb::Reference>,
    pub(crate) n_referrers_omitted: u64,
}

/// The lists of scopes with one scope.
#[derive(Debug, Default)]
pub(crate) struct ScopeViews {
    /// The lists that this replica knows. If it knows none, this has one list with only the scope.
    pub(crate) known: Vec<Vec<ScopeName>>,
    /// Whether a known list is that of a node or an assignment.
    pub(crate) is_used: bool,
    /// The number of other replicas, if their nodes may have further lists.
    pub(crate) replicas_not_asked: u64,
}

/// Returns the references of a resource in one of its scopes. A reference may lead to a resource in some of the
/// `views` only.
pub(crate) fn of_scope(
    state: &State,
    index: &ReferenceIndex,
    settings: &ReferenceSettings,
    views: &ScopeViews,
    key: &ResourceKey,
    resource: &Resource,
) -> Shown {
    let scopes: BTreeSet<&ScopeName> = views.known.iter().flatten().collect();
    let missing = match (views.replicas_not_asked, views.is_used) {
        (0, _) => "missing",
        (_, true) => "missing-in-some-views",
        (_, false) => "unknown",
    };
    let views: Vec<ReferenceView<'_>> =
        views.known.iter().map(|scopes| ReferenceView::new(state, scopes)).collect();
    let mut shown = Shown::default();
    shown.add_referents(settings, &views, missing, key, resource);
    shown.add_referrers(state, index, key, resource.aliases(), |scope, _| scopes.contains(scope));
    shown
}

/// Returns the references of a resource in the view of a node. `resource` is absent if the view has none of
/// that name.
pub(crate) fn of_view(
    state: &State,
    index: &ReferenceIndex,
    settings: &ReferenceSettings,
    view: ReferenceView<'_>,
    key: &ResourceKey,
    resource: Option<&Resource>,
) -> Shown {
    let mut shown = Shown::default();
    let aliases = resource.map_or(&[][..], Resource::aliases);
    shown.add_referrers(state, index, key, aliases, |scope, key| view.shows(scope, key));
    if let Some(resource) = resource {
        shown.add_referents(settings, &[view], "missing", key, resource);
    }
    shown
}

impl Shown {
    /// Adds the resources to which `resource` refers. `missing` is the state of those that no view has.
    fn add_referents(
        &mut self,
        settings: &ReferenceSettings,
        views: &[ReferenceView<'_>],
        missing: &str,
        key: &ResourceKey,
        resource: &Resource,
    ) {
        let mut seen = BTreeSet::new();
        for_each_reference(key, &resource.body().unwrap_or_default(), |reference| {
            let Some(target) = reference.key().filter(|target| seen.insert(target.clone())) else {
                return;
            };
            if self.referents.len() >= SHOWN_MAX {
                self.n_referents_omitted += 1;
                return;
            }
            let n_found = views.iter().filter(|view| view.has(&target)).count();
            let state = match n_found {
                _ if !settings.is_served(&target) => "other-authority",
                0 => missing,
                n if n < views.len() => "missing-in-some-views",
                _ => "present",
            };
            let scope = views.iter().find_map(|view| view.scope_of(&target));
            self.referents.push(pb::Reference {
                scope: scope.map(ToString::to_string).unwrap_or_default(),
                state: state.to_owned(),
                ..shown(&target, reference.field.to_string())
            });
        });
    }

    /// Adds the resources that refer to `key`, as far as `is_seen` accepts their scope and key.
    fn add_referrers(
        &mut self,
        state: &State,
        index: &ReferenceIndex,
        key: &ResourceKey,
        aliases: &[ResourceName],
        is_seen: impl Fn(&ScopeName, &ResourceKey) -> bool,
    ) {
        let mut seen = BTreeSet::new();
        for name in names_of(key).iter().chain(aliases) {
            for (origin, referrer) in index.referrers(&key.type_url, name.as_str()) {
                // The index also contains what the caller may not read.
                let Some(body) = state.get(&origin.scope, &referrer) else { continue };
                if !is_seen(&origin.scope, &referrer) {
                    continue;
                }
                if !seen.insert((origin.scope.clone(), referrer.clone())) {
                    continue;
                }
                if self.referrers.len() >= SHOWN_MAX {
                    self.n_referrers_omitted += 1;
                    continue;
                }
                let target = ResourceKey { type_url: key.type_url.clone(), name: name.clone() };
                let field = field_of(&referrer, body, &target);
                self.referrers.push(pb::Reference {
                    scope: origin.scope.to_string(),
                    state: "present".to_owned(),
                    ..shown(&referrer, field)
                });
            }
        }
    }
}

fn shown(key: &ResourceKey, field_path: String) -> pb::Reference {
    let variant = key.name.constraints().map(|constraints| constraints.to_string());
    pb::Reference {
        type_url: key.type_url.to_string(),
        name: key.name.base().to_owned(),
        variant: variant.unwrap_or_default(),
        field_path,
        ..pb::Reference::default()
    }
}

/// Returns the first field by which a resource refers to another one.
fn field_of(referrer: &ResourceKey, resource: &Resource, target: &ResourceKey) -> String {
    let mut field = String::new();
    for_each_reference(referrer, &resource.body().unwrap_or_default(), |reference| {
        let is_target =
            *reference.type_url == target.type_url && reference.name == target.name.as_str();
        if is_target && field.is_empty() {
            field = reference.field.to_string();
        }
    });
    field
}
