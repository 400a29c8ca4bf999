//! A state, a sink, and the messages between it and a source.

use std::collections::BTreeMap;

use chancery_mcp::{Change, Guard, Resources, Settings, Sink, Step};
use chancery_model::{
    Incarnation, Outcome, ResourceKey, ScopeName, State, Transaction, TypeUrl, Upsert,
};
use chancery_proto::istio::mcp::v1alpha1 as pb;
use prost::Message as _;

pub(crate) const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";
pub(crate) const GATEWAYS: &str = "istio/networking/v1alpha3/gateways";

pub(crate) fn type_url(name: &str) -> TypeUrl {
    TypeUrl::new(name).unwrap()
}

pub(crate) fn scope() -> ScopeName {
    ScopeName::new("mesh").unwrap()
}

/// Returns an encoded resource. Its content is a message with the text.
pub(crate) fn resource(name: &str, version: &str, text: &str) -> Vec<u8> {
    let value = text.to_owned().encode_to_vec();
    let any = prost_types::Any { type_url: "x.y/a.B".to_owned(), value };
    let metadata = pb::Metadata {
        name: name.to_owned(),
        version: version.to_owned(),
        ..pb::Metadata::default()
    };
    pb::Resource { metadata: Some(metadata), body: Some(any) }.encode_to_vec()
}

/// A full state: names with contents. The version of a resource is its content.
pub(crate) fn full(nonce: &str, contents: &[(&str, &str)]) -> Resources {
    let resources = contents.iter().map(|(name, text)| resource(name, text, text).into());
    Resources {
        collection: SERVICES.to_owned(),
        nonce: nonce.to_owned(),
        resources: resources.collect(),
        ..Resources::default()
    }
}

/// A difference: names with contents, and names to remove.
pub(crate) fn difference(nonce: &str, contents: &[(&str, &str)], removed: &[&str]) -> Resources {
    let removed_resources = removed.iter().map(|name| (*name).to_owned()).collect();
    Resources { removed_resources, incremental: true, ..full(nonce, contents) }
}

pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) sink: Sink,
}

impl World {
    /// A sink that takes differences, on its first stream.
    pub(crate) fn new() -> Self {
        Self::with(true, Guard::default())
    }

    pub(crate) fn with(incremental: bool, guard: Guard) -> Self {
        let settings = Settings {
            source: "pilot".to_owned(),
            sink_id: "chancery".to_owned(),
            scope: scope(),
            collections: vec![type_url(SERVICES), type_url(GATEWAYS)],
            incremental,
            guard,
        };
        let mut world = Self { state: State::new(Incarnation(7)), sink: Sink::new(settings) };
        world.open();
        world
    }

    /// Starts a stream. Returns the requests by collection.
    pub(crate) fn open(&mut self) -> BTreeMap<String, pb::RequestResources> {
        let requests = self.sink.open(&self.state).into_iter();
        requests.map(|request| (request.collection.clone(), request)).collect()
    }

    /// Forgets everything but the stored state, as a restart does.
    pub(crate) fn restart(&mut self) -> BTreeMap<String, pb::RequestResources> {
        self.sink = Sink::new(self.sink.settings().clone());
        self.open()
    }

    /// Offers a message, and commits its change. Returns the answer.
    pub(crate) fn receive(&mut self, message: &Resources) -> pb::RequestResources {
        match self.sink.on_message(message, &self.state) {
            Step::Commit(change) => {
                self.apply(change);
                self.sink.on_outcome(message, Ok(()))
            }
            Step::Reject(answer) => answer,
            Step::Close(reason) => panic!("{reason}"),
        }
    }

    pub(crate) fn apply(&mut self, change: Change) {
        let key = |name| ResourceKey { type_url: change.collection.clone(), name };
        let deletes = change.deletes.into_iter().map(|name| (scope(), key(name))).collect();
        let upserts = change.upserts.into_iter().map(|draft| Upsert { scope: scope(), draft });
        let transaction =
            Transaction { deletes, upserts: upserts.collect(), ..Transaction::default() };
        let applied = self.state.apply(&transaction);
        assert!(matches!(applied.outcome, Outcome::Committed(_)));
        self.state = applied.state;
    }

    /// Receives a message that the sink accepts.
    pub(crate) fn accept(&mut self, message: &Resources) -> pb::RequestResources {
        let answer = self.receive(message);
        assert_eq!(answer.error_detail, None);
        assert_eq!(
            (&answer.response_nonce, &answer.collection),
            (&message.nonce, &message.collection)
        );
        answer
    }

    /// Receives a message that the sink rejects, without a change. Returns the code and the text.
    pub(crate) fn reject(&mut self, message: &Resources) -> (i32, String) {
        let revision = self.state.revision;
        let answer = self.receive(message);
        assert_eq!(self.state.revision, revision, "a rejected message changes nothing");
        assert_eq!(
            (&answer.response_nonce, &answer.collection),
            (&message.nonce, &message.collection)
        );
        let status = answer.error_detail.unwrap();
        (status.code, status.message)
    }

    /// Returns the stored names and contents of a collection.
    pub(crate) fn stored_in(&self, collection: &str) -> BTreeMap<String, String> {
        let stored = self.state.collection(&scope(), &type_url(collection));
        let resources = stored.into_iter().flat_map(|stored| stored.resources.values());
        let pair = |body: &[u8]| {
            let resource = pb::Resource::decode(body).unwrap();
            let text = String::decode(&*resource.body.unwrap().value).unwrap();
            (resource.metadata.unwrap().name, text)
        };
        resources.map(|resource| pair(&resource.body().unwrap())).collect()
    }

    /// Returns the stored names and contents as text.
    pub(crate) fn stored(&self) -> String {
        let pairs = self.stored_in(SERVICES).into_iter();
        pairs.map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ")
    }
}
