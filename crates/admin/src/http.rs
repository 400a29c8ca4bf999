//! The operations as HTTP with JSON, and the endpoints for monitoring.
//!
//! Errors are `{"error": {"code", "message", "problems": [...]}}`. Unknown parameters are errors.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{
        Path, Query, Request, State,
        rejection::{PathRejection, QueryRejection},
    },
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use bytes::Bytes;
use chancery_proto::admin::v1 as pb;
use futures::{Stream, StreamExt, stream};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use tokio::sync::Semaphore;

use crate::{
    AdminDeps, AdminError, bounds, csds, guard,
    json::JsonMessage,
    params::Params,
    resources::{Listing, parse_type},
    service::Service,
};

/// The state of the handlers.
#[derive(Clone)]
struct Http {
    service: Service,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    metrics_permit: Arc<Semaphore>,
    request_bytes_max: u64,
}

type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Adds the HTTP routes. The fallback answers unknown paths, including those of gRPC.
pub(crate) fn add_routes(router: Router, service: Service, deps: &AdminDeps) -> Router {
    let http = Http {
        service,
        metrics: Arc::clone(&deps.metrics),
        metrics_permit: Arc::new(Semaphore::new(1)),
        request_bytes_max: deps.request_bytes_max,
    };
    let ours = Router::new()
        .route("/v1/apply", only(post(apply)))
        .route("/v1/import", only(post(import)))
        .route("/v1/resources", only(get(list_resources).delete(delete_resources)))
        .route("/v1/describe", only(get(describe)))
        .route("/v1/nodes", only(get(list_nodes)))
        .route("/v1/nodes/{*id}", only(get(get_node)))
        .route("/v1/explain", only(get(explain)))
        .route("/v1/assignments", only(get(list_assignments).delete(delete_assignment)))
        .route("/v1/cluster", only(get(get_cluster)))
        .route("/v1/cluster/members", only(post(add_member).delete(remove_member)))
        .route("/v1/cluster/promote", only(post(promote_member)))
        .route("/v1/cluster/transfer-leader", only(post(transfer_leader)))
        .route("/v1/cluster/snapshot", only(post(take_snapshot)))
        .route("/v1/history", only(get(list_history)))
        .route("/v1/version", only(get(get_version)))
        .route("/v1/load", only(get(get_load)))
        .route("/v1/load/settings", only(post(set_load_settings)))
        .route("/v1/mcp", only(get(mcp_status)))
        .route("/v1/mcp/confirm", only(post(confirm_mcp_deletion)))
        .route("/v3/discovery:client_status", only(post(client_status)))
        .route("/metrics", only(get(metrics)))
        .route("/healthz", only(get(healthz)))
        .route("/readyz", only(get(readyz)))
        .with_state(http);
    let hosts = guard::Hosts::new(deps.hosts.iter().map(String::as_str));
    (router.merge(ours).fallback(unknown_path))
        .layer(middleware::from_fn(bounds::refuse_many_fields))
        .layer(middleware::from_fn_with_state(hosts, guard::refuse_web_pages))
}

/// Rejects other methods on a known path with an error of this API.
fn only(methods: MethodRouter<Http>) -> MethodRouter<Http> {
    methods.fallback(|method: Method, uri: Uri| async move {
        AdminError::Method(format!("{} does not support {method}", uri.path())).into_response()
    })
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let (status, _) = self.http();
        (status, json(&self.to_response())).into_response()
    }
}

fn json<M: JsonMessage>(message: &M) -> Response {
    json_body(Body::from(message.to_json().to_string()))
}

fn json_body(body: Body) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

fn answer<M: JsonMessage>(result: Result<M, AdminError>) -> Response {
    match result {
        Ok(message) => json(&message),
        Err(error) => error.into_response(),
    }
}

fn params(pairs: Pairs) -> Result<Params, AdminError> {
    match pairs {
        Ok(Query(pairs)) => Ok(Params::new(pairs)),
        Err(error) => Err(AdminError::Parameter(error.body_text())),
    }
}

async fn apply(State(http): State<Http>, pairs: Pairs, request: Request) -> Response {
    let apply = async {
        let mut params = params(pairs)?;
        let mut apply = pb::ApplyRequest {
            files: Vec::new(),
            scope: params.text("scope")?,
            prune: params.flag("prune")?,
            name: params.text("name")?,
            options: Some(params.write_options()?),
        };
        params.finish()?;
        apply.files.push(http.manifest(request).await?);
        http.service.apply(apply).await
    };
    answer(apply.await)
}

