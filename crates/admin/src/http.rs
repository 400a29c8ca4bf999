//! The operations as HTTP with JSON, and the endpoints for monitoring.
//!
//! Errors are `{"error": {"code", "message", "problems": [...]}}`. Unknown parameters are errors.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{
        FromRequestParts, Path, Query, RawQuery, Request,
        rejection::{PathRejection, QueryRejection},
    },
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use bytes::Bytes;
use chancery_model::{Target, Verb};
use chancery_proto::admin::v1 as pb;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Uri, header, request::Parts};
use http_body_util::LengthLimitError;

use crate::{
    AdminDeps, AdminError, audited, authenticate, bounds, csds,
    json::JsonMessage,
    params::Params,
    probes::Probes,
    resources::{Listing, parse_type},
    service::Service,
    web_pages,
};

/// The state of the handlers.
#[derive(Clone)]
struct Http {
    service: Service,
    probes: Probes,
    request_bytes_max: u64,
}

/// The state with the caller of the request.
impl FromRequestParts<Http> for Http {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, http: &Self) -> Result<Self, Infallible> {
        Ok(Self { service: http.service.of(&parts.extensions), ..http.clone() })
    }
}

type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// The paths of the HTTP API, for tests of access.
#[doc(hidden)]
pub const HTTP_PATHS: &[&str] = &[
    "/v1/apply",
    "/v1/import",
    "/v1/resources",
    "/v1/describe",
    "/v1/nodes",
    "/v1/nodes/{*id}",
    "/v1/explain",
    "/v1/assignments",
    "/v1/cluster",
    "/v1/cluster/members",
    "/v1/cluster/promote",
    "/v1/cluster/transfer-leader",
    "/v1/cluster/snapshot",
    "/v1/history",
    "/v1/version",
    "/v1/whoami",
    "/v1/access",
    "/v1/access/check",
    "/v1/access/explain",
    "/v1/tokens",
    "/v1/quotas",
    "/v1/load",
    "/v1/load/settings",
    "/v1/mcp",
    "/v1/mcp/confirm",
    "/v3/discovery:client_status",
    "/metrics",
    "/healthz",
    "/readyz",
];

/// Adds the HTTP routes. The fallback answers unknown paths, including those of gRPC.
pub(crate) fn add_routes(router: Router, service: Service, deps: &AdminDeps) -> Router {
    let http = Http {
        service: service.clone(),
        probes: Probes::new(
            Arc::clone(&deps.liveness),
            service.readiness.clone(),
            Arc::clone(&deps.metrics),
        ),
        request_bytes_max: deps.request_bytes_max,
    };
    let ours = HTTP_PATHS
        .iter()
        .fold(Router::new(), |router, path| router.route(path, only(methods(path))));
    let ours = ours.with_state(http);
    let authenticate = middleware::from_fn_with_state(service.clone(), authenticate::authenticate);
    let hosts = web_pages::Hosts::new(deps.hosts.iter().map(String::as_str));
    let protection = web_pages::Protection { hosts, audit: deps.audit.clone() };
    (router.merge(ours).fallback(unknown_path))
        .layer(authenticate)
        .layer(middleware::from_fn(bounds::refuse_many_fields))
        .layer(middleware::from_fn(audited::identify))
        .layer(middleware::from_fn_with_state(protection, web_pages::refuse))
}

/// Returns the methods of a path of [`HTTP_PATHS`].
fn methods(path: &str) -> MethodRouter<Http> {
    match path {
        "/v1/apply" => post(apply),
        "/v1/import" => post(import),
        "/v1/resources" => get(list_resources).delete(delete_resources),
        "/v1/describe" => get(describe),
        "/v1/nodes" => get(list_nodes),
        "/v1/nodes/{*id}" => get(get_node),
        "/v1/explain" => get(explain),
        "/v1/assignments" => get(list_assignments).delete(delete_assignment),
        "/v1/cluster" => get(get_cluster),
        "/v1/cluster/members" => post(add_member).delete(remove_member),
        "/v1/cluster/promote" => post(promote_member),
        "/v1/cluster/transfer-leader" => post(transfer_leader),
        "/v1/cluster/snapshot" => post(take_snapshot),
        "/v1/history" => get(list_history),
        "/v1/version" => get(get_version),
        "/v1/whoami" => get(who_am_i),
        "/v1/access" => get(list_access).delete(delete_access),
        "/v1/access/check" => get(check_access),
        "/v1/access/explain" => get(explain_access),
        "/v1/tokens" => get(list_tokens).post(create_token).delete(delete_token),
        "/v1/quotas" => get(list_quotas).delete(delete_quota),
        "/v1/load" => get(get_load),
        "/v1/load/settings" => post(set_load_settings),
        "/v1/mcp" => get(mcp_status),
        "/v1/mcp/confirm" => post(confirm_mcp_deletion),
        "/v3/discovery:client_status" => post(client_status),
        "/metrics" => get(metrics),
        "/healthz" => get(healthz),
        "/readyz" => get(readyz),
        _ => MethodRouter::new(),
    }
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
        let mut response = (status, json(&self.to_response())).into_response();
        if matches!(self, Self::Busy { .. }) {
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, second);
        }
        response
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

