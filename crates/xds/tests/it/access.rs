//! Access rules on the port for clients: every method, changes of rights during a stream, and secrets.

use std::{sync::Arc, time::Duration};

use chancery_auth::{AuthSettings, Authenticator, digest_of, new_token};
use chancery_fanout::{AccessControl, ClientEventKind, ClientObserver};
use chancery_load::{Limits, LoadReports, Settings};
use chancery_model::{
    AccessOp, AccessRule, Assignment, AssignmentOp, IdentityPattern, IdentityQuota, NodeBinding,
    Revision, ScopeTemplate, SecretsGrant, Template, Token, Transaction, Variables, types::SECRET,
};
use chancery_proto::{
    discovery::DeltaDiscoveryRequest,
    lrs::{LoadStatsRequest, LoadStatsResponse},
};
use parking_lot::Mutex;
use prost::Message;
use tonic::{Code, service::Interceptor, service::interceptor::InterceptedService};

use crate::{lrs::LRS, support::*};

/// A server on which access rules apply, and the token of a client.
pub(crate) struct Guarded {
    pub(crate) server: Server,
    pub(crate) token: String,
}

/// The settings of a guarded server.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) rule: Option<AccessRule>,
    pub(crate) auth: AuthSettings,
    pub(crate) observer: ClientObserver,
    pub(crate) resource_errors: bool,
    pub(crate) connections_max: Option<usize>,
}

/// Adds a token to each call.
#[derive(Clone)]
struct Bearer(Option<String>);

impl Interceptor for Bearer {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(token) = &self.0 {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

pub(crate) fn rule(name: &str, read: &[&str], secrets: &[&str]) -> AccessRule {
    let identities = vec![IdentityPattern::parse("token:{name}").unwrap()];
    let templates = |sources: &[&str]| -> Vec<Template> {
        let variables = Variables { identities: &identities, node: true };
        sources.iter().map(|source| Template::parse(source, variables).unwrap()).collect()
    };
    let id = Variables { identities: &identities, node: false };
    AccessRule {
        name: name.into(),
        refuse: false,
        node: NodeBinding {
            id: Some(Template::parse("{name}", id).unwrap()),
            ..NodeBinding::default()
        },
        read: templates(read),
        secrets: SecretsGrant {
            scopes: templates(secrets),
            names: vec![Template::parse("{name}-*", id).unwrap()],
        },
        allow: Vec::new(),
        deny: Vec::new(),
        quota: IdentityQuota::default(),
        identities,
    }
}

impl Guarded {
    /// Starts a server with a token of the name `n1`, and gives it the rule.
    pub(crate) async fn start(rule: Option<AccessRule>) -> Self {
        Self::start_as(Setup { rule, ..Setup::default() }).await
    }

    async fn start_with(
        rule: Option<AccessRule>,
        auth: AuthSettings,
        observer: ClientObserver,
    ) -> Self {
        Self::start_as(Setup { rule, auth, observer, ..Setup::default() }).await
    }

    pub(crate) async fn start_as(setup: Setup) -> Self {
        let Setup { rule, auth, observer, resource_errors, connections_max } = setup;
        let reports = LoadReports::new(Settings::default(), Limits::default()).unwrap();
        let config = rest_config();
        let config = chancery_xds::Config {
            auth: Some(Authenticator::new(&auth).unwrap()),
            v2_services: true,
            load_reports: Some(reports),
            connections_max: connections_max.unwrap_or(config.connections_max),
            ..config
        };
        let access = AccessControl::Enforced;
        let mut fanout = chancery_fanout::Config { access, observer, ..fanout_config() };
        fanout.session.resource_errors = resource_errors;
        let server = Server::with(config, fanout).await;
        let new = new_token("n1").unwrap();
        let token = Token {
            name: "n1".into(),
            digest: new.digest,
            created_ms: 0,
            expires_ms: u64::MAX,
            revision: Revision(0),
        };
        let rule = rule.map(|rule| AccessOp::PutRule(Box::new(rule)));
        let access = rule.into_iter().chain([AccessOp::AddToken(token)]).collect();
        server.apply(&Transaction { access, ..Transaction::default() });
        server.put(CDS, &[("a", "1"), ("b", "1")]);
        Self { server, token: new.text.clone() }
    }

    fn change(&self, op: AccessOp) {
        self.server.apply(&Transaction { access: vec![op], ..Transaction::default() });
    }