async fn import(State(http): State<Http>, pairs: Pairs, request: Request) -> Response {
    let import = async {
        let mut params = params(pairs)?;
        let (scope, name) = (params.text("scope")?, params.text("name")?);
        let options = Some(params.write_options()?);
        params.finish()?;
        let file = Some(http.manifest(request).await?);
        http.service.import(pb::ImportRequest { file, scope, options, name }).await
    };
    answer(import.await)
}

impl Http {
    /// Reads the body of a request as a manifest.
    async fn manifest(&self, request: Request) -> Result<pb::File, AdminError> {
        let max = self.request_bytes_max;
        let content = body_text(request, max, " (admin.request_bytes_max)").await?;
        Ok(pb::File { name: "request body".to_owned(), content })
    }
}

/// Reads the body of a request as text of at most `max` bytes. `key` names the setting of the limit.
async fn body_text(request: Request, max: u64, key: &str) -> Result<String, AdminError> {
    let too_large =
        || AdminError::TooLarge(format!("the request has more than {max} bytes, the maximum{key}"));
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > max) {
        return Err(too_large());
    }
    let limit = usize::try_from(max).unwrap_or(usize::MAX);
    let bytes = to_bytes(request.into_body(), limit).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        match source.is_some_and(|s| s.to_string().contains("length limit exceeded")) {
            true => too_large(),
            false => AdminError::Parameter(format!("the request body ended early: {error}")),
        }
    })?;
    String::from_utf8(bytes.into()).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        AdminError::Parameter(format!("byte {at} of the request body is not UTF-8 text"))
    })
}

async fn list_resources(State(http): State<Http>, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let request = pb::ListResourcesRequest {
            r#type: params.text("type")?,
            name: params.text("name")?,
            scope: params.text("scope")?,
            view_of_node: params.text("view_of_node")?,
            without_body: params.flag("without_body")?,
            stale: params.flag("stale")?,
            dynamic_parameters: params.pairs("parameter")?,
        };
        params.finish()?;
        http.service.list_resources(request).await
    };
    match list.await {
        Ok(listing) => json_body(stream_list(listing)),
        Err(error) => error.into_response(),
    }
}

/// Returns resources as JSON in the form of one `ListResourcesResponse`.
fn stream_list(listing: Listing) -> Body {
    let head = format!("{{\"revision\":{},\"resources\":[", listing.revision());
    stream_json(head, listing.into_stream().map(|piece| piece.resources))
}

/// Returns a list as JSON. Only one piece at a time is in memory.
fn stream_json<M: JsonMessage>(
    head: String,
    pieces: impl Stream<Item = Vec<M>> + Send + 'static,
) -> Body {
    let mut separator = "";
    let pieces = pieces.map(move |items| {
        let mut text = String::new();
        for item in &items {
            text.push_str(separator);
            text.push_str(&item.to_json().to_string());
            separator = ",";
        }
        Bytes::from(text)
    });
    let head = stream::once(async { Bytes::from(head) });
    let tail = stream::once(async { Bytes::from_static(b"]}") });
    Body::from_stream(head.chain(pieces).chain(tail).map(Ok::<_, Infallible>))
}

