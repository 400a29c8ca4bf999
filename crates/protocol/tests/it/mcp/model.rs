//! Random changes, answers and reconnects against a sink that is written from the protocol alone.

use std::collections::BTreeMap;

use chancery_proto::istio::mcp::v1alpha1::Resources;
use proptest::prelude::*;

use crate::mcp::world::{
    GATEWAYS, SERVICES, World, answer, contents, initial, rejection, versions,
};

const COLLECTIONS: [&str; 2] = [SERVICES, GATEWAYS];
const NAMES: [&str; 4] = ["ns/a", "ns/b", "/c", "x/y/z"];

#[derive(Debug, Clone)]
enum Step {
    Publish {
        collection: usize,
        name: usize,
        text: Option<u8>,
    },
    /// The sink answers the oldest response, and says whether it takes a difference.
    Answer {
        collection: usize,
        accepts: bool,
        incremental: bool,
    },
    /// A request with a nonce that the source did not send.
    Stale {
        collection: usize,
        incremental: bool,
    },
    /// A request without a nonce.
    Restart {
        collection: usize,
        resumes: bool,
        incremental: bool,
    },
    Poll,
    Reconnect {
        resumes: bool,
        incremental: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (collection, flag) = (0..COLLECTIONS.len(), any::<bool>());
    let text = proptest::option::of(0..3_u8);
    prop_oneof![
        6 => (collection.clone(), 0..NAMES.len(), text)
            .prop_map(|(collection, name, text)| Step::Publish { collection, name, text }),
        6 => (collection.clone(), proptest::bool::weighted(0.8), flag)
            .prop_map(|(collection, accepts, incremental)| Step::Answer { collection, accepts, incremental }),
        1 => (collection.clone(), flag)
            .prop_map(|(collection, incremental)| Step::Stale { collection, incremental }),
        1 => (collection, flag, flag)
            .prop_map(|(collection, resumes, incremental)| Step::Restart { collection, resumes, incremental }),
        6 => Just(Step::Poll),
        1 => (flag, flag).prop_map(|(resumes, incremental)| Step::Reconnect { resumes, incremental }),
    ]
}

/// The resources that a sink holds of one collection, and its answers.
#[derive(Debug, Default)]
struct Held {
    contents: BTreeMap<String, String>,
    versions: BTreeMap<String, String>,
    /// The response that the sink has not answered.
    open: Option<Resources>,
    /// Whether the most recent request takes a difference.
    accepts_incremental: bool,
    /// Whether nothing was received on this stream yet, and the sink has listed no versions.
    is_new: bool,
    /// Whether the sink has sent a request without a nonce that the source has to answer.
    awaits_answer: bool,
    rejected: bool,
    /// Whether the collection was published to since the last response.
    changed: bool,
}

impl Held {
    /// Receives a response.
    fn receive(&mut self, response: Resources) {
        assert!(self.open.is_none(), "MCP-30: {response:?}");
        if response.incremental {
            assert!(self.accepts_incremental && !self.is_new, "MCP-34, MCP-36: {response:?}");
            let is_empty = response.resources.is_empty() && response.removed_resources.is_empty();
            assert!(!is_empty || self.awaits_answer, "MCP-39: {response:?}");
        } else {
            assert!(response.removed_resources.is_empty(), "MCP-32: {response:?}");
        }
        assert!(!self.rejected || self.changed, "MCP-45: {response:?}");
        (self.is_new, self.awaits_answer, self.changed) = (false, false, false);
        self.open = Some(response);
    }

    /// Accepts the open response.
    fn accept(&mut self) {
        let Some(response) = self.open.take() else { return };
        if !response.incremental {
            (self.contents, self.versions) = Default::default();
        }
        self.contents.extend(contents(&response));
        self.versions.extend(versions(&response));
        for name in &response.removed_resources {
            assert!(self.contents.remove(name).is_some(), "the sink holds what is removed: {name}");
            self.versions.remove(name);
        }
        self.rejected = false;
    }

