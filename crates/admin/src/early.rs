//! The admin port while a replica opens its store.
//!
//! The port has the same certificates, limits and protection against web pages as later. Only the probes answer, and
//! `/metrics` if access rules do not apply. All other requests fail as unavailable, regardless of the caller: the access
//! rules and the tokens are part of the state that is being loaded.

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    body::Body,
    extract::{RawQuery, Request, State},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use chancery_audit::Audit;
use chancery_fanout::AccessControl;
use http::{HeaderMap, Method, Uri, header};
use tower::ServiceExt;

use crate::{
    AdminError,
    probes::{Liveness, Probes, RenderMetrics},
    readiness::Readiness,
    web_pages,
};

/// The dependencies of the admin port before the store is open.
#[derive(Clone)]
pub struct EarlyDeps {
    /// Whether the event loops turn.
    pub liveness: Liveness,
    /// Whether the replica serves clients.
    pub readiness: Readiness,
    /// Renders the metrics.
    pub metrics: RenderMetrics,
    /// The host names that the HTTP API accepts, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Whether access rules apply.
    pub control: AccessControl,
    /// The audit log.
    pub audit: Audit,
}

impl std::fmt::Debug for EarlyDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyDeps")
            .field("hosts", &self.hosts)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// Replaces the routes of the early port by those of an open replica. Open connections use the new ones, too.
#[derive(Debug, Clone)]
pub struct RouteSwitch(Arc<OnceLock<Router>>);

impl RouteSwitch {
    /// Replaces the routes, once.
    pub fn replace(&self, router: Router) {
        // A second call has no effect: a replica opens its store once.
        drop(self.0.set(router));
    }
}

/// Returns the routes of the admin port from the start of a replica on, and the switch to those of [`crate::router`].
pub fn early_router(deps: EarlyDeps) -> (Router, RouteSwitch) {
    let switch = RouteSwitch(Arc::default());
    let (early, later) = (routes(deps), Arc::clone(&switch.0));
    let choose = tower::service_fn(move |request: Request| {
        let router = later.get().unwrap_or(&early).clone();
        async move {
            let Ok(response) = router.oneshot(request).await;
            Ok::<Response, Infallible>(response)
        }
    });
    (Router::new().fallback_service(choose), switch)
}

fn routes(deps: EarlyDeps) -> Router {
    let EarlyDeps { liveness, readiness, metrics, hosts, control, audit } = deps;
    let probes = Probes::new(liveness, readiness, metrics);
    let mut router =
        Router::new().route("/healthz", only(get(healthz))).route("/readyz", only(get(readyz)));
    if control == AccessControl::Off {
        router = router.route("/metrics", only(get(page)));
    }
    let hosts = web_pages::Hosts::new(hosts.iter().map(String::as_str));
    let protection = web_pages::Protection { hosts, has_console: false, audit };
    router
        .fallback(unavailable)
        .with_state(probes)
        .layer(middleware::from_fn_with_state(protection, web_pages::refuse))
}

fn only(methods: MethodRouter<Probes>) -> MethodRouter<Probes> {
    methods.fallback(|method: Method, uri: Uri| async move {
        AdminError::Method(format!("{} does not support {method}", uri.path())).into_response()
    })
}

async fn healthz(
    State(probes): State<Probes>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    probes.healthz(query.as_deref(), &headers)
}

async fn readyz(
    State(probes): State<Probes>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    probes.readyz(query.as_deref(), &headers)
}

async fn page(State(probes): State<Probes>) -> Response {
    probes.metrics().await
}

/// Rejects every other request with the reason, and before its body is read.
async fn unavailable(State(probes): State<Probes>, headers: HeaderMap) -> Response {
    let reason = match probes.readiness.check() {
        Ok(()) => "this replica is starting".to_owned(),
        Err(not_ready) => not_ready.message,
    };
    let refusal = AdminError::Unavailable(format!("{reason}; retry later, or use another replica"));
    let content_type = headers.get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::from(refusal).into_http::<Body>();
    }
    refusal.into_response()
}
