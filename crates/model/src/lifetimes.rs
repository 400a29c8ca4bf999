//! The names of resources with a lifetime (TTL), grouped by lifetime.
//!
//! A server renews lifetimes long before they end (TTL-08). It must find the resources that are due
//! without visiting the others. Similar lifetimes share a class, so that the number of classes is
//! small even if every resource has another lifetime.

use std::time::Duration;

use imbl::{OrdMap, OrdSet};

use crate::ResourceName;

/// The number of leading bits of a lifetime that its class keeps. A class is at most an eighth
/// shorter than its lifetimes.
const CLASS_BITS: u32 = 4;

/// A class of similar lifetimes: a lower bound of them, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LifetimeClass(pub u64);

impl LifetimeClass {
    /// Returns the class of a lifetime.
    #[must_use]
    pub fn of(ttl: Duration) -> Self {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        let dropped_bits = (u64::BITS - ms.leading_zeros()).saturating_sub(CLASS_BITS);
        Self(ms >> dropped_bits << dropped_bits)
    }
}

/// Names by the class of their lifetime. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct Lifetimes(OrdMap<LifetimeClass, OrdSet<ResourceName>>);

impl Lifetimes {
    /// Adds a name with its lifetime, if it has one.
    pub fn add(&mut self, ttl: Option<Duration>, name: &ResourceName) {
        if let Some(ttl) = ttl {
            self.0.entry(LifetimeClass::of(ttl)).or_default().insert(name.clone());
        }
    }

    /// Removes a name with its lifetime, if it has one.
    pub fn remove(&mut self, ttl: Option<Duration>, name: &ResourceName) {
        let Some(class) = ttl.map(LifetimeClass::of) else { return };
        if let Some(names) = self.0.get_mut(&class) {
            names.remove(name);
            if names.is_empty() {
                self.0.remove(&class);
            }
        }
    }

    /// Iterates over the classes.
    pub fn classes(&self) -> impl Iterator<Item = LifetimeClass> {
        self.0.keys().copied()
    }

    /// Iterates over the names of one class.
    pub fn names(&self, class: LifetimeClass) -> impl Iterator<Item = &ResourceName> {
        self.0.get(&class).into_iter().flatten()
    }

    /// Returns the number of names of one class.
    #[must_use]
    pub fn n_names(&self, class: LifetimeClass) -> usize {
        self.0.get(&class).map_or(0, OrdSet::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(ms: u64) -> u64 {
        LifetimeClass::of(Duration::from_millis(ms)).0
    }

    #[test]
    fn class_is_at_most_an_eighth_shorter_than_its_lifetimes() {
        for ms in (0..20_000).chain([u64::MAX / 3, u64::MAX]) {
            let class = class(ms);
            assert!(class >= 1 && class <= ms.max(1), "{ms}");
            assert!(ms.saturating_sub(class) <= ms / 8, "{ms}: {class}");
        }
        assert_eq!([class(0), class(1), class(3000), class(30_000)], [1, 1, 2816, 28_672]);
        assert_eq!(LifetimeClass::of(Duration::MAX).0.count_ones(), CLASS_BITS);
    }

    #[test]
    fn a_class_without_names_is_dropped() {
        let (ttl, name) = (Some(Duration::from_secs(3)), ResourceName::new("a").unwrap());
        let mut lifetimes = Lifetimes::default();
        lifetimes.add(None, &name);
        assert_eq!(lifetimes.classes().count(), 0);
        lifetimes.add(ttl, &name);
        assert_eq!(lifetimes.n_names(LifetimeClass(2816)), 1);
        lifetimes.remove(ttl, &name);
        assert_eq!(lifetimes.classes().count(), 0);
    }
}
