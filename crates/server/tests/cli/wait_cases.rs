//! Random waits over three replicas, with faults: a wait says yes only if the clients have acknowledged.

use std::{
    thread,
    time::{Duration, Instant},
};

use chancery_model::types::ENDPOINT;
use fastrand::Rng;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    cluster::{eventually, run_at},
    network::Cut,
    scripted::{Client, Manner, Record},
    scripted_fleet::Fleet,
    support::{DEADLINE, Done, clusters},
};

/// The sessions for which a wait waits.
#[derive(Debug, Clone, Copy)]
enum Enough {
    All,
    Percent(u32),
    Count(usize),
}

impl Enough {
    fn flag(self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Percent(n) => format!("{n}%"),
            Self::Count(n) => n.to_string(),
        }
    }

    /// Returns whether the number of clients that have accepted is enough.
    fn is_reached(self, n_accepted: usize, n_clients: usize) -> bool {
        match self {
            Self::All => n_accepted == n_clients,
            Self::Percent(percent) => n_accepted * 100 >= n_clients * percent as usize,
            Self::Count(n) => n_accepted >= n,
        }
    }
}

/// A fault of a replica around a wait.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// The replica hangs from before the write until a time after its start, or until the command has ended.
    Hang(usize, Option<Duration>),
    /// The replica is killed at a time after the start, and starts again.
    Kill(usize, Duration),
    /// The replica is killed before the write, and starts again after the command.
    Down(usize),
    /// Another replica leads from a time after the start.
    Lead(usize, Duration),
    /// The streams of the replica end from a time after the start.
    Drain(usize, Duration),
    /// The replica is cut off from the others, from before the write or from a time after the start, until the command
    /// has ended.
    Partition(usize, Cut, Option<Duration>),
}

/// A random case.
#[derive(Debug)]
struct Case {
    seed: u64,
    /// The replica and the manner of each client.
    clients: Vec<(usize, Manner)>,
    /// Whether each client also asks for a name that nothing has.
    lacks_name: Vec<bool>,
    asked: usize,
    enough: Enough,
    /// Whether the write itself waits.
    is_part_of_write: bool,
    timeout: Duration,
    fault: Fault,
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

fn manner(rng: &mut Rng, is_hopeful: bool) -> Manner {
    match rng.u32(0..if is_hopeful { 14 } else { 18 }) {
        0..8 => Manner::Accept,
        8..11 => Manner::Delay(millis(rng, 1..900)),
        11..13 => Manner::Move(rng.usize(0..3), Box::new(Manner::Accept)),
        13 => Manner::Move(rng.usize(0..3), Box::new(Manner::Delay(millis(rng, 1..500)))),
        14 => Manner::Reject,
        15 => Manner::Silent,
        16 => Manner::Leave,
        _ => Manner::Move(rng.usize(0..3), Box::new(Manner::Silent)),
    }
}

impl Case {
    fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let n = rng.usize(1..7);
        // Without this, few of the larger cases could be answered with yes.
        let is_hopeful = rng.bool();
        let mut clients: Vec<(usize, Manner)> =
            (0..n).map(|_| (rng.usize(0..3), manner(&mut rng, is_hopeful))).collect();
        let asked = rng.usize(0..3);
        let other = (asked + rng.usize(1..3)) % 3;
        let enough = match rng.u32(0..4) {
            0 | 1 => Enough::All,
            2 => Enough::Percent([50, 66, 99][rng.usize(0..3)]),
            _ => Enough::Count(rng.usize(1..=n)),
        };
        let cut = if rng.bool() { Cut::Silent } else { Cut::Reset };
        let mut fault = match rng.u32(0..26) {
            0..8 => Fault::None,
            8..10 => Fault::Hang(other, None),
            10..12 => Fault::Hang(other, Some(millis(&mut rng, 1..900))),
            12 | 13 => Fault::Kill(other, millis(&mut rng, 1..400)),
            14 => Fault::Down(other),
            15..17 => Fault::Lead(rng.usize(0..3), millis(&mut rng, 1..200)),
            17..20 => Fault::Drain(rng.usize(0..3), millis(&mut rng, 1..200)),
            20..23 => Fault::Partition(other, cut, None),
            _ => Fault::Partition(rng.usize(0..3), cut, Some(millis(&mut rng, 1..900))),
        };
        if seed.is_multiple_of(4) {
            // The answer must be yes.
            fault = Fault::None;
            for (_, manner) in &mut clients {
                if !matches!(manner, Manner::Accept | Manner::Delay(_)) {
                    *manner = Manner::Accept;
                }
            }
        }
        let lacks_name = clients.iter().map(|_| rng.u32(0..4) == 0).collect();
        let is_part_of_write = rng.bool() && matches!(enough, Enough::All);
        let timeout = millis(&mut rng, 300..1500);
        let mut case =
            Self { seed, clients, lacks_name, asked, enough, is_part_of_write, timeout, fault };
        if case.is_calm() {
            // The answer must be yes, and a machine may be slow.
            case.timeout = DEADLINE;
        }
        case
    }

