//! A replica with its own directory, and a client of its streams.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use axum::{Router, body::Body};
use chancery_admin::{
    AdminAccess, AdminDeps, ConsoleSettings, ExternalValidator, GuardSettings, Readiness,
    ReferenceSettings,
};
use chancery_admin_proto::v1::admin_client::AdminClient;
use chancery_admission::Validation;
use chancery_audit::Audit;
use chancery_auth::{AuthSettings, Authenticator};
use chancery_fanout::{AccessControl, Delivery, Fanout, RequestSink, ResponseSource, StreamInfo};
use chancery_load::{Limits, LoadReports, Settings};
use chancery_mcp::Sources;
use chancery_model::{Node, Principal};
use chancery_proto::discovery::DeltaDiscoveryResponse;
use chancery_protocol::{DeltaRequest, ErrorDetail, Protocol, Request as Discovery, StreamKind};
use chancery_store::{Config, OpenProgress, Replica};
use chancery_trace::Tracer;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use prost::Message;
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// A limit for operations that are short.
const DEADLINE: Duration = Duration::from_secs(20);

/// A replica with its admin API.
pub(crate) struct Server {
    pub(crate) router: Router,
    pub(crate) fanout: Fanout,
    pub(crate) drain: CancellationToken,
    pub(crate) reports: LoadReports,
    pub(crate) replica: Replica,
    /// The parts from which the routes were made.
    pub(crate) deps: AdminDeps,
    shards: CancellationToken,
    _directory: tempfile::TempDir,
}

pub(crate) const REQUEST_BYTES_MAX: u64 = 256 << 10;
const TRANSACTION_BYTES_MAX: usize = 200 << 10;

impl Server {
    pub(crate) async fn start() -> Self {
        let started = CancellationToken::new();
        started.cancel();
        Self::start_as(started).await
    }

    /// Starts a replica that has not caught up with its cluster.
    pub(crate) async fn start_unready() -> Self {
        Self::start_as(CancellationToken::new()).await
    }

    async fn start_as(started: CancellationToken) -> Self {
        Self::start_with(started, Arc::new(|| "chancery_test 1\n".to_owned())).await
    }

    /// Starts a replica on which access rules apply. The user with the ID 0 at a UNIX socket and
    /// `token:root` may do everything.
    pub(crate) async fn start_enforced() -> Self {
        Self::start_enforced_with(None).await
    }

    /// Like [`start_enforced`](Self::start_enforced), with an external validator.
    pub(crate) async fn start_enforced_with(external: Option<ExternalValidator>) -> Self {
        Self::start_enforced_as(AuthSettings::default(), Audit::off(), external).await
    }

    /// Like [`start_enforced`](Self::start_enforced), with an audit log.
    pub(crate) async fn start_enforced_audited(settings: AuthSettings, audit: Audit) -> Self {
        Self::start_enforced_as(settings, audit, None).await
    }

    async fn start_enforced_as(
        settings: AuthSettings,
        audit: Audit,
        external: Option<ExternalValidator>,
    ) -> Self {
        let started = CancellationToken::new();
        started.cancel();
        let auth = Authenticator::new(&settings).unwrap();
        let access = AdminAccess {
            control: AccessControl::Enforced,
            admins: vec![Principal::unix(0), Principal::token("root").unwrap()],
            auth: Some(auth),
        };
        Self::start_all(
            started,
            Arc::new(String::new),
            ReferenceSettings::default(),
            external.map(|external| (external, Validation::default())),
            audit,
            access,
        )
        .await
    }

    /// Starts a replica with an external validator.
    pub(crate) async fn start_judged(external: ExternalValidator) -> Self {
        Self::start_judged_with(external, Validation::default()).await
    }

    /// Starts a replica with an external validator and modes of validation.
    pub(crate) async fn start_judged_with(
        external: ExternalValidator,
        validation: Validation,
    ) -> Self {
        let started = CancellationToken::new();
        started.cancel();
        let references = ReferenceSettings::default();
        let judged = Some((external, validation));
        Self::start_by(started, Arc::new(String::new), references, judged, Audit::off()).await
    }

