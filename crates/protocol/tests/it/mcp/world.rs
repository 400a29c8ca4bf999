//! A state, a session of one sink, and the messages between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert,
};
use chancery_proto::istio::mcp::v1alpha1 as pb;
use chancery_protocol::{
    Config, ErrorDetail, McpRequest, Protocol, ProtocolError, Receipt, Request, Session,
    StreamKind, VersionList,
};
use chancery_view::{Differ, View};
use prost::Message as _;

pub(crate) const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";
pub(crate) const GATEWAYS: &str = "istio/networking/v1alpha3/gateways";

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

/// Returns the published message of a resource. Its author gave it a version.
pub(crate) fn body(name: &str, text: &str) -> pb::Resource {
    let any = prost_types::Any { type_url: "x.y/a.B".to_owned(), value: text.to_owned().into() };
    let labels = [("app".to_owned(), name.to_owned())].into();
    let metadata = pb::Metadata {
        name: name.to_owned(),
        version: "of-the-author".to_owned(),
        create_time: Some(prost_types::Timestamp { seconds: 5, nanos: 6 }),
        labels,
        annotations: [("note".to_owned(), text.to_owned())].into(),
    };
    pb::Resource { metadata: Some(metadata), body: Some(any) }
}

/// A request with a nonce.
pub(crate) fn answer(nonce: &str, incremental: bool) -> McpRequest {
    McpRequest { response_nonce: nonce.to_owned(), incremental, ..McpRequest::default() }
}

/// A request with a nonce and an error.
pub(crate) fn rejection(nonce: &str, incremental: bool) -> McpRequest {
    let error = ErrorDetail { code: 3, message: "bad".to_owned() };
    McpRequest { error_detail: Some(error), ..answer(nonce, incremental) }
}

/// A request without a nonce, from a sink that holds these versions.
pub(crate) fn initial(versions: &[(&str, &str)], incremental: bool) -> McpRequest {
    let versions = versions.iter().map(|(name, version)| ((*name).into(), (*version).into()));
    let initial_resource_versions = VersionList::from(versions.collect::<Vec<_>>());
    McpRequest { initial_resource_versions, incremental, ..McpRequest::default() }
}

pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) session: Session,
    differ: Differ,
    pub(crate) now: u64,
    /// The nonces of the stream.
    nonces: BTreeSet<String>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_config(Config::DEFAULTS)
    }

    /// Returns the world of another cluster.
    pub(crate) fn elsewhere() -> Self {
        Self { state: State::new(Incarnation(8)), ..Self::new() }
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let kind = StreamKind { protocol: Protocol::Mcp, type_url: None };
        let session = Session::new(kind, Arc::new(config));
        let (state, differ) = (State::new(Incarnation(7)), Differ::new());
        Self { state, session, differ, now: 1, nonces: BTreeSet::new() }
    }

    /// Opens another stream on the same state.
    pub(crate) fn reconnect(&mut self) {
        self.session = Self::new().session;
        self.nonces.clear();
    }

    /// Publishes and deletes (no text) in one transaction, and marks the changes.
    pub(crate) fn publish(&mut self, collection: &str, changes: &[(&str, Option<&str>)]) {
        let type_url = TypeUrl::new(collection).unwrap();
        let key = |name: &str| ResourceKey {
            type_url: type_url.clone(),
            name: ResourceName::new(name).unwrap(),
        };
        let draft = |name: &str, text| {
            ResourceDraft::new(key(name), body(name, text).encode_to_vec().into())
        };
        let upserts = changes.iter().filter_map(|(name, text)| Some(draft(name, (*text)?)));
        let deletes = changes.iter().filter(|(_, text)| text.is_none());
        let transaction = Transaction {
            upserts: upserts.map(|draft| Upsert { scope: scope(), draft }).collect(),
            deletes: deletes.map(|(name, _)| (scope(), key(name))).collect(),
            ..Transaction::default()
        };
        self.state = self.state.apply(&transaction).state;
        for (name, _) in changes {
            self.session.handle_change(&type_url, Some(&key(name).name));
        }
    }

    fn view(&self) -> View {
        View::resolve(&self.state, &[scope()])
    }

    pub(crate) fn try_request(
        &mut self,
        collection: &str,
        request: McpRequest,
    ) -> Result<Receipt, ProtocolError> {
        let request = McpRequest { collection: collection.to_owned(), ..request };
        self.session.handle_request(Request::Mcp(request), Some(&self.view()), self.now)
    }

    pub(crate) fn request(&mut self, collection: &str, request: McpRequest) -> Receipt {
        self.try_request(collection, request).unwrap()
    }

    /// Returns the next response, decoded by prost.
    pub(crate) fn poll(&mut self) -> Option<pb::Resources> {
        let view = self.view();
        let response = self.session.poll(Some(&view), &self.differ, self.now)?;
        let message = response.into_message("replica-1");
        let len = message.len();
        let mut bytes = BytesMut::new();
        message.for_each(|piece: Bytes| bytes.extend_from_slice(&piece));
        assert_eq!(bytes.len(), len, "the announced length");
        let message = pb::Resources::decode(bytes).unwrap();
        assert!(!message.nonce.is_empty() && self.nonces.insert(message.nonce.clone()), "MCP-31");
        Some(message)
    }

    /// Returns the next response, which there must be.
    pub(crate) fn next(&mut self) -> pb::Resources {
        self.poll().unwrap()
    }
}

/// Returns names and contents.
pub(crate) fn contents(response: &pb::Resources) -> BTreeMap<String, String> {
    let pair = |one: &pb::Resource| {
        let (metadata, body) = (one.metadata.as_ref().unwrap(), one.body.as_ref().unwrap());
        (metadata.name.clone(), String::from_utf8(body.value.clone()).unwrap())
    };
    let all: BTreeMap<_, _> = response.resources.iter().map(pair).collect();
    assert_eq!(all.len(), response.resources.len(), "MCP-41: a name occurs once");
    assert!(response.removed_resources.iter().all(|name| !all.contains_key(name)), "MCP-41");
    all
}

/// Returns names and versions.
pub(crate) fn versions(response: &pb::Resources) -> Vec<(String, String)> {
    let pair = |one: &pb::Resource| {
        let metadata = one.metadata.as_ref().unwrap();
        (metadata.name.clone(), metadata.version.clone())
    };
    response.resources.iter().map(pair).collect()
}
