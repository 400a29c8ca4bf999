//! The comparison of all clients with new ones at the end of a run.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::{sync::Notify, task::JoinSet, time::sleep};

use crate::{
    client::{Group, Shared},
    plan::Habit,
    state::{Content, Key},
};

/// The clients that are named.
const NAMED_MAX: usize = 5;
/// The interval of the comparisons.
const POLL: Duration = Duration::from_millis(50);
/// The time without a change after which a new client has everything.
const QUIET: Duration = Duration::from_millis(300);

/// The result of the comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correctness {
    /// The clients with exactly the resources of a new client.
    pub equal: usize,
    /// The clients with others.
    pub different: usize,
    /// The clients that were not connected.
    pub not_connected: usize,
    /// The clients that reject changes, which are not compared.
    pub rejecting: usize,
    /// The addresses whose new clients received something else than that of the first address.
    pub different_servers: Vec<String>,
    /// The number of resources that a new client has.
    pub resources: usize,
    /// The resources that came again without a change.
    pub repeats: u64,
    /// The resources that were older than what a client had.
    pub older: u64,
    /// The deliveries that did not arrive.
    pub undelivered: u64,
    /// The first differences, in words.
    pub examples: Vec<String>,
}

impl Correctness {
    /// Returns whether every client has exactly what it should have, in order and once.
    #[must_use]
    pub fn holds(&self) -> bool {
        let Self { different, not_connected, repeats, older, undelivered, .. } = self;
        *different == 0
            && *not_connected == 0
            && self.different_servers.is_empty()
            && *repeats == 0
            && *older == 0
            && *undelivered == 0
            && self.equal + self.rejecting > 0
    }
}

/// Connects a new client to each address, and compares all clients with it.
pub(crate) async fn check(shared: &Arc<Shared>, patience: Duration) -> Correctness {
    let mut references = JoinSet::new();
    let n = shared.n_clients();
    for target in 0..shared.targets.len() {
        let group =
            Group { clients: n + target..n + target + 1, reconnect: Arc::new(Notify::new()) };
        let only = shared.targets_of(&group, &shared.targets[target..=target]);
        references.spawn(Arc::clone(shared).keep(group, only));
    }
    let deadline = Instant::now() + patience;
    wait_until_quiet(shared, deadline).await;
    // Slow clients, and those that acknowledge late, still receive the last changes.
    loop {
        let result = compare(shared);
        if (result.different == 0 && result.not_connected == 0) || Instant::now() > deadline {
            return result;
        }
        sleep(POLL).await;
    }
}

/// Compares all clients with the new ones.
fn compare(shared: &Shared) -> Correctness {
    let n = shared.n_clients();
    let mut result = Correctness::default();
    let expected = {
        let reference = shared.clients[n].lock();
        if !reference.is_established() {
            result.examples.push("no new client has received a first state".to_owned());
        }
        reference.state().held().clone()
    };
    result.resources = expected.len();
    for target in 1..shared.targets.len() {
        let client = shared.clients[n + target].lock();
        if let Some(text) = difference(shared, &expected, client.state().held()) {
            let server = shared.targets[target].at.to_string();
            result.examples.push(format!("a new client of {server} {text}"));
            result.different_servers.push(server);
        }
    }
    for client in shared.clients.iter().take(n) {
        let client = client.lock();
        if client.habit() == Habit::Rejecting {
            result.rejecting += 1;
        } else if !client.is_established() {
            result.not_connected += 1;
        } else if let Some(text) = difference(shared, &expected, client.state().held()) {
            result.different += 1;
            if result.examples.len() < NAMED_MAX {
                result.examples.push(format!("{} {text}", client.id()));
            }
        } else {
            result.equal += 1;
        }
    }
    let measures = shared.measures.lock();
    result.repeats = measures.n_repeats;
    result.older = measures.n_older;
    result.undelivered =
        (0..measures.phases.len()).map(|phase| measures.n_undelivered(phase)).sum();
    result
}

/// Waits until the new clients have everything, and nothing arrives anymore.
async fn wait_until_quiet(shared: &Shared, deadline: Instant) {
    let n = shared.n_clients();
    let (mut last, mut since) = (None, Instant::now());
    while Instant::now() < deadline {
        let references = shared.clients.iter().skip(n);
        let are_ready = references.into_iter().all(|client| client.lock().is_established());
        let now = Some(shared.measures.lock().now().n_responses);
        if now != last || !are_ready {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > QUIET {
            break;
        }
        sleep(POLL).await;
    }
}

/// Returns how the resources of a client differ from those of a new one.
fn difference(
    shared: &Shared,
    expected: &HashMap<Key, Content>,
    held: &HashMap<Key, Content>,
) -> Option<String> {
    let hash = |of: &HashMap<Key, Content>, key: &Key| of.get(key).map(|content| content.hash);
    let wrong = expected.keys().filter(|key| hash(held, key) != hash(expected, key));
    let extra = held.keys().filter(|key| !expected.contains_key(*key));
    let mut names: Vec<String> = wrong.chain(extra).map(|(_, name)| shared.name(*name)).collect();
    names.sort_unstable();
    let n = names.len();
    let first = names.into_iter().next()?;
    Some(match n {
        1 => format!("has another {first:?}"),
        n => format!("has {n} other resources, of which the first is {first:?}"),
    })
}
