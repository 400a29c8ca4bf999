//! The known writes, and the state that a restarted server must therefore show.
//!
//! The checker is pure: it takes reports of writers and observations, and returns faults. Tests
//! check with constructed histories that it finds faults. Every run does the same with its real
//! histories ([`super::plant()`]).
//!
//! Each writer has its own clusters and one write at a time, each with a unique value. After a
//! kill, its clusters are in one of two states. They are as its acknowledged writes left them, or
//! as the one write in flight would leave them, as a whole.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use chancery_model::Version;

/// A cluster as a client receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The written value, decoded from the body.
    pub(crate) value: String,
    pub(crate) version: Version,
    /// The hash of the body's bytes.
    pub(crate) body: u64,
}

/// The state that a server shows at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Observation {
    pub(crate) revision: u64,
    pub(crate) incarnation: String,
    /// The clusters by name; no name occurs in two scopes.
    pub(crate) clusters: BTreeMap<String, Seen>,
}

/// A write, which is one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// Publishes all clusters of the writer, in two scopes.
    Put { value: String },
    /// Deletes the clusters of the first scope.
    Drop,
}

/// A write that the server has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acked {
    pub(crate) op: Op,
    pub(crate) revision: u64,
    /// The versions that the server returned.
    pub(crate) versions: BTreeMap<String, Version>,
}

/// The writes of one writer until the server was killed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Report {
    pub(crate) acked: Vec<Acked>,
    /// The write that was sent and not answered.
    pub(crate) in_flight: Option<Op>,
}

/// A cluster that was pushed to a client during the writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) name: String,
    pub(crate) seen: Seen,
}

/// The kinds of broken guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An acknowledged write is missing, or a write that was pushed to a client.
    Lost,
    /// A transaction was applied in part.
    Partial,
    /// The value is right, but the version or the bytes have changed.
    Changed,
    /// A cluster exists that no writer wrote.
    Phantom,
    /// The revision is below an acknowledged one.
    RevisionBack,
    /// The revision did not grow by one for each write.
    RevisionCount,
    /// The incarnation of the cluster has changed.
    Incarnation,
}

/// One broken guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) what: String,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    pub(crate) faults: Vec<Fault>,
    /// Acknowledged writes since the last observation, all of which were checked.
    pub(crate) acked: u64,
    /// Writes that were in flight.
    pub(crate) in_flight: u64,
    /// Writes that were in flight and took effect.
    pub(crate) landed: u64,
    /// Clusters that are identical to the last observation, including their bytes.
    pub(crate) unchanged: u64,
}

/// The knowledge about one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    value: String,
    revision: u64,
    version: Option<Version>,
    body: Option<u64>,
}

/// The knowledge about all clusters and writes.
#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The last observation.
    base: Observation,
    /// The clusters by name; `None` after a deletion.
    known: BTreeMap<String, Option<Known>>,
    reports: Vec<Report>,
    pushed: Vec<Pushed>,
    /// The bytes of each version of a name that was ever observed.
    bodies: HashMap<(String, Version), u64>,
}

/// Returns the names of a writer's clusters: two in the first scope, one in the second.
pub(crate) fn names(writer: usize) -> [String; 3] {
    ["a", "b", "c"].map(|name| format!("writer-{writer:03}-{name}"))
}

impl Op {
    /// Returns the names of the clusters that the write changes.
    fn touches(&self, writer: usize) -> Vec<String> {
        let [a, b, c] = names(writer);
        match self {
            Self::Put { .. } => vec![a, b, c],
            Self::Drop => vec![a, b],
        }
    }

    fn value(&self) -> Option<&str> {
        match self {
            Self::Put { value } => Some(value),
            Self::Drop => None,
        }
    }
}

impl Seen {
    pub(crate) fn revision(&self) -> u64 {
        self.version.revision.0
    }
}

impl Kind {
    fn because(self, what: impl Into<String>) -> Fault {
        Fault { kind: self, what: what.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.what)
    }
}

impl History {
    /// Creates the history of `writers` writers. `base` is the state before their first write.
    pub(crate) fn new(base: Observation, writers: usize) -> Self {
        let mut history = Self {
            base: Observation::default(),
            known: BTreeMap::new(),
            reports: vec![Report::default(); writers],
            pushed: Vec::new(),
            bodies: HashMap::new(),
        };
        history.settle(base);
        history
    }

