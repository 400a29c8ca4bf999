//! The measurements of the clients and the writer, phase by phase.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use crate::state::Key;

/// Latencies in microseconds, with three significant digits.
pub(crate) type Times = Histogram<u64>;
/// The contents of others whose first arrival is remembered.
const FIRST_ARRIVALS_MAX: usize = 100_000;

/// A write of the test.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    /// The time at which it was to start, even if it started later.
    pub(crate) at: Instant,
    /// The phase; `None` for the first state.
    phase: Option<usize>,
    /// The clients that had to receive it.
    n_expected: u32,
    n_received: u32,
    /// The clients that disconnected before they received it.
    n_left: u32,
    first: Option<Duration>,
    most: Option<Duration>,
    /// The time of the newest delivery.
    newest: Option<Duration>,
    has_failed: bool,
}

/// The measurements of a phase.
#[derive(Debug)]
pub(crate) struct OfPhase {
    /// From the scheduled start of a write to the answer of the server to its author.
    pub(crate) answers: Times,
    /// From the scheduled start of a write to each client.
    pub(crate) deliveries: Times,
    /// From the first client to each other one, of changes by others.
    pub(crate) spreads: Times,
    /// From the start of a connection to the first state of a client.
    pub(crate) first_states: Times,
    /// The deliveries by the second of the phase in which the write started.
    pub(crate) seconds: Vec<Times>,
    pub(crate) n_writes: u64,
    pub(crate) n_failed: u64,
    pub(crate) n_responses: u64,
    pub(crate) n_resources: u64,
    pub(crate) n_replaced: u64,
    pub(crate) n_bytes: u64,
    pub(crate) n_reconnects: u64,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// The measurements of a run.
#[derive(Debug)]
pub(crate) struct Measures {
    /// The writes, by number; number 0 does not exist.
    writes: Vec<Write>,
    pub(crate) phases: Vec<OfPhase>,
    /// The ordinary clients that have their first state.
    n_established: u32,
    /// The errors by text.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) n_repeats: u64,
    pub(crate) n_older: u64,
    first_arrivals: HashMap<(Key, u64), Instant>,
}

impl Write {
    fn new(at: Instant, phase: Option<usize>, n_expected: u32) -> Self {
        Self {
            at,
            phase,
            n_expected,
            n_received: 0,
            n_left: 0,
            first: None,
            most: None,
            newest: None,
            has_failed: false,
        }
    }

    /// Returns whether all clients that had to receive it have it or are gone.
    fn is_complete(&self) -> bool {
        self.has_failed || self.n_received + self.n_left >= self.n_expected
    }

    /// Counts a client that has received it after `time`.
    fn receive(&mut self, time: Duration) {
        self.n_received += 1;
        self.first.get_or_insert(time);
        // 99 % of all, rounded up.
        let most = (u64::from(self.n_expected) * 99).div_ceil(100);
        if u64::from(self.n_received) >= most {
            self.most.get_or_insert(time);
        }
        self.newest = self.newest.max(Some(time));
    }

    /// Returns the time until the last client had it; `None` while one lacks it.
    fn last(&self) -> Option<Duration> {
        self.newest.filter(|_| self.is_complete())
    }
}

/// Returns an empty histogram, which grows with its values.
pub(crate) fn times() -> Times {
    // Three digits are valid, so this does not fail; without any, the histogram has its smallest size.
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are valid"))
}

/// Adds a duration.
pub(crate) fn record(times: &mut Times, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // The histogram grows with its values.
    *times += micros.max(1);
}

impl OfPhase {
    fn new(start: Instant) -> Self {
        Self {
            answers: times(),
            deliveries: times(),
            spreads: times(),
            first_states: times(),
            seconds: Vec::new(),
            n_writes: 0,
            n_failed: 0,
            n_responses: 0,
            n_resources: 0,
            n_replaced: 0,
            n_bytes: 0,
            n_reconnects: 0,
            start,
            end: start,
        }
    }
}

impl Measures {
    /// Begins with `n_first` writes, which are the first state.
    pub(crate) fn new(n_first: usize) -> Self {
        let now = Instant::now();
        Self {
            writes: vec![Write::new(now, None, 0); n_first + 1],
            // The clients connect before the first phase.
            phases: vec![OfPhase::new(now)],
            n_established: 0,
            errors: BTreeMap::new(),
            n_repeats: 0,
            n_older: 0,
            first_arrivals: HashMap::new(),
        }
    }