    fn ask(&mut self, world: &mut World, collection: &str, resumes: bool, incremental: bool) {
        let listed: Vec<(&str, &str)> = if resumes {
            self.versions.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect()
        } else {
            Vec::new()
        };
        world.request(collection, initial(&listed, incremental));
        self.accepts_incremental = incremental;
        if self.open.is_none() {
            (self.is_new, self.awaits_answer) = (listed.is_empty(), true);
            self.rejected = false;
        }
    }
}

struct Sink {
    world: World,
    held: [Held; 2],
    published: [BTreeMap<String, String>; 2],
}

impl Sink {
    fn new() -> Self {
        let mut sink =
            Self { world: World::new(), held: Default::default(), published: Default::default() };
        sink.open(false, false);
        sink
    }

    fn open(&mut self, resumes: bool, incremental: bool) {
        for (held, collection) in self.held.iter_mut().zip(COLLECTIONS) {
            held.open = None;
            held.ask(&mut self.world, collection, resumes, incremental);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Publish { collection, name, text } => {
                let text = text.map(|text| text.to_string());
                let name = NAMES[name];
                match &text {
                    Some(text) => self.published[collection].insert(name.into(), text.clone()),
                    None => self.published[collection].remove(name),
                };
                self.world.publish(COLLECTIONS[collection], &[(name, text.as_deref())]);
                self.held[collection].changed = true;
            }
            Step::Answer { collection, accepts, incremental } => {
                let held = &mut self.held[collection];
                let Some(nonce) = held.open.as_ref().map(|open| open.nonce.clone()) else { return };
                let request = if accepts {
                    answer(&nonce, incremental)
                } else {
                    rejection(&nonce, incremental)
                };
                self.world.request(COLLECTIONS[collection], request);
                held.accepts_incremental = incremental;
                if accepts { held.accept() } else { (held.open, held.rejected) = (None, true) }
            }
            Step::Stale { collection, incremental } => {
                self.world.request(COLLECTIONS[collection], answer("999999", incremental));
            }
            Step::Restart { collection, resumes, incremental } => {
                let held = &mut self.held[collection];
                held.ask(&mut self.world, COLLECTIONS[collection], resumes, incremental);
            }
            Step::Poll => self.poll(),
            Step::Reconnect { resumes, incremental } => {
                self.world.reconnect();
                self.open(resumes, incremental);
            }
        }
        self.world.now += 10_000;
    }

    fn poll(&mut self) {
        while let Some(response) = self.world.poll() {
            let at = COLLECTIONS.iter().position(|name| *name == response.collection).unwrap();
            self.held[at].receive(response);
        }
    }

    /// Answers everything. The sink then holds what is published, unless it has rejected it and nothing has changed
    /// since.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.poll();
            for collection in 0..COLLECTIONS.len() {
                self.take(Step::Answer { collection, accepts: true, incremental: true });
            }
        }
        for (held, published) in self.held.iter().zip(&self.published) {
            assert!(held.open.is_none());
            assert!(held.rejected || held.contents == *published, "{held:?}\n{published:?}");
        }
        for (collection, held) in self.held.iter_mut().enumerate() {
            // A change after a rejection brings the full state.
            held.ask(&mut self.world, COLLECTIONS[collection], true, true);
        }
        self.poll();
        for held in &mut self.held {
            assert!(held.open.is_some(), "MCP-22");
            held.accept();
        }
        for (held, published) in self.held.iter().zip(&self.published) {
            assert_eq!(held.contents, *published);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// MCP-22, -23, -27, -30 to -39, -41, -45, -46: whatever happens, a sink holds the published state in the end, with
    /// one open response per collection.
    #[test]
    fn sink_holds_the_published_state_in_the_end(steps in proptest::collection::vec(step(), 1..60)) {
        let mut sink = Sink::new();
        steps.into_iter().for_each(|step| sink.take(step));
        sink.settle();
    }
}