    /// Starts a replica whose page of metrics `metrics` renders.
    pub(crate) async fn start_with(
        started: CancellationToken,
        metrics: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Self {
        Self::start_by(started, metrics, ReferenceSettings::default(), None, Audit::off()).await
    }

    /// Starts a replica with this treatment of dangling references.
    pub(crate) async fn start_with_references(references: ReferenceSettings) -> Self {
        let started = CancellationToken::new();
        started.cancel();
        Self::start_by(started, Arc::new(String::new), references, None, Audit::off()).await
    }

    /// Starts a replica with an audit log and an external validator.
    pub(crate) async fn start_audited(audit: Audit, external: ExternalValidator) -> Self {
        let started = CancellationToken::new();
        started.cancel();
        let references = ReferenceSettings::default();
        let judged = Some((external, Validation::default()));
        Self::start_by(started, Arc::new(String::new), references, judged, audit).await
    }

    async fn start_by(
        started: CancellationToken,
        metrics: Arc<dyn Fn() -> String + Send + Sync>,
        references: ReferenceSettings,
        judged: Option<(ExternalValidator, Validation)>,
        audit: Audit,
    ) -> Self {
        // Like a replica without access rules, which knows its callers.
        let auth = Some(Authenticator::new(&AuthSettings::default()).unwrap());
        let access = AdminAccess { auth, ..AdminAccess::default() };
        Self::start_all(started, metrics, references, judged, audit, access).await
    }

    async fn start_all(
        started: CancellationToken,
        metrics: Arc<dyn Fn() -> String + Send + Sync>,
        references: ReferenceSettings,
        judged: Option<(ExternalValidator, Validation)>,
        audit: Audit,
        access: AdminAccess,
    ) -> Self {
        let (external, validation) = judged.unzip();
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().join("data");
        let config = Config {
            data_dir,
            free_bytes_min: 0,
            transaction_bytes_max: TRANSACTION_BYTES_MAX,
            ..Config::default()
        };
        let replica = Replica::open(config).await.unwrap();
        let shards = CancellationToken::new();
        let mut config = chancery_fanout::Config::default();
        config.session.resource_errors = true;
        config.secrets = chancery_fanout::SecretFinder::new(chancery_admin::secret_values);
        let tracker = TaskTracker::new();
        let fanout = Fanout::spawn(config, replica.watch(), &tracker, shards.clone());
        let drain = CancellationToken::new();
        let readiness = Readiness::new(OpenProgress::default(), started, drain.clone());
        readiness.on_open(replica.clone());
        let reports = LoadReports::new(Settings::default(), Limits::default()).unwrap();
        let deps = AdminDeps {
            replica: replica.clone(),
            fanout: fanout.clone(),
            metrics,
            liveness: Arc::new(|| Ok(())),
            readiness,
            drain: drain.clone(),
            request_bytes_max: REQUEST_BYTES_MAX,
            hosts: vec!["chancery.example".to_owned()],
            console: Some(ConsoleSettings { is_secure: false }),
            version: "0.0.0-test",
            load_reports: Some(reports.clone()),
            sources: Sources::default(),
            guards: GuardSettings::default(),
            validation: validation.unwrap_or_default(),
            references,
            access,
            external,
            audit,
            log: None,
            tracer: Tracer::default(),
            recent_nodes: chancery_admin::RecentNodesSettings::default(),
        };
        let (router, _update) = chancery_admin::router(&deps);
        Self { router, deps, fanout, drain, reports, replica, shards, _directory: directory }
    }

    /// Returns a client without a socket.
    pub(crate) fn grpc(&self) -> AdminClient<Router> {
        AdminClient::new(self.router.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> (StatusCode, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Returns the status and the JSON of a request.
    pub(crate) async fn call(&self, method: &str, uri: &str, body: &str) -> (StatusCode, Value) {
        let request =
            Request::builder().method(method).uri(uri).body(Body::from(body.to_owned())).unwrap();
        let (status, body) = self.send(request).await;
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    /// Returns the JSON of a successful request.
    pub(crate) async fn done(&self, method: &str, uri: &str, body: &str) -> Value {
        let (status, json) = self.call(method, uri, body).await;
        assert_eq!(status, StatusCode::OK, "{method} {uri}: {json}");
        json
    }

    /// Returns the status, code and message of a rejected request.
    pub(crate) async fn refused(
        &self,
        method: &str,
        uri: &str,
        body: &str,
    ) -> (u16, String, String) {
        let (status, json) = self.call(method, uri, body).await;
        assert!(!status.is_success(), "{method} {uri}: {json}");
        let text = |key: &str| json["error"][key].as_str().unwrap().to_owned();
        assert!(json["error"]["problems"].is_array(), "{json}");
        (status.as_u16(), text("code"), text("message"))
    }

    /// Ends the replica. The threads of its store must not outlive the test.
    pub(crate) async fn stop(self) {
        self.shards.cancel();
        self.replica.shutdown().await.unwrap();
    }
}

/// Returns a manifest with clusters.
pub(crate) fn clusters(names: &[&str], timeout: &str) -> String {
    let cluster = |name: &&str| {
        format!(
            "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: {name}\n  \
             connect_timeout: {timeout}\n"
        )
    };
    format!("resources:\n{}", names.iter().map(cluster).collect::<String>())
}

/// A delta client on an aggregated stream.
pub(crate) struct Client {
    intake: RequestSink,
    outlet: ResponseSource,
    node: Option<Arc<Node>>,
}

impl Client {
    pub(crate) fn open(server: &Server, id: &str) -> Self {
        Self::open_as(server, Node { id: id.to_owned(), ..Node::default() })
    }

    /// Opens a stream of a node of the cluster `edge`.
    pub(crate) fn open_as(server: &Server, node: Node) -> Self {
        Self::open_from(server, node, "127.0.0.1:4242")
    }

    /// Opens a stream of a node of the cluster `edge` from an address.
    pub(crate) fn open_from(server: &Server, node: Node, peer: &str) -> Self {
        let kind = StreamKind { protocol: Protocol::Delta, type_url: None };
        let peer = peer.parse().unwrap();
        let (intake, outlet) =
            server.fanout.open(StreamInfo { kind, peer, identity: None }).unwrap();
        let node = Node { cluster: "edge".to_owned(), ..node };
        Self { intake, outlet, node: Some(Arc::new(node)) }
    }

    async fn request(&mut self, request: DeltaRequest) {
        self.intake.request(Discovery::Delta(request), self.node.take(), None).await.unwrap();
    }

    /// Subscribes to all resources of a type.
    pub(crate) async fn subscribe(&mut self, type_url: &str) {
        self.request(DeltaRequest { type_url: type_url.to_owned(), ..DeltaRequest::default() })
            .await;
    }

    /// Subscribes to named resources of a type.
    pub(crate) async fn subscribe_to(&mut self, type_url: &str, names: &[&str]) {
        let subscribe = names.iter().map(|name| (*name).to_owned()).collect();
        let type_url = type_url.to_owned();
        self.request(DeltaRequest { type_url, subscribe, ..DeltaRequest::default() }).await;
    }

    /// Returns the next response.
    pub(crate) async fn response(&mut self) -> DeltaDiscoveryResponse {
        let next = poll_fn(|cx| self.outlet.poll_next(cx));
        match tokio::time::timeout(DEADLINE, next).await.expect("a response in time") {
            Delivery::Message(message) => {
                let bytes: Vec<u8> = message.flat_map(|chunk| chunk.to_vec()).collect();
                DeltaDiscoveryResponse::decode(&bytes[..]).unwrap()
            }
            Delivery::End(end) => panic!("the stream has ended: {end:?}"),
        }
    }

    /// Acknowledges a response, and takes nothing else.
    pub(crate) async fn acknowledge(&mut self, response: &DeltaDiscoveryResponse) {
        let type_url = response.type_url.to_string();
        let response_nonce = response.nonce.to_string();
        self.request(DeltaRequest { type_url, response_nonce, ..DeltaRequest::default() }).await;
    }

    /// Acknowledges a response, or rejects it with a message.
    pub(crate) async fn answer(&mut self, response: &DeltaDiscoveryResponse, nack: Option<&str>) {
        let error_detail =
            nack.map(|message| ErrorDetail { code: 13, message: message.to_owned() });
        self.request(DeltaRequest {
            type_url: response.type_url.to_string(),
            response_nonce: response.nonce.to_string(),
            error_detail,
            ..DeltaRequest::default()
        })
        .await;
        // The poll for the next message shows the shard that the transport has taken the response.
        poll_fn(|cx| {
            let next = self.outlet.poll_next(cx);
            assert!(next.is_pending(), "nothing else is sent: {next:?}");
            Poll::Ready(())
        })
        .await;
    }
}

/// Polls `probe` until it returns a value.
pub(crate) async fn eventually<T>(mut probe: impl AsyncFnMut() -> Option<T>, what: &str) -> T {
    let probing = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, probing).await.unwrap_or_else(|_| panic!("never: {what}"))
}
