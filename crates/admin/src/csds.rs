//! The status of clients, resource by resource (CSDS): the clients that a request selects, and what
//! each has of its resources.
//!
//! Each replica answers for its streams, and one replica joins the answers, unless the caller asks only for its own
//! streams (CSDS-13). The shards return small pages, so that an answer never delays delivery (CSDS-15). A large job of [`crate::work`] then compares,
//! redacts and converts the pages.

mod grpc;
pub(crate) mod matcher;
mod node;
mod parts;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_fanout::{StreamContents, StreamStatus};
use chancery_model::{Resource, ScopeName, Target, TypeUrl, Verb, types::SECRET};
use chancery_proto::{
    csds::{
        ClientConfig, ClientStatusRequest, ClientStatusResponse, ConfigStatus, GenericXdsConfig,
        UpdateFailureState,
    },
    discovery::Any,
    envoy_pool,
};
use chancery_protocol::{
    ContentsPage, ContentsReader, NOT_FOUND_TEXT, Protocol, ResourceState, ResourceStatus,
};
use chancery_raft_proto::v1::FindNode;
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::{self, Elsewhere, FleetRequest},
    nodes,
    nodes::INLINE_STREAMS_MAX,
    record::{SecretsRead, record_secrets_read},
    redact,
    work::Size,
};

pub(crate) use grpc::{GrpcCsds, descriptors};
use matcher::Matchers;

/// The maximum size of a request in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The maximum size of an answer in bytes, as estimated while it is collected.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The estimated size of a stream and of a resource, without names and contents.
const STREAM_BYTES: usize = 256;
const RESOURCE_BYTES: usize = 128;
/// The header that names the replicas whose clients an answer has (CSDS-13): `replica=1,2,3`.
pub(crate) const SCOPE_HEADER: &str = "x-chancery-scope";

/// The header of a gRPC call with which it asks only for the streams of the answering replica.
pub(crate) const LOCAL_HEADER: &str = "x-chancery-local";

/// The header with the number of replicas whose clients an answer lacks.
pub(crate) const NOT_ASKED_HEADER: &str = "x-chancery-replicas-not-asked";

/// The header with these replicas, each with the reason, as a JSON array. Absent if the request is for one replica.
pub(crate) const REASONS_HEADER: &str = "x-chancery-not-asked";

/// The maximum length of a reason in this header, in characters.
const REASON_CHARS_MAX: usize = 200;

/// The request in the error of a caller who may not see contents.
const WHAT: &str = "get the resources of a selected client (or exclude_resource_contents)";

/// The pages of one stream.
struct Collected {
    stream: StreamStatus,
    types: Vec<(TypeUrl, Vec<ContentsPage>)>,
}

/// The remaining size of an answer.
struct Budget(usize);

impl Budget {
    fn spend(&mut self, bytes: usize) -> Result<(), AdminError> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            AdminError::TooLarge(format!(
                "the answer has more than {ANSWER_BYTES_MAX} bytes, the maximum; select fewer clients \
                 with `node_matchers`, or set `exclude_resource_contents`"
            ))
        })?;
        Ok(())
    }
}

/// The clients of an answer, and what it covers.
pub(crate) struct ClientStatus<T> {
    pub(crate) clients: Vec<T>,
    pub(crate) coverage: Coverage,
}

/// The replicas whose clients an answer has, and those whose clients it lacks.
pub(crate) struct Coverage {
    /// The value of [`SCOPE_HEADER`].
    pub(crate) scope: String,
    pub(crate) n_not_asked: u64,
    /// The replicas that have not answered, each with the reason.
    pub(crate) not_asked: Vec<pb::ReplicaNotAsked>,
}

impl Coverage {
    fn of<T>(ctx: &Ctx, there: &Elsewhere<T>) -> Self {
        let mut replicas = vec![ctx.deps.replica.id()];
        replicas.extend(&there.answered);
        replicas.sort_unstable();
        let replicas: Vec<String> = replicas.iter().map(ToString::to_string).collect();
        Self {
            scope: format!("replica={}", replicas.join(",")),
            n_not_asked: there.n_not_asked,
            not_asked: there.not_asked.clone(),
        }
    }

    /// Returns the headers of the answer (CSDS-13). Their values are ASCII.
    pub(crate) fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            (SCOPE_HEADER, self.scope.clone()),
            (NOT_ASKED_HEADER, self.n_not_asked.to_string()),
        ];
        if !self.not_asked.is_empty() {
            headers.push((REASONS_HEADER, reasons(&self.not_asked)));
        }
        headers
    }
}

