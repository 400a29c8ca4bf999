//! Runs the cases, in rounds.
//!
//! A round takes each case once at each number of resources before it goes on to the next case, so
//! that whatever slows the machine down for a while slows all sizes down. The order of the sizes
//! turns around with each round.

use std::{collections::BTreeMap, hint::black_box, sync::Arc};

use chancery_model::{
    State, Transaction, TypeUrl,
    types::{CLUSTER, ENDPOINT},
};
use chancery_protocol::{
    Config, DeltaRequest, Protocol, Request, Session, SotwRequest, StreamKind,
};
use chancery_view::{Differ, View, changed_collections, difference};

use crate::{
    case::Case,
    fleet::{Answer, Fleet, Tallies, encode},
    stopwatch::{Stopwatch, Tally, float},
    world::{World, filled},
};

/// Names of a session that has no wildcard.
pub(crate) const NAMES: usize = 100;
/// Commits in one sample.
const COMMITS: usize = 200;
/// Operations of sessions in one sample, at least; more with more sessions.
const OPS_MIN: usize = 400;
/// Sessions of a kind, at least; with fewer views, several on each. So many are timed together: reading
/// the clock twice takes as long as one of them.
const SESSIONS_MIN: usize = 100;
/// Bytes of full states in one sample, at least; more if one has more.
const FULL_BYTES_MIN: usize = 8 << 20;

/// A case at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) case: Case,
    pub(crate) resources: usize,
    pub(crate) views: usize,
}

/// Nanoseconds per operation, by place; one for each round.
pub(crate) type Samples = BTreeMap<Place, Vec<f64>>;

/// What is measured at.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    pub(crate) resources: Vec<usize>,
    pub(crate) views: Vec<usize>,
    pub(crate) rounds: usize,
}

/// A world, and as many more, which share what has not changed since, as there are kinds of sessions:
/// each kind has seen all commits of its own.
struct Setting {
    world: World,
    fleets: [(Kind, World, Fleet); 2],
}

/// Which session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Delta,
    Sotw,
    DeltaNamed,
    SotwNamed,
}

/// Measures everything. Tells what it is doing.
pub(crate) fn measure(sizes: &Sizes, watch: Stopwatch, say: &mut dyn FnMut(String)) -> Samples {
    let mut samples = Samples::new();
    for (type_url, kinds) in
        [(CLUSTER, [Kind::Delta, Kind::Sotw]), (ENDPOINT, [Kind::DeltaNamed, Kind::SotwNamed])]
    {
        let type_url = TypeUrl::from_static(type_url);
        say(format!("{}: filling states and opening sessions", type_url.message_name()));
        let bases: Vec<State> = sizes.resources.iter().map(|n| filled(&type_url, *n)).collect();
        let setting = |base, resources, views| {
            let world = World::new(base, &type_url, resources, views);
            let fleets = kinds.map(|kind| (kind, world.clone(), kind.fleet(&world)));
            Setting { world, fleets }
        };
        let mut all: Vec<Vec<Setting>> = Vec::new();
        for views in &sizes.views {
            let sized = bases.iter().zip(&sizes.resources);
            all.push(sized.map(|(base, resources)| setting(base, *resources, *views)).collect());
        }
        drop(bases);
        // The first round only warms up.
        for round in 0..=sizes.rounds {
            let mut into = Samples::new();
            for settings in &mut all {
                turn(settings, round, watch, &mut into);
            }
            if type_url.as_str() == CLUSTER
                && let Some(settings) = all.first_mut()
            {
                full_states(settings, round, watch, &mut into);
                rejected_first_states(settings, round, watch, &mut into);
            }
            if round > 0 {
                into.into_iter().for_each(|(at, mut new)| {
                    samples.entry(at).or_default().append(&mut new);
                });
                say(format!("{}: round {round} of {}", type_url.message_name(), sizes.rounds));
            }
        }
    }
    samples
}

/// One sample of each case that there is for these settings, which differ in their resources.
fn turn(settings: &mut [Setting], round: usize, watch: Stopwatch, into: &mut Samples) {
    let order = order(settings.len(), round);
    if settings.iter().any(|it| it.world.type_url.as_str() == CLUSTER) {
        for case in [Case::CommitOne, Case::CommitTen, Case::CommitOwn] {
            for at in &order {
                let world = &mut settings[*at].world;
                let tally = commits(case, world, watch);
                add(into, case, world, tally);
            }
        }
        for at in &order {
            differences(&mut settings[*at].world, watch, into);
        }
    }
    for of in 0..2 {
        for at in &order {
            sessions(&mut settings[*at].fleets[of], watch, into);
        }
    }
}

