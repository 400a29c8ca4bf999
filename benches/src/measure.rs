//! The measurement of all cases, in rounds.
//!
//! A round measures each case at every number of resources before it continues with the next case. A
//! temporary slowdown of the machine therefore affects all sizes. The order of the sizes alternates
//! between rounds.

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
    doors::{heartbeats, polls},
    fleet::{Answer, Fleet, Tallies, encode},
    stopwatch::{Stopwatch, Tally, float},
    world::{NAMES, OPS_MIN, SESSIONS_MIN, World, filled},
};

/// The number of commits in one sample.
const COMMITS: usize = 200;
/// The minimum number of bytes of full states in one sample.
const FULL_BYTES_MIN: usize = 8 << 20;

/// A case at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) case: Case,
    pub(crate) resources: usize,
    pub(crate) views: usize,
}

/// The nanoseconds per operation by case and size, with one value per round.
pub(crate) type Samples = BTreeMap<Place, Vec<f64>>;

/// The sizes of the measurement.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    pub(crate) resources: Vec<usize>,
    pub(crate) views: Vec<usize>,
    pub(crate) rounds: usize,
}

/// The worlds and sessions at one size.
///
/// Each kind of session has its own clone of the world, so that it sees only its own commits. The
/// clones share unchanged data.
struct Setting {
    world: World,
    fleets: Vec<(Kind, World, Fleet)>,
}

/// A collection of MCP.
const COLLECTION: &str = "istio/networking/v1alpha3/virtualservices";

/// The kinds of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Delta,
    Sotw,
    DeltaNamed,
    SotwNamed,
    Mcp,
}

/// Measures all cases, and calls `progress` with a line for each step.
pub(crate) fn measure(
    sizes: &Sizes,
    watch: Stopwatch,
    progress: &mut dyn FnMut(String),
) -> Samples {
    let mut samples = Samples::new();
    for (type_url, kinds) in [
        (CLUSTER, &[Kind::Delta, Kind::Sotw][..]),
        (ENDPOINT, &[Kind::DeltaNamed, Kind::SotwNamed]),
        (COLLECTION, &[Kind::Mcp]),
    ] {
        let type_url = TypeUrl::from_static(type_url);
        progress(format!("{}: filling states and opening sessions", type_url.message_name()));
        let bases: Vec<State> = sizes.resources.iter().map(|n| filled(&type_url, *n)).collect();
        let setting = |base, resources, views| {
            let world = World::new(base, &type_url, resources, views);
            let fleet = |kind: &Kind| (*kind, world.clone(), kind.fleet(&world));
            Setting { fleets: kinds.iter().map(fleet).collect(), world }
        };
        let mut all: Vec<Vec<Setting>> = Vec::new();
        for views in &sizes.views {
            let sized = bases.iter().zip(&sizes.resources);
            all.push(sized.map(|(base, resources)| setting(base, *resources, *views)).collect());
        }
        drop(bases);
        // Round 0 is a warm-up.
        for round in 0..=sizes.rounds {
            let mut into = Samples::new();
            for settings in &mut all {
                run_round(settings, round, watch, &mut into);
            }
            if type_url.as_str() == CLUSTER
                && let Some(settings) = all.first_mut()
            {
                full_states(settings, round, watch, &mut into);
                rejected_first_states(settings, round, watch, &mut into);
                for at in order(settings.len(), round) {
                    let world = &settings[at].world;
                    let (renew, encode) = heartbeats(world, watch);
                    add(&mut into, Case::Renew, world, renew);
                    add(&mut into, Case::RenewEncode, world, encode);
                }
            }
            if round > 0 {
                into.into_iter().for_each(|(at, mut new)| {
                    samples.entry(at).or_default().append(&mut new);
                });
                progress(format!("{}: round {round} of {}", type_url.message_name(), sizes.rounds));
            }
        }
    }
    samples
}