    pub(crate) async fn delta(
        &self,
        path: &'static str,
        token: Option<&str>,
    ) -> Result<Delta, tonic::Status> {
        self.open(path, token).await
    }

    /// Opens a stream of any protocol.
    pub(crate) async fn open<Q, R>(
        &self,
        path: &'static str,
        token: Option<&str>,
    ) -> Result<Client<Q, R>, tonic::Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let bearer = Bearer(token.map(str::to_owned));
        let channel = InterceptedService::new(self.server.channel().await, bearer);
        Client::open_on(channel, path).await
    }

    /// Opens a stream that has received all clusters.
    async fn synced(&self) -> Delta {
        let mut stream = self.delta(DELTA_ADS, Some(&self.token)).await.unwrap();
        stream.subscribe(CDS, &[]).await;
        let response = stream.next().await;
        assert_eq!(names(&response), ["a", "b"]);
        stream.ack(&response).await;
        stream
    }
}

/// Returns the end of a stream that must receive nothing before it.
pub(crate) async fn end_without_response<Q, R>(mut stream: Client<Q, R>) -> tonic::Status
where
    Q: Message + 'static,
    R: Message + Default + std::fmt::Debug + 'static,
{
    match tokio::time::timeout(PATIENCE, stream.responses.message()).await.expect("an end in time")
    {
        Ok(Some(response)) => panic!("the stream has received {response:?}"),
        Ok(None) => stream.end().await,
        Err(status) => status,
    }
}

/// Attack 24: every method of the port needs a credential. A credential without a rule gives nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_needs_a_credential_and_a_rule() {
    let guarded = Guarded::start(None).await;
    for path in chancery_xds::served_paths() {
        let path: &'static str = Box::leak(path.into_boxed_str());
        if path.contains("/discovery:") {
            let reply = Http1::connect(&guarded.server).await.post(path, &poll("", &[])).await;
            assert_eq!(reply.status, 401, "{path}: {}", reply.error());
            let mut client = Http1::connect(&guarded.server).await;
            let reply = client.post_as(path, OWN_POLL, &guarded.token).await;
            assert_eq!(reply.status, 403, "{path}: {}", reply.error());
            continue;
        }
        let status =
            guarded.delta(path, None).await.err().unwrap_or_else(|| panic!("{path} is open"));
        assert_eq!(status.code(), Code::Unauthenticated, "{path}: {status:?}");
        let stream = match guarded.delta(path, Some(&guarded.token)).await {
            Ok(stream) => stream,
            Err(status) => panic!("{path}: {status:?}"),
        };
        // The first message of each protocol has the node in field 1.
        stream
            .send(DeltaDiscoveryRequest {
                node: node("n1"),
                type_url: CDS.into(),
                ..Default::default()
            })
            .await;
        let status = end_without_response(stream).await;
        let refused = [Code::PermissionDenied, Code::InvalidArgument].contains(&status.code());
        assert!(refused, "{path}: {status:?}");
    }
    guarded.server.until_no_stream().await;
}

/// Attack 25: a poll and a unary call on the connection of a valid stream have no credential of their own, and are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_beside_a_valid_stream_needs_its_own_credential() {
    let guarded = Guarded::start(Some(rule("r", &["default"], &[]))).await;
    let mut client = http2(&guarded.server).await;
    let bearer = format!("Bearer {}", guarded.token);
    let request = grpc(DELTA_ADS).header("authorization", &bearer).body(()).unwrap();
    let mut stream = call_on(client.clone(), request).await;
    assert!(stream.send_all(subscription("n1")).await);
    let response = stream.next().await;
    assert_eq!(names(&response), ["a", "b"]);

    let reply = post2(&mut client, REST_CDS, &poll("", &[])).await;
    assert_eq!(reply.status, 401, "{}", reply.error());
    for path in
        ["/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters", DELTA_ADS, SOTW_ADS]
    {
        let unary = call_on(client.clone(), grpc(path).body(()).unwrap()).await;
        let (status, _) = unary.status().await;
        let refused = [Code::Unauthenticated as i32, Code::Unimplemented as i32].contains(&status);
        assert!(refused, "{path}: {status}");
    }
    // The stream with the credential continues.
    stream.ack(&response);
    guarded.server.put(CDS, &[("c", "1")]);
    assert_eq!(names(&stream.next().await), ["c"]);
}