async fn delete_resources(State(http): State<Http>, pairs: Pairs) -> Response {
    let delete = async {
        let mut params = params(pairs)?;
        let type_name = params.text("type")?;
        let names = params.list("name");
        let scope = params.text("scope")?;
        let if_version = params.text("if_version")?;
        let dynamic_parameters = params.pairs("parameter")?;
        let options = Some(params.write_options()?);
        params.finish()?;
        if names.len() > 1 && !if_version.is_empty() {
            let n = names.len();
            let text = format!("if_version applies to one resource, but {n} are named");
            return Err(AdminError::Parameter(text));
        }
        if type_name.is_empty() || names.is_empty() {
            let text =
                "a delete needs the parameters type and name; repeat name for several resources";
            return Err(AdminError::Parameter(text.to_owned()));
        }
        parse_type(&type_name)?;
        let resources = names
            .into_iter()
            .map(|name| {
                let (r#type, if_version) = (type_name.clone(), if_version.clone());
                let dynamic_parameters = dynamic_parameters.clone();
                pb::ResourceRef { r#type, name, if_version, dynamic_parameters }
            })
            .collect();
        http.service.delete(pb::DeleteRequest { resources, scope, options }).await
    };
    answer(delete.await)
}

async fn describe(State(http): State<Http>, pairs: Pairs) -> Response {
    let describe = async {
        let mut params = params(pairs)?;
        let request = pb::DescribeResourceRequest {
            r#type: params.text("type")?,
            name: params.text("name")?,
            scope: params.text("scope")?,
            stale: params.flag("stale")?,
            dynamic_parameters: params.pairs("parameter")?,
        };
        params.finish()?;
        http.service.describe_resource(request).await
    };
    answer(describe.await)
}

async fn list_nodes(State(http): State<Http>, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let request = pb::ListNodesRequest { id: params.text("id")?, state: params.text("state")? };
        params.finish()?;
        http.service.list_nodes(request).await
    };
    match list.await {
        Ok(pieces) => {
            let pieces = stream::iter(pieces).then(|piece| async {
                tokio::task::yield_now().await;
                piece.nodes
            });
            json_body(stream_json("{\"nodes\":[".to_owned(), pieces))
        }
        Err(error) => error.into_response(),
    }
}

async fn get_node(
    State(http): State<Http>,
    id: Result<Path<String>, PathRejection>,
    pairs: Pairs,
) -> Response {
    let get = async {
        params(pairs)?.finish()?;
        let Path(id) = id.map_err(|error| AdminError::Parameter(error.body_text()))?;
        http.service.get_node(pb::GetNodeRequest { id }).await
    };
    answer(get.await)
}

async fn explain(State(http): State<Http>, pairs: Pairs) -> Response {
    let explain = async {
        let mut params = params(pairs)?;
        let request = pb::ExplainRequest {
            node: params.text("node")?,
            r#type: params.text("type")?,
            name: params.text("name")?,
            stale: params.flag("stale")?,
            dynamic_parameters: params.pairs("parameter")?,
        };
        params.finish()?;
        http.service.explain(request).await
    };
    answer(explain.await)
}

async fn list_assignments(State(http): State<Http>, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let stale = params.flag("stale")?;
        params.finish()?;
        http.service.list_assignments(pb::ListAssignmentsRequest { stale }).await
    };
    answer(list.await)
}

async fn delete_assignment(State(http): State<Http>, pairs: Pairs) -> Response {
    let delete = async {
        let mut params = params(pairs)?;
        let name = params.text("name")?;
        let options = Some(params.write_options()?);
        params.finish()?;
        http.service.delete_assignment(pb::DeleteAssignmentRequest { name, options }).await
    };
    answer(delete.await)
}

async fn get_cluster(State(http): State<Http>, pairs: Pairs) -> Response {
    let get = async {
        params(pairs)?.finish()?;
        Ok(http.service.get_cluster().await)
    };
    answer(get.await)
}

/// Returns the parameter `id`, or 0 if it is missing. No replica has the ID 0.
fn replica_id(params: &mut Params) -> Result<u64, AdminError> {
    Ok(params.number("id")?.unwrap_or_default())
}

async fn add_member(State(http): State<Http>, pairs: Pairs) -> Response {
    let add = async {
        let mut params = params(pairs)?;
        let request = pb::AddMemberRequest {
            replica_id: replica_id(&mut params)?,
            address: params.text("address")?,
            learner: params.flag("learner")?,
        };
        params.finish()?;
        http.service.add_member(request).await
    };
    answer(add.await)
}

async fn remove_member(State(http): State<Http>, pairs: Pairs) -> Response {
    let remove = async {
        let mut params = params(pairs)?;
        let replica_id = replica_id(&mut params)?;
        params.finish()?;
        http.service.remove_member(pb::RemoveMemberRequest { replica_id }).await
    };
    answer(remove.await)
}

async fn promote_member(State(http): State<Http>, pairs: Pairs) -> Response {
    let promote = async {
        let mut params = params(pairs)?;
        let replica_id = replica_id(&mut params)?;
        params.finish()?;
        http.service.promote_member(pb::PromoteMemberRequest { replica_id }).await
    };
    answer(promote.await)
}

