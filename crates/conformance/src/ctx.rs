//! The server under test, and the context of a running case.

use std::{sync::Arc, time::Duration};

use chancery_proto::node::Node;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tower::service_fn;

use crate::{
    adapter::Adapter,
    kind::Kind,
    log::Log,
    outcome::{ADAPTER, Outcome, Stop, violation},
    reply::unexpected,
    state::State,
    stream::{Opening, Stream, StreamService, Variant, full},
    transport::{HttpVersion, Transport},
};

/// The number of changes that a case publishes while it waits for the server to read a request. A response to the last
/// change is a violation.
pub(crate) const LATE_UPDATES_MAX: u32 = 5;

/// The server under test.
pub struct Target {
    /// The xDS port: `HOST:PORT`.
    pub xds: String,
    /// The port of REST polls: `HOST:PORT`.
    pub rest: String,
    /// The connections to both ports.
    pub transport: Box<dyn Transport>,
    /// The adapter that publishes resources to the server.
    pub adapter: Box<dyn Adapter>,
    /// The prefix of all nodes and names.
    pub run: String,
    /// The maximum time of each wait.
    pub timeout: Duration,
    /// The time without a message after which nothing more is expected.
    pub quiet: Duration,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("xds", &self.xds).finish_non_exhaustive()
    }
}

/// The context of a running case: its node, its resources and its streams.
pub(crate) struct Ctx {
    pub(crate) target: Arc<Target>,
    pub(crate) service: StreamService,
    /// The start of the names of all resources of this case.
    pub(crate) prefix: String,
    pub(crate) log: Log,
    state: Arc<tokio::sync::Mutex<State>>,
    node: String,
}

impl Ctx {
    /// Creates the context of the case with this number.
    pub(crate) fn new(
        target: Arc<Target>,
        service: StreamService,
        number: usize,
        log: Log,
    ) -> Self {
        let node = format!("{}-{number}", target.run);
        let prefix = format!("{node}-");
        let state = State::new(node.clone(), prefix.clone());
        Self { target, service, prefix, log, state: Arc::new(tokio::sync::Mutex::new(state)), node }
    }

    /// Returns the state, so that it can be removed after the case.
    pub(crate) fn state(&self) -> Arc<tokio::sync::Mutex<State>> {
        self.state.clone()
    }

    /// Returns the encoded node.
    pub(crate) fn node(&self) -> bytes::Bytes {
        self.node_named(&self.node)
    }

    pub(crate) fn node_id(&self) -> &str {
        &self.node
    }

    pub(crate) fn node_named(&self, id: &str) -> bytes::Bytes {
        let node = Node {
            id: id.to_owned(),
            cluster: "conformance".into(),
            user_agent_name: "chancery-conformance".into(),
            // SVC-19: a server ignores features that it does not know.
            client_features: vec!["chancery.conformance.unknown-feature".into()],
            ..Node::default()
        };
        node.encode_to_vec().into()
    }

    /// Publishes changes of resources together. Generation 0 removes a resource.
    pub(crate) async fn publish(&self, changes: &[(Kind, &str, u32)]) -> Outcome {
        let mut line = "publish".to_owned();
        for (kind, name, generation) in changes {
            line += &format!(" {} {name}@{generation}", kind.label());
        }
        self.log.add(line);
        let mut state = self.state.lock().await;
        state.change(changes);
        match self.target.adapter.publish(&state).await {
            Ok(()) => Ok(()),
            Err(error) => violation(ADAPTER, "the adapter publishes the state", error),
        }
    }

    /// Publishes one resource.
    pub(crate) async fn set(&self, kind: Kind, name: &str, generation: u32) -> Outcome {
        self.publish(&[(kind, name, generation)]).await
    }

    /// Removes one resource.
    pub(crate) async fn remove(&self, kind: Kind, name: &str) -> Outcome {
        self.set(kind, name, 0).await
    }

    /// Changes resources until no response follows. Fails after [`LATE_UPDATES_MAX`] changes. A request that ends a
    /// subscription has no response, so the case cannot know when the server has read it. The client acknowledges with
    /// `names`, which are still subscribed.
    pub(crate) async fn change_unseen(
        &self,
        stream: &mut Stream,
        (requirement, expected): (&str, &str),
        names: &[&str],
        changed: &[(Kind, &str)],
    ) -> Outcome {
        for generation in 2..LATE_UPDATES_MAX + 2 {
            let changes = changed.iter().map(|(kind, name)| (*kind, *name, generation));
            self.publish(&changes.collect::<Vec<_>>()).await?;
            let mut n_replies = 0;
            while let Some(reply) = stream.maybe(requirement).await? {
                stream.ack(&reply, names).await;
                n_replies += 1;
                if generation > LATE_UPDATES_MAX || n_replies > LATE_UPDATES_MAX {
                    return unexpected(requirement, expected, &reply);
                }
            }
            if n_replies == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Publishes resources of one type in generation 1.
    pub(crate) async fn given(&self, kind: Kind, names: &[&str]) -> Outcome {
        let all: Vec<_> = names.iter().map(|name| (kind, *name, 1)).collect();
        self.publish(&all).await
    }

    /// Opens a stream for a type, on the service that the case uses.
    pub(crate) async fn open(&self, variant: Variant, kind: Kind) -> Result<Stream, Stop> {
        let path = match self.service {
            StreamService::Own if variant == Variant::Sotw && !kind.has_sotw() => {
                return Err(Stop::Skipped(format!("{} has no SotW method", kind.label())));
            }
            StreamService::Own => kind.method(variant.method_prefix()),
            StreamService::Ads => variant.ads_path(),
        };
        self.open_path(variant, &path).await
    }

    pub(crate) async fn open_path(&self, variant: Variant, path: &str) -> Result<Stream, Stop> {
        let channel = self.connect().await?;
        let opening = Opening {
            prefix: self.prefix.clone(),
            node: self.node(),
            log: self.log.clone(),
            authorization: self.authorization(),
            timeout: self.target.timeout,
            quiet: self.target.quiet,
        };
        Stream::open(opening, channel, variant, path)
    }

    fn authorization(&self) -> Option<MetadataValue<Ascii>> {
        self.target.transport.authorization()?.to_str().ok()?.parse().ok()
    }

    async fn connect(&self) -> Result<Channel, Stop> {
        let target = self.target.clone();
        let uri = format!("{}://{}", target.transport.scheme(), target.xds);
        let connected = match Channel::from_shared(uri) {
            Ok(endpoint) => {
                let endpoint = endpoint.connect_timeout(target.timeout);
                let connector = service_fn(move |_| {
                    let target = target.clone();
                    async move {
                        let connect = target.transport.connect(&target.xds, HttpVersion::Http2);
                        connect.await.map(TokioIo::new)
                    }
                });
                endpoint.connect_with_connector(connector).await.map_err(|error| innermost(&error))
            }
            Err(error) => Err(error.to_string()),
        };
        connected.or_else(|error| violation("connection", "the server accepts a connection", error))
    }

    /// Returns a name as it is on the wire.
    pub(crate) fn full(&self, name: &str) -> String {
        full(&self.prefix, name)
    }
}

/// Returns the text of the innermost error, which explains the failure.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let last = std::iter::successors(Some(error), |&error| error.source()).last();
    last.map(ToString::to_string).unwrap_or_default()
}
