//! The authentication of requests, and the checks of rights.
//!
//! Every request passes [`authenticate`], and every operation of [`Service`] begins with [`Service::authorize`] or a
//! check of its own. The tests `access` call every method and path without rights.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::SystemTime};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use chancery_audit::{Event, Port};
use chancery_auth::{AuthPort, Authenticator, Credentials, RateExceeded, TransportPeer};
use chancery_fanout::AccessControl;
use chancery_model::{Collection, Identity, Principal, Scope, State as Replicated, Target, Verb};
use http::{HeaderMap, HeaderValue, header, request::Parts};
use metrics::counter;
use tokio::time::Instant;

use crate::{
    AdminError, audited,
    caller::{Caller, Rights},
    service::Service,
};

/// The paths that need no credential, for probes.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Finds out who calls, and puts the [`Caller`] into the extensions of the request. Rejects a request with an
/// invalid credential, and one without a credential unless a rule names `anonymous`.
pub(crate) async fn authenticate(
    State(service): State<Service>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match caller(&service, &parts).await {
        Ok(caller) => {
            parts.extensions.insert(Arc::new(caller));
            next.run(Request::from_parts(parts, body)).await
        }
        Err(Rejected { error: refusal, principal }) => {
            let mut event = Event::new(Port::Admin, "authenticate");
            if let Some(principal) = principal {
                event.principal = principal.to_string();
            }
            let event = audited::Caller::of(&parts.extensions, &parts.headers).add_to(event);
            let target = chancery_audit::Target {
                name: parts.uri.path().to_owned(),
                ..chancery_audit::Target::default()
            };
            let decision = refusal.decision();
            service.audit.note_client(Event { decision, target, ..event });
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

async fn caller(service: &Service, request: &Parts) -> Result<Caller, Rejected> {
    let access = &service.access;
    let auth = match (access.control, &access.auth) {
        (AccessControl::Enforced, Some(auth)) => auth,
        (AccessControl::Off, None) => return Ok(Caller::unrestricted(Identity::anonymous())),
        (AccessControl::Off, Some(auth)) => {
            return Ok(Caller::unrestricted(proven(service, auth, request).await));
        }
        (AccessControl::Enforced, None) => {
            let text = "the port has no authentication".to_owned();
            return Err(AdminError::Unauthenticated(text).into());
        }
    };
    if OPEN.contains(&request.uri.path()) {
        return Ok(Caller::nobody());
    }
    let credentials = credentials(request);
    let rules = Arc::clone(&service.replica.state().access);
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
async fn proven(service: &Service, auth: &Authenticator, request: &Parts) -> Identity {
    let credentials = credentials(request);
    let has_credential =
        credentials.peer.is_some() || request.headers.contains_key(header::AUTHORIZATION);
    if !has_credential || OPEN.contains(&request.uri.path()) {
        return Identity::anonymous();
    }
    let rules = Arc::clone(&service.replica.state().access);
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

/// Returns the error of an identity that sends too much, and counts it.
fn rate_exceeded(exceeded: &RateExceeded) -> AdminError {
    refused(exceeded.key);
    AdminError::Busy { reason: exceeded.key, text: exceeded.to_string() }
}

pub(crate) fn refused(reason: &'static str) {
    counter!("chancery_access_refused_total", "port" => "admin", "reason" => reason).increment(1);
}

impl Service {
    /// Returns the service for a caller. Without one, nothing is permitted.
    pub(crate) fn of(&self, extensions: &http::Extensions) -> Self {
        let caller = extensions.get::<Arc<Caller>>().cloned();
        Self { caller: caller.unwrap_or_else(|| Arc::new(Caller::nobody())), ..self.clone() }
    }

    /// Counts a write of the caller. Administrators have no limit.
    ///
    /// # Errors
    /// Fails if the access rules of the caller allow fewer writes per second.
    pub(crate) fn count_write(&self) -> Result<(), AdminError> {
        let Some(auth) = self.access.auth.as_ref().filter(|_| !self.caller.may_everything()) else {
            return Ok(());
        };
        let principal = &self.caller.identity.principal;
        let quota = self.replica.state().access.quota_of(principal);
        auth.rates().write(principal, &quota).map_err(|exceeded| rate_exceeded(&exceeded))
    }

    /// Counts a further message of a stream of the caller. The first one counts as the call. Administrators have no
    /// limit.
    ///
    /// # Errors
    /// Fails if the access rules of the caller allow fewer requests per second.
    pub(crate) fn count_message(&self) -> Result<(), AdminError> {
        let Some(auth) = self.access.auth.as_ref().filter(|_| !self.caller.may_everything()) else {
            return Ok(());
        };
        let principal = &self.caller.identity.principal;
        let quota = self.replica.state().access.quota_of(principal);
        auth.rates().request(principal, &quota).map_err(|exceeded| rate_exceeded(&exceeded))
    }

    /// Checks whether the caller may use an operation.
    ///
    /// # Errors
    /// Fails if the caller may not. The text does not tell whether the target exists.
    pub(crate) fn authorize(&self, verb: Verb, target: Target<'_>) -> Result<(), AdminError> {
        if self.may(verb, target) {
            Ok(())
        } else {
            Err(self.denied(&format!("{verb}{}", shown(target))))
        }
    }

    /// Returns whether the caller may use an operation.
    pub(crate) fn may(&self, verb: Verb, target: Target<'_>) -> bool {
        let caller = &self.caller;
        let access = &self.replica.state().access;
        match caller.rights {
            Rights::NotEnforced => true,
            // The call may be older than the deletion of its token.
            Rights::Admin => access.has_token_of(&caller.identity),
            Rights::Rules => access.permits(&caller.identity, verb, target),
        }
    }

    /// Checks whether the caller may use an operation on any target, before work is done for it.
    ///
    /// # Errors
    /// Fails if the caller may not.
    pub(crate) fn authorize_somewhere(&self, verb: Verb) -> Result<(), AdminError> {
        let caller = &self.caller;
        let access = &self.replica.state().access;
        if caller.may_everything() || access.permits_somewhere(&caller.identity, verb) {
            Ok(())
        } else {
            Err(self.denied(verb.name()))
        }
    }

    /// Returns the error for an operation that the caller may not use, and counts it.
    pub(crate) fn denied(&self, what: &str) -> AdminError {
        refused("denied");
        let who = &self.caller.identity.principal;
        AdminError::Forbidden(format!(
            "{who} has no right to {what}; `chancery whoami` shows the rights"
        ))
    }

    /// Returns the part of a state that the caller may read. What it may not read looks as if it did not exist.
    pub(crate) fn visible(&self, state: &Arc<Replicated>) -> Arc<Replicated> {
        let caller = &self.caller;
        if caller.may_everything() {
            return Arc::clone(state);
        }
        let rights = state.access.rights_of(&caller.identity);
        let may_get = |target| rights.permits(Verb::Get, target);
        let visible = state.scopes.iter().filter_map(|(name, scope)| {
            if may_get(Target::Scope(name)) {
                return Some((name.clone(), Arc::clone(scope)));
            }
            let types = scope.types.iter().filter(|(url, _)| may_get(Target::Type(name, url)));
            let types: BTreeMap<_, Arc<Collection>> =
                types.map(|(url, all)| (url.clone(), Arc::clone(all))).collect();
            let scope = || Arc::new(Scope { types: types.clone(), changed: scope.changed });
            (!types.is_empty()).then(|| (name.clone(), scope()))
        });
        let scopes = visible.collect();
        Arc::new(Replicated { scopes, ..Replicated::clone(state) })
    }
}

/// Returns a target as a part of a sentence.
pub(crate) fn shown(target: Target<'_>) -> String {
    match target {
        Target::Cluster => String::new(),
        Target::Scope(scope) => format!(" everything in scope {scope:?}"),
        Target::Type(scope, type_url) => format!(" {} in scope {scope:?}", type_url.short_name()),
        Target::Resource(scope, type_url, name) => {
            format!(" {} {:?} in scope {scope:?}", type_url.short_name(), name.base())
        }
    }
}
