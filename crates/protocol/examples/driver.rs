//! A driver of one client's streams, with an in-memory client: subscribe, ACK, receive changes and renewals, fall
//! silent, and reconnect.
//!
//! ```sh
//! cargo run -p chancery-protocol --example driver
//! ```

#![expect(clippy::print_stdout, reason = "the example prints each step")]

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_model::{
    Incarnation, Node, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction,
    TypeUrl, Upsert, types::CLUSTER,
};
use chancery_proto::{
    discovery::{DiscoveryRequest, DiscoveryResponse},
    node,
};
use chancery_protocol::{
    Config, DecodeLimits, DecodedRequest, EndpointLists, InterestChange, LifetimeSupport, Protocol,
    Response, ResumeState, Session, StreamKind,
};
use chancery_view::{Differ, View, changed_collections};
use prost::Message;

type Outcome<T> = Result<T, Box<dyn Error>>;

const LIMITS: DecodeLimits =
    DecodeLimits { names_max: 1000, name_bytes_max: 4096, nack_message_bytes_max: 4096 };

/// A driver: it owns the session, the state and the clock.
struct Driver {
    session: Session,
    state: State,
    /// The scopes that the client's node sees.
    scopes: Vec<ScopeName>,
    differ: Differ,
    /// The resources that the client may hold from its earlier streams.
    resume_states: Vec<Arc<ResumeState>>,
    now: u64,
}

impl Driver {
    fn new() -> Outcome<Self> {
        Ok(Self {
            session: new_session(),
            state: State::new(Incarnation(1)),
            scopes: vec![ScopeName::new("default")?],
            differ: Differ::new(),
            resume_states: Vec::new(),
            now: 0,
        })
    }

    fn view(&self) -> View {
        View::resolve(&self.state, &self.scopes)
    }

    /// Commits a transaction, and marks the changes in the session.
    fn commit(&mut self, transaction: &Transaction) {
        let applied = self.state.apply(transaction);
        let before = std::mem::replace(&mut self.state, applied.state);
        for delta in changed_collections(&self.differ, &before, &self.state) {
            self.session.handle_changes(&delta);
        }
    }

    /// Assigns other scopes to the node of the client.
    fn assign(&mut self, scopes: Vec<ScopeName>) {
        self.scopes = scopes;
        self.session.handle_new_view();
    }

    /// Passes a request of the client to the session.
    fn receive(&mut self, message: Bytes) -> Outcome<()> {
        let decoded = DecodedRequest::decode(Protocol::Sotw, message, LIMITS)?;
        if let Some(bytes) = decoded.node {
            let features = node::Node::decode(bytes)?.client_features;
            let node = Node { client_features: features, ..Node::default() };
            self.session.support_lifetimes(LifetimeSupport::of(&node, 0));
            self.session.support_endpoint_lists(EndpointLists::of(&node));
            self.session.set_dynamic_parameters(&node.dynamic_parameters);
        }
        let view = self.view();
        let receipt = self.session.handle_request(decoded.request, Some(&view), self.now)?;
        println!("client: {:?}", receipt.kind);
        for interest in self.session.drain_interest() {
            if let InterestChange::Wildcard(type_url) = interest {
                println!("driver: mark all changes of {type_url}");
            }
        }
        if self.session.needs_resume_state(&receipt.type_url) {
            self.session.resume_from(&receipt.type_url, &self.resume_states);
            // A driver that keeps earlier states passes the view with this version to `resume_from_view`.
            if let Some(version) = self.session.unknown_version(&receipt.type_url) {
                println!("driver: version {version} is unknown");
            }
        }
        Ok(())
    }

    /// Sends responses until the session has none.
    fn poll(&mut self) -> Vec<Bytes> {
        let view = self.view();
        let mut sent = Vec::new();
        while let Some(response) = self
            .session
            .renew(&self.differ, self.now)
            .or_else(|| self.session.poll(Some(&view), &self.differ, self.now))
        {
            sent.push(send(response));
        }
        sent
    }

    /// Ends the stream if the client has left a response unanswered for too long. The next request opens a new stream.
    fn close_overdue(&mut self) {
        let Some(overdue) = self.session.overdue(self.now) else { return };
        println!("driver: no answer of {} for {} ms", overdue.type_url, overdue.silent_ms);
        let mut ended = std::mem::replace(&mut self.session, new_session());
        self.resume_states.extend(ended.take_resume_state().map(Arc::new));
    }
}