/// Ascending and descending in turns.
fn order(n: usize, round: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..n).collect() } else { (0..n).rev().collect() }
}

fn add(into: &mut Samples, case: Case, world: &World, tally: Tally) {
    let place = Place { case, resources: world.resources, views: world.lists.len() };
    into.entry(place).or_default().extend(tally.per_op());
}

/// Commits, one after the other.
fn commits(case: Case, world: &mut World, watch: Stopwatch) -> Tally {
    let transaction = |_| match case {
        Case::CommitOwn => world.change_private(),
        Case::CommitTen => {
            let ten: Vec<usize> = (0..10).map(|_| world.any()).collect();
            world.change(&ten)
        }
        _ => {
            let any = world.any();
            world.change(&[any])
        }
    };
    let transactions: Vec<Transaction> = (0..COMMITS).map(transaction).collect();
    let mut tally = Tally::default();
    watch.time(&mut tally, COMMITS, || {
        for transaction in &transactions {
            let applied = black_box(world.state.apply(transaction));
            world.state = applied.state;
        }
    });
    tally
}

/// What is found out about a commit, for the views.
fn differences(world: &mut World, watch: Stopwatch, into: &mut Samples) {
    let mut states = vec![world.state.clone()];
    for _ in 0..COMMITS {
        let any = world.any();
        let transaction = world.change(&[any]);
        world.state = world.state.apply(&transaction).state;
        states.push(world.state.clone());
    }
    let mut tally = Tally::default();
    watch.time(&mut tally, COMMITS, || {
        for pair in states.windows(2) {
            black_box(changed_collections(&Differ::new(), &pair[0], &pair[1]));
        }
    });
    add(into, Case::Changed, world, tally);

    let n = world.lists.len().max(SESSIONS_MIN);
    let times = OPS_MIN.div_ceil(n);
    let lists: Vec<_> = world.lists.iter().cycle().take(n).collect();
    let mut tally = Tally::default();
    for state in states.iter().rev().take(times) {
        watch.time(&mut tally, n, || {
            for list in &lists {
                black_box(View::resolve(state, list).of_type(&world.type_url).version());
            }
        });
    }
    add(into, Case::Resolve, world, tally);

    let (mut first, mut next) = (Tally::default(), Tally::default());
    let of = |state: &State, n: usize| View::resolve(state, lists[n]).of_type(&world.type_url);
    let steps = states.windows(2);
    let pairs: Vec<_> = steps.clone().map(|pair| (of(&pair[0], 0), of(&pair[1], 0))).collect();
    watch.time(&mut first, pairs.len(), || {
        for (from, to) in &pairs {
            black_box(difference(&Differ::new(), from, to));
        }
    });
    for pair in steps.take(times) {
        let differ = Differ::new();
        black_box(difference(&differ, &of(&pair[0], 0), &of(&pair[1], 0)));
        // With one view, further streams on it.
        let views: Vec<_> = (1..n).map(|n| (of(&pair[0], n), of(&pair[1], n))).collect();
        watch.time(&mut next, views.len(), || {
            views.iter().for_each(|(from, to)| drop(black_box(difference(&differ, from, to))));
        });
    }
    add(into, Case::DiffFirst, world, first);
    add(into, Case::DiffNext, world, next);
}

impl Kind {
    fn is_named(self) -> bool {
        matches!(self, Self::DeltaNamed | Self::SotwNamed)
    }

    fn protocol(self) -> Protocol {
        match self {
            Self::Delta | Self::DeltaNamed => Protocol::Delta,
            Self::Sotw | Self::SotwNamed => Protocol::Sotw,
        }
    }

    fn fleet(self, world: &World) -> Fleet {
        // From all over the scope, but not its last.
        let others = world.resources - 1;
        let named = if self.is_named() { NAMES.min(others) } else { 0 };
        let named = (0..named).map(|n| n * others / named).collect();
        Fleet::synced(world, self.protocol(), named, world.lists.len().max(SESSIONS_MIN))
    }

