//! The history of a run: all operations and their answers, everything that clients received, and the
//! violations.
//!
//! Clusters are registers. Their values are the numbers of the operations that wrote them, so that
//! every observed value identifies its operation.
//!
//! Invariants:
//! - Only an impossible observation is a violation. An operation without an answer may have taken
//!   effect.
//! - A version has one body and one value, and a value has one version, wherever they are observed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    time::Instant,
};

use chancery_model::Version;
use parking_lot::Mutex;
use serde::Serialize;

use super::linear::{self, Action, NEVER, Operation, Time, Verdict};
use crate::stats::count;

/// The maximum number of violations that are kept for each guarantee. Further ones are only counted.
const KEPT_MAX: u64 = 10;

/// A guarantee that the run checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) enum Guarantee {
    /// L1, L2: no acknowledged write is lost; writes and reads are linearizable.
    Linearizable,
    /// L1: revisions are in the order of time, and each write has its own.
    Order,
    /// L3: a client never receives an older value after a newer one.
    Backwards,
    /// L4: nobody receives a value that no operation wrote.
    Phantom,
    /// L5: after the writes have ended, every client has all committed values.
    Complete,
    /// L6: a client does not receive again what it has.
    Resent,
    /// L8: a version has one content, and a write has one version.
    SameBytes,
    /// L13: replicas that have applied the same entries have the same state.
    SameState,
    /// A healed cluster soon accepts writes.
    Progress,
    /// No process ends unexpectedly, and none panics.
    Alive,
}

/// The numbers of registers without a definite verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Indefinite {
    /// Linearizable, if an operation that was not answered or observed may have happened more than
    /// once.
    pub(crate) uncounted: u64,
    /// There are too many orders to examine.
    pub(crate) undecided: u64,
}

/// A violation of a guarantee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(crate) guarantee: Guarantee,
    pub(crate) what: String,
}

/// An operation of a writer.
#[derive(Debug, Clone)]
struct Entry {
    key: usize,
    replica: u64,
    action: Action,
    invoked: Time,
    returned: Time,
    revision: Option<u64>,
    /// The reason why there is no answer.
    why: String,
}

/// An operation that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperationId(usize);

/// A cluster that a client received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceivedCluster {
    pub(crate) name: String,
    pub(crate) value: String,
    /// `None` for SotW, which has no versions of resources.
    pub(crate) version: Option<Version>,
    pub(crate) body: u64,
}

/// The amounts of data that were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) acked_writes: u64,
    pub(crate) refused_writes: u64,
    pub(crate) unknown_writes: u64,
    pub(crate) reads: u64,
    pub(crate) deliveries: u64,
    pub(crate) resumes: u64,
    pub(crate) resent_delta: u64,
    pub(crate) resent_sotw: u64,
    /// The number of comparisons of state digests of two replicas at the same position.
    pub(crate) compared_digests: u64,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    versions: HashMap<u64, Version>,
    bodies: HashMap<(String, Version), u64>,
    /// SotW bodies by value.
    values: HashMap<u64, u64>,
    /// By index of the last applied entry: the digest, and the replicas that reported it.
    digests: HashMap<u64, (String, HashSet<u64>)>,
    /// Pairs of values that a client received in this order while their versions were unknown.
    unordered: HashSet<(u64, u64)>,
    violations: Vec<Violation>,
    by_guarantee: BTreeMap<Guarantee, u64>,
    counts: Counts,
}

/// The history of a run, which all tasks share.
#[derive(Debug)]
pub(crate) struct History {
    id: u64,
    start: Instant,
    inner: Mutex<Inner>,
}

/// Returns the name of a register.
pub(crate) fn name(key: usize) -> String {
    format!("register-{key:04}")
}

/// Returns the scope of a register. Each register has its own, because a write can expect a scope
/// to be unchanged.
pub(crate) fn scope(key: usize) -> String {
    format!("nemesis/{key:04}")
}