/// Takes one sample of each applicable case. The settings differ in the number of resources.
fn run_round(settings: &mut [Setting], round: usize, watch: Stopwatch, into: &mut Samples) {
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
    let has_polls = |at: &&usize| !settings[**at].world.type_url.is_collection();
    for at in order.iter().filter(has_polls).copied().collect::<Vec<_>>() {
        let world = &mut settings[at].world;
        let is_named = world.type_url.as_str() == ENDPOINT;
        let (current, changed) = if is_named {
            (Case::RestNamedCurrent, Case::RestNamedChanged)
        } else {
            (Case::RestCurrent, Case::RestChanged)
        };
        let found = polls(world, is_named, watch);
        add(into, current, world, found.current);
        add(into, changed, world, found.changed);
    }
    for kind in 0..settings.first().map_or(0, |setting| setting.fleets.len()) {
        for at in &order {
            sessions(&mut settings[*at].fleets[kind], watch, into);
        }
    }
}

/// Returns the indices in ascending or descending order, alternating between rounds.
fn order(n: usize, round: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..n).collect() } else { (0..n).rev().collect() }
}

fn add(into: &mut Samples, case: Case, world: &World, tally: Tally) {
    let place = Place { case, resources: world.resources, views: world.lists.len() };
    into.entry(place).or_default().extend(tally.per_op());
}

/// Measures sequential commits.
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

/// Measures the changed collections, resolved views and differences after commits.
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
        // With one view, these are further streams of the same view.
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
            Self::Mcp => Protocol::Mcp,
        }
    }

    fn fleet(self, world: &World) -> Fleet {
        // The names are spread over the scope. The last resource is left for `Fleet::subscribe`.
        let others = world.resources - 1;
        let named = if self.is_named() { NAMES.min(others) } else { 0 };
        let named = (0..named).map(|n| n * others / named).collect();
        Fleet::synced(world, self.protocol(), named, world.lists.len().max(SESSIONS_MIN))
    }

    /// Returns the cases for poll, encode, ACK, NACK, subscribe, and the poll after subscribe.
    fn cases(self) -> [Option<Case>; 6] {
        use Case::*;
        match self {
            Self::Delta => {
                [Some(DeltaPoll), Some(DeltaEncode), Some(DeltaAck), Some(DeltaNack), None, None]
            }
            Self::Mcp => [Some(McpPoll), Some(McpEncode), Some(McpAck), None, None, None],
            // The responses are full states, which `full_states` measures.
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

/// Measures the operations that commits cause in the sessions of one kind.
fn sessions(setting: &mut (Kind, World, Fleet), watch: Stopwatch, into: &mut Samples) {
    let (kind, world, fleet) = setting;
    let times = OPS_MIN.div_ceil(fleet.len());
    let (mut tallies, mut rejected) = (Tallies::default(), Tallies::default());
    for _ in 0..times {
        let resource = fleet.subscribed_resource(world);
        fleet.step(world, resource, Answer::Ack, watch, &mut tallies);
    }
    // A sink of MCP receives a full state after it has rejected a response.
    if kind.protocol() != Protocol::Mcp {
        for _ in 0..times {
            fleet.step(world, 0, Answer::Nack, watch, &mut rejected);
        }
        // Acknowledges a new version, so that no rejection remains.
        fleet.step(world, 0, Answer::Ack, watch, &mut rejected);
    }
    if kind.is_named() {
        for _ in 0..times {
            fleet.subscribe(world, world.resources - 1, watch, &mut tallies);
        }
    }
    let Tallies { poll, encode, ack, subscribe, subscribed, .. } = tallies;
    let tallies = [poll, encode, ack, rejected.nack, subscribe, subscribed];
    for (case, tally) in kind.cases().into_iter().zip(tallies) {
        if let Some(case) = case {
            add(into, case, world, tally);
        }
    }
}

/// Measures clients that reject the first state of a view and acknowledge later changes.
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
            let resource = fleet.subscribed_resource(world);
            fleet.step(world, resource, Answer::Ack, watch, &mut tallies);
        }
        add(into, Case::DeltaFirstNack, world, nack);
        add(into, Case::DeltaFirstAck, world, tallies.ack);
    }
}

/// Measures the first state of a view for a new client: one sample of each size.
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
                drop(session.handle_request(request.clone(), Some(&view), 1_000_000));
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