    /// Adds the reports of the writers and of a client since the last observation.
    pub(crate) fn record(&mut self, reports: Vec<Report>, pushed: Vec<Pushed>) {
        for (writer, report) in reports.iter().enumerate() {
            for acked in &report.acked {
                for name in acked.op.touches(writer) {
                    let known = acked.op.value().map(|value| Known {
                        value: value.to_owned(),
                        revision: acked.revision,
                        version: acked.versions.get(&name).copied(),
                        body: None,
                    });
                    self.known.insert(name, known);
                }
            }
        }
        self.reports = reports;
        self.pushed = pushed;
    }

    /// Returns the last observation.
    pub(crate) fn base(&self) -> &Observation {
        &self.base
    }

    pub(crate) fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// Returns the highest revision that was acknowledged or observed.
    pub(crate) fn revision_min(&self) -> u64 {
        let acked = self.reports.iter().flat_map(|report| &report.acked);
        acked.map(|acked| acked.revision).max().unwrap_or(0).max(self.base.revision)
    }

    /// Compares the state of a restarted server with the history.
    pub(crate) fn check(&self, now: &Observation) -> Verdict {
        let mut verdict = Verdict::default();
        for (writer, report) in self.reports.iter().enumerate() {
            verdict.acked += crate::stats::count(report.acked.len());
            self.check_writer(writer, report, now, &mut verdict);
        }
        let writers: std::collections::BTreeSet<String> =
            (0..self.reports.len()).flat_map(names).collect();
        for (name, known) in self.known.iter().filter(|(name, _)| !writers.contains(*name)) {
            verdict.faults.extend(mismatch(name, known.as_ref(), now));
        }
        for name in now.clusters.keys() {
            if !self.known.contains_key(name) && !writers.contains(name) {
                verdict.faults.push(Kind::Phantom.because(format!("no writer wrote {name}")));
            }
        }
        verdict.unchanged =
            crate::stats::count(now.clusters.iter().filter(|it| self.is_as_before(it)).count());
        self.check_revision(now, &mut verdict);
        self.check_pushed(now, &mut verdict);
        verdict
    }

    fn is_as_before(&self, (name, seen): &(&String, &Seen)) -> bool {
        self.base.clusters.get(*name) == Some(*seen)
    }

    fn check_writer(
        &self,
        writer: usize,
        report: &Report,
        now: &Observation,
        verdict: &mut Verdict,
    ) {
        let known = |name: &String| self.known.get(name).and_then(Option::as_ref);
        let as_acked: Vec<Fault> =
            names(writer).iter().filter_map(|name| mismatch(name, known(name), now)).collect();
        let Some(op) = &report.in_flight else {
            return verdict.faults.extend(as_acked);
        };
        verdict.in_flight += 1;
        if as_acked.is_empty() {
            return;
        }
        let touched = op.touches(writer);
        let is_done = |name: &String| {
            let seen = now.clusters.get(name);
            seen.map(|seen| seen.value.as_str()) == op.value()
        };
        let n_done = touched.iter().filter(|name| is_done(name)).count();
        if n_done == 0 {
            return verdict.faults.extend(as_acked);
        }
        let mut revisions: Vec<u64> =
            touched.iter().filter_map(|name| Some(now.clusters.get(name)?.revision())).collect();
        revisions.dedup();
        if n_done < touched.len() || revisions.len() > 1 {
            let what = format!(
                "writer {writer}'s {op:?} was in flight and was applied in part: {n_done} of {} clusters, at revisions {revisions:?}",
                touched.len()
            );
            return verdict.faults.push(Kind::Partial.because(what));
        }
        verdict.landed += 1;
        let after = report.acked.last().map_or(self.base.revision, |acked| acked.revision);
        if let Some(revision) = revisions.first().filter(|revision| **revision <= after) {
            let what = format!(
                "writer {writer}'s {op:?} has revision {revision}, but it came after {after}"
            );
            verdict.faults.push(Kind::Changed.because(what));
        }
        let others = names(writer).into_iter().filter(|name| !touched.contains(name));
        verdict.faults.extend(others.filter_map(|name| mismatch(&name, known(&name), now)));
    }