    /// Begins the next phase.
    pub(crate) fn begin_phase(&mut self) {
        let now = Instant::now();
        self.end_phase(now);
        self.phases.push(OfPhase::new(now));
        self.first_arrivals.clear();
    }

    /// Ends the last phase.
    pub(crate) fn end_phase(&mut self, now: Instant) {
        self.now().end = now;
    }

    /// Returns the measurements of the current phase.
    pub(crate) fn now(&mut self) -> &mut OfPhase {
        let last = self.phases.len() - 1;
        &mut self.phases[last]
    }

    /// Notes a write that is to start at `at`, and returns its number.
    pub(crate) fn schedule(&mut self, at: Instant) -> u32 {
        let number = self.writes.len();
        let phase = self.phases.len() - 1;
        self.now().n_writes += 1;
        self.writes.push(Write::new(at, Some(phase), self.n_established));
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Notes the answer to a transaction with these writes.
    pub(crate) fn answered(&mut self, writes: &[u32], answer: Result<(), String>) {
        let Some(first) = writes.first().and_then(|first| self.writes.get(index(*first))) else {
            return;
        };
        let (time, Some(phase)) = (first.at.elapsed(), first.phase) else { return };
        match answer {
            Ok(()) => record(&mut self.phases[phase].answers, time),
            Err(error) => {
                self.phases[phase].n_failed += u64::try_from(writes.len()).unwrap_or(u64::MAX);
                self.error(format!("write: {error}"));
                for write in writes {
                    if let Some(write) = self.writes.get_mut(index(*write)) {
                        write.has_failed = true;
                    }
                }
            }
        }
    }

    /// Counts an error.
    pub(crate) fn error(&mut self, error: String) {
        *self.errors.entry(error).or_default() += 1;
    }

    /// Notes that a client has received writes. It has been established since `since`.
    pub(crate) fn received(&mut self, writes: &[u32], since: Instant, now: Instant) {
        for number in writes {
            let Some(write) = self.writes.get_mut(index(*number)) else { continue };
            let Some(phase) = write.phase.filter(|_| since <= write.at) else { continue };
            let time = now.saturating_duration_since(write.at);
            write.receive(time);
            let second = write.at.saturating_duration_since(self.phases[phase].start).as_secs();
            let phase = &mut self.phases[phase];
            record(&mut phase.deliveries, time);
            let second = usize::try_from(second).unwrap_or(usize::MAX);
            while phase.seconds.len() <= second {
                phase.seconds.push(times());
            }
            record(&mut phase.seconds[second], time);
        }
    }

    /// Counts a response.
    pub(crate) fn responded(&mut self, n_bytes: u64, n_resources: usize) {
        let phase = self.now();
        phase.n_responses += 1;
        phase.n_bytes += n_bytes;
        phase.n_resources += u64::try_from(n_resources).unwrap_or(u64::MAX);
    }

    /// Counts writes that a client received only with newer ones.
    pub(crate) fn replaced(&mut self, n: u64) {
        self.now().n_replaced += n;
    }

    /// Counts a connection that the test ended.
    pub(crate) fn reconnected(&mut self) {
        self.now().n_reconnects += 1;
    }

    /// Counts resources that came again without a change, or were older than what the client had.
    pub(crate) fn out_of_order(&mut self, n_repeats: u64, n_older: u64) {
        self.n_repeats += n_repeats;
        self.n_older += n_older;
    }

    /// Notes a changed resource of others.
    pub(crate) fn seen(&mut self, changed: (Key, u64), now: Instant) {
        match self.first_arrivals.get(&changed) {
            Some(first) => {
                let time = now.saturating_duration_since(*first);
                record(&mut self.now().spreads, time);
            }
            None if self.first_arrivals.len() < FIRST_ARRIVALS_MAX => {
                self.first_arrivals.insert(changed, now);
            }
            None => {}
        }
    }

    /// Notes that an ordinary client has its first state.
    pub(crate) fn establish(&mut self) {
        self.n_established += 1;
    }

    /// Notes that an established, ordinary client is gone. `has` says whether it had a write.
    pub(crate) fn leave(&mut self, since: Instant, n_resources: usize, has: impl Fn(u32) -> bool) {
        self.n_established -= 1;
        // Older writes of these resources count as received together with newer ones.
        let recent = self.writes.len().saturating_sub(n_resources.saturating_mul(2)).max(1);
        for number in recent..self.writes.len() {
            let is_missing = !has(u32::try_from(number).unwrap_or(u32::MAX));
            let write = &mut self.writes[number];
            if is_missing && since <= write.at {
                write.n_left += 1;
            }
        }
    }

    /// Returns the number of writes that some client has not received.
    pub(crate) fn n_incomplete(&self) -> usize {
        self.writes.iter().filter(|write| !write.is_complete()).count()
    }

    /// Returns the writes of a phase that did not fail.
    fn of_phase(&self, phase: usize) -> impl Iterator<Item = &Write> {
        self.writes.iter().filter(move |write| write.phase == Some(phase) && !write.has_failed)
    }

    /// Returns the times of the writes of a phase until the first client, 99 % of them, and the last one had it.
    pub(crate) fn spans(&self, phase: usize) -> [Vec<Duration>; 3] {
        let of =
            |time: fn(&Write) -> Option<Duration>| self.of_phase(phase).filter_map(time).collect();
        [of(|write| write.first), of(|write| write.most.or(write.last())), of(Write::last)]
    }

    /// Returns the deliveries that a phase lacks.
    pub(crate) fn n_undelivered(&self, phase: usize) -> u64 {
        let missing = |write: &Write| {
            u64::from(write.n_expected.saturating_sub(write.n_received + write.n_left))
        };
        self.of_phase(phase).map(missing).sum()
    }
}

fn index(write: u32) -> usize {
    usize::try_from(write).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_is_complete_when_all_clients_have_it_or_are_gone() {
        let mut measures = Measures::new(1);
        let since = Instant::now();
        (0..3).for_each(|_| measures.establish());
        measures.begin_phase();
        let at = Instant::now();
        let write = measures.schedule(at);
        assert_eq!((write, measures.n_incomplete()), (2, 1));
        let later = at + Duration::from_millis(5);
        measures.received(&[write], since, later);
        // A client that came after the write does not count.
        measures.received(&[write], later, later);
        assert_eq!(measures.n_undelivered(1), 2);
        measures.received(&[write], since, at + Duration::from_millis(9));
        measures.leave(since, 1, |_| false);
        assert_eq!((measures.n_incomplete(), measures.n_undelivered(1)), (0, 0));
        let [first, most, last] = measures.spans(1);
        assert_eq!(first, [Duration::from_millis(5)]);
        assert_eq!([most, last], [[Duration::from_millis(9)], [Duration::from_millis(9)]]);
        assert_eq!(measures.phases[1].deliveries.len(), 2);
    }

    #[test]
    fn failed_write_is_expected_nowhere() {
        let mut measures = Measures::new(0);
        measures.establish();
        measures.begin_phase();
        let write = measures.schedule(Instant::now());
        measures.answered(&[write], Err("no leader".to_owned()));
        assert_eq!((measures.n_incomplete(), measures.n_undelivered(1)), (0, 0));
        assert_eq!(measures.errors["write: no leader"], 1);
        assert_eq!(measures.phases[1].n_failed, 1);
    }

    #[test]
    fn changes_of_others_are_measured_from_the_first_client() {
        let mut measures = Measures::new(0);
        measures.begin_phase();
        let now = Instant::now();
        measures.seen(((0, 1), 7), now);
        measures.seen(((0, 1), 7), now + Duration::from_millis(3));
        measures.seen(((0, 1), 8), now + Duration::from_millis(4));
        let spreads = &measures.phases[1].spreads;
        assert_eq!((spreads.len(), spreads.max() / 1000), (1, 3));
    }
}