    /// Returns a mark that no other case has.
    fn mark(&self) -> i64 {
        i64::try_from(self.seed).unwrap() + 2
    }

    /// Returns whether every client accepts in the end, and no replica fails.
    fn is_calm(&self) -> bool {
        let accepts =
            |(_, manner): &(usize, Manner)| matches!(manner, Manner::Accept | Manner::Delay(_));
        matches!(self.fault, Fault::None) && self.clients.iter().all(accepts)
    }

    /// Returns the replica that does not answer from before the write until after the command.
    fn missing(&self) -> Option<usize> {
        match self.fault {
            Fault::Hang(at, None) | Fault::Down(at) | Fault::Partition(at, _, None) => Some(at),
            _ => None,
        }
    }

    /// Connects the clients of this case, and no others.
    fn connect(&self, fleet: &Fleet) -> Vec<Client> {
        let connect = |(n, (at, _)): (usize, &(usize, Manner))| {
            let mut client = Client::new(&format!("case-{}-{n}", self.seed));
            client.returns = true;
            if self.lacks_name[n] {
                client.types.push((ENDPOINT, vec!["nowhere"]));
            }
            fleet.connect(&mut client, *at);
            client
        };
        let clients: Vec<Client> = self.clients.iter().enumerate().map(connect).collect();
        eventually("the replicas know exactly these clients", || {
            let done = fleet.replicas[self.asked].run(&["nodes", "-o", "json"], "");
            let list: Value = serde_json::from_str(&done.out).ok()?;
            let nodes = list["nodes"].as_array()?;
            let n_streams: usize =
                nodes.iter().map(|node| node["streams"].as_array().unwrap().len()).sum();
            let is_known = |(client, lacks_name): (&Client, &bool)| {
                let state = if *lacks_name { "waiting" } else { "synced" };
                let is_it =
                    |node: &&Value| node["id"] == client.id && node["condition"]["state"] == state;
                nodes.iter().any(|node| is_it(&node))
            };
            let is_complete = done.code == 0 && n_streams == clients.len();
            (is_complete && clients.iter().zip(&self.lacks_name).all(is_known)).then_some(())
        });
        for (client, (_, manner)) in clients.iter().zip(&self.clients) {
            client.record().manner = manner.clone();
        }
        clients
    }

    /// Runs the command that waits. Returns `None` if there is no write for which it could wait. Returns also which
    /// clients have a stream when the command starts.
    fn ask(&self, server: &str, clients: &[Client]) -> (Option<Done>, Vec<bool>) {
        let connected = || clients.iter().map(|client| client.record().connected.is_some());
        let (input, timeout) = (
            clusters(&["web"], &format!("{}s", self.mark())),
            format!("{}ms", self.timeout.as_millis()),
        );
        if self.is_part_of_write {
            let wait = format!("--wait={timeout}");
            let connected = connected().collect();
            let args = ["apply", "-f", "-", &wait, "-o", "json"];
            return (Some(run_at(server, &args, &input)), connected);
        }
        let done = run_at(server, &["apply", "-f", "-", "-o", "json"], &input);
        let written: Option<Value> = serde_json::from_str(&done.out).ok();
        let Some(written) = written.filter(|_| done.code == 0) else { return (None, Vec::new()) };
        let revision = written["revision"].to_string();
        let connected = connected().collect();
        let flag = self.enough.flag();
        let args = ["wait", &revision, "--for", &flag, "--timeout", &timeout, "-o", "json"];
        (Some(run_at(server, &args, "")), connected)
    }

    /// Runs the case. Returns whether the answer is yes.
    fn run(&self, fleet: &mut Fleet) -> bool {
        let clients = self.connect(fleet);
        let server = fleet.replicas[self.asked].admin.clone();
        match self.fault {
            Fault::Hang(at, _) => fleet.signal(at, Signal::STOP),
            Fault::Down(at) => fleet.replicas[at].kill(),
            Fault::Partition(at, cut, None) => fleet.network.cut(at, cut),
            _ => {}
        }
        let ((done, connected), ended) = thread::scope(|scope| {
            let asking = scope.spawn(|| (self.ask(&server, &clients), Instant::now()));
            self.disturb(fleet);
            asking.join().unwrap()
        });
        let said_yes = done.is_some_and(|done| self.check(&clients, &connected, &done, ended));
        drop(clients);
        self.repair(fleet);
        said_yes
    }