/// Attacks 14 and 26: another node ID, a wrong token, and a token that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_receives_only_its_own_node() {
    let guarded = Guarded::start(Some(rule("r", &["default"], &[]))).await;
    drop(guarded.synced().await);
    let stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    let other =
        DeltaDiscoveryRequest { type_url: CDS.into(), node: node("n2"), ..Default::default() };
    stream.send(other).await;
    let status = end_without_response(stream).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(!status.message().contains("n1"), "{status:?}");
    let forged = new_token("n1").unwrap().text.clone();
    let status = guarded.delta(DELTA_ADS, Some(&forged)).await.err().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_ne!(digest_of(&forged), digest_of(&guarded.token));
}

/// Attack 16: a node that changes to another one during the stream ends it, and nothing more is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_node_is_checked_again() {
    let mut binding = rule("r", &["default"], &[]);
    let variables = Variables { identities: &binding.identities, node: false };
    let zone = Template::parse("a", variables).unwrap();
    binding.node.metadata = [("zone".to_owned(), zone)].into();
    let guarded = Guarded::start(Some(binding)).await;
    let stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    let with_zone = |zone: &str| DeltaDiscoveryRequest {
        type_url: CDS.into(),
        node: Some(large_node("n1", [("zone".to_owned(), zone.to_owned())])),
        ..DeltaDiscoveryRequest::default()
    };
    let mut stream = stream;
    stream.send(with_zone("a")).await;
    let response = stream.next().await;
    assert_eq!(names(&response), ["a", "b"]);
    stream.ack(&response).await;
    stream.send(with_zone("b")).await;
    let status = end_without_response(stream).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
}

/// Attack 36, and property (c): a client that loses its rights receives OK and no removal. Its next stream is
/// refused. Other clients notice nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_client_is_ended_and_keeps_its_resources() {
    let guarded = Guarded::start(Some(rule("r", &["default"], &[]))).await;
    for op in [
        AccessOp::DeleteRule("r".into()),
        AccessOp::PutRule(Box::new(rule("r", &["other"], &[]))),
        AccessOp::DeleteToken(digest_of(&guarded.token)),
    ] {
        let mut stream = guarded.synced().await;
        // An unrelated rule changes nothing for the stream.
        guarded.change(AccessOp::PutRule(Box::new(rule("unrelated", &["default"], &[]))));
        guarded.change(AccessOp::DeleteRule("unrelated".into()));
        guarded.server.put(CDS, &[("c", "1")]);
        let response = stream.next().await;
        assert_eq!(names(&response), ["c"]);
        stream.ack(&response).await;
        guarded.server.delete(CDS, &["c"]);
        let response = stream.next().await;
        assert_eq!(response.removed_resources, ["c"]);
        stream.ack(&response).await;

        let is_token = matches!(op, AccessOp::DeleteToken(_));
        guarded.change(op);
        let status = end_without_response(stream).await;
        assert_eq!(status.code(), Code::Ok, "{status:?}");
        match guarded.delta(DELTA_ADS, Some(&guarded.token)).await {
            Err(status) => {
                assert!(is_token && status.code() == Code::Unauthenticated, "{status:?}")
            }
            Ok(stream) => {
                stream.subscribe(CDS, &[]).await;
                let status = end_without_response(stream).await;
                assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
            }
        }
        guarded.change(AccessOp::PutRule(Box::new(rule("r", &["default"], &[]))));
    }
}

/// Attack 56: load reports count for the rate of an identity, as all messages of streams do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_reports_count_for_the_rate_of_an_identity() {
    let quota = IdentityQuota { requests_per_second: Some(4), ..IdentityQuota::default() };
    let limited = AccessRule { quota, ..rule("r", &["default"], &[]) };
    let guarded = Guarded::start(Some(limited)).await;
    let mut stream: Client<LoadStatsRequest, LoadStatsResponse> =
        guarded.open(LRS, Some(&guarded.token)).await.unwrap();
    // Fewer than a stream may send at once, whatever its identity is.
    for _ in 0..50 {
        stream.send(LoadStatsRequest { node: node("n1"), cluster_stats: Vec::new() }).await;
    }
    let status = stream.end().await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let text = "the identity token:n1 sends more than 4 requests per second on this replica \
                (quota.requests_per_second of its access rule); wait and try again";
    assert_eq!(status.message(), text);
}

