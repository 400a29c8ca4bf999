//! The differential walk: clients of SotW, delta and REST take the same random steps, and hold the same
//! resources whenever the server has nothing more to send.
//!
//! A step changes resources, the scopes of the node, or the subscriptions of all clients. It lets some
//! responses arrive and some be answered, or it breaks the stream of one client. Some content is bad: the
//! clients reject it. After some steps, the bad content is repaired, everything is delivered and answered, and
//! the clients are compared with each other and with the naive view.

mod clients;

use std::{collections::BTreeMap, io::Write as _};

use chancery_model::{Incarnation, Node, State, Transaction};
use chancery_view::{Differ, View, changed_collections};

use crate::model::{
    naive::{CDS, Change, EDS, LDS, NAMES, Oracle, RDS, TYPES, is_bad},
    rng::Rng,
    run::Plan,
    world::{assignment, transaction},
};
use clients::{Rest, Stream, Wanted};

/// The types of the walk.
const WALKED: [usize; 4] = [CDS, EDS, LDS, RDS];
/// The number of steps of one walk.
const STEPS: usize = 12_000;
/// The mean number of steps between two comparisons.
const SETTLE_EVERY: usize = 8;
/// The maximum number of rounds until everything is delivered and answered.
const ROUNDS_MAX: usize = 200;
/// The time of one such round, in milliseconds.
const ROUND: u64 = 500;

/// The contents of a client, by type and name.
type Held = BTreeMap<(usize, String), String>;

/// Runs walks of [`STEPS`] steps: one in the short form, `long` in the long form.
pub(crate) fn all(long: u64) {
    let plan = Plan::new(1, long);
    let (mut counts, mut compared) = (Counts::default(), 0);
    for n in plan.cases.clone() {
        let seed = plan.seed ^ n.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let mut walk = Walk::new(seed);
        for step in 0..STEPS {
            if let Err(difference) = walk.step() {
                panic!(
                    "step {step}: {difference}\nrepeat it with CHANCERY_TEST_SEED={:x}:{n}\n{}",
                    plan.seed,
                    walk.log.join("\n")
                );
            }
        }
        counts.add(&walk.counts);
        compared += walk.n_compared;
    }
    let n = plan.cases.end - plan.cases.start;
    let text = format!(
        "walk: {n} x {STEPS} steps, {compared} comparisons of 3 clients, {counts:?}; \
         CHANCERY_TEST_SEED={:x}",
        plan.seed
    );
    drop(writeln!(std::io::stderr().lock(), "{text}"));
    assert!(!plan.is_whole || counts.is_everything_frequent(n), "too rarely exercised: {counts:?}");
}

/// The number of events of each kind.
#[derive(Debug, Default)]
struct Counts {
    commits: u64,
    subscriptions: u64,
    nacks: u64,
    cuts: u64,
    responses: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.subscriptions += other.subscriptions;
        self.nacks += other.nacks;
        self.cuts += other.cuts;
        self.responses += other.responses;
    }

    fn is_everything_frequent(&self, n: u64) -> bool {
        let counts = [self.commits, self.subscriptions, self.nacks, self.cuts, self.responses];
        counts.iter().all(|count| *count >= 400 * n)
    }
}

struct Walk {
    rng: Rng,
    state: State,
    oracle: Oracle,
    differ: Differ,
    wanted: Wanted,
    sotw: Stream,
    delta: Stream,
    rest: Rest,
    now: u64,
    counts: Counts,
    n_compared: usize,
    /// The events since the last comparison.
    log: Vec<String>,
}