    /// Poll, encode, ACK, NACK, subscribe, and the poll after that.
    fn cases(self) -> [Option<Case>; 6] {
        use Case::*;
        match self {
            Self::Delta => {
                [Some(DeltaPoll), Some(DeltaEncode), Some(DeltaAck), Some(DeltaNack), None, None]
            }
            // Its responses are full states: see `full_states`.
            Self::Sotw => [None, None, Some(SotwAck), Some(SotwNack), None, None],
            Self::DeltaNamed => [
                Some(DeltaNamedPoll),
                Some(DeltaNamedEncode),
                Some(DeltaNamedAck),
                Some(DeltaNamedNack),
                Some(DeltaSubscribe),
                Some(DeltaSubscribed),
            ],
            Self::SotwNamed => [
                Some(SotwNamedPoll),
                Some(SotwNamedEncode),
                Some(SotwNamedAck),
                Some(SotwNamedNack),
                Some(SotwSubscribe),
                Some(SotwSubscribed),
            ],
        }
    }
}

/// What the sessions of one kind do with commits.
fn sessions(of: &mut (Kind, World, Fleet), watch: Stopwatch, into: &mut Samples) {
    let (kind, world, fleet) = of;
    let times = OPS_MIN.div_ceil(fleet.len());
    let (mut tallies, mut rejected) = (Tallies::default(), Tallies::default());
    for _ in 0..times {
        let resource = fleet.asked(world);
        fleet.step(world, resource, Answer::Ack, watch, &mut tallies);
    }
    for _ in 0..times {
        fleet.step(world, 0, Answer::Nack, watch, &mut rejected);
    }
    // So that no rejection stands.
    fleet.step(world, 0, Answer::Ack, watch, &mut rejected);
    if kind.is_named() {
        for _ in 0..times {
            fleet.subscribe(world, world.resources - 1, watch, &mut tallies);
        }
    }
    let Tallies { poll, encode, ack, subscribe, subscribed, .. } = tallies;
    let found = [poll, encode, ack, rejected.nack, subscribe, subscribed];
    for (case, tally) in kind.cases().into_iter().zip(found) {
        if let Some(case) = case {
            add(into, case, world, tally);
        }
    }
}

/// Clients that reject all that a view has, and then take what changes.
fn rejected_first_states(
    settings: &mut [Setting],
    round: usize,
    watch: Stopwatch,
    into: &mut Samples,
) {
    for at in order(settings.len(), round) {
        let world = &mut settings[at].world;
        let mut fleet = Fleet::opened(world, Protocol::Delta, Vec::new(), SESSIONS_MIN);
        let (mut nack, mut tallies) = (Tally::default(), Tallies::default());
        fleet.reject_first(world, watch, &mut nack);
        for _ in 0..OPS_MIN.div_ceil(fleet.len()) {
            let resource = fleet.asked(world);
            fleet.step(world, resource, Answer::Ack, watch, &mut tallies);
        }
        add(into, Case::DeltaFirstNack, world, nack);
        add(into, Case::DeltaFirstAck, world, tallies.ack);
    }
}

/// All that a view has, to a client that has nothing: one sample of each size.
fn full_states(settings: &[Setting], round: usize, watch: Stopwatch, into: &mut Samples) {
    for at in order(settings.len(), round) {
        let world = &settings[at].world;
        let delta = Request::Delta(DeltaRequest {
            type_url: world.type_url.to_string(),
            ..DeltaRequest::default()
        });
        let sotw = Request::Sotw(SotwRequest {
            type_url: world.type_url.to_string(),
            ..SotwRequest::default()
        });
        let view = world.view(0);
        for (case, protocol, request) in
            [(Case::DeltaFull, Protocol::Delta, delta), (Case::SotwFull, Protocol::Sotw, sotw)]
        {
            let mut tally = Tally::default();
            let mut bytes = 0;
            while bytes < FULL_BYTES_MIN {
                let kind = StreamKind { protocol, type_url: None };
                let mut session = Session::new(kind, Arc::new(Config::DEFAULTS));
                drop(session.on_request(request.clone(), Some(&view), 1_000_000));
                let differ = Differ::new();
                watch.time(&mut tally, 0, || {
                    while let Some(response) = session.poll(Some(&view), &differ, 1_000_000) {
                        bytes += encode(response);
                    }
                });
            }
            tally.add_ops(float(bytes) / 1024.0);
            add(into, case, world, tally);
        }
    }
}
