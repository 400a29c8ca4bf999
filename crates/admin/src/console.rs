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
use chancery_console::{Page, asset};
use http::{StatusCode, header};

use crate::{
    AdminError,
    routes::{Http, Pairs},
};

mod actions;
mod answer;
mod convergence;
mod cookies;
mod events;
mod fleet;
mod present;
mod reads;
mod session;
mod views;
mod visit;

use answer::{error_page, html};
pub(crate) use present::{link, present};
use visit::Visit;

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