impl Walk {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            state: State::new(Incarnation(3)),
            oracle: Oracle::new(),
            differ: Differ::new(),
            wanted: Wanted::default(),
            sotw: Stream::new(chancery_protocol::Protocol::Sotw),
            delta: Stream::new(chancery_protocol::Protocol::Delta),
            rest: Rest::default(),
            now: 1_000_000,
            counts: Counts::default(),
            n_compared: 0,
            log: Vec::new(),
        }
    }

    /// Takes one step.
    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..=29 => {
                let n = 1 + self.rng.below(4);
                let changes: Vec<Change> = (0..n).map(|_| self.change()).collect();
                self.commit(&changes);
            }
            30..=32 => {
                let scopes = [&[0][..], &[1, 0], &[0, 1], &[1], &[2, 1, 0]][self.rng.below(5)];
                self.log.push(format!("scopes {scopes:?}"));
                self.oracle.assign(Some(scopes.to_vec()), self.now);
                let assignments = vec![assignment(scopes)];
                self.apply(&Transaction { assignments, ..Transaction::default() });
            }
            33..=49 => self.subscribe(),
            50..=59 => {
                let room = self.rng.below(4);
                let which = self.rng.below(3);
                self.deliver(which, room);
            }
            60..=69 => {
                let which = self.rng.below(3);
                let n = 1 + self.rng.below(3);
                self.answer(which, n);
            }
            70..=74 => self.now += [10, 900, 5_000, 16_000][self.rng.below(4)],
            75..=82 => self.cut(),
            83..=87 => {
                for which in 0..3 {
                    self.deliver(which, 8);
                    self.answer(which, 8);
                }
            }
            _ if self.rng.below(SETTLE_EVERY) < 6 => return self.settle(),
            _ => {}
        }
        Ok(())
    }

    fn change(&mut self) -> Change {
        let t = WALKED[self.rng.below(WALKED.len())];
        let name = NAMES[self.rng.below(NAMES.len())];
        let content = (!self.rng.percent(25)).then(|| {
            // The digit 3 stands for bad content.
            let digit = if self.rng.percent(20) { 3 } else { [0, 1, 2, 4][self.rng.below(4)] };
            let refs = self.rng.some(2, NAMES.len());
            let refs = refs.into_iter().map(|n| NAMES[n]).collect::<Vec<_>>().join(",");
            let body = match t {
                CDS => format!("{digit}>{name}"),
                LDS => format!("{digit}>{refs}"),
                RDS => format!("{digit}:{refs}"),
                _ => digit.to_string(),
            };
            (body, Vec::new())
        });
        Change { scope: self.rng.below(3), t, name: name.to_owned(), content }
    }

    fn commit(&mut self, changes: &[Change]) {
        self.counts.commits += 1;
        let shown =
            changes.iter().map(|c| (c.scope, c.t, &c.name, c.content.as_ref().map(|c| &c.0)));
        self.log.push(format!("commit {:?}", shown.collect::<Vec<_>>()));
        self.oracle.commit(changes, self.now);
        self.apply(&transaction(changes));
    }

    fn apply(&mut self, transaction: &Transaction) {
        let next = self.state.apply(transaction).state;
        let before = std::mem::replace(&mut self.state, next);
        let is_moved = before.assignments.changed != self.state.assignments.changed;
        for stream in [&mut self.sotw, &mut self.delta] {
            if is_moved {
                stream.session.handle_new_view();
            }
            for delta in changed_collections(&self.differ, &before, &self.state) {
                stream.session.handle_changes(&delta);
            }
        }
    }

    fn view(&self) -> View {
        let node = Node::default();
        let rule = self.state.assignments.for_node(&node).unwrap();
        View::resolve(&self.state, &rule.scopes_for(&node))
    }

    /// Changes the subscription of all clients to one type.
    fn subscribe(&mut self) {
        self.counts.subscriptions += 1;
        let t = WALKED[self.rng.below(WALKED.len())];
        let name = match self.rng.below(8) {
            0 | 1 if t == CDS || t == LDS => "*",
            2 => "none",
            _ => NAMES[self.rng.below(NAMES.len())],
        };
        let before = self.wanted.clone();
        if !self.wanted.of[t].remove(name) {
            self.wanted.of[t].insert(name.to_owned());
        }
        self.log.push(format!("want {t}: {:?}", self.wanted.of[t]));
        let view = self.view();
        for stream in [&mut self.sotw, &mut self.delta] {
            stream.want(t, &before, &self.wanted, &view, self.now);
        }
        self.rest.want(t, &self.wanted);
    }

    /// Lets up to `room` responses reach one client.
    fn deliver(&mut self, which: usize, room: usize) {
        let view = self.view();
        let n = match which {
            0 => self.sotw.take(room, &self.wanted, &view, &self.differ, self.now),
            1 => self.delta.take(room, &self.wanted, &view, &self.differ, self.now),
            _ => self.rest.poll(&self.wanted, &view, &mut self.counts.nacks),
        };
        self.counts.responses += n as u64;
        self.log.push(format!("client {which} takes {n}"));
    }

    /// Lets one client answer up to `n` responses.
    fn answer(&mut self, which: usize, n: usize) {
        let view = self.view();
        let stream = match which {
            0 => &mut self.sotw,
            1 => &mut self.delta,
            _ => return,
        };
        for _ in 0..n {
            if let Some(is_nack) = stream.answer(&self.wanted, &view, self.now) {
                self.counts.nacks += u64::from(is_nack);
                self.log.push(format!("client {which} answers, nack {is_nack}"));
            }
        }
    }

    /// Breaks the stream of one client, which may also restart without its resources.
    fn cut(&mut self) {
        self.counts.cuts += 1;
        let (which, is_restart) = (self.rng.below(3), self.rng.percent(40));
        // Small responses are cut into parts.
        let bytes_target = if self.rng.percent(50) { 3 + self.rng.below(60) } else { 1 << 20 };
        self.log.push(format!("client {which} reconnects, restart {is_restart}"));
        let view = self.view();
        match which {
            0 => self.sotw.cut(is_restart, bytes_target, &self.wanted, &view, self.now),
            1 => self.delta.cut(is_restart, bytes_target, &self.wanted, &view, self.now),
            _ if is_restart => self.rest = Rest::default(),
            _ => {}
        }
    }

    /// Repairs all bad content, lets everything proceed, and compares the clients.
    fn settle(&mut self) -> Result<(), String> {
        let bad = self.oracle.touched(|_, body| is_bad(body));
        self.commit(&bad);
        self.come_to_rest()?;
        if self.sotw.rejects() || self.delta.rejects() {
            // A rejected resource was deleted, so no response replaced it. While a client rejects a type,
            // removals of other types wait (ADS-09).
            let all = self.oracle.touched(|_, _| true);
            self.commit(&all);
            self.come_to_rest()?;
        }
        self.n_compared += 1;
        let wanted = self.expected();
        for (name, held) in self.clients() {
            if held != wanted {
                return Err(format!("the client of {name} holds {held:?}, not {wanted:?}"));
            }
        }
        self.log.clear();
        Ok(())
    }

    fn come_to_rest(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            let before = self.counts.responses;
            for which in 0..3 {
                self.deliver(which, 64);
                self.answer(which, 64);
            }
            let wake = [&self.sotw, &self.delta].map(|stream| stream.session.wake_at(self.now));
            if self.counts.responses == before && wake == [None, None] {
                return Ok(());
            }
            self.now += ROUND;
        }
        Err("the server never stops sending".to_owned())
    }

    /// Returns what every client has to hold: the subscribed resources of the naive view.
    fn expected(&self) -> Held {
        let Some(seen) = self.oracle.seen() else { return Held::new() };
        let of_type = |t: usize| {
            let items = seen.of[t].values().filter(move |item| self.wanted.covers(t, &item.name));
            items.map(move |item| ((t, item.name.clone()), item.body.clone()))
        };
        WALKED.into_iter().flat_map(of_type).collect()
    }

    /// Returns what the clients hold.
    fn clients(&self) -> [(&'static str, Held); 3] {
        let Some(seen) = self.oracle.seen() else { return Default::default() };
        // SOTW-85, REST-17: no response of SotW or REST reports the removal of these resources.
        let silent = |held: &Held| {
            let exists = |t: &usize, name: &String| seen.of[*t].contains_key(name);
            let kept =
                held.iter().filter(|((t, name), _)| matches!(*t, CDS | LDS) || exists(t, name));
            kept.map(|(key, body)| (key.clone(), body.clone())).collect()
        };
        let delta = self.delta.held.iter().map(|(key, (body, _))| (key.clone(), body.clone()));
        let sotw = self.sotw.held.iter().map(|(key, (body, _))| (key.clone(), body.clone()));
        [
            ("SotW", silent(&sotw.collect())),
            ("delta", delta.collect()),
            ("REST", silent(&self.rest.held)),
        ]
    }
}

/// Returns the number of a type.
fn number(type_url: &str) -> usize {
    TYPES.iter().position(|url| *url == type_url).unwrap()
}
