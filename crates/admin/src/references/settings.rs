//! The treatment of dangling references.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admission::{Validation, ValidationMode};
use chancery_model::{ResourceKey, StructuredName, types};

/// The treatment of dangling references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceSettings {
    /// The modes of scopes. `enforce` refuses the write, `warn` reports the references, and `off` does not
    /// check them.
    pub modes: Validation,
    /// The authorities of structured names that this replica serves, in canonical form; `None` for all.
    /// References to names of other authorities are not checked.
    pub authorities: Option<Arc<BTreeSet<String>>>,
}

impl Default for ReferenceSettings {
    fn default() -> Self {
        Self { modes: Validation::of(ValidationMode::Warn), authorities: None }
    }
}

impl ReferenceSettings {
    /// Returns whether the references of some scope are checked.
    pub(crate) fn is_used(&self) -> bool {
        let used = |mode: &ValidationMode| *mode != ValidationMode::Off;
        used(&self.modes.default) || self.modes.scopes.values().any(used)
    }

    /// Returns whether clients request the name from this replica.
    pub(crate) fn is_served(&self, target: &ResourceKey) -> bool {
        self.authorities.as_ref().is_none_or(|own| {
            let name = StructuredName::parse(target.name.base());
            name.map_or(true, |name| own.contains(name.authority()))
        })
    }

    /// Returns whether a dangling reference to the name is reported. Clients request virtual hosts on demand.
    pub(crate) fn is_checked(&self, target: &ResourceKey) -> bool {
        target.type_url.as_str() != types::VIRTUAL_HOST && self.is_served(target)
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::{ResourceName, TypeUrl};

    use super::*;

    #[test]
    fn names_of_other_authorities_are_not_checked() {
        let key = |name| ResourceKey {
            type_url: TypeUrl::from_static(types::CLUSTER),
            name: ResourceName::new(name).unwrap(),
        };
        let own = key("xdstp://own/envoy.config.cluster.v3.Cluster/a");
        let other = key("xdstp://other/envoy.config.cluster.v3.Cluster/a");
        let all = ReferenceSettings::default();
        assert!([&own, &other, &key("plain")].into_iter().all(|key| all.is_checked(key)));
        let settings =
            ReferenceSettings { authorities: Some(Arc::new(["own".to_owned()].into())), ..all };
        assert!(settings.is_checked(&own) && settings.is_checked(&key("plain")));
        assert!(!settings.is_checked(&other));
    }
}
