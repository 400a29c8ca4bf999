//! Cases: who the client is and what happens, as plain data that can be cut down.

use chancery_protocol::Protocol;

use crate::{
    naive::{CDS, EDS, LDS, N_TYPES, NAMES, OPAQUE, RDS, SCOPES, SRDS, VHDS},
    rng::Rng,
};

/// Who the client is (`clients.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Wildcard clusters and listeners, endpoints and routes by name as it learns of them, and the ACK of
    /// clusters only when their endpoints are there.
    EnvoySotw,
    /// The same, incremental.
    EnvoyDelta,
    /// Everything by name, from the listener down; drops an old cluster when the new ones work.
    Grpc,
    /// Any request that can be written down.
    AnySotw,
    /// The same, incremental.
    AnyDelta,
}

impl Profile {
    pub(crate) fn protocol(self) -> Protocol {
        match self {
            Self::EnvoySotw | Self::Grpc | Self::AnySotw => Protocol::Sotw,
            Self::EnvoyDelta | Self::AnyDelta => Protocol::Delta,
        }
    }

    pub(crate) fn has_habits(self) -> bool {
        !matches!(self, Self::AnySotw | Self::AnyDelta)
    }
}

/// What stays the same during a case.
#[derive(Debug, Clone)]
pub(crate) struct Tuning {
    /// Size at which responses are cut.
    pub(crate) bytes_target: usize,
    /// A first state with more resources is rejected as a whole.
    pub(crate) listed_max: usize,
    /// It rejects bad content.
    pub(crate) picky: bool,
    /// It asks for endpoints again after their cluster has changed, as Envoy's older multiplexer does.
    pub(crate) classic: bool,
    /// The session is told of all changes, not only of those that it is interested in.
    pub(crate) tells_all: bool,
    /// A stream of one type.
    pub(crate) only: Option<usize>,
}

/// Something that a client without habits asks for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) t: usize,
    /// SotW: the list. Delta: to subscribe.
    pub(crate) names: Vec<usize>,
    /// Delta: to unsubscribe.
    pub(crate) drop: Vec<usize>,
    /// `*` in the one list and in the other.
    pub(crate) star: (bool, bool),
    /// Which nonce and what versions.
    pub(crate) mode: usize,
}

/// One resource of a commit, by numbers.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    pub(crate) scope: usize,
    pub(crate) t: usize,
    pub(crate) name: usize,
    /// `None` deletes it. Otherwise a digit, what it refers to, and how many aliases it has.
    pub(crate) content: Option<(usize, Vec<usize>, usize)>,
}

/// One step of a case.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Commit(Vec<Edit>),
    /// One commit: the second cluster with its endpoints, all routes moved to it from the first, which
    /// is deleted; its endpoints too, or not.
    Move(usize, usize, bool),
    /// The scopes of the node; `None` for no assignment.
    Assign(Option<Vec<usize>>),
    /// The transport has room for so many responses.
    Poll(usize),
    /// So many responses reach the client.
    Deliver(usize),
    /// The client answers the oldest response of one type.
    Answer(usize),
    /// Everything that can go on does, once.
    Flow,
    Wait(u64),
    /// It stops answering for a type.
    Mute(usize),
    Speak,
    /// The stream breaks; which types are opened again at once.
    Cut(usize),
    /// A gRPC client wants these listeners.
    Want(Vec<usize>),
    Ask(Ask),
    /// A request of before, once more; from whatever stream.
    Replay(usize),
}

/// A case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) profile: Profile,
    pub(crate) tuning: Tuning,
    pub(crate) events: Vec<Event>,
}

impl Case {
    pub(crate) fn new(profile: Profile, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let has_habits = profile.has_habits();
        let only = (!has_habits && rng.percent(15)).then(|| rng.below(N_TYPES));
        let tuning = Tuning {
            bytes_target: if rng.percent(50) { 3 + rng.below(200) } else { 1 << 20 },
            listed_max: rng.below(4),
            picky: rng.percent(50),
            classic: rng.percent(50),
            tells_all: rng.percent(30),
            only,
        };
        let mut events = vec![Event::Commit(seed_commit(has_habits))];
        if !has_habits {
            // Most types are asked for soon.
            events.extend((0..rng.below(8)).map(|_| Event::Ask(ask(&mut rng))));
        }
        let n = 4 + rng.below(45);
        events.extend((0..n).map(|_| event(&mut rng, profile)));
        Self { profile, tuning, events }
    }
}

/// A small fleet: two clusters with endpoints, a listener, a route; for clients that ask for anything, two
/// of everything.
fn seed_commit(has_habits: bool) -> Vec<Edit> {
    let edit = |t, name, refs: &[usize]| Edit {
        scope: 0,
        t,
        name,
        content: Some((0, refs.to_vec(), usize::from(t == VHDS || t == OPAQUE))),
    };
    let mut fleet = vec![
        edit(CDS, 0, &[0]),
        edit(CDS, 1, &[1]),
        edit(EDS, 0, &[]),
        edit(EDS, 1, &[]),
        edit(LDS, 0, &[0]),
        edit(RDS, 0, &[0]),
    ];
    if !has_habits {
        fleet.extend((LDS..N_TYPES).flat_map(|t| [edit(t, 0, &[0]), edit(t, 1, &[1])]));
    }
    fleet
}