/// Attack 69: connections whose requests have no valid credential give way to a client. Connections of clients stay.
#[tokio::test]
async fn unauthenticated_connections_are_evicted_for_clients() {
    let guarded = Guarded::start_as(Setup {
        rule: Some(rule("r", &["default"], &[])),
        connections_max: Some(3),
        ..Setup::default()
    })
    .await;
    let server = &guarded.server;
    let mut client = guarded.synced().await;
    let mut strangers = Vec::new();
    for n in 0..8 {
        // The stranger keeps its connection after the refusal of its request.
        let stranger = http2(server).await;
        let refused = call_on(stranger.clone(), grpc(DELTA_ADS).body(()).unwrap()).await;
        assert_eq!(refused.status().await.0, Code::Unauthenticated as i32, "{n}");
        strangers.push(stranger);
    }
    assert_eq!(server.hits("connections"), 6, "the oldest ones were closed");
    let mut second = guarded.synced().await;
    let mut third = guarded.synced().await;
    server.put(CDS, &[("c", "1")]);
    for stream in [&mut client, &mut second, &mut third] {
        assert_eq!(names(&stream.next().await), ["c"]);
    }
    until("the strangers are gone", async || server.ends("limit") == 8).await;
    let refused = guarded.delta(DELTA_ADS, Some(&guarded.token)).await;
    assert!(refused.is_err(), "clients keep their connections");
}

/// A stream of load reports whose client has lost its rights ends at once, although the client is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_stream_of_load_reports_ends() {
    let guarded = Guarded::start(Some(rule("r", &["default"], &[]))).await;
    let bearer = Bearer(Some(guarded.token.clone()));
    let channel = InterceptedService::new(guarded.server.channel().await, bearer);
    let mut stream: Client<LoadStatsRequest, LoadStatsResponse> =
        Client::open_on(channel, LRS).await.unwrap();
    stream.send(LoadStatsRequest { node: node("n1"), cluster_stats: Vec::new() }).await;
    stream.next().await;
    guarded.change(AccessOp::PutRule(Box::new(rule("unrelated", &["default"], &[]))));
    guarded.change(AccessOp::DeleteRule("unrelated".into()));
    guarded.change(AccessOp::DeleteRule("r".into()));
    let status = end_without_response(stream).await;
    assert_eq!(status.code(), Code::Ok, "{status:?}");
}

/// Attack 17: a scope whose variable the node lacks refuses the stream, and does not shrink the view.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_variable_refuses_the_stream() {
    let guarded = Guarded::start(Some(rule("r", &["**"], &[]))).await;
    let mut assignment: Assignment = chancery_model::default_assignment();
    let scopes = ["{metadata.team}", "default"];
    assignment.scopes = scopes.map(|scope| ScopeTemplate::parse(scope).unwrap()).to_vec();
    guarded.server.assign(AssignmentOp::Put(assignment));
    let stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    stream.subscribe(CDS, &[]).await;
    let status = end_without_response(stream).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
}

/// Attack 56: a rule limits the streams of each identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_has_a_limited_number_of_streams() {
    let limited = AccessRule {
        quota: IdentityQuota { streams: Some(2), ..Default::default() },
        ..rule("r", &["default"], &[])
    };
    let guarded = Guarded::start(Some(limited)).await;
    let first = guarded.synced().await;
    let _second = guarded.synced().await;
    let third = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    third.subscribe(CDS, &[]).await;
    let status = end_without_response(third).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("already has 2 streams"), "{status:?}");
    drop(first);
    until("a place is free", async || {
        let mut stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
        stream.subscribe(CDS, &[]).await;
        stream.responses.message().await.is_ok()
    })
    .await;
    drop(guarded);
}

/// A poll of the node `n1`.
const OWN_POLL: &str = r#"{"node": {"id": "n1", "cluster": "test"}}"#;

