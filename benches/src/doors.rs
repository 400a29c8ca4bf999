//! Pollers and heartbeats: the work for a client that has everything.
//!
//! A REST poller has no session. Each poll compares its version with the view. A heartbeat renews the
//! lifetime of one resource, and has no body.

use std::{hint::black_box, time::Duration};

use chancery_model::types::properties;
use chancery_protocol::{NameList, PollResponse, Protocol};

use crate::{
    fleet::Fleet,
    stopwatch::{Stopwatch, Tally},
    world::{NAMES, OPS_MIN, SESSIONS_MIN, World, name},
};

/// The lifetime of the renewed resource.
const LIFETIME: Duration = Duration::from_secs(30);

/// The times of polls.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    /// The client has everything that it asks for.
    pub(crate) current: Tally,
    /// A resource that it asks for has changed.
    pub(crate) changed: Tally,
}

/// Measures the decision about polls, for a wildcard or for [`NAMES`] names.
pub(crate) fn polls(world: &mut World, is_named: bool, watch: Stopwatch) -> Polls {
    let named = if is_named { NAMES.min(world.resources - 1) } else { 0 };
    let numbers: Vec<usize> = (0..named).map(|n| n * (world.resources - 1) / named).collect();
    let names: NameList = numbers.iter().map(|n| name(*n)).collect::<Vec<_>>().into();
    let n = world.lists.len().max(SESSIONS_MIN);
    let mut polls = Polls::default();
    let mut versions = vec![String::new(); n];
    decide(world, &names, &mut versions, watch, &mut Tally::default());
    for _ in 0..OPS_MIN.div_ceil(n) {
        decide(world, &names, &mut versions, watch, &mut polls.current);
        let any = world.any();
        let changed = if is_named { numbers[any % named] } else { any };
        let transaction = world.change(&[changed]);
        world.state = world.state.apply(&transaction).state;
        decide(world, &names, &mut versions, watch, &mut polls.changed);
    }
    polls
}

/// Polls once for each version, and replaces it.
fn decide(
    world: &World,
    names: &NameList,
    versions: &mut [String],
    watch: Stopwatch,
    tally: &mut Tally,
) {
    let properties = properties(&world.type_url);
    let mut responses = Vec::with_capacity(versions.len());
    watch.time(tally, versions.len(), || {
        for (at, version) in versions.iter().enumerate() {
            let view = world.view(at).of_type(&world.type_url);
            responses
                .push(black_box(PollResponse::decide(&view, properties, names, version, false)));
        }
    });
    for (version, response) in versions.iter_mut().zip(responses) {
        if let PollResponse::Changed { version: new, .. } = response {
            *version = new;
        }
    }
}

/// Measures the heartbeats of a resource with a lifetime, beside the resources of the world. Returns two
/// tallies: the session prepares the renewal, and the response encodes it.
pub(crate) fn heartbeats(world: &World, watch: Stopwatch) -> (Tally, Tally) {
    let mut world = world.clone();
    let transaction = world.change_lifetime(LIFETIME);
    world.state = world.state.apply(&transaction).state;
    let mut fleet = Fleet::renewed(&world, Protocol::Delta, SESSIONS_MIN);
    let (mut renew, mut encode) = (Tally::default(), Tally::default());
    for _ in 0..OPS_MIN.div_ceil(SESSIONS_MIN) {
        fleet.renew(&world, watch, &mut renew, &mut encode);
    }
    (renew, encode)
}