/// Returns the text of a value.
pub(crate) fn value_text(value: u64) -> String {
    format!("v{value}")
}

/// Parses the text of a value.
pub(crate) fn parse_value(text: &str) -> Option<u64> {
    text.strip_prefix('v')?.parse().ok()
}

impl OperationId {
    /// Returns the number of the operation in the history.
    pub(crate) fn number(self) -> u64 {
        count(self.0)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.guarantee, self.what)
    }
}

impl Inner {
    fn report(&mut self, guarantee: Guarantee, what: String) {
        let n = self.by_guarantee.entry(guarantee).or_default();
        *n += 1;
        if *n <= KEPT_MAX {
            crate::report::say!("VIOLATION {guarantee:?}: {what}");
            self.violations.push(Violation { guarantee, what });
        }
    }

    /// Records the version of a value. A second version is a violation.
    fn bind(&mut self, value: u64, version: Version) {
        let before = *self.versions.entry(value).or_insert(version);
        if before != version {
            let what = format!("v{value} has two versions, {before} and {version}");
            self.report(Guarantee::SameBytes, what);
        }
    }

    fn revision_of(&self, value: u64) -> Option<u64> {
        self.versions.get(&value).map(|version| version.revision.0)
    }

    fn writes(&self, name_seen: &str, value: u64) -> bool {
        let entry = usize::try_from(value).ok().and_then(|at| self.entries.get(at));
        entry.is_some_and(|entry| {
            matches!(entry.action, Action::Write(_) | Action::Swap(..))
                && name(entry.key) == name_seen
        })
    }
}

impl History {
    pub(crate) fn new() -> Self {
        let id = u64::from(std::process::id());
        Self { id, start: Instant::now(), inner: Mutex::default() }
    }

    /// Records the digest of a replica's state after the entry at an index.
    pub(crate) fn state_digest(&self, replica: u64, index: u64, digest: &str) {
        let mut inner = self.inner.lock();
        let known = inner.digests.entry(index);
        let (first, replicas) = known.or_insert_with(|| (digest.to_owned(), HashSet::new()));
        if first != digest {
            let what = format!(
                "replica {replica} has the state digest {digest} at index {index}, but replicas {replicas:?} \
                 had {first}"
            );
            inner.report(Guarantee::SameState, what);
        } else if replicas.insert(replica) && replicas.len() > 1 {
            inner.counts.compared_digests += 1;
        }
    }

    pub(crate) fn now(&self) -> Time {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(NEVER - 1)
    }

    pub(crate) fn report(&self, guarantee: Guarantee, what: impl Into<String>) {
        self.inner.lock().report(guarantee, what.into());
    }

    /// Returns the number of this run.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Starts an operation. `make` receives the number that is its value.
    pub(crate) fn begin(
        &self,
        key: usize,
        replica: u64,
        make: impl FnOnce(u64) -> Action,
    ) -> (OperationId, Action) {
        let mut inner = self.inner.lock();
        let at = inner.entries.len();
        let value = count(at);
        let (invoked, returned) = (self.now(), NEVER);
        let (revision, why, action) = (None, String::new(), make(value));
        inner.entries.push(Entry { key, replica, action, invoked, returned, revision, why });
        (OperationId(at), action)
    }