/// Attack 56: a rule limits the requests of each identity over all its streams and polls. Other identities are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_has_a_limited_rate_of_requests() {
    let quota = IdentityQuota { requests_per_second: Some(4), ..IdentityQuota::default() };
    let limited = AccessRule { quota, ..rule("r", &["default"], &[]) };
    let (observer, events) = recorded();
    let guarded = Guarded::start_with(Some(limited), AuthSettings::default(), observer).await;
    let mut stream = guarded.synced().await;
    // The opening of the stream and its ACK have counted. A second gives four more, so at most a few requests pass.
    let status = loop {
        stream.subscribe(CDS, &[]).await;
        match tokio::time::timeout(Duration::from_millis(1), stream.responses.message()).await {
            Ok(Ok(None)) => break stream.end().await,
            Ok(Err(status)) => break status,
            Ok(Ok(Some(_))) | Err(_) => {}
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let text = "the identity token:n1 sends more than 4 requests per second on this replica \
                (quota.requests_per_second of its access rule); wait and try again";
    assert_eq!(status.message(), text);
    let mut client = Http1::connect(&guarded.server).await;
    let refused = loop {
        let reply = client.post_as(REST_CDS, OWN_POLL, &guarded.token).await;
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!((refused.status, refused.error().as_str()), (429, text));
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(events.lock().contains(&"token:n1 refused requests_per_second".to_owned()));
    let status = guarded.delta(DELTA_ADS, None).await.err().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated, "others are not limited");
}

/// Attack 38: an address that guesses tokens is refused with another status, and cannot use a right token either until
/// it pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessed_tokens_are_refused_before_they_are_verified() {
    let settings = AuthSettings { failures_max: 5, ..AuthSettings::default() };
    let (observer, events) = recorded();
    let guarded = Guarded::start_with(Some(rule("r", &["default"], &[])), settings, observer).await;
    let mut n_verified = 0;
    let status = loop {
        let guess = new_token("n1").unwrap().text.clone();
        let status = guarded.delta(DELTA_ADS, Some(&guess)).await.err().unwrap();
        if status.code() != Code::Unauthenticated {
            break status;
        }
        n_verified += 1;
        assert!(n_verified < 100, "guesses are not limited");
    };
    assert!(n_verified >= 5, "{n_verified}");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("127.0.0.1 had more than 5 failed"), "{status:?}");
    let mut client = Http1::connect(&guarded.server).await;
    let guess = new_token("n1").unwrap().text.clone();
    let reply = client.post_as(REST_CDS, OWN_POLL, &guess).await;
    assert!(matches!(reply.status, 429 | 401), "{}", reply.status);
    let seen = events.lock().clone();
    assert!(seen.contains(&"nobody unauthenticated unknown_token".to_owned()), "{seen:?}");
    assert!(seen.contains(&"nobody unauthenticated too_many_failures".to_owned()), "{seen:?}");
    until("the address has paused", async || {
        guarded.delta(DELTA_ADS, Some(&guarded.token)).await.is_ok()
    })
    .await;
}

type Events = Arc<Mutex<Vec<String>>>;

/// Returns an observer, and what it has observed.
fn recorded() -> (ClientObserver, Events) {
    let events = Events::default();
    let seen = Arc::clone(&events);
    let observer = ClientObserver::new(move |event| {
        let who = event.principal.map_or("nobody", |principal| principal.as_str());
        seen.lock().push(match event.kind {
            ClientEventKind::Unauthenticated(reason) => format!("{who} unauthenticated {reason}"),
            ClientEventKind::Refused(reason) => format!("{who} refused {reason}"),
            ClientEventKind::SecretsSent => format!("{who} secrets {}", event.node),
        });
    });
    (observer, events)
}

/// Attack 22: the audit log learns about refused streams with their reason, and about secrets once per stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_first_secrets_are_observed() {
    let (observer, events) = recorded();
    let rule = rule("r", &["default"], &["default"]);
    let guarded = Guarded::start_with(Some(rule), AuthSettings::default(), observer).await;
    guarded.server.put(SECRET, &[("n1-key", "1")]);
    let mut stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    stream.subscribe(SECRET, &["n1-key"]).await;
    for body in ["2", "3"] {
        let response = stream.next().await;
        assert_eq!(names(&response), ["n1-key"]);
        stream.ack(&response).await;
        guarded.server.put(SECRET, &[("n1-key", body)]);
    }
    stream.next().await;
    assert_eq!(*events.lock(), ["token:n1 secrets n1"], "one event, whatever is sent later");
    drop(stream);
    assert!(guarded.delta(DELTA_ADS, None).await.is_err());
    let stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    let other =
        DeltaDiscoveryRequest { type_url: CDS.into(), node: node("n2"), ..Default::default() };
    stream.send(other).await;
    end_without_response(stream).await;
    let expected =
        ["token:n1 secrets n1", "nobody unauthenticated no_credential", "token:n1 refused node"];
    assert_eq!(*events.lock(), expected);
}