fn event(rng: &mut Rng, profile: Profile) -> Event {
    let any = !profile.has_habits();
    match rng.below(100) {
        0..=9 if any => Event::Ask(ask(rng)),
        0..=17 => Event::Commit((0..=rng.below(4)).map(|_| edit(rng, any)).collect()),
        18..=22 => Event::Move(rng.below(NAMES.len()), rng.below(NAMES.len()), rng.percent(50)),
        23..=25 => Event::Assign(assignment(rng)),
        26..=33 => Event::Poll(1 + rng.below(3)),
        34..=42 => Event::Deliver(1 + rng.below(3)),
        43..=52 => Event::Answer(rng.below(8)),
        53..=72 => Event::Flow,
        73..=78 => Event::Wait([10, 900, 2_000, 5_000, 6_000, 16_000][rng.below(6)]),
        79..=81 => Event::Mute(rng.below(if any { N_TYPES } else { 4 })),
        82..=83 => Event::Speak,
        84..=86 => Event::Cut(rng.below(1 << N_TYPES)),
        89..=91 if profile == Profile::Grpc => {
            let first = if rng.percent(75) { Some(0) } else { None };
            Event::Want(first.into_iter().chain(rng.some(2, NAMES.len())).collect())
        }
        88..=90 if any => Event::Replay(rng.below(64)),
        _ if any => Event::Ask(ask(rng)),
        _ => Event::Flow,
    }
}

fn assignment(rng: &mut Rng) -> Option<Vec<usize>> {
    if rng.percent(15) {
        return None;
    }
    let mut list = vec![0];
    list.extend(rng.some(2, SCOPES.len()));
    if rng.percent(50) {
        list.reverse();
    }
    let mut seen = Vec::new();
    list.retain(|scope| {
        !seen.contains(scope) && {
            seen.push(*scope);
            true
        }
    });
    Some(list)
}

fn edit(rng: &mut Rng, any: bool) -> Edit {
    let t = match rng.below(10) {
        n if any => [CDS, EDS, LDS, RDS, SRDS, VHDS, VHDS, 6, 7, OPAQUE][n],
        0..=2 => CDS,
        3..=4 => EDS,
        5..=6 => LDS,
        _ => RDS,
    };
    let name = rng.below(NAMES.len());
    let refs = match t {
        // Most clusters have the endpoints of their name, some share, some have none.
        CDS => match rng.below(6) {
            0 => vec![],
            1 => vec![rng.below(NAMES.len())],
            _ => vec![name],
        },
        LDS | SRDS | RDS => rng.some(2, NAMES.len()),
        _ => vec![],
    };
    // Aliased resources have no namesakes in other scopes: which of them an alias means is the author's
    // riddle, not the client's.
    let aliased = t == VHDS || t == OPAQUE;
    let scope = if aliased || rng.percent(60) { 0 } else { rng.below(SCOPES.len()) };
    let aliases = if aliased { rng.below(3) } else { 0 };
    let content = (!rng.percent(25)).then(|| (rng.below(4), refs, aliases));
    Edit { scope, t, name, content }
}

fn ask(rng: &mut Rng) -> Ask {
    // Names beyond the list are aliases, and names of nothing.
    let n = NAMES.len() + 3;
    Ask {
        t: if rng.percent(60) { rng.below(4) } else { rng.below(N_TYPES) },
        names: (0..rng.below(4)).map(|_| popular(rng, n)).collect(),
        drop: rng.some(2, n),
        star: (rng.percent(25), rng.percent(12)),
        mode: rng.below(40),
    }
}

/// One of the names that are there from the beginning, most of the time.
fn popular(rng: &mut Rng, n: usize) -> usize {
    let n = if rng.percent(60) { 2 } else { n };
    rng.below(n)
}

/// Smaller cases that may still fail in the same way.
pub(crate) fn smaller(events: &[Event], size: usize) -> impl Iterator<Item = Vec<Event>> + '_ {
    (0..events.len()).step_by(size).map(move |from| {
        let to = (from + size).min(events.len());
        events[..from].iter().chain(&events[to..]).cloned().collect()
    })
}

/// The same case with one event made smaller.
pub(crate) fn simpler(events: &[Event]) -> Vec<Vec<Event>> {
    let mut out = Vec::new();
    for (at, event) in events.iter().enumerate() {
        let mut with = |event: Event| {
            let mut all = events.to_vec();
            all[at] = event;
            out.push(all);
        };
        match event {
            Event::Commit(edits) => (0..edits.len()).for_each(|i| {
                let mut rest = edits.clone();
                rest.remove(i);
                with(Event::Commit(rest));
            }),
            Event::Ask(ask) => {
                (0..ask.names.len()).for_each(|i| {
                    let mut ask = ask.clone();
                    ask.names.remove(i);
                    with(Event::Ask(ask));
                });
                (0..ask.drop.len()).for_each(|i| {
                    let mut ask = ask.clone();
                    ask.drop.remove(i);
                    with(Event::Ask(ask));
                });
            }
            Event::Poll(n) | Event::Deliver(n) if *n > 1 => with(Event::Flow),
            _ => {}
        }
    }
    out
}
