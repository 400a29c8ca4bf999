//! A request for a page, and the person who looks at it.

use chancery_admin_proto::v1 as pb;
use chancery_console::Viewer;
use http::{Extensions, request::Parts};

use super::present;
use crate::{
    AdminError,
    ctx::Call,
    operations,
    params::Params,
    routes::{Http, Pairs},
};

/// A request for a page.
pub(crate) struct Visit {
    pub(super) http: Http,
    pub(super) call: Call,
    pub(super) params: Params,
    pub(super) viewer: Viewer,
}

impl Visit {
    pub(super) async fn new(http: Http, pairs: Pairs, request: Parts) -> Result<Self, AdminError> {
        let axum::extract::Query(pairs) =
            pairs.map_err(|error| AdminError::Parameter(error.body_text()))?;
        let call = Call::of(&http.deps, &request.extensions);
        let viewer = viewer(&http, &call, &request.extensions).await?;
        Ok(Self { http, call, params: Params::new(pairs), viewer })
    }
}

/// Returns the person who looks at a page.
pub(super) async fn viewer(
    http: &Http,
    call: &Call,
    extensions: &Extensions,
) -> Result<Viewer, AdminError> {
    let session = present::session(extensions);
    Ok(Viewer {
        who: Some(operations::who_am_i(call, pb::WhoAmIRequest {}).await?),
        is_signed_in: session.has_token,
        csrf: session.csrf,
        replica_id: http.deps.replica.id(),
        version: http.deps.version,
    })
}
