//! Counts of what was exercised, so that a run in which a law had nothing to judge fails.

use std::collections::BTreeMap;

use crate::script::Profile;

/// A broken rule: its ID and what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) law: &'static str,
    pub(crate) text: String,
}

pub(crate) type Law = Result<(), Breach>;

/// Breaks off with a [`Breach`] unless the condition holds.
macro_rules! law {
    ($holds:expr, $law:literal, $($text:tt)*) => {
        if !$holds {
            return Err($crate::cover::Breach { law: $law, text: format!($($text)*) });
        }
    };
}
pub(crate) use law;

/// How often things happened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cover {
    counts: BTreeMap<&'static str, u64>,
}

impl Cover {
    pub(crate) fn hit(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(crate) fn add(&mut self, what: &'static str, n: usize) {
        *self.counts.entry(what).or_default() += n as u64;
    }

    pub(crate) fn hit_if(&mut self, holds: bool, what: &'static str) {
        if holds {
            self.hit(what);
        }
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// What happened too rarely in a run of so many cases.
    pub(crate) fn gaps(&self, profile: Profile, cases: u64) -> Vec<String> {
        let floors = FLOORS.iter().filter(|floor| floor.profiles.contains(&profile));
        floors
            .filter(|floor| self.of(floor.what) * 1_000 < floor.per_thousand * cases)
            .map(|floor| {
                let (what, found) = (floor.what, self.of(floor.what));
                format!("{what}: {found} times, at least {}‰ of {cases}", floor.per_thousand)
            })
            .collect()
    }

    pub(crate) fn shown(&self) -> String {
        let all = self.counts.iter().map(|(what, n)| format!("  {n:>9} {what}"));
        all.collect::<Vec<_>>().join("\n")
    }
}

/// What has to happen how often in a thousand cases of these profiles.
struct Floor {
    what: &'static str,
    per_thousand: u64,
    profiles: &'static [Profile],
}

const FLOORS: &[Floor] = &[];