    /// Brings in the fault that occurs during the wait.
    fn disturb(&self, fleet: &mut Fleet) {
        let (Fault::Hang(_, Some(time))
        | Fault::Kill(_, time)
        | Fault::Lead(_, time)
        | Fault::Drain(_, time)
        | Fault::Partition(_, _, Some(time))) = self.fault
        else {
            return;
        };
        // The fault occurs at a random time of the wait.
        thread::sleep(time);
        match self.fault {
            Fault::Hang(at, _) => fleet.signal(at, Signal::CONT),
            Fault::Kill(at, _) => {
                fleet.replicas[at].kill();
                fleet.restart(at);
            }
            Fault::Lead(to, _) => {
                let id = (to + 1).to_string();
                // The replica may lead already.
                drop(fleet.replicas[to].run(&["cluster", "transfer-leader", &id], ""));
            }
            Fault::Drain(at, _) => {
                let id = (at + 1).to_string();
                let done = fleet.replicas[at].run(&["drain", &id, "--over", "200ms"], "");
                assert_eq!(done.code, 0, "{self:?}: {done:?}");
            }
            Fault::Partition(at, cut, _) => fleet.network.cut(at, cut),
            Fault::None | Fault::Down(_) => {}
        }
    }

    /// Ends the fault.
    fn repair(&self, fleet: &mut Fleet) {
        match self.fault {
            Fault::Hang(at, None) => fleet.signal(at, Signal::CONT),
            Fault::Down(at) => fleet.restart(at),
            Fault::Partition(..) => fleet.network.heal(),
            Fault::Drain(at, _) => {
                fleet.write(at, &["undrain", &(at + 1).to_string()], "");
            }
            _ => {}
        }
        if !matches!(self.fault, Fault::None) {
            fleet.replicas[self.asked].wait_voters(3);
        }
    }

    /// Compares an answer with what the clients have done by the end of the command. A client counts if it had a stream
    /// when the command started, and has not left for good.
    fn check(&self, clients: &[Client], connected: &[bool], done: &Done, ended: Instant) -> bool {
        let records: Vec<_> = clients.iter().map(|client| client.record().clone()).collect();
        let has_accepted =
            |record: &Record| record.marks.get(&self.mark()).is_some_and(|time| *time <= ended);
        let counts = |n: &usize| connected[*n] && self.clients[*n].1 != Manner::Leave;
        let n_accepted = records.iter().filter(|record| has_accepted(record)).count();
        let n_open =
            (0..clients.len()).filter(counts).filter(|n| !has_accepted(&records[*n])).count();
        let context =
            format!("{self:#?}\n{n_accepted} accepted, {n_open} open\n{done:?}\n{records:#?}");
        let said_yes = done.code == 0;
        let answer: Option<Value> = serde_json::from_str(&done.out).ok();
        let wait = answer.map(|answer| match answer.get("wait") {
            Some(wait) => wait.clone(),
            None => answer,
        });
        if said_yes {
            assert!(
                self.enough.is_reached(n_accepted, n_accepted + n_open),
                "a wrong yes: {context}"
            );
            let wait = wait.as_ref().expect("a yes has an answer");
            let is_number = matches!(self.enough, Enough::Count(_));
            let all_asked = wait["not_asked"].as_array().is_some_and(Vec::is_empty);
            assert!(is_number || all_asked, "a yes without all replicas: {context}");
        }
        if let Some(wait) = wait.filter(|wait| wait["not_asked"].is_array()) {
            let missing = wait["not_asked"].as_array().unwrap();
            let is_named = |at: usize| missing.iter().any(|one| one["replica_id"] == at + 1);
            assert!(self.missing().is_none_or(is_named), "a missing replica: {context}");
        }
        assert!(!self.is_calm() || said_yes, "a wrong no: {context}");
        said_yes
    }
}

/// A wait that says yes is right, whatever the clients and the replicas do meanwhile.
#[test]
fn waits_never_say_yes_before_clients_have_acknowledged() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    fleet.write(0, &["apply", "-f", "-"], &clusters(&["web"], "1s"));
    let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
    let first = std::env::var("CHANCERY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = first.unwrap_or_default();
    let n_cases = if is_long { 1000 } else { 20 };
    let mut n_yes = 0;
    for seed in first..first + n_cases {
        let case = Case::random(seed);
        let begun = Instant::now();
        let said_yes = case.run(&mut fleet);
        n_yes += u64::from(said_yes && !case.is_calm());
        eprintln!("case {seed}: yes {said_yes}, {:?}, {:?}", case.fault, begun.elapsed());
    }
    eprintln!("{n_yes} of {n_cases} answers are yes, although something could have prevented it");
    assert!(n_yes > 0, "only calm cases are answered with yes");
}
