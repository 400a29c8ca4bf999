//! Random changes, faults and reconnects against a source that is written from the protocol alone.

use std::collections::BTreeMap;

use chancery_mcp::{Failure, Guard, Resources, Step};
use chancery_proto::istio::mcp::v1alpha1::RequestResources;
use proptest::prelude::*;

use crate::world::{GATEWAYS, SERVICES, World, resource, type_url};

const COLLECTIONS: [&str; 2] = [SERVICES, GATEWAYS];
const NAMES: [&str; 4] = ["ns/a", "ns/b", "/c", "x/y/z"];

type Contents = BTreeMap<String, String>;

#[derive(Debug, Clone)]
enum Event {
    Publish {
        collection: usize,
        name: usize,
        text: Option<u8>,
    },
    /// The source sends its state, if the protocol allows it. `full`: although a difference is allowed.
    Send {
        collection: usize,
        full: bool,
        fault: Fault,
    },
    Reconnect {
        restarts: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The message has an invalid resource.
    Content,
    /// The commit fails.
    Commit,
}

fn event() -> impl Strategy<Value = Event> {
    let collection = 0..COLLECTIONS.len();
    let text = proptest::option::of(0..3_u8);
    let fault =
        prop_oneof![6 => Just(Fault::None), 1 => Just(Fault::Content), 1 => Just(Fault::Commit)];
    prop_oneof![
        6 => (collection.clone(), 0..NAMES.len(), text)
            .prop_map(|(collection, name, text)| Event::Publish { collection, name, text }),
        6 => (collection, proptest::bool::weighted(0.2), fault)
            .prop_map(|(collection, full, fault)| Event::Send { collection, full, fault }),
        1 => any::<bool>().prop_map(|restarts| Event::Reconnect { restarts }),
    ]
}

/// The knowledge of the source about one collection. The version of a resource is its content.
#[derive(Debug, Default)]
struct Known {
    published: Contents,
    /// The versions that the sink listed, or has accepted since.
    acknowledged: Contents,
    takes_difference: bool,
    /// Whether the sink listed versions, or has accepted a message on this stream.
    is_known: bool,
}

struct Source {
    world: World,
    known: [Known; 2],
    nonce: u64,
}

impl Source {
    fn new() -> Self {
        let guard = Guard { deletion_percent: 100, deletion_resources_min: 1000 };
        let mut source =
            Self { world: World::with(true, guard), known: Default::default(), nonce: 0 };
        source.connect(false);
        source
    }

    fn connect(&mut self, restarts: bool) {
        let mut requests = if restarts { self.world.restart() } else { self.world.open() };
        for (known, collection) in self.known.iter_mut().zip(COLLECTIONS) {
            let request = requests.remove(collection).unwrap();
            known.acknowledged = request.initial_resource_versions;
            known.is_known = !known.acknowledged.is_empty();
            known.takes_difference = request.incremental;
        }
        assert!(requests.is_empty());
    }

    fn message(&mut self, collection: usize, full: bool) -> Resources {
        self.nonce += 1;
        let known = &self.known[collection];
        let incremental = known.takes_difference && known.is_known && !full;
        let is_sent = |(name, text): &(&String, &String)| {
            !incremental || known.acknowledged.get(*name) != Some(text)
        };
        let sent = known.published.iter().filter(is_sent);
        let removed = known.acknowledged.keys().filter(|name| !known.published.contains_key(*name));
        Resources {
            collection: COLLECTIONS[collection].to_owned(),
            nonce: self.nonce.to_string(),
            resources: sent.map(|(name, text)| resource(name, text, text).into()).collect(),
            removed_resources: removed.filter(|_| incremental).cloned().collect(),
            incremental,
            ..Resources::default()
        }
    }

    fn send(&mut self, collection: usize, full: bool, fault: Fault) {
        let mut message = self.message(collection, full);
        if fault == Fault::Content {
            message.resources.push(resource("", "v", "x").into());
        }
        let before = self.world.stored_in(COLLECTIONS[collection]);
        let answer = match self.world.sink.on_message(&message, &self.world.state) {
            Step::Commit(_) if fault == Fault::Commit => {
                let failure = Failure { code: 14, text: "no majority".to_owned() };
                self.world.sink.on_outcome(&message, Err(failure))
            }
            Step::Commit(change) => {
                self.world.apply(change);
                self.world.sink.on_outcome(&message, Ok(()))
            }
            Step::Reject(answer) => answer,
            Step::Close(reason) => panic!("{reason}"),
        };
        self.on_answer(collection, &message, answer, fault, &before);
    }

    fn on_answer(
        &mut self,
        collection: usize,
        message: &Resources,
        answer: RequestResources,
        fault: Fault,
        before: &Contents,
    ) {
        let after = self.world.stored_in(COLLECTIONS[collection]);
        let known = &mut self.known[collection];
        assert_eq!(
            (&answer.collection, &answer.response_nonce),
            (&message.collection, &message.nonce)
        );
        known.takes_difference = answer.incremental;
        match &answer.error_detail {
            None => {
                assert_eq!(fault, Fault::None);
                assert_eq!(after, known.published, "MCP-32, MCP-33");
                known.acknowledged.clone_from(&known.published);
                known.is_known = true;
            }
            Some(status) => {
                let is_left = |name: &String| known.published.contains_key(name);
                let is_wipe = !before.is_empty() && !before.keys().any(is_left);
                let allowed = match fault {
                    Fault::None => vec![9],
                    Fault::Content => vec![3],
                    Fault::Commit => vec![14, 9],
                };
                assert!(allowed.contains(&status.code), "{status:?}");
                assert!(status.code != 9 || is_wipe, "{status:?}");
                assert_eq!(after, *before, "MCP-56: the old state stays");
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Publish { collection, name, text } => {
                let (published, name) =
                    (&mut self.known[collection].published, NAMES[name].to_owned());
                match text {
                    Some(text) => published.insert(name, text.to_string()),
                    None => published.remove(&name),
                };
            }
            Event::Send { collection, full, fault } => self.send(collection, full, fault),
            Event::Reconnect { restarts } => self.connect(restarts),
        }
    }

    /// Publishes a change in every collection, so that none is empty, and sends it. Confirms what is held.
    fn settle(&mut self) {
        for (collection, name) in COLLECTIONS.into_iter().enumerate() {
            self.take(Event::Publish { collection, name: 0, text: Some(9) });
            self.send(collection, false, Fault::None);
            let World { sink, state, .. } = &mut self.world;
            if let Some(token) = sink.held(&type_url(name)).map(|held| held.token.clone()) {
                let request = sink.confirm(name, &token, state).unwrap();
                self.known[collection].takes_difference = request.incremental;
                self.send(collection, true, Fault::None);
            }
            let stored = self.world.stored_in(name);
            assert_eq!(stored, self.known[collection].published);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// MCP-20, MCP-32 to -35, MCP-38, MCP-55 to -57: whatever happens, each message has one answer. An accepted message
    /// is stored, and a rejected one changes nothing. The sink holds the published state in the end.
    #[test]
    fn sink_holds_the_state_of_the_source_in_the_end(events in proptest::collection::vec(event(), 1..60)) {
        let mut source = Source::new();
        events.into_iter().for_each(|event| source.take(event));
        source.settle();
    }
}
