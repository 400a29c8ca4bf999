//! The guards by name, their thresholds, and which of them a request confirms.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::ScopeName;

/// A rule that rejects dangerous writes unless they are confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Guard {
    /// A write deletes more than a share of the resources of one type that a node sees.
    MassDeletion,
    /// A write leaves a cluster without endpoints.
    EmptyEndpoints,
    /// A write removes a cluster to which another resource of the same view refers.
    ClusterInUse,
    /// A write of assignments gives connected nodes other resources, or none.
    ViewChange,
    /// A response with all resources of a type becomes too large for SotW clients.
    SotwSize,
    /// Replicas did not answer which of their nodes a write concerns, so the other guards do not know these nodes.
    Unasked,
    /// Clients accept a resource, and then their calls fail.
    Effect,
}

/// The names of all guards.
pub const GUARD_NAMES: [&str; 7] = [
    "mass-deletion",
    "empty-endpoints",
    "cluster-in-use",
    "view-change",
    "sotw-size",
    "unasked",
    "effect",
];

/// The name that stands for all guards.
pub const ALL_GUARDS: &str = "all";

impl Guard {
    const ALL: [Self; 7] = [
        Self::MassDeletion,
        Self::EmptyEndpoints,
        Self::ClusterInUse,
        Self::ViewChange,
        Self::SotwSize,
        Self::Unasked,
        Self::Effect,
    ];

    /// Returns the name.
    pub(crate) fn name(self) -> &'static str {
        GUARD_NAMES[self as usize]
    }
}

/// The thresholds of the guards: of one scope, or of all scopes without their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardSettings {
    /// The names of the guards that this replica does not apply; `all` for all of them.
    pub off: Vec<String>,
    /// The maximum share of the resources of one type in a view that a write may delete, in percent.
    pub deletion_percent: u32,
    /// The number of resources of a type in a view from which the share is limited.
    pub deletion_resources_min: usize,
    /// The maximum size of a response with all resources of a type, in bytes.
    pub sotw_bytes_max: u64,
    /// The settings of scopes that have their own. The field of these settings is empty.
    pub scopes: BTreeMap<ScopeName, Self>,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            off: Vec::new(),
            deletion_percent: 30,
            deletion_resources_min: 20,
            // gRPC clients accept messages of 4 MiB by default.
            sotw_bytes_max: 4 << 20,
            scopes: BTreeMap::new(),
        }
    }
}

impl GuardSettings {
    /// Returns the settings of a scope.
    pub(crate) fn of(&self, scope: &ScopeName) -> &Self {
        self.scopes.get(scope).unwrap_or(self)
    }

    /// Returns the strictest allowed share of deleted resources, in percent.
    pub(super) fn deletion_percent_min(&self) -> u32 {
        let own = self.scopes.values().map(|own| own.deletion_percent);
        own.fold(self.deletion_percent, u32::min)
    }

    /// Returns the smallest number of resources from which a share is limited.
    pub(super) fn deletion_resources_min(&self) -> usize {
        let own = self.scopes.values().map(|own| own.deletion_resources_min);
        own.fold(self.deletion_resources_min, usize::min)
    }

    /// Returns whether this replica applies a guard.
    pub(crate) fn applies(&self, guard: Guard) -> bool {
        !self.off.iter().any(|name| name == ALL_GUARDS || name == guard.name())
    }
}

/// Returns the name of a guard or `all`, without surrounding spaces.
///
/// # Errors
/// Fails if the name is unknown.
pub fn guard_name(text: &str) -> Result<&'static str, String> {
    let name = text.trim();
    let mut all = GUARD_NAMES.into_iter().chain([ALL_GUARDS]);
    all.find(|known| *known == name).ok_or_else(|| {
        let known = GUARD_NAMES.join(", ");
        format!("{name:?} is not a guard; the guards are {known}, or all")
    })
}

/// Returns the guards with the given names.
///
/// # Errors
/// Fails if a name is unknown.
pub(crate) fn guards(names: &[String]) -> Result<BTreeSet<Guard>, String> {
    let mut guards = BTreeSet::new();
    for name in names {
        let name = guard_name(name)?;
        let is_meant = |guard: &Guard| name == ALL_GUARDS || guard.name() == name;
        guards.extend(Guard::ALL.into_iter().filter(is_meant));
    }
    Ok(guards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guard_has_its_own_name() {
        for guard in Guard::ALL {
            assert_eq!(guards(&[guard.name().to_owned()]).unwrap(), BTreeSet::from([guard]));
        }
        assert_eq!(guards(&["all".to_owned()]).unwrap().len(), GUARD_NAMES.len());
        let spaced = guards(&[" sotw-size ".to_owned()]).unwrap();
        assert_eq!(spaced, BTreeSet::from([Guard::SotwSize]));
    }

    #[test]
    fn unknown_guard_is_rejected_with_the_known_names() {
        assert_eq!(
            guards(&["view".to_owned()]).unwrap_err(),
            "\"view\" is not a guard; the guards are mass-deletion, empty-endpoints, cluster-in-use, view-change, \
             sotw-size, unasked, effect, or all"
        );
    }
}
