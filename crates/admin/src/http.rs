//! The operations as HTTP with JSON, and the endpoints for monitoring.
//!
//! Errors are `{"error": {"code", "message", "problems": [...]}}`. Unknown parameters are errors.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    extract::{RawQuery, Request, State},
    middleware,
    response::{AppendHeaders, IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use chancery_model::Verb;
use http::{Extensions, HeaderMap, Method, Uri, header};

use crate::{
    AdminDeps, AdminError, authenticate, bounds, console, csds,
    ctx::{Access, Call, Ctx},
    deps::Deps,
    openapi, operations,
    probes::Probes,
    record::{self, Record},
    reply::json_body,
    routes::{Http, Input, Pairs, PathParams, Routes, body_text},
    web_pages,
};

/// The paths of the HTTP API, for tests of access.
#[doc(hidden)]
pub fn http_paths() -> BTreeSet<&'static str> {
    let others = [
        "/",
        "/v1",
        "/v1/openapi.json",
        "/v3/discovery:client_status",
        "/metrics",
        "/healthz",
        "/readyz",
    ];
    operations::OPERATIONS.iter().map(|one| one.path).chain(others).collect()
}

/// Adds the HTTP routes. The fallback answers unknown paths, including those of gRPC.
pub(crate) fn add_routes(router: Router, service: &Arc<Deps>, deps: &AdminDeps) -> Router {
    let http = Http {
        deps: Arc::clone(service),
        probes: Probes::new(
            Arc::clone(&deps.liveness),
            service.readiness.clone(),
            Arc::clone(&deps.metrics),
        ),
        request_bytes_max: deps.request_bytes_max,
    };
    let mut routes = Routes(BTreeMap::from([
        ("/", get(list_operations)),
        ("/v1", get(list_operations)),
        ("/v1/openapi.json", get(describe)),
        ("/v3/discovery:client_status", post(client_status)),
        ("/metrics", get(metrics)),
        ("/healthz", get(healthz)),
        ("/readyz", get(readyz)),
    ]));
    operations::add_routes(&mut routes);
    let pages = deps.console.iter().flat_map(|_| console::routes());
    let ours = routes.0.into_iter().chain(pages);
    let ours =
        ours.fold(Router::new(), |router, (path, methods)| router.route(path, only(methods)));
    let authenticate =
        middleware::from_fn_with_state(Arc::clone(service), authenticate::authenticate);
    let hosts = web_pages::Hosts::new(deps.hosts.iter().map(String::as_str));
    let has_console = deps.console.is_some();
    let protection = web_pages::Protection { hosts, has_console, audit: deps.audit.clone() };
    let router = (router.merge(ours.with_state(http)).fallback(unknown_path))
        .layer(authenticate)
        .layer(middleware::from_fn(bounds::refuse_many_fields))
        .layer(middleware::from_fn(record::note_origin))
        .layer(middleware::from_fn_with_state(protection, web_pages::refuse));
    match deps.console {
        Some(settings) => router.layer(middleware::from_fn_with_state(settings, console::present)),
        None => router,
    }
}

/// Rejects other methods on a known path with an error of this API.
fn only(methods: MethodRouter<Http>) -> MethodRouter<Http> {
    methods.fallback(|method: Method, uri: Uri| async move {
        AdminError::Method(format!("{} does not support {method}", uri.path())).into_response()
    })
}

/// Returns the context of a request that is not an operation of the table.
fn permit(http: &Http, extensions: &Extensions, access: Access) -> Result<Ctx, AdminError> {
    Record::new(&Call::of(&http.deps, extensions), None).permit(access)
}

/// CSDS-01: `ClientStatusResponse` in proto JSON. A header says what the answer covers (CSDS-13).
async fn client_status(
    State(http): State<Http>,
    path: PathParams,
    pairs: Pairs,
    request: Request,
) -> Response {
    let answer = async {
        let call = request.extensions().clone();
        let Input { mut params, body, .. } = Input::new(pairs, path, request, 0)?;
        let is_local = params.flag("local")?;
        params.finish()?;
        let text = body_text(body, csds::REQUEST_BYTES_MAX as u64, "").await?;
        let request = csds::from_json(&text)?;
        let ctx = permit(&http, &call, Access::Cluster(Verb::Nodes))?;
        csds::client_status(&ctx, request, is_local, |config| csds::to_json(&config)).await
    };
    match answer.await {
        Ok(csds::ClientStatus { clients, coverage }) => {
            let body = format!("{{\"config\":[{}]}}", clients.join(","));
            (AppendHeaders(coverage.headers()), json_body(Body::from(body))).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// Lists the operations.
async fn list_operations() -> Response {
    json_body(Body::from(openapi::overview().to_string()))
}

/// Returns the description of the API.
async fn describe(State(http): State<Http>) -> Response {
    json_body(Body::from(openapi::document(http.deps.version).to_string()))
}

async fn metrics(State(http): State<Http>, extensions: Extensions) -> Response {
    match permit(&http, &extensions, Access::Cluster(Verb::Metrics)) {
        Ok(_) => http.probes.metrics().await,
        Err(error) => error.into_response(),
    }
}

async fn healthz(
    State(http): State<Http>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    http.probes.healthz(query.as_deref(), &headers)
}

async fn readyz(
    State(http): State<Http>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    http.probes.readyz(query.as_deref(), &headers)
}

async fn unknown_path(method: Method, uri: Uri, request: Request) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("").into_http::<Body>();
    }
    AdminError::NotFound(format!("there is no route for {method} {}", uri.path())).into_response()
}