    fn check_revision(&self, now: &Observation, verdict: &mut Verdict) {
        let (found, min) = (now.revision, self.revision_min());
        if found < min {
            let what = format!("the revision is {found}, but {min} was acknowledged");
            verdict.faults.push(Kind::RevisionBack.because(what));
        }
        let expected = self.base.revision + verdict.acked + verdict.landed;
        if found != expected {
            let what = format!(
                "the revision is {found}; {} + {} acknowledged + {} other writes = {expected}",
                self.base.revision, verdict.acked, verdict.landed
            );
            verdict.faults.push(Kind::RevisionCount.because(what));
        }
        for (name, seen) in &now.clusters {
            if seen.revision() > found {
                let what =
                    format!("{name} has version {}, but the revision is {found}", seen.version);
                verdict.faults.push(Kind::Changed.because(what));
            }
        }
        if now.incarnation != self.base.incarnation {
            let what = format!(
                "the incarnation is {}, but it was {}",
                now.incarnation, self.base.incarnation
            );
            verdict.faults.push(Kind::Incarnation.because(what));
        }
    }

    /// Checks that the revisions pushed to a client exist, and that a version never changes its
    /// body.
    fn check_pushed(&self, now: &Observation, verdict: &mut Verdict) {
        for Pushed { name, seen } in &self.pushed {
            if seen.revision() > now.revision {
                let what = format!(
                    "{name} was pushed with version {}, but the revision is {}",
                    seen.version, now.revision
                );
                verdict.faults.push(Kind::Lost.because(what));
            }
        }
        let pushed = self.pushed.iter().map(|Pushed { name, seen }| (name, seen));
        let mut bodies: HashMap<(&String, Version), u64> = HashMap::new();
        for (name, seen) in pushed.chain(&now.clusters) {
            let before = self.bodies.get(&(name.clone(), seen.version)).copied();
            let before = before.or_else(|| bodies.insert((name, seen.version), seen.body));
            if before.is_some_and(|before| before != seen.body) {
                let what = format!("{name} has two bodies for version {}", seen.version);
                verdict.faults.push(Kind::Changed.because(what));
            }
        }
    }

    /// Makes an observation the base of the next check.
    pub(crate) fn settle(&mut self, now: Observation) {
        for known in self.known.values_mut() {
            *known = None;
        }
        for (name, seen) in &now.clusters {
            let known = Known {
                value: seen.value.clone(),
                revision: seen.revision(),
                version: Some(seen.version),
                body: Some(seen.body),
            };
            self.known.insert(name.clone(), Some(known));
        }
        let pushed = self.pushed.drain(..).map(|Pushed { name, seen }| (name, seen));
        let seen = now.clusters.iter().map(|(name, seen)| (name.clone(), seen.clone()));
        for (name, seen) in pushed.chain(seen) {
            self.bodies.insert((name, seen.version), seen.body);
        }
        self.reports = vec![Report::default(); self.reports.len()];
        self.base = now;
    }
}