    /// Records the acknowledgment of a write, with its revision and possibly its version.
    pub(crate) fn acked(&self, operation: OperationId, revision: u64, version: Option<Version>) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.counts.acked_writes += 1;
        if let Some(entry) = inner.entries.get_mut(operation.0) {
            (entry.returned, entry.revision) = (now, Some(revision));
        }
        if let Some(version) = version {
            inner.bind(count(operation.0), version);
            if version.revision.0 != revision {
                let what = format!(
                    "v{} has version {version}, but its write has revision {revision}",
                    operation.0
                );
                inner.report(Guarantee::SameBytes, what);
            }
        }
    }

    /// Records that an operation had no effect, because its expectation did not match.
    pub(crate) fn refused(&self, operation: OperationId) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.counts.refused_writes += 1;
        if let Some(entry) = inner.entries.get_mut(operation.0) {
            entry.returned = now;
            entry.action = match entry.action {
                Action::Swap(Some(expected), _) => Action::SwapRefused(Some(expected)),
                // A value may have been written and deleted since the register was empty.
                Action::Swap(None, _) => Action::Nothing,
                Action::Delete => Action::DeleteRefused,
                other => other,
            };
        }
    }

    /// Records that the outcome of an operation is unknown.
    pub(crate) fn unknown(&self, operation: OperationId, why: String) {
        let mut inner = self.inner.lock();
        inner.counts.unknown_writes += 1;
        if let Some(entry) = inner.entries.get_mut(operation.0) {
            entry.why = why;
        }
    }

    /// Records the answer of a linearizable read.
    pub(crate) fn read(
        &self,
        key: usize,
        replica: u64,
        invoked: Time,
        found: Option<(u64, Version)>,
        revision: u64,
    ) {
        let returned = self.now();
        let mut inner = self.inner.lock();
        inner.counts.reads += 1;
        let action = Action::Read(found.map(|(value, _)| value));
        let (revision, why) = (Some(revision), String::new());
        inner.entries.push(Entry { key, replica, action, invoked, returned, revision, why });
        if let Some((value, version)) = found {
            inner.bind(value, version);
        }
    }

    /// Records that a client received a cluster. Returns its value, if an operation wrote it.
    pub(crate) fn received(&self, client: &str, received: &ReceivedCluster) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.counts.deliveries += 1;
        let value =
            parse_value(&received.value).filter(|value| inner.writes(&received.name, *value));
        let Some(value) = value else {
            let what = format!("{client} received {received:?}, which no operation wrote");
            inner.report(Guarantee::Phantom, what);
            return None;
        };
        let before = match received.version {
            Some(version) => {
                inner.bind(value, version);
                *inner.bodies.entry((received.name.clone(), version)).or_insert(received.body)
            }
            None => received.body,
        };
        let other = *inner.values.entry(value).or_insert(received.body);
        if before != received.body || other != received.body {
            let what = format!("{client} received {received:?}, but others received another body");
            inner.report(Guarantee::SameBytes, what);
        }
        Some(value)
    }

    /// Records that a client received a value after another one of the same cluster.
    pub(crate) fn followed(&self, client: &str, before: u64, after: u64) {
        let mut inner = self.inner.lock();
        match (inner.revision_of(before), inner.revision_of(after)) {
            (Some(old), Some(new)) if new < old => {
                let what = format!(
                    "{client} received v{after} of revision {new} after v{before} of {old}"
                );
                inner.report(Guarantee::Backwards, what);
            }
            (Some(_), Some(_)) => {}
            _ => drop(inner.unordered.insert((before, after))),
        }
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.inner.lock().counts);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.inner.lock().counts
    }

    /// Returns the times of all acknowledgments, in order.
    pub(crate) fn acks(&self) -> Vec<Time> {
        let inner = self.inner.lock();
        let acked = inner.entries.iter().filter(|entry| {
            entry.returned != NEVER
                && matches!(entry.action, Action::Write(_) | Action::Swap(..) | Action::Delete)
        });
        let mut times: Vec<Time> = acked.map(|entry| entry.returned).collect();
        times.sort_unstable();
        times
    }

    /// Returns the kept violations, and the number of violations of each guarantee.
    pub(crate) fn violations(&self) -> (Vec<Violation>, BTreeMap<Guarantee, u64>) {
        let inner = self.inner.lock();
        (inner.violations.clone(), inner.by_guarantee.clone())
    }

    /// Checks the whole history.
    pub(crate) fn check(&self) -> Indefinite {
        let mut inner = self.inner.lock();
        for (before, after) in std::mem::take(&mut inner.unordered) {
            if let (Some(old), Some(new)) = (inner.revision_of(before), inner.revision_of(after))
                && new < old
            {
                let what = format!(
                    "a client received v{after} of revision {new} after v{before} of {old}"
                );
                inner.report(Guarantee::Backwards, what);
            }
        }
        check_order(&mut inner);
        let mut keys: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, entry) in inner.entries.iter().enumerate() {
            keys.entry(entry.key).or_default().push(at);
        }
        let mut indefinite = Indefinite::default();
        for (key, entries) in keys {
            let operation = |at: &usize| {
                let entry = inner.entries.get(*at)?;
                let Entry { invoked, returned, action, .. } = *entry;
                Some(Operation { invoked, returned, action })
            };
            let operations: Vec<Operation> = entries.iter().filter_map(operation).collect();
            match linear::check(&operations) {
                Verdict::Linearizable => {}
                Verdict::Uncounted => indefinite.uncounted += 1,
                Verdict::Undecided => indefinite.undecided += 1,
                Verdict::Broken(at) => {
                    let history = history(&inner, &entries, at);
                    let what = format!("{} has no linearizable order:\n{history}", name(key));
                    inner.report(Guarantee::Linearizable, what);
                }
            }
        }
        indefinite
    }
}