async fn apply(http: Http, pairs: Pairs, request: Request) -> Response {
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

async fn import(http: Http, pairs: Pairs, request: Request) -> Response {
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
        if source.is_some_and(|source| source.is::<LengthLimitError>()) {
            return too_large();
        }
        AdminError::Parameter(format!("the request body ended early: {error}"))
    })?;
    String::from_utf8(bytes.into()).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        AdminError::Parameter(format!("byte {at} of the request body is not UTF-8 text"))
    })
}

async fn list_resources(http: Http, pairs: Pairs) -> Response {
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

async fn delete_resources(http: Http, pairs: Pairs) -> Response {
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

async fn describe(http: Http, pairs: Pairs) -> Response {
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

async fn list_nodes(http: Http, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let request = pb::ListNodesRequest { id: params.text("id")?, state: params.text("state")? };
        params.finish()?;
        http.service.list_nodes(request).await
    };
    match list.await {
        Ok(pieces) => {
            let not_asked = pieces.first().map_or(0, |piece| piece.replicas_not_asked);
            let pieces = stream::iter(pieces).then(|piece| async {
                tokio::task::yield_now().await;
                piece.nodes
            });
            let head = format!("{{\"replicas_not_asked\":{not_asked},\"nodes\":[");
            json_body(stream_json(head, pieces))
        }
        Err(error) => error.into_response(),
    }
}

async fn get_node(http: Http, id: Result<Path<String>, PathRejection>, pairs: Pairs) -> Response {
    let get = async {
        params(pairs)?.finish()?;
        let Path(id) = id.map_err(|error| AdminError::Parameter(error.body_text()))?;
        http.service.get_node(pb::GetNodeRequest { id }).await
    };
    answer(get.await)
}

async fn explain(http: Http, pairs: Pairs) -> Response {
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

async fn list_assignments(http: Http, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let stale = params.flag("stale")?;
        params.finish()?;
        http.service.list_assignments(pb::ListAssignmentsRequest { stale }).await
    };
    answer(list.await)
}

async fn delete_assignment(http: Http, pairs: Pairs) -> Response {
    let delete = async {
        let mut params = params(pairs)?;
        let name = params.text("name")?;
        let options = Some(params.write_options()?);
        params.finish()?;
        http.service.delete_assignment(pb::DeleteAssignmentRequest { name, options }).await
    };
    answer(delete.await)
}

async fn get_cluster(http: Http, pairs: Pairs) -> Response {
    let get = async {
        params(pairs)?.finish()?;
        http.service.get_cluster().await
    };
    answer(get.await)
}

/// Returns the parameter `id`, or 0 if it is missing. No replica has the ID 0.
fn replica_id(params: &mut Params) -> Result<u64, AdminError> {
    Ok(params.number("id")?.unwrap_or_default())
}

async fn add_member(http: Http, pairs: Pairs) -> Response {
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

async fn remove_member(http: Http, pairs: Pairs) -> Response {
    let remove = async {
        let mut params = params(pairs)?;
        let replica_id = replica_id(&mut params)?;
        params.finish()?;
        http.service.remove_member(pb::RemoveMemberRequest { replica_id }).await
    };
    answer(remove.await)
}

async fn promote_member(http: Http, pairs: Pairs) -> Response {
    let promote = async {
        let mut params = params(pairs)?;
        let replica_id = replica_id(&mut params)?;
        params.finish()?;
        http.service.promote_member(pb::PromoteMemberRequest { replica_id }).await
    };
    answer(promote.await)
}

async fn transfer_leader(http: Http, pairs: Pairs) -> Response {
    let transfer = async {
        let mut params = params(pairs)?;
        let replica_id = params.number("id")?;
        params.finish()?;
        http.service.transfer_leader(pb::TransferLeaderRequest { replica_id }).await
    };
    answer(transfer.await)
}

async fn take_snapshot(http: Http, pairs: Pairs) -> Response {
    let take = async {
        params(pairs)?.finish()?;
        http.service.take_snapshot().await
    };
    answer(take.await)
}

async fn list_history(http: Http, pairs: Pairs) -> Response {
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
async fn client_status(http: Http, pairs: Pairs, request: Request) -> Response {
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
            let scope = [
                (csds::SCOPE_HEADER, service.client_status_scope()),
                (csds::NOT_ASKED_HEADER, service.replicas_not_asked().to_string()),
            ];
            (scope, json_body(Body::from(body))).into_response()
        }
        Err(error) => error.into_response(),
    }
}

async fn get_load(http: Http, pairs: Pairs) -> Response {
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
async fn set_load_settings(http: Http, pairs: Pairs) -> Response {
    let set = async {
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
        http.service.set_load_settings(request).await
    };
    answer(set.await)
}

async fn mcp_status(http: Http, pairs: Pairs) -> Response {
    let get = params(pairs).and_then(Params::finish);
    answer(get.and_then(|()| http.service.mcp_status()))
}

async fn confirm_mcp_deletion(http: Http, pairs: Pairs) -> Response {
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

async fn who_am_i(http: Http, pairs: Pairs) -> Response {
    let get = params(pairs).and_then(Params::finish);
    answer(get.map(|()| http.service.who_am_i()))
}

async fn check_access(http: Http, pairs: Pairs) -> Response {
    let check = || {
        let mut params = params(pairs)?;
        let request = pb::CheckAccessRequest {
            verb: params.text("verb")?,
            scope: params.text("scope")?,
            r#type: params.text("type")?,
            name: params.text("name")?,
            identity: params.text("identity")?,
        };
        params.finish()?;
        http.service.check_access(&request)
    };
    answer(check())
}

async fn list_access(http: Http, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let stale = params.flag("stale")?;
        params.finish()?;
        http.service.list_access(pb::ListAccessRequest { stale }).await
    };
    answer(list.await)
}

async fn delete_access(http: Http, pairs: Pairs) -> Response {
    let delete = async {
        let mut params = params(pairs)?;
        let name = params.text("name")?;
        let options = Some(params.write_options()?);
        params.finish()?;
        http.service.delete_access(pb::DeleteAccessRequest { name, options }).await
    };
    answer(delete.await)
}

async fn explain_access(http: Http, pairs: Pairs) -> Response {
    let explain = async {
        let mut params = params(pairs)?;
        let (identity, node) = (params.text("identity")?, params.text("node")?);
        params.finish()?;
        http.service.explain_access(pb::ExplainAccessRequest { identity, node }).await
    };
    answer(explain.await)
}

async fn create_token(http: Http, pairs: Pairs) -> Response {
    let create = async {
        let mut params = params(pairs)?;
        let name = params.text("name")?;
        let valid_seconds = params.number("valid_seconds")?.unwrap_or_default();
        params.finish()?;
        http.service.create_token(pb::CreateTokenRequest { name, valid_seconds }).await
    };
    answer(create.await)
}

async fn list_tokens(http: Http, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let stale = params.flag("stale")?;
        params.finish()?;
        http.service.list_tokens(pb::ListTokensRequest { stale }).await
    };
    answer(list.await)
}

async fn delete_token(http: Http, pairs: Pairs) -> Response {
    let delete = async {
        let mut params = params(pairs)?;
        let (name, id) = (params.text("name")?, params.text("id")?);
        params.finish()?;
        http.service.delete_token(pb::DeleteTokenRequest { name, id }).await
    };
    answer(delete.await)
}

async fn list_quotas(http: Http, pairs: Pairs) -> Response {
    let list = async {
        let mut params = params(pairs)?;
        let stale = params.flag("stale")?;
        params.finish()?;
        http.service.list_quotas(pb::ListQuotasRequest { stale }).await
    };
    answer(list.await)
}

async fn delete_quota(http: Http, pairs: Pairs) -> Response {
    let delete = async {
        let mut params = params(pairs)?;
        let name = params.text("name")?;
        let options = Some(params.write_options()?);
        params.finish()?;
        http.service.delete_quota(pb::DeleteQuotaRequest { name, options }).await
    };
    answer(delete.await)
}

async fn get_version(http: Http, pairs: Pairs) -> Response {
    let get = params(pairs).and_then(Params::finish);
    answer(get.map(|()| http.service.version()))
}

async fn metrics(http: Http) -> Response {
    if let Err(error) = http.service.authorize(Verb::Metrics, Target::Cluster) {
        return error.into_response();
    }
    http.probes.metrics().await
}

async fn healthz(http: Http, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    http.probes.healthz(query.as_deref(), &headers)
}

async fn readyz(http: Http, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    http.probes.readyz(query.as_deref(), &headers)
}

async fn unknown_path(method: Method, uri: Uri, request: Request) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("").into_http::<Body>();
    }
    AdminError::NotFound(format!("there is no route for {method} {}", uri.path())).into_response()
}
