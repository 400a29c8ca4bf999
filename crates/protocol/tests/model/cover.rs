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

/// A third of what was counted, or less.
const FLOORS: &[Floor] = &[
    floor("acks", ALL, 1_500),
    floor("nacks", ALL, 12),
    floor("no assignment", ALL, 30),
    floor("streams that break", ALL, 250),
    floor("commits that change nothing", ALL, 300),
    floor("no room in the transport", ALL, 70),
    floor("clients that answer nothing to the end", ALL, 150),
    floor("sent after an ACK timeout", ALL, 25),
    floor("sent after waiting for other types", ALL, 100),
    floor("rests with everything sent and answered", ALL, 3_000),
    floor("answers beside an unanswered response", ALL, 30),
    floor("children again", ALL, 20),
    floor("rests with removals held back", ALL, 150),
    floor("removals of what was sent", ALL, 15),
    floor("routes to clusters that the client asks for", ALL, 4),
    floor("routes to clusters that the client asks for", ENVOY, 100),
    floor("endpoints of clusters that the client asks for", ENVOY, 70),
    floor("children again", ENVOY, 600),
    floor("removals of what was sent", ENVOY, 100),
    floor("rests with removals held back for a rejection", ENVOY, 60),
    floor("resources held back in a full state", SOTW, 12),
    floor("full states of less", SOTW, 15),
    floor("full states that were asked for", SOTW, 700),
    floor("parts of a cut state", DELTA, 12),
    floor("opening requests that say what is held", DELTA, 500),
    floor("names that do not exist", DELTA, 400),
    floor("unchanged resources because they were asked for", DELTA, 250),
    floor("requests of before", ANY, 200),
    floor("removals of what a client says it holds", ANY_DELTA, 200),
    floor("absent names said by alias", ANY_DELTA, 40),
    floor("empty answers to a first request", DELTA, 3),
];
