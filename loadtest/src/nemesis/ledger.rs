//! All that is known of a run: what was asked for and answered, what clients were given, and which of it
//! breaks a promise.
//!
//! Clusters are registers, their values are the numbers of the operations that wrote them: whatever shows
//! up anywhere names the operation that it comes from.
//!
//! Invariants:
//! - Only what can not be is called a violation: an operation without an answer may have happened.
//! - A version is bound to one body and one value, and a value to one version, wherever they are seen.

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

/// Violations of each promise that are kept; the others are counted.
const KEPT_MAX: u64 = 10;

/// A promise (`reliability.md`, section 4b).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) enum Promise {
    /// L1, L2: no write that was acknowledged is lost; writes and reads are linearizable.
    Linearizable,
    /// L1: revisions are in the order of time, and each write has one of its own.
    Order,
    /// L3: what a client is given never goes back.
    Backwards,
    /// L4: nothing is given to anybody that nobody wrote.
    Phantom,
    /// L5: when all is quiet, every client has what was committed.
    Complete,
    /// L6: nothing is sent again to a client that has it.
    Resent,
    /// L8: a version has one content, and what was written once has one version.
    SameBytes,
    /// L13: two replicas that have applied the same entries have the same state.
    SameState,
    /// A healed cluster takes writes soon.
    Progress,
    /// No process ends by itself, none panics.
    Alive,
}

/// Registers of which less is known than that they are linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Doubts {
    /// They are, if what nobody was told of and nobody saw may have happened more than once.
    pub(crate) uncounted: u64,
    /// There were too many orders to look at.
    pub(crate) undecided: u64,
}

/// What a promise was broken by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
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
    /// Why there is no answer.
    why: String,
}

/// An operation that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(usize);

/// What a client was given of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) name: String,
    pub(crate) value: String,
    /// SotW has none.
    pub(crate) version: Option<Version>,
    pub(crate) body: u64,
}

/// How much was looked at.
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
    /// State digests that two replicas had at the same position.
    pub(crate) compared_digests: u64,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    versions: HashMap<u64, Version>,
    bodies: HashMap<(String, Version), u64>,
    /// SotW bodies by value.
    values: HashMap<u64, u64>,
    /// By index of the last applied entry: the digest, and the replicas that had it.
    digests: HashMap<u64, (String, HashSet<u64>)>,
    /// A value that a client was given after another one, both without a known version.
    unordered: HashSet<(u64, u64)>,
    violations: Vec<Violation>,
    by_promise: BTreeMap<Promise, u64>,
    counts: Counts,
}

/// The ledger of a run. Everybody writes into it.
#[derive(Debug)]
pub(crate) struct Ledger {
    id: u64,
    start: Instant,
    inner: Mutex<Inner>,
}

/// The name of a register.
pub(crate) fn name(key: usize) -> String {
    format!("register-{key:04}")
}

/// The scope of a register: each has its own, for a scope is what a write can expect to be unchanged.
pub(crate) fn scope(key: usize) -> String {
    format!("nemesis/{key:04}")
}

/// A value as it is written.
pub(crate) fn value_text(value: u64) -> String {
    format!("v{value}")
}

/// The value that a text is.
pub(crate) fn parse_value(text: &str) -> Option<u64> {
    text.strip_prefix('v')?.parse().ok()
}

impl Ticket {
    /// Its number in the ledger.
    pub(crate) fn number(self) -> u64 {
        count(self.0)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.what)
    }
}

impl Inner {
    fn report(&mut self, promise: Promise, what: String) {
        let n = self.by_promise.entry(promise).or_default();
        *n += 1;
        if *n <= KEPT_MAX {
            crate::report::say!("VIOLATION {promise:?}: {what}");
            self.violations.push(Violation { promise, what });
        }
    }