/// Returns the replicas that have not answered as JSON in ASCII: an array with the fields of `not_asked` in other answers.
fn reasons(not_asked: &[pb::ReplicaNotAsked]) -> String {
    let entry = |one: &pb::ReplicaNotAsked| {
        let message: String = one.message.chars().take(REASON_CHARS_MAX).collect();
        json!({"replica_id": one.replica_id, "reason": one.reason, "message": message})
    };
    let json = Value::from(not_asked.iter().map(entry).collect::<Vec<_>>()).to_string();
    let mut ascii = String::with_capacity(json.len());
    for one in json.chars() {
        if matches!(one, ' '..='~') {
            ascii.push(one);
        } else {
            let mut units = [0; 2];
            for unit in one.encode_utf16(&mut units) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    ascii
}

/// Returns the clients of all replicas that a request selects, each converted by `show`. Of this replica, if `is_local`.
pub(crate) async fn client_status<T: Send + 'static>(
    ctx: &Ctx,
    request: ClientStatusRequest,
    is_local: bool,
    show: impl Fn(ClientConfig) -> T + Clone + Send + 'static,
) -> Result<ClientStatus<T>, AdminError> {
    let there = fleet::ask_unless(is_local, ctx, &request).await;
    let mut clients = client_status_here(ctx, request, show.clone()).await?;
    let coverage = Coverage::of(ctx, &there);
    let elsewhere = there.into_replies().flat_map(|reply| reply.config);
    clients.extend(elsewhere.map(show));
    Ok(ClientStatus { clients, coverage })
}

/// Returns the replicas that answer now, and the others.
pub(crate) async fn covered(ctx: &Ctx, is_local: bool) -> Coverage {
    let there = fleet::ask_unless(is_local, ctx, &FindNode::default()).await;
    Coverage::of(ctx, &there)
}

impl Needs for ClientStatusRequest {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for ClientStatusRequest {
    const NAME: &'static str = "envoy.service.status.v3.ClientStatusRequest";
    type Reply = ClientStatusResponse;

    async fn answer_here(self, ctx: &Ctx) -> Result<ClientStatusResponse, AdminError> {
        let config = client_status_here(ctx, self, |config| config).await?;
        Ok(ClientStatusResponse { config })
    }
}

/// Returns the clients of this replica that a request selects, each converted by `show`.
async fn client_status_here<T: Send + 'static>(
    ctx: &Ctx,
    request: ClientStatusRequest,
    show: impl Fn(ClientConfig) -> T + Send + 'static,
) -> Result<Vec<T>, AdminError> {
    ctx.authorize(Verb::Nodes, Target::Cluster)?;
    let matchers = Matchers::new(&request.node_matchers)?;
    let permit = Arc::clone(&ctx.deps.csds_answers).acquire_owned().await;
    let _permit = permit.map_err(|error| AdminError::Internal(error.to_string()))?;
    let streams = nodes::streams(ctx).await?;
    let size = Size::of(streams.len() <= INLINE_STREAMS_MAX);
    let select = move || {
        let selected = streams.into_iter().filter(|stream| matchers.select(&stream.node));
        let mut selected: Vec<StreamStatus> = selected.collect();
        selected.sort_by(|a, b| (&a.node.id, a.since, a.id.0).cmp(&(&b.node.id, b.since, b.id.0)));
        selected
    };
    let selected = ctx.deps.work.run(size, select).await?;
    let with_contents = !request.exclude_resource_contents;
    if with_contents {
        selected.iter().try_for_each(|stream| check_scopes(ctx, Some(&stream.scopes), WHAT))?;
    }
    let mut budget = Budget(ANSWER_BYTES_MAX);
    let mut collected = Vec::new();
    for stream in selected {
        collected.extend(collect(ctx, stream, with_contents, &mut budget).await?);
    }
    let n_secrets: usize = collected.iter().map(Collected::n_secrets).sum();
    if n_secrets > 0 {
        let read = SecretsRead {
            operation: "csds",
            scope: "",
            name: "",
            n_secrets,
            with_bodies: with_contents,
        };
        record_secrets_read(ctx, read).await?;
    }
    let build = move |stop: &Arc<AtomicBool>| {
        let mut builder =
            Builder { now: SystemTime::now(), with_contents, redacted: HashMap::new() };
        let configs = collected.into_iter().take_while(|_| !stop.load(Ordering::Relaxed));
        configs.map(|one| show(builder.client(one))).collect()
    };
    ctx.deps.work.run_while_awaited(Size::Large, build).await
}

/// Checks whether the caller may see the resources of a client. `None` means that their scopes are not known. `what` is the
/// request in the error.
pub(crate) fn check_scopes(
    ctx: &Ctx,
    scopes: Option<&[ScopeName]>,
    what: &str,
) -> Result<(), AdminError> {
    let may_get = match scopes {
        Some(scopes) => {
            scopes.iter().all(|scope| ctx.authorize(Verb::Get, Target::Scope(scope)).is_ok())
        }
        None => ctx.authorize(Verb::Get, Target::Cluster).is_ok(),
    };
    if may_get { Ok(()) } else { Err(ctx.denied(what)) }
}

/// Returns the pages of a stream; `None` if it has ended (CSDS-18).
async fn collect(
    ctx: &Ctx,
    stream: StreamStatus,
    with_contents: bool,
    budget: &mut Budget,
) -> Result<Option<Collected>, AdminError> {
    budget.spend(STREAM_BYTES + node::n_bytes(&stream.node))?;
    let mut types = Vec::new();
    for subscription in &stream.subscriptions {
        let type_url = &subscription.type_url;
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let contents = ctx.deps.fanout.contents(&stream.stream, type_url, after).await;
            let Some(StreamContents { page, scopes }) = contents else { return Ok(None) };
            if with_contents {
                // The client may have resources of scopes that its node no longer has.
                check_scopes(ctx, scopes.as_deref(), WHAT)?;
            }
            let contents = if with_contents { page.n_body_bytes() } else { 0 };
            budget.spend(page.n_name_bytes() + page.len() * RESOURCE_BYTES + contents)?;
            after = page.next().cloned();
            pages.push(page);
            if after.is_none() {
                break;
            }
        }
        types.push((type_url.clone(), pages));
    }
    Ok(Some(Collected { stream, types }))
}