/// Checks that revisions grow with time, and that no two writes have the same one.
fn check_order(inner: &mut Inner) {
    let mut events: Vec<(Time, bool, usize)> = Vec::new();
    let mut owners: HashMap<u64, usize> = HashMap::new();
    let mut faults: Vec<String> = Vec::new();
    for (at, entry) in inner.entries.iter().enumerate() {
        let Some(revision) = entry.revision else { continue };
        events.extend([(entry.invoked, false, at), (entry.returned, true, at)]);
        let is_read = matches!(entry.action, Action::Read(_));
        if let Some(other) = (!is_read).then(|| owners.insert(revision, at)).flatten() {
            faults.push(format!("operations {other} and {at} both have revision {revision}"));
        }
    }
    events.sort_unstable();
    let (mut last, mut last_at) = (0, 0);
    for (_, returns, at) in events {
        let Some(Entry { action, revision: Some(revision), invoked, replica, .. }) =
            inner.entries.get(at)
        else {
            continue;
        };
        match returns {
            true if *revision > last => (last, last_at) = (*revision, at),
            true => {}
            false => {
                // `last` is the highest revision that had been returned when this operation was
                // invoked.
                let is_read = matches!(action, Action::Read(_));
                if *revision < last || (!is_read && *revision == last) {
                    faults.push(format!(
                        "operation {at} ({action:?} by replica {replica} at {invoked} µs) has \
                         revision {revision}, but operation {last_at} had returned {last} before"
                    ));
                }
            }
        }
    }
    for what in faults {
        inner.report(Guarantee::Order, what);
    }
}

/// Returns the operations on a register around one of them, as text.
fn history(inner: &Inner, entries: &[usize], broken: usize) -> String {
    const AROUND: Time = 15_000_000;
    let line = |(n, at): (usize, &usize)| {
        let entry = inner.entries.get(*at)?;
        let mark = if n == broken { ">" } else { " " };
        let returned = match entry.returned {
            NEVER => format!("unknown ({})", entry.why),
            returned => returned.to_string(),
        };
        let revision = entry.revision.map(|revision| format!(" revision {revision}"));
        Some((
            entry.invoked,
            format!(
                "  {mark} {at}: {:?} by replica {}, {} to {returned}{}",
                entry.action,
                entry.replica,
                entry.invoked,
                revision.unwrap_or_default()
            ),
        ))
    };
    let center = entries.get(broken).and_then(|at| inner.entries.get(*at));
    let center = center.map_or(0, |entry| entry.invoked);
    let mut lines: Vec<_> = entries.iter().enumerate().filter_map(line).collect();
    lines.sort();
    let near = lines.into_iter().filter(|(invoked, _)| invoked.abs_diff(center) < AROUND);
    near.map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