/// Returns the difference between a cluster and the history.
fn mismatch(name: &str, known: Option<&Known>, now: &Observation) -> Option<Fault> {
    let seen = now.clusters.get(name);
    match (known, seen) {
        (None, None) => None,
        (None, Some(seen)) => {
            let what = format!("{name} has {:?}, but it was deleted or never written", seen.value);
            Some(Kind::Lost.because(what))
        }
        (Some(known), None) => {
            let what = format!("{name} is missing, but {:?} was acknowledged", known.value);
            Some(Kind::Lost.because(what))
        }
        (Some(known), Some(seen)) if known.value != seen.value => {
            let what =
                format!("{name} has {:?}, but {:?} was acknowledged", seen.value, known.value);
            Some(Kind::Lost.because(what))
        }
        (Some(known), Some(seen)) => {
            let is_same = known.revision == seen.revision()
                && known.version.is_none_or(|version| version == seen.version)
                && known.body.is_none_or(|body| body == seen.body);
            let what = || format!("{name} was {known:?} and is {seen:?}");
            (!is_same).then(|| Kind::Changed.because(what()))
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::Revision;

    use super::*;

    fn seen(value: &str, revision: u64) -> Seen {
        let version = Version { revision: Revision(revision), tag: 7 };
        Seen {
            value: value.to_owned(),
            version,
            body: crate::resource::name_hash(value.as_bytes()),
        }
    }

    fn observation(revision: u64, clusters: &[(&str, &str, u64)]) -> Observation {
        let clusters = clusters
            .iter()
            .map(|(name, value, revision)| ((*name).to_owned(), seen(value, *revision)));
        Observation { revision, incarnation: "x".to_owned(), clusters: clusters.collect() }
    }

    const BEFORE: &[(&str, &str, u64)] = &[
        ("keep", "k", 1),
        ("writer-000-a", "old", 2),
        ("writer-000-b", "old", 2),
        ("writer-000-c", "old", 2),
    ];

    fn put(value: &str) -> Op {
        Op::Put { value: value.to_owned() }
    }

    fn acked(op: Op, revision: u64) -> Acked {
        Acked { op, revision, versions: BTreeMap::new() }
    }

    /// Checks the observation `now` after the writes of one writer, whose state at revision 2 is
    /// `old`.
    fn check(acks: Vec<Acked>, in_flight: Option<Op>, now: &Observation) -> Vec<Kind> {
        let mut history = History::new(observation(2, BEFORE), 1);
        history.record(vec![Report { acked: acks, in_flight }], vec![]);
        history.check(now).faults.into_iter().map(|fault| fault.kind).collect()
    }

    fn with(revision: u64, changes: &[(&str, Option<(&str, u64)>)]) -> Observation {
        let mut now = observation(revision, BEFORE);
        for (name, change) in changes {
            match change {
                Some((value, revision)) => {
                    now.clusters.insert((*name).to_owned(), seen(value, *revision));
                }
                None => {
                    now.clusters.remove(*name);
                }
            }
        }
        now
    }

    fn all(value: &'static str, revision: u64) -> [(&'static str, Option<(&'static str, u64)>); 3] {
        ["writer-000-a", "writer-000-b", "writer-000-c"].map(|it| (it, Some((value, revision))))
    }

    #[test]
    fn missing_acknowledged_write_is_reported_as_lost() {
        assert_eq!(check(vec![acked(put("new"), 3)], None, &with(3, &all("new", 3))), []);
        let lost = check(vec![acked(put("new"), 3)], None, &with(2, &[]));
        assert_eq!(
            lost,
            [Kind::Lost, Kind::Lost, Kind::Lost, Kind::RevisionBack, Kind::RevisionCount]
        );
        // The last of two writes is lost, and the revision hides it.
        let acks = vec![acked(put("new"), 3), acked(put("newer"), 4)];
        assert_eq!(check(acks, None, &with(4, &all("new", 3))), [Kind::Lost; 3]);
    }

    #[test]
    fn undone_acknowledged_deletion_is_reported_as_lost() {
        let gone = with(3, &[("writer-000-a", None), ("writer-000-b", None)]);
        assert_eq!(check(vec![acked(Op::Drop, 3)], None, &gone), []);
        assert_eq!(check(vec![acked(Op::Drop, 3)], None, &with(3, &[])), [Kind::Lost; 2]);
    }

    #[test]
    fn partial_write_in_flight_is_reported() {
        assert_eq!(check(vec![], Some(put("new")), &with(2, &[])), []);
        assert_eq!(check(vec![], Some(put("new")), &with(3, &all("new", 3))), []);
        let [a, b, c] = all("new", 3);
        for part in [vec![a], vec![a, b], vec![c]] {
            let kinds = check(vec![], Some(put("new")), &with(3, &part));
            assert_eq!(kinds, [Kind::Partial, Kind::RevisionCount]);
        }
        // The whole write, but in two revisions.
        let torn = with(4, &[a, b, ("writer-000-c", Some(("new", 4)))]);
        assert_eq!(check(vec![], Some(put("new")), &torn)[0], Kind::Partial);
        let half = with(3, &[("writer-000-a", None)]);
        assert_eq!(check(vec![], Some(Op::Drop), &half)[0], Kind::Partial);
        let done = with(3, &[("writer-000-a", None), ("writer-000-b", None)]);
        assert_eq!(check(vec![], Some(Op::Drop), &done), []);
    }

    #[test]
    fn write_in_flight_does_not_hide_loss_of_previous_write() {
        let acks = || vec![acked(put("new"), 3)];
        assert_eq!(check(acks(), Some(put("next")), &with(3, &[])), [Kind::Lost; 3]);
        assert_eq!(check(acks(), Some(put("next")), &with(4, &all("next", 4))), []);
        assert_eq!(check(acks(), Some(put("next")), &with(3, &all("new", 3))), []);
        let earlier = with(4, &all("next", 3));
        assert_eq!(check(acks(), Some(put("next")), &earlier), [Kind::Changed]);
        // The deletion in flight does not touch the second scope.
        let c = with(4, &[("writer-000-a", None), ("writer-000-b", None)]);
        assert_eq!(check(acks(), Some(Op::Drop), &c), [Kind::Lost]);
    }

    #[test]
    fn changed_version_or_body_of_same_value_is_reported() {
        let mut now = with(2, &[]);
        now.clusters.get_mut("keep").unwrap().version.tag = 8;
        assert_eq!(check(vec![], None, &now), [Kind::Changed]);
        let mut now = with(2, &[]);
        now.clusters.get_mut("keep").unwrap().body += 1;
        assert_eq!(check(vec![], None, &now), [Kind::Changed; 2]);
        assert_eq!(check(vec![], None, &with(2, &[("keep", Some(("k", 2)))])), [Kind::Changed]);
        let ahead = with(3, &all("new", 4));
        assert!(check(vec![acked(put("new"), 4)], None, &ahead).contains(&Kind::Changed));
        // A version that the server returned to the writer.
        let versions = [("writer-000-a".to_owned(), Version { revision: Revision(3), tag: 9 })];
        let acks = vec![Acked { versions: versions.into(), ..acked(put("new"), 3) }];
        assert_eq!(check(acks, None, &with(3, &all("new", 3))), [Kind::Changed]);
    }

    #[test]
    fn phantom_and_missing_values_are_reported() {
        let now = with(2, &[("ghost", Some(("boo", 2)))]);
        assert_eq!(check(vec![], None, &now), [Kind::Phantom]);
        assert_eq!(check(vec![], None, &with(2, &[("keep", None)])), [Kind::Lost]);
    }

    #[test]
    fn revision_gap_and_changed_incarnation_are_reported() {
        assert_eq!(check(vec![], None, &with(3, &[])), [Kind::RevisionCount]);
        let back = with(1, &[]);
        assert!(check(vec![], None, &back).contains(&Kind::RevisionBack));
        let mut now = with(2, &[]);
        now.incarnation = "y".to_owned();
        assert_eq!(check(vec![], None, &now), [Kind::Incarnation]);
    }

    #[test]
    fn value_received_by_client_must_persist_with_equal_bytes() {
        let mut history = History::new(observation(2, BEFORE), 1);
        let reports = || vec![Report { acked: vec![], in_flight: Some(put("new")) }];
        let pushed = |seen| vec![Pushed { name: "writer-000-a".to_owned(), seen }];
        history.record(reports(), pushed(seen("new", 3)));
        let kinds =
            |verdict: Verdict| verdict.faults.into_iter().map(|it| it.kind).collect::<Vec<_>>();
        assert_eq!(kinds(history.check(&with(2, &[]))), [Kind::Lost]);
        assert_eq!(kinds(history.check(&with(3, &all("new", 3)))), []);
        history.record(reports(), pushed(Seen { body: 1, ..seen("new", 3) }));
        assert_eq!(kinds(history.check(&with(3, &all("new", 3)))), [Kind::Changed]);
        // The history keeps the pushed version for the whole run.
        history.record(reports(), pushed(seen("new", 3)));
        history.settle(with(3, &all("new", 3)));
        history.record(vec![Report::default()], pushed(Seen { body: 1, ..seen("new", 3) }));
        assert_eq!(kinds(history.check(&with(3, &all("new", 3)))), [Kind::Changed]);
    }

    #[test]
    fn settled_observation_is_the_next_baseline() {
        let mut history = History::new(observation(2, BEFORE), 1);
        history.record(vec![Report { acked: vec![], in_flight: Some(put("new")) }], vec![]);
        let now = with(3, &all("new", 3));
        let verdict = history.check(&now);
        assert_eq!((verdict.landed, verdict.in_flight, verdict.unchanged), (1, 1, 1));
        history.settle(now.clone());
        assert_eq!(history.check(&now).faults, []);
        assert_eq!(history.check(&now).unchanged, 4);
        assert_eq!(history.check(&with(3, &[])).faults.len(), 3);
    }
}