impl Collected {
    /// Returns the number of secrets that the client knows or requests.
    fn n_secrets(&self) -> usize {
        let of_secrets = self.types.iter().filter(|(type_url, _)| type_url.as_str() == SECRET);
        of_secrets.flat_map(|(_, pages)| pages).map(ContentsPage::len).sum()
    }
}

/// Converts pages to messages.
struct Builder {
    now: SystemTime,
    with_contents: bool,
    /// The redacted bodies by the address of the resource, which the entry keeps alive.
    redacted: HashMap<usize, (Arc<Resource>, Bytes)>,
}

impl Builder {
    fn client(&mut self, Collected { stream, types }: Collected) -> ClientConfig {
        let mut configs = Vec::new();
        for (type_url, pages) in types {
            let mut reader = ContentsReader::default();
            for page in pages {
                let recorded = stream.nacks.iter().find(|nack| nack.type_url == type_url);
                let nack = page.nack().map(|nack| UpdateFailureState {
                    last_update_attempt: recorded.map(|nack| nack.time.into()),
                    details: nack.message.clone(),
                    version_info: nack.version.to_string(),
                });
                let resources = reader.read(page).into_iter();
                configs.extend(resources.map(|resource| {
                    self.resource(&type_url, resource, nack.as_ref(), stream.protocol)
                }));
            }
        }
        ClientConfig {
            node: Some(node::show(&stream.node)),
            generic_xds_configs: configs,
            client_scope: scope(&stream),
        }
    }

    fn resource(
        &mut self,
        type_url: &TypeUrl,
        status: ResourceStatus,
        nack: Option<&UpdateFailureState>,
        protocol: Protocol,
    ) -> GenericXdsConfig {
        let ResourceStatus { name, state, resource, version, sent_ms_ago, is_reported, .. } =
            status;
        let missing = is_reported.then(|| UpdateFailureState {
            details: format!("NOT_FOUND: {NOT_FOUND_TEXT}"),
            ..UpdateFailureState::default()
        });
        let error_state = nack.filter(|_| state == ResourceState::Rejected).cloned();
        let error_state = error_state.map(|mut error| {
            if protocol != Protocol::Sotw {
                error.version_info.clone_from(&version);
            }
            error
        });
        // The server has no body of a resource that was removed since an earlier stream.
        let known = resource.filter(|resource| self.with_contents && resource.body_len() > 0);
        let value = known.and_then(|resource| self.redacted(type_url, &resource));
        let xds_config =
            value.map(|value| Any { type_url: type_url.message_url().to_owned(), value });
        let config_status = match state {
            ResourceState::Unknown => ConfigStatus::Unknown,
            ResourceState::Synced => ConfigStatus::Synced,
            ResourceState::NotSent => ConfigStatus::NotSent,
            ResourceState::Stale => ConfigStatus::Stale,
            ResourceState::Rejected => ConfigStatus::Error,
        };
        GenericXdsConfig {
            type_url: type_url.to_string(),
            name: name.to_string(),
            version_info: version,
            xds_config,
            last_updated: sent_ms_ago.map(|ms_ago| self.before(ms_ago)),
            config_status: config_status.into(),
            // ERR-18: the error that the client is sent.
            error_state: error_state.or(missing),
        }
    }

