//! The variants of a collection, by name.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{
    Constraints, DynamicParameters, Resource, ResourceName, VariantsBudget,
    constraints::{Conflict, VARIANTS_MAX, check_variants},
    show_parameters,
};

/// The variants of a collection, by their published name. Cloning is cheap.
///
/// A collection without variants has an empty index, and lookups return immediately.
#[derive(Debug, Clone, Default)]
pub struct VariantIndex(OrdMap<ResourceName, Arc<[Arc<Resource>]>>);

impl VariantIndex {
    /// Returns whether the collection has no variants.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the names that have variants.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.0.keys()
    }

    /// Returns all variants of a name, sorted by their constraints.
    #[must_use]
    pub fn of(&self, name: &str) -> &[Arc<Resource>] {
        if self.is_empty() { &[] } else { self.0.get(name).map_or(&[], |all| all) }
    }

    /// Returns the variant of a name that matches the parameters (DYN-03). No two variants of a name
    /// match the same parameters (DYN-06).
    #[must_use]
    pub fn select(&self, name: &str, parameters: &DynamicParameters) -> Option<&Arc<Resource>> {
        self.of(name).iter().find(|variant| variant.matches(parameters))
    }

    /// Adds a resource, if it is a variant.
    pub(crate) fn add(&mut self, resource: &Arc<Resource>) {
        if resource.constraints().is_some() {
            let base = resource.base_name();
            let others = self.of(base.as_str()).iter().cloned();
            let mut all: Vec<Arc<Resource>> = others.chain([Arc::clone(resource)]).collect();
            all.sort_by(|a, b| a.name().cmp(b.name()));
            self.0.insert(base.clone(), all.into());
        }
    }

    /// Removes a resource, if it is a variant.
    pub(crate) fn remove(&mut self, resource: &Resource) {
        if resource.constraints().is_some() {
            let base = resource.base_name();
            let rest = self.of(base.as_str()).iter().filter(|one| one.name() != resource.name());
            let rest: Arc<[Arc<Resource>]> = rest.cloned().collect();
            if rest.is_empty() {
                drop(self.0.remove(base))
            } else {
                drop(self.0.insert(base.clone(), rest))
            }
        }
    }
}

