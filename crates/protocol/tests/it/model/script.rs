//! Cases: the kind of client and the events, as plain data that can be reduced.

use chancery_protocol::Protocol;

use crate::model::{
    naive::{CDS, EDS, LDS, N_TYPES, NAMES, OPAQUE, RDS, SCOPES, SRDS, VHDS},
    rng::Rng,
};

/// The kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Wildcard clusters and listeners, endpoints and routes by name when the client learns of
    /// them. The client acknowledges clusters only when it has their endpoints.
    EnvoySotw,
    /// Like `EnvoySotw`, in delta.
    EnvoyDelta,
    /// Everything by name, from the listener down. The client drops an old cluster when the new
    /// ones work.
    Grpc,
    /// Arbitrary SotW requests.
    AnySotw,
    /// Arbitrary delta requests.
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

/// The parameters that stay constant during a case.
#[derive(Debug, Clone)]
pub(crate) struct Tuning {
    /// The size in bytes at which responses are split.
    pub(crate) bytes_target: usize,
    /// A first state with more resources is rejected as a whole.
    pub(crate) listed_max: usize,
    /// Whether the client rejects bad content.
    pub(crate) picky: bool,
    /// Whether the client requests endpoints again after their cluster has changed, as Envoy's
    /// older multiplexer does.
    pub(crate) classic: bool,
    /// Whether the session is notified of all changes, not only of those that it watches.
    pub(crate) tells_all: bool,
    /// The type of a stream with one type.
    pub(crate) only: Option<usize>,
    /// Whether resource errors are enabled.
    pub(crate) errors: bool,
}

/// A request of a client without habits.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) t: usize,
    /// SotW: the list. Delta: the names to subscribe to.
    pub(crate) names: Vec<usize>,
    /// Delta: the names to unsubscribe from.
    pub(crate) drop: Vec<usize>,
    /// Whether `names` and `drop` include `*`.
    pub(crate) star: (bool, bool),
    /// Selects the nonce and the claimed versions.
    pub(crate) mode: usize,
}

/// One resource of a commit, by indices.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    pub(crate) scope: usize,
    pub(crate) t: usize,
    pub(crate) name: usize,
    /// The digit, the references and the number of aliases; `None` deletes the resource.
    pub(crate) content: Option<(usize, Vec<usize>, usize)>,
}

/// One step of a case.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Commit(Vec<Edit>),
    /// One commit that creates the second cluster with its endpoints, moves all routes to it from
    /// the first cluster, and deletes the first cluster. The flag is whether its endpoints are
    /// deleted, too.
    Move(usize, usize, bool),
    /// The scopes of the node; `None` for no assignment.
    Assign(Option<Vec<usize>>),
    /// The transport takes this number of responses.
    Poll(usize),
    /// This number of responses reaches the client.
    Deliver(usize),
    /// The client answers the oldest response of one type.
    Answer(usize),
    /// One round of everything that can proceed.
    Flow,
    Wait(u64),
    /// The client stops answering for a type.
    Mute(usize),
    Speak,
    /// The stream breaks. The bits select the types that are opened again at once.
    Cut(usize),
    /// A gRPC client requests these listeners.
    Want(Vec<usize>),
    Ask(Ask),
    /// An earlier request is sent again, even one of another stream.
    Replay(usize),
}

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
            errors: rng.percent(30),
        };
        let mut events = vec![Event::Commit(seed_commit(has_habits))];
        if !has_habits {
            // Most types are requested early.
            events.extend((0..rng.below(8)).map(|_| Event::Ask(ask(&mut rng))));
        }
        let n = 4 + rng.below(45);
        events.extend((0..n).map(|_| event(&mut rng, profile)));
        Self { profile, tuning, events }
    }
}

/// Creates a small fleet: two clusters with endpoints, a listener and a route. Clients without
/// habits get two of everything.
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
        // Most clusters have the endpoints of their own name. Some share endpoints, and some have
        // none.
        CDS => match rng.below(6) {
            0 => vec![],
            1 => vec![rng.below(NAMES.len())],
            _ => vec![name],
        },
        LDS | SRDS | RDS => rng.some(2, NAMES.len()),
        _ => vec![],
    };
    // Aliased resources have no namesakes in other scopes. It is up to the author which of them an
    // alias would mean.
    let aliased = t == VHDS || t == OPAQUE;
    let scope = if aliased || rng.percent(60) { 0 } else { rng.below(SCOPES.len()) };
    let aliases = if aliased { rng.below(3) } else { 0 };
    let content = (!rng.percent(25)).then(|| (rng.below(4), refs, aliases));
    Edit { scope, t, name, content }
}

fn ask(rng: &mut Rng) -> Ask {
    // Indices beyond the list are aliases, and names that never exist.
    let n = NAMES.len() + 3;
    Ask {
        t: if rng.percent(60) { rng.below(4) } else { rng.below(N_TYPES) },
        names: (0..rng.below(4)).map(|_| popular(rng, n)).collect(),
        drop: rng.some(2, n),
        star: (rng.percent(25), rng.percent(12)),
        mode: rng.below(40),
    }
}

/// Returns, in most cases, one of the names that exist from the beginning.
fn popular(rng: &mut Rng, n: usize) -> usize {
    let n = if rng.percent(60) { 2 } else { n };
    rng.below(n)
}

/// Returns shorter cases that may still fail in the same way.
pub(crate) fn smaller(events: &[Event], size: usize) -> impl Iterator<Item = Vec<Event>> + '_ {
    (0..events.len()).step_by(size).map(move |from| {
        let to = (from + size).min(events.len());
        events[..from].iter().chain(&events[to..]).cloned().collect()
    })
}

/// Returns variants of the case with one event simplified.
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
