//! Counts of exercised behavior. A run fails if a rule had too little to check.

use std::collections::BTreeMap;

use crate::model::script::Profile;

/// A violated rule: its ID and a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) law: &'static str,
    pub(crate) text: String,
}

pub(crate) type Law = Result<(), Breach>;

/// Returns a [`Breach`] from the enclosing function unless the condition holds.
macro_rules! law {
    ($holds:expr, $law:literal, $($text:tt)*) => {
        if !$holds {
            return Err($crate::model::cover::Breach { law: $law, text: format!($($text)*) });
        }
    };
}
pub(crate) use law;

/// The number of occurrences of each event.
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

    /// Returns the events that were too rare in a run of `cases` cases.
    pub(crate) fn gaps(&self, profile: Profile, cases: u64) -> Vec<String> {
        let floors = FLOORS.iter().filter(|floor| floor.profiles.contains(&profile));
        floors
            .filter(|floor| self.of(floor.what) * 1_000 < floor.per_thousand * cases)
            .map(|floor| {
                let (what, found) = (floor.what, self.of(floor.what));
                format!(
                    "{what}: {found} times, expected at least {}‰ of {cases}",
                    floor.per_thousand
                )
            })
            .collect()
    }

    pub(crate) fn shown(&self) -> String {
        let all = self.counts.iter().map(|(what, n)| format!("  {n:>9} {what}"));
        all.collect::<Vec<_>>().join("\n")
    }
}

/// The minimum number of occurrences of an event in a thousand cases of these profiles.
struct Floor {
    what: &'static str,
    per_thousand: u64,
    profiles: &'static [Profile],
}

const ALL: &[Profile] =
    &[Profile::EnvoySotw, Profile::EnvoyDelta, Profile::Grpc, Profile::AnySotw, Profile::AnyDelta];
const ENVOY: &[Profile] = &[Profile::EnvoySotw, Profile::EnvoyDelta];
const SOTW: &[Profile] = &[Profile::EnvoySotw, Profile::Grpc, Profile::AnySotw];
const DELTA: &[Profile] = &[Profile::EnvoyDelta, Profile::AnyDelta];
const ANY: &[Profile] = &[Profile::AnySotw, Profile::AnyDelta];
const ANY_DELTA: &[Profile] = &[Profile::AnyDelta];

const fn floor(what: &'static str, profiles: &'static [Profile], per_thousand: u64) -> Floor {
    Floor { what, per_thousand, profiles }
}

/// A third of the measured counts, or less.
const FLOORS: &[Floor] = &[
    floor("acks", ALL, 1_500),
    floor("nacks", ALL, 12),
    floor("no assignment", ALL, 30),
    floor("streams that break", ALL, 250),
    floor("commits that change nothing", ALL, 300),
    floor("no room in the transport", ALL, 70),
    floor("clients that never answer", ALL, 150),
    floor("sent after an ACK timeout", ALL, 25),
    floor("sent after waiting for other types", ALL, 100),
    floor("idle with everything sent and answered", ALL, 3_000),
    floor("answers during an unanswered response", ALL, 30),
    floor("children sent again", ALL, 20),
    floor("idle with removals held back", ALL, 150),
    floor("removals of sent resources", ALL, 15),
    floor("routes to subscribed clusters", ALL, 4),
    floor("routes to subscribed clusters", ENVOY, 100),
    floor("endpoints of subscribed clusters", ENVOY, 70),
    floor("children sent again", ENVOY, 600),
    floor("removals of sent resources", ENVOY, 100),
    floor("idle with removals held back for a rejection", ENVOY, 60),
    floor("resources held back in a full state", SOTW, 12),
    floor("full states with fewer resources", SOTW, 15),
    floor("requested full states", SOTW, 700),
    floor("parts of a split state", DELTA, 12),
    floor("opening requests with held versions", DELTA, 500),
    floor("names that do not exist", DELTA, 400),
    floor("unchanged resources sent on request", DELTA, 250),
    floor("replayed requests", ANY, 200),
    floor("removals of resources that a client claims to hold", ANY_DELTA, 200),
    floor("absent names reported by alias", ANY_DELTA, 40),
    floor("empty answers to a first request", DELTA, 3),
    floor("errors", ALL, 1),
    floor("responses with errors only", SOTW, 1),
];