async fn transfer_leader(State(http): State<Http>, pairs: Pairs) -> Response {
    let transfer = async {
        let mut params = params(pairs)?;
        let replica_id = params.number("id")?;
        params.finish()?;
        http.service.transfer_leader(pb::TransferLeaderRequest { replica_id }).await
    };
    answer(transfer.await)
}

async fn take_snapshot(State(http): State<Http>, pairs: Pairs) -> Response {
    let take = async {
        params(pairs)?.finish()?;
        http.service.take_snapshot().await
    };
    answer(take.await)
}

async fn list_history(State(http): State<Http>, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let limit = params.number("limit")?.unwrap_or_default();
        let stale = params.flag("stale")?;
        params.finish()?;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        http.service.list_history(pb::ListHistoryRequest { limit, stale }).await
    };
    answer(list.await)
}

/// CSDS-01: `ClientStatusResponse` in proto JSON. A header says what the answer covers (CSDS-13).
async fn client_status(State(http): State<Http>, pairs: Pairs, request: Request) -> Response {
    let service = &http.service;
    let answer = async {
        params(pairs)?.finish()?;
        let text = body_text(request, csds::REQUEST_BYTES_MAX as u64, "").await?;
        let request = csds::from_json(&text)?;
        service.client_status(request, |config| csds::to_json(&config)).await
    };
    match answer.await {
        Ok(configs) => {
            let body = format!("{{\"config\":[{}]}}", configs.join(","));
            let scope = [(csds::SCOPE_HEADER, service.client_status_scope())];
            (scope, json_body(Body::from(body))).into_response()
        }
        Err(error) => error.into_response(),
    }
}

async fn get_load(State(http): State<Http>, pairs: Pairs) -> Response {
    let get = async {
        let mut params = params(pairs)?;
        let (cluster, endpoints) = (params.text("cluster")?, params.flag("endpoints")?);
        let limit = params.number("limit")?.unwrap_or_default();
        params.finish()?;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        http.service.get_load(pb::GetLoadRequest { cluster, endpoints, limit }).await
    };
    answer(get.await)
}

/// A parameter `cluster` without a value is an empty list.
async fn set_load_settings(State(http): State<Http>, pairs: Pairs) -> Response {
    let set = || {
        let mut params = params(pairs)?;
        let mut names = params.list("cluster");
        let interval_ms = params.millis("interval")?;
        let endpoints = params.optional_flag("endpoints")?;
        params.finish()?;
        let is_given = !names.is_empty();
        if names == [""] {
            names.clear();
        }
        let clusters = is_given.then_some(pb::ClusterNames { names });
        let request = pb::SetLoadSettingsRequest { clusters, interval_ms, endpoints };
        http.service.set_load_settings(request)
    };
    answer(set())
}

async fn mcp_status(State(http): State<Http>, pairs: Pairs) -> Response {
    let get = params(pairs).and_then(Params::finish);
    answer(get.map(|()| http.service.mcp_status()))
}

async fn confirm_mcp_deletion(State(http): State<Http>, pairs: Pairs) -> Response {
    let confirm = async {
        let mut params = params(pairs)?;
        let (source, collection) = (params.text("source")?, params.text("collection")?);
        let token = params.text("token")?;
        params.finish()?;
        let request = pb::ConfirmMcpDeletionRequest { source, collection, token };
        http.service.confirm_mcp_deletion(request).await
    };
    answer(confirm.await)
}

async fn get_version(State(http): State<Http>, pairs: Pairs) -> Response {
    let get = params(pairs).and_then(Params::finish);
    answer(get.map(|()| http.service.version()))
}

async fn metrics(State(http): State<Http>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    // One page at a time, on another thread: many requests at once must not delay `/healthz`.
    let permit = http.metrics_permit.acquire_owned().await;
    let render = tokio::task::spawn_blocking(move || {
        let page = (http.metrics)();
        drop(permit);
        page
    });
    match render.await {
        Ok(page) => ([(header::CONTENT_TYPE, content_type)], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Answers as long as the process works.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns whether the replica accepts streams.
async fn readyz(State(http): State<Http>) -> Response {
    match http.service.readiness() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn unknown_path(method: Method, uri: Uri, request: Request) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("").into_http::<Body>();
    }
    AdminError::NotFound(format!("there is no route for {method} {}", uri.path())).into_response()
}