    /// Returns the body of a resource without secrets (CSDS-14); `None` if it is not opened.
    fn redacted(&mut self, type_url: &TypeUrl, resource: &Arc<Resource>) -> Option<Bytes> {
        let body = resource.body()?;
        let entry = self.redacted.entry(Arc::as_ptr(resource) as usize).or_insert_with(|| {
            (Arc::clone(resource), chancery_admission::redacted(type_url, &body))
        });
        Some(entry.1.clone())
    }

    fn before(&self, ms_ago: u64) -> prost_types::Timestamp {
        let time = self.now.checked_sub(Duration::from_millis(ms_ago)).unwrap_or(self.now);
        prost_types::Timestamp::from(time)
    }
}

/// Returns the name of a stream, which tells the streams of one client apart (CSDS-20).
fn scope(stream: &StreamStatus) -> String {
    let protocol = stream.protocol.as_str();
    let of = stream.type_url.as_ref().map_or("ads", |type_url| type_url.message_name());
    format!("{of} {protocol} {} {}", stream.peer, stream.id.0)
}

/// Reads a request in proto JSON. An empty text is a request without fields.
pub(crate) fn from_json(text: &str) -> Result<ClientStatusRequest, AdminError> {
    const NAME: &str = "envoy.service.status.v3.ClientStatusRequest";
    if text.trim().is_empty() {
        return Ok(ClientStatusRequest::default());
    }
    let invalid = |error: &dyn std::fmt::Display| {
        AdminError::Parameter(format!("the request body is not a ClientStatusRequest: {error}"))
    };
    let message = envoy_pool().get_message_by_name(NAME);
    let message = message.ok_or_else(|| AdminError::Internal(format!("{NAME} is unknown")))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let message =
        DynamicMessage::deserialize(message, &mut json).map_err(|error| invalid(&error))?;
    json.end().map_err(|error| invalid(&error))?;
    let bytes = Bytes::from(message.encode_to_vec());
    ClientStatusRequest::decode(bytes).map_err(|error| invalid(&error))
}

/// Returns a client as proto JSON with the field names of the .proto.
pub(crate) fn to_json(config: &ClientConfig) -> String {
    const URL: &str = "type.googleapis.com/envoy.service.status.v3.ClientConfig";
    let any = prost_types::Any { type_url: URL.to_owned(), value: config.encode_to_vec() };
    let mut json = redact::body_to_json(&any);
    if let Some(fields) = json.as_object_mut() {
        fields.remove("@type");
    }
    json.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header had only the number of the replicas whose clients an answer lacks.
    #[test]
    fn header_names_the_missing_replicas_with_their_reasons_in_ascii() {
        let missing = |replica_id, message: &str| pb::ReplicaNotAsked {
            replica_id,
            reason: "failed".to_owned(),
            message: message.to_owned(),
        };
        let not_asked =
            vec![missing(2, "is \"é\r\n\u{1f600}\u{202e}"), missing(3, &"x".repeat(5000))];
        let scope = "replica=1".to_owned();
        let coverage = Coverage { scope, n_not_asked: 2, not_asked: not_asked.clone() };
        let headers = coverage.headers();
        assert_eq!(headers[1], (NOT_ASKED_HEADER, "2".to_owned()));
        let (name, value) = &headers[2];
        assert_eq!(*name, REASONS_HEADER);
        assert!(
            value.len() < 600 && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{value}"
        );
        let parsed: Value = serde_json::from_str(value).unwrap();
        assert_eq!(
            parsed[0],
            json!({"replica_id": 2, "reason": "failed", "message": not_asked[0].message})
        );
        assert_eq!(parsed[1]["message"].as_str().unwrap().len(), REASON_CHARS_MAX);
        let whole = Coverage { n_not_asked: 0, not_asked: Vec::new(), ..coverage };
        assert_eq!(whole.headers().len(), 2);
    }
}
