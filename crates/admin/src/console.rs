//! The console: pages over the operations of this API, for people with a browser.
//!
//! A page calls the same operations as HTTP and gRPC, with the same caller. It therefore shows only what the API gives to
//! this caller, and writes are checked and recorded in the same way. `chancery_console` turns the answers into HTML.
//!
//! Invariants:
//! - No page changes anything in answer to GET or HEAD.
//! - Every POST repeats the value of a cookie that other sites can neither read nor send, and comes from a page of the
//!   port itself.
//! - The replica keeps nothing about a browser, so that every replica accepts the cookies of the others.

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use chancery_admin_proto::v1 as pb;
use chancery_console::{Page, Viewer, asset, failed};
use http::{Extensions, StatusCode, header, request::Parts};

use crate::{
    AdminError,
    ctx::Call,
    operations,
    params::Params,
    routes::{Http, Pairs},
};

mod actions;
mod convergence;
mod cookies;
mod events;
mod fleet;
mod present;
mod session;
mod views;

pub(crate) use present::{is_console, is_link, is_open, link, present};

/// The settings of the console.
#[derive(Debug, Clone, Copy)]
pub struct ConsoleSettings {
    /// Whether the port uses TLS, so that browsers send the cookies only over TLS.
    pub is_secure: bool,
}

/// A request for a page.
pub(crate) struct Visit {
    http: Http,
    call: Call,
    params: Params,
    viewer: Viewer,
}

/// Returns the routes of the console.
pub(crate) fn routes() -> impl Iterator<Item = (&'static str, MethodRouter<Http>)> {
    [
        ("/ui", page(fleet::fleet)),
        ("/ui/nodes", page(views::nodes)),
        ("/ui/node", page(views::node)),
        ("/ui/resolve", page(views::resolve)),
        ("/ui/resources", page(views::resources)),
        ("/ui/resource", page(views::resource)),
        ("/ui/history", page(views::history)),
        ("/ui/revision", page(views::revision)),
        ("/ui/diff", page(views::diff)),
        ("/ui/cluster", page(views::cluster)),
        ("/ui/problems", page(views::problems)),
        ("/ui/mcp", page(views::mcp)),
        ("/ui/load", page(views::load)),
        ("/ui/freezes", page(actions::freezes)),
        ("/ui/freeze", post(actions::freeze)),
        ("/ui/thaw", page(actions::thaw_plan).post(actions::thaw)),
        ("/ui/undo", page(actions::undo_plan).post(actions::undo)),
        ("/ui/rollback", page(actions::rollback_plan).post(actions::rollback)),
        ("/ui/sign-in", get(session::form).post(session::sign_in)),
        ("/ui/sign-out", post(session::sign_out)),
        ("/ui/events", get(events::events)),
        ("/ui/static/{file}", get(file)),
    ]
    .into_iter()
}

/// Returns the route of a page.
fn page<F>(read: fn(Visit) -> F) -> MethodRouter<Http>
where
    F: Future<Output = Result<Page, AdminError>> + Send + 'static,
{
    get(move |State(http): State<Http>, pairs: Pairs, request: Request| async move {
        let (parts, _) = request.into_parts();
        let visit = match Visit::new(http, pairs, parts).await {
            Ok(visit) => visit,
            Err(error) => return error.into_response(),
        };
        let viewer = visit.viewer.clone();
        // The futures of pages contain those of several operations.
        match Box::pin(read(visit)).await {
            Ok(page) => html(StatusCode::OK, page.document(&viewer)),
            Err(error) => error_page(&error, &viewer),
        }
    })
}

impl Visit {
    async fn new(http: Http, pairs: Pairs, request: Parts) -> Result<Self, AdminError> {
        let axum::extract::Query(pairs) =
            pairs.map_err(|error| AdminError::Parameter(error.body_text()))?;
        let call = Call::of(&http.deps, &request.extensions);
        let viewer = viewer(&http, &call, &request.extensions).await?;
        Ok(Self { http, call, params: Params::new(pairs), viewer })
    }
}

/// Returns the person who looks at a page.
async fn viewer(http: &Http, call: &Call, extensions: &Extensions) -> Result<Viewer, AdminError> {
    let session = present::session(extensions);
    Ok(Viewer {
        who: Some(operations::who_am_i(call, pb::WhoAmIRequest {}).await?),
        is_signed_in: session.has_token,
        csrf: session.csrf,
        replica_id: http.deps.replica.id(),
        version: http.deps.version,
    })
}

fn html(status: StatusCode, document: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        // The answer depends on the caller, and must not outlive the sign-in.
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, document).into_response()
}

/// Returns the page of an operation that failed.
fn error_page(error: &AdminError, viewer: &Viewer) -> Response {
    let (status, _) = error.http();
    html(status, failed(title(status), &error.to_string(), viewer))
}

fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "Sign in",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::SERVICE_UNAVAILABLE => "The replica cannot answer now",
        StatusCode::CONFLICT => "Rejected",
        _ => "The request failed",
    }
}

/// Returns a static file.
async fn file(request: Request) -> Response {
    match asset(request.uri().path()) {
        Some(file) => {
            let headers = [
                (header::CONTENT_TYPE, file.content_type),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ];
            (headers, file.content).into_response()
        }
        None => AdminError::NotFound("there is no such file".to_owned()).into_response(),
    }
}
