//! The authentication of requests.
//!
//! Every request passes [`authenticate`]. The tests `access` call every method and path without rights.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use chancery_audit::{Event, Port};
use chancery_auth::{AuthPort, Authenticator, Credentials, TransportPeer};
use chancery_fanout::AccessControl;
use chancery_model::{Identity, Principal};
use http::{HeaderMap, HeaderValue, header, request::Parts};
use tokio::time::Instant;

use crate::{
    AdminError,
    caller::{Caller, Rights, rate_exceeded},
    console_paths,
    deps::Deps,
    metrics::refused,
    origin::Origin,
};

/// The paths that need no credential, for probes.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || console_paths::is_open(path)
}

/// Finds out who calls, and puts the [`Caller`] into the extensions of the request. Rejects a request with an
/// invalid credential, and one without a credential unless a rule names `anonymous`.
pub(crate) async fn authenticate(
    State(deps): State<Arc<Deps>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match caller(&deps, &parts).await {
        Ok(caller) => {
            parts.extensions.insert(Arc::new(caller));
            next.run(Request::from_parts(parts, body)).await
        }
        Err(rejected) => {
            let refusal = record(&deps, &parts, rejected);
            let is_grpc = parts.headers.get(header::CONTENT_TYPE);
            if is_grpc.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
                return tonic::Status::from(refusal).into_http::<axum::body::Body>();
            }
            let is_unauthenticated = matches!(refusal, AdminError::Unauthenticated(_));
            let mut response = refusal.into_response();
            if is_unauthenticated {
                let bearer = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
            }
            response
        }
    }
}

/// Records a rejected request, and returns its error.
fn record(deps: &Deps, request: &Parts, rejected: Rejected) -> AdminError {
    let Rejected { error, principal } = rejected;
    let mut event = Event::new(Port::Admin, "authenticate");
    if let Some(principal) = principal {
        event.principal = principal.to_string();
    }
    let event = Origin::of(&request.extensions, &request.headers).add_to(event);
    let target = chancery_audit::Target {
        name: request.uri.path().to_owned(),
        ..chancery_audit::Target::default()
    };
    let decision = error.decision();
    deps.audit.note_client(Event { decision, target, ..event });
    error
}

/// Checks a token that a form of the console has. `request` is the request with the form.
///
/// # Errors
/// Fails if the token proves no identity, or the identity may not call.
pub(crate) async fn check_token(
    deps: &Deps,
    mut request: Parts,
    token: &str,
) -> Result<(), AdminError> {
    let invalid = |_| AdminError::Unauthenticated("the token is not a bearer token".to_owned());
    let mut credential = HeaderValue::from_str(&format!("Bearer {token}")).map_err(invalid)?;
    credential.set_sensitive(true);
    request.headers.insert(header::AUTHORIZATION, credential);
    // The path of the form needs no credential.
    request.uri = http::Uri::from_static("/ui");
    match caller(deps, &request).await {
        Ok(caller) if caller.identity.principal.is_anonymous() => {
            Err(AdminError::Unauthenticated("the token proves no identity".to_owned()))
        }
        Ok(_) => Ok(()),
        Err(rejected) => Err(record(deps, &request, rejected)),
    }
}

/// A request that is rejected before its operation is known.
struct Rejected {
    error: AdminError,
    /// The identity of the caller; `None` if it has not proved one.
    principal: Option<Principal>,
}

impl From<AdminError> for Rejected {
    fn from(error: AdminError) -> Self {
        Self { error, principal: None }
    }
}

async fn caller(deps: &Deps, request: &Parts) -> Result<Caller, Rejected> {
    let access = &deps.access;
    let auth = match (access.control, &access.auth) {
        (AccessControl::Enforced, Some(auth)) => auth,
        (AccessControl::Off, None) => return Ok(Caller::unrestricted(Identity::anonymous())),
        (AccessControl::Off, Some(auth)) => {
            return Ok(Caller::unrestricted(proven(deps, auth, request).await));
        }
        (AccessControl::Enforced, None) => {
            let text = "the port has no authentication".to_owned();
            return Err(AdminError::Unauthenticated(text).into());
        }
    };
    if is_open(request.uri.path()) {
        return Ok(Caller::nobody());
    }
    let credentials = credentials(request);
    let rules = Arc::clone(&deps.replica.state().access);
    let find = |digest: &_| rules.token(digest).cloned();
    let now = SystemTime::now();
    let (identity, ends_after) = match auth.identify(credentials, now, &find).await {
        Ok(proof) => {
            let ends_after = proof.ends_after(now);
            (proof.identity, ends_after)
        }
        Err(error) => {
            refused(error.reason());
            let text = error.to_string();
            let error = if error.is_limited() {
                AdminError::Busy { reason: error.reason(), text }
            } else {
                AdminError::Unauthenticated(text)
            };
            return Err(error.into());
        }
    };
    let rights = access.rights_of(&identity.principal);
    let is_unknown = identity.principal.is_anonymous()
        && rights == Rights::Rules
        && rules.rules_of(&identity.principal).next().is_none();
    if is_unknown {
        refused("no_credential");
        let text = "the request has no credential: send a bearer token or a client certificate \
                    (--token-file, --cert)";
        return Err(AdminError::Unauthenticated(text.to_owned()).into());
    }
    if rights == Rights::Rules {
        let quota = rules.quota_of(&identity.principal);
        auth.rates().request(&identity.principal, &quota).map_err(|exceeded| Rejected {
            principal: Some(identity.principal.clone()),
            error: rate_exceeded(&exceeded),
        })?;
    }
    Ok(Caller { identity, rights, ends_at: ends_after.map(|after| Instant::now() + after) })
}

fn credentials(request: &Parts) -> Credentials<'_> {
    Credentials {
        port: AuthPort::Admin,
        headers: &request.headers,
        query: request.uri.query(),
        peer: request.extensions.get::<TransportPeer>(),
        address: request.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip()),
    }
}

/// Returns the identity that a request proves, for the history and the audit log, if access rules do not apply. An
/// invalid credential proves no identity, but does not refuse the request. If the token is
/// invalid, the certificate or the user of the UNIX socket proves the identity.
async fn proven(deps: &Deps, auth: &Authenticator, request: &Parts) -> Identity {
    let credentials = credentials(request);
    let has_credential =
        credentials.peer.is_some() || request.headers.contains_key(header::AUTHORIZATION);
    if !has_credential || is_open(request.uri.path()) {
        return Identity::anonymous();
    }
    let rules = Arc::clone(&deps.replica.state().access);
    let find = |digest: &_| rules.token(digest).cloned();
    let now = SystemTime::now();
    let proof = match auth.identify(credentials, now, &find).await {
        Err(_) if credentials.peer.is_some() => {
            let headers = HeaderMap::new();
            let connection = Credentials { headers: &headers, query: None, ..credentials };
            auth.identify(connection, now, &find).await
        }
        proof => proof,
    };
    proof.map_or_else(|_| Identity::anonymous(), |proof| proof.identity)
}