    /// Binds a value to its version.
    fn bind(&mut self, value: u64, version: Version) {
        let before = *self.versions.entry(value).or_insert(version);
        if before != version {
            let what = format!("v{value} has two versions, {before} and {version}");
            self.report(Promise::SameBytes, what);
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

impl Ledger {
    pub(crate) fn new() -> Self {
        let id = u64::from(std::process::id());
        Self { id, start: Instant::now(), inner: Mutex::default() }
    }

    /// A replica has said that this is the digest of its state after the entry at that index.
    pub(crate) fn state_digest(&self, replica: u64, index: u64, digest: &str) {
        let mut inner = self.inner.lock();
        let known = inner.digests.entry(index);
        let (first, replicas) = known.or_insert_with(|| (digest.to_owned(), HashSet::new()));
        if first != digest {
            let what = format!(
                "replica {replica} has the state digest {digest} at index {index}, but {first} was that of \
                 {replicas:?}"
            );
            inner.report(Promise::SameState, what);
        } else if replicas.insert(replica) && replicas.len() > 1 {
            inner.counts.compared_digests += 1;
        }
    }

    pub(crate) fn now(&self) -> Time {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(NEVER - 1)
    }

    pub(crate) fn report(&self, promise: Promise, what: impl Into<String>) {
        self.inner.lock().report(promise, what.into());
    }

    /// A number of this run.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Begins a write; `make` gets the number that is its value.
    pub(crate) fn begin(
        &self,
        key: usize,
        replica: u64,
        make: impl FnOnce(u64) -> Action,
    ) -> (Ticket, Action) {
        let mut inner = self.inner.lock();
        let at = inner.entries.len();
        let value = count(at);
        let (invoked, returned) = (self.now(), NEVER);
        let (revision, why, action) = (None, String::new(), make(value));
        inner.entries.push(Entry { key, replica, action, invoked, returned, revision, why });
        (Ticket(at), action)
    }

    /// A write was acknowledged, with a revision and maybe a version.
    pub(crate) fn acked(&self, ticket: Ticket, revision: u64, version: Option<Version>) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.counts.acked_writes += 1;
        if let Some(entry) = inner.entries.get_mut(ticket.0) {
            (entry.returned, entry.revision) = (now, Some(revision));
        }
        if let Some(version) = version {
            inner.bind(count(ticket.0), version);
            if version.revision.0 != revision {
                let what = format!("v{} has {version}, its write revision {revision}", ticket.0);
                inner.report(Promise::SameBytes, what);
            }
        }
    }

    /// An operation found something else than it expected, and did nothing.
    pub(crate) fn refused(&self, ticket: Ticket) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.counts.refused_writes += 1;
        if let Some(entry) = inner.entries.get_mut(ticket.0) {
            entry.returned = now;
            entry.action = match entry.action {
                Action::Swap(Some(expected), _) => Action::SwapRefused(Some(expected)),
                // Something may have come and gone again since there was nothing.
                Action::Swap(None, _) => Action::Nothing,
                Action::Delete => Action::DeleteRefused,
                other => other,
            };
        }
    }

    /// Nobody knows what became of an operation.
    pub(crate) fn unknown(&self, ticket: Ticket, why: String) {
        let mut inner = self.inner.lock();
        inner.counts.unknown_writes += 1;
        if let Some(entry) = inner.entries.get_mut(ticket.0) {
            entry.why = why;
        }
    }

    /// A linearizable read was answered.
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

    /// A client was given a cluster. Gives its value back, if somebody wrote it.
    pub(crate) fn given(&self, client: &str, given: &Given) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.counts.deliveries += 1;
        let value = parse_value(&given.value).filter(|value| inner.writes(&given.name, *value));
        let Some(value) = value else {
            let what = format!("{client} was given {given:?}, which nobody wrote");
            inner.report(Promise::Phantom, what);
            return None;
        };
        let before = match given.version {
            Some(version) => {
                inner.bind(value, version);
                *inner.bodies.entry((given.name.clone(), version)).or_insert(given.body)
            }
            None => given.body,
        };
        let other = *inner.values.entry(value).or_insert(given.body);
        if before != given.body || other != given.body {
            let what = format!("{client} was given {given:?}, others another body for it");
            inner.report(Promise::SameBytes, what);
        }
        Some(value)
    }

    /// A client was given a value after another one of the same cluster.
    pub(crate) fn followed(&self, client: &str, before: u64, after: u64) {
        let mut inner = self.inner.lock();
        match (inner.revision_of(before), inner.revision_of(after)) {
            (Some(old), Some(new)) if new < old => {
                let what =
                    format!("{client} had v{before} of revision {old}, then v{after} of {new}");
                inner.report(Promise::Backwards, what);
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

    /// Times of all acknowledgments, in order.
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

    /// All violations, and how many there are of each promise.
    pub(crate) fn violations(&self) -> (Vec<Violation>, BTreeMap<Promise, u64>) {
        let inner = self.inner.lock();
        (inner.violations.clone(), inner.by_promise.clone())
    }

    /// Looks at the whole history.
    pub(crate) fn check(&self) -> Doubts {
        let mut inner = self.inner.lock();
        for (before, after) in std::mem::take(&mut inner.unordered) {
            if let (Some(old), Some(new)) = (inner.revision_of(before), inner.revision_of(after))
                && new < old
            {
                let what = format!("v{before} of revision {old} was followed by v{after} of {new}");
                inner.report(Promise::Backwards, what);
            }
        }
        check_order(&mut inner);
        let mut keys: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, entry) in inner.entries.iter().enumerate() {
            keys.entry(entry.key).or_default().push(at);
        }
        let mut doubts = Doubts::default();
        for (key, entries) in keys {
            let operation = |at: &usize| {
                let entry = inner.entries.get(*at)?;
                let Entry { invoked, returned, action, .. } = *entry;
                Some(Operation { invoked, returned, action })
            };
            let operations: Vec<Operation> = entries.iter().filter_map(operation).collect();
            match linear::check(&operations) {
                Verdict::Linearizable => {}
                Verdict::Uncounted => doubts.uncounted += 1,
                Verdict::Undecided => doubts.undecided += 1,
                Verdict::Broken(at) => {
                    let history = history(&inner, &entries, at);
                    let what = format!("{} has no order:\n{history}", name(key));
                    inner.report(Promise::Linearizable, what);
                }
            }
        }
        doubts
    }
}

/// Revisions grow with time, and none is given to two writes.
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
                // What had returned when this one was invoked.
                let is_read = matches!(action, Action::Read(_));
                if *revision < last || (!is_read && *revision == last) {
                    faults.push(format!(
                        "operation {at} ({action:?} by replica {replica} at {invoked} µs) has revision \
                         {revision}; {last} had been told before, of operation {last_at}"
                    ));
                }
            }
        }
    }
    for what in faults {
        inner.report(Promise::Order, what);
    }
}

/// The operations on a register around one of them, for people.
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