fn new_session() -> Session {
    let config = Config { ack_close_after_ms: Some(60_000), ..Config::default() };
    Session::new(StreamKind { protocol: Protocol::Sotw, type_url: None }, Arc::new(config))
}

/// Stands for the transport. Returns the bytes of the response.
fn send(response: Response) -> Bytes {
    let all = response.resources().chain(response.heartbeats());
    let names: Vec<_> = all.map(|resource| resource.name().as_str()).collect();
    let what = if response.is_renewal() { "renewal" } else { "response" };
    println!("server: {what} {} with {}", response.nonce(), names.join(", "));
    response.into_message("example").flatten().collect()
}

/// A client, which accepts each response.
#[derive(Default)]
struct Client {
    version: String,
}

impl Client {
    /// Returns the first request of a stream. A list without names requests all clusters.
    fn subscribe(&self) -> Bytes {
        let features = ["xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"];
        let client_features = features.map(str::to_owned).to_vec();
        let node = node::Node { client_features, ..node::Node::default() };
        self.request(String::new(), Some(node.encode_to_vec().into()))
    }

    /// Returns the ACK of a response.
    fn acknowledge(&mut self, response: Bytes) -> Outcome<Bytes> {
        let response = DiscoveryResponse::decode(response)?;
        self.version = response.version_info;
        Ok(self.request(response.nonce, None))
    }

    fn request(&self, response_nonce: String, node: Option<Bytes>) -> Bytes {
        let (type_url, version_info) = (CLUSTER.to_owned(), self.version.clone());
        let request =
            DiscoveryRequest { type_url, version_info, response_nonce, node, ..<_>::default() };
        request.encode_to_vec().into()
    }
}

fn key(name: &str) -> Outcome<ResourceKey> {
    Ok(ResourceKey { type_url: TypeUrl::from_static(CLUSTER), name: ResourceName::new(name)? })
}

/// Returns a transaction with a cluster that has a lifetime.
fn publish(scope: &str, name: &str, body: &'static str) -> Outcome<Transaction> {
    let draft = ResourceDraft::new(key(name)?, Bytes::from_static(body.as_bytes()));
    let draft = ResourceDraft { ttl: Some(Duration::from_secs(90)), ..draft };
    let upserts = vec![Upsert { scope: ScopeName::new(scope)?, draft }];
    Ok(Transaction { upserts, ..Transaction::default() })
}

/// Sends what the session has, and passes the ACKs of the client to it. Returns the number of responses.
fn exchange(driver: &mut Driver, client: &mut Client) -> Outcome<usize> {
    let responses = driver.poll();
    let n_responses = responses.len();
    for response in responses {
        driver.receive(client.acknowledge(response)?)?;
    }
    Ok(n_responses)
}

fn main() -> Outcome<()> {
    let (mut driver, mut client) = (Driver::new()?, Client::default());
    driver.commit(&publish("default", "reviews", "one")?);
    driver.commit(&publish("default", "ratings", "one")?);
    driver.receive(client.subscribe())?;
    assert_eq!(exchange(&mut driver, &mut client)?, 1);
    assert_eq!(exchange(&mut driver, &mut client)?, 0, "the client has everything");
    driver.commit(&publish("default", "reviews", "two")?);
    assert_eq!(exchange(&mut driver, &mut client)?, 1);

    // The driver sets a timer for the earliest of `wake_at`, `renewal_at` and `overdue_at`.
    driver.now = driver.session.renewal_at(driver.now).ok_or("there are lifetimes")?;
    assert_eq!(exchange(&mut driver, &mut client)?, 1);

    driver.commit(&publish("team", "details", "one")?);
    driver.assign(vec![ScopeName::new("team")?, ScopeName::new("default")?]);
    assert_eq!(driver.poll().len(), 1, "the client does not answer this response");
    driver.now = driver.session.overdue_at().ok_or("an answer is missing")?;
    driver.close_overdue();

    // The client may hold a cluster that was removed while it had no stream.
    let deletes = vec![(ScopeName::new("default")?, key("ratings")?)];
    driver.commit(&Transaction { deletes, ..Transaction::default() });
    driver.receive(client.subscribe())?;
    assert_eq!(exchange(&mut driver, &mut client)?, 1);
    match driver.session.wake_at(driver.now) {
        Some(at) => println!("driver: poll again at {at} ms"),
        None => println!("driver: no deadline is pending"),
    }
    Ok(())
}