/// Returns the reason why resources of one name cannot exist together (DYN-06). `names` must be sorted.
pub(crate) fn conflict(names: &[&ResourceName], budget: &mut VariantsBudget) -> Option<String> {
    let all: Vec<Constraints> =
        names.iter().map(|name| name.constraints().unwrap_or(Constraints::Always)).collect();
    let shown = |at: usize| match &all[at] {
        Constraints::Always => "the resource without constraints".to_owned(),
        constraints => format!("the variant [{constraints}]"),
    };
    let keys = |at: usize| {
        let keys: Vec<String> = all[at].keys().iter().map(|key| format!("{key:?}")).collect();
        if keys.is_empty() { "no keys".to_owned() } else { keys.join(", ") }
    };
    Some(match check_variants(&all.iter().collect::<Vec<_>>(), budget).err()? {
        Conflict::TooMany => {
            format!("it would have {} variants, at most {VARIANTS_MAX} are allowed", all.len())
        }
        Conflict::TooComplex => {
            "the constraints of its variants are too complex to compare; use fewer keys or values"
                .to_owned()
        }
        Conflict::Keys(first, second) => format!(
            "{} constrains {}, but {} constrains {}; all variants of a name must constrain the same keys",
            shown(first),
            keys(first),
            shown(second),
            keys(second)
        ),
        Conflict::Overlap(first, second, parameters) => format!(
            "{} and {} both match {}; change the constraints so that at most one variant matches",
            shown(first),
            shown(second),
            show_parameters(&parameters)
        ),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        Incarnation, Outcome, ResourceDraft, ResourceKey, ScopeName, State, Transaction, TypeUrl,
        Upsert, types::ROUTE,
    };

    fn value(key: &str, value: &str) -> Constraints {
        Constraints::Value { key: key.into(), value: value.into() }
    }

    fn key(constraints: &Constraints) -> ResourceKey {
        let name = ResourceName::new("web").unwrap().variant(constraints);
        ResourceKey { type_url: TypeUrl::new(ROUTE).unwrap(), name }
    }

    fn scope() -> ScopeName {
        ScopeName::new("default").unwrap()
    }

    /// Publishes and deletes variants of one name in one transaction.
    fn write(state: &State, put: &[&Constraints], delete: &[&Constraints]) -> (State, Outcome) {
        let draft = |one: &&Constraints| ResourceDraft::new(key(one), Bytes::from_static(b"x"));
        let upserts = put.iter().map(|one| Upsert { scope: scope(), draft: draft(one) }).collect();
        let deletes = delete.iter().map(|one| (scope(), key(one))).collect();
        let applied = state.apply(&Transaction { upserts, deletes, ..Transaction::default() });
        (applied.state, applied.outcome)
    }

    fn reason(outcome: &Outcome) -> String {
        match outcome {
            Outcome::Committed(_) => "committed".to_owned(),
            Outcome::Refused(refusal) => refusal.to_string(),
        }
    }

    fn parameters(pairs: &[(&str, &str)]) -> DynamicParameters {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// DYN-06: the state refuses a write after which two variants match the same parameters, or
    /// constrain different keys. The refusal names both.
    #[test]
    fn write_with_conflicting_variants_is_refused() {
        let (prod, test) = (value("env", "prod"), value("env", "test"));
        let (state, outcome) = write(&State::new(Incarnation(1)), &[&prod, &test], &[]);
        assert_eq!(reason(&outcome), "committed");
        let either = Constraints::Or(vec![test.clone(), value("env", "qa")]);
        let (after, outcome) = write(&state, &[&either], &[]);
        assert_eq!(
            reason(&outcome),
            "envoy.config.route.v3.RouteConfiguration \"web\" in scope \"default\": the variant [env=\"test\"] and the variant \
             [env=\"qa\" or env=\"test\"] both match env=\"test\"; change the constraints so that at most one \
             variant matches"
        );
        assert_eq!(after.revision, state.revision);
        let version = Constraints::And(vec![value("env", "qa"), value("version", "1")]);
        let (_, outcome) = write(&state, &[&version], &[]);
        assert!(
            reason(&outcome).contains(
                "the variant [env=\"prod\"] constrains \"env\", but the variant [env=\"qa\" and version=\"1\"] \
                 constrains \"env\", \"version\""
            ),
            "{}",
            reason(&outcome)
        );
        let (_, outcome) = write(&state, &[&Constraints::Always], &[]);
        assert!(reason(&outcome).contains("the resource without constraints"), "{outcome:?}");
        let both = write(&State::new(Incarnation(1)), &[&Constraints::Always, &prod], &[]);
        assert!(reason(&both.1).contains("without constraints constrains no keys"), "{both:?}");
        // The result counts: a write may delete the variant that it replaces.
        let (state, outcome) = write(&state, &[&either], &[&test]);
        assert_eq!(reason(&outcome), "committed");
        let collection = state.collection(&scope(), &key(&prod).type_url).unwrap();
        let found = |pairs: &[(&str, &str)]| {
            let found = collection.variants.select("web", &parameters(pairs));
            found.and_then(|one| one.constraints()).cloned()
        };
        assert_eq!(found(&[("env", "test")]), Some(either.clone().canonical()));
        assert_eq!(found(&[("env", "prod"), ("x", "y")]), Some(prod.clone()));
        assert_eq!(found(&[]), None);
        let (state, _) = write(
            &state,
            &[],
            &[&prod, &Constraints::Or(vec![value("env", "qa"), value("env", "test")])],
        );
        assert!(state.collection(&scope(), &key(&prod).type_url).unwrap().variants.is_empty());
    }

    /// DYN-04: the shared bytes of a variant have its name with constraints in place of the name.
    #[test]
    fn shared_bytes_of_a_variant_have_its_constraints() {
        let prod = value("env", "prod");
        let draft = ResourceDraft::new(key(&prod), Bytes::from_static(b"x"));
        let resource = Resource::publish(&draft, crate::Revision(1));
        let name = crate::encode_resource_name("web", Some(&prod));
        assert_eq!(&name[..5], b"\x0a\x03web");
        let content = resource.delta_content();
        let at = content.len() - name.len() - 2;
        assert_eq!((content[at], &content[at + 2..]), (0x42, &name[..]));
        assert_eq!(resource.base_name().as_str(), "web");
    }
}
