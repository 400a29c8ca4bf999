//! The events of live pages: one event when the cluster has changed. The page then reads what it shows again.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_model::{Target, Verb};
use futures::StreamExt;
use http::header;

use crate::{
    AdminError,
    ctx::{Access, Call},
    operations,
    record::Record,
    routes::Http,
};

/// Streams an event for each change.
pub(super) async fn events(State(http): State<Http>, request: Request) -> Response {
    match start(&Call::of(&http.deps, request.extensions())).await {
        Ok(answer) => answer,
        Err(error) => error.into_response(),
    }
}

async fn start(call: &Call) -> Result<Response, AdminError> {
    let may_see_nodes =
        Record::new(call, None).permit(Access::Open)?.may(Verb::Nodes, Target::Cluster);
    let mut kinds = vec!["revisions".to_owned(), "members".to_owned()];
    kinds.extend(may_see_nodes.then(|| "nodes".to_owned()));
    let request = pb::WatchRequest { kinds, ..pb::WatchRequest::default() };
    let events = Box::pin(operations::watch(call, request)).await?.0;
    let lines = events.map(|event| {
        let text = match event {
            // A comment keeps the connection open.
            Ok(pb::WatchEvent { event: None, .. }) => ": progress\n\n".to_owned(),
            Ok(event) => format!("event: change\ndata: {}\n\n", event.revision),
            Err(_) => "event: end\ndata: \n\n".to_owned(),
        };
        Ok::<_, Infallible>(Bytes::from(text))
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(lines)).into_response())
}
