//! The authentication of requests, and the checks of rights.
//!
//! Every request passes [`authenticate`], and every operation of [`Service`] begins with [`Service::authorize`] or a
//! check of its own. The tests `access` call every method and path without rights.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use chancery_audit::{Decision, Event, Port};
use chancery_auth::{AuthPort, Credentials, TransportPeer};
use chancery_fanout::AccessControl;
use chancery_model::{Collection, Scope, State as Replicated, Target, Verb};
use http::{HeaderValue, header, request::Parts};
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
        Err(text) => {
            let event = Event::new(Port::Admin, "authenticate");
            let event = audited::Caller::of(&parts.extensions, &parts.headers).add_to(event);
            let target = chancery_audit::Target {
                name: parts.uri.path().to_owned(),
                ..chancery_audit::Target::default()
            };
            let decision = Decision::Refused("unauthenticated");
            service.audit.note_stranger(Event { decision, target, ..event });
            let is_grpc = parts.headers.get(header::CONTENT_TYPE);
            if is_grpc.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
                return tonic::Status::unauthenticated(text).into_http::<axum::body::Body>();
            }
            let mut response = AdminError::Unauthenticated(text).into_response();
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
            response
        }
    }
}

async fn caller(service: &Service, request: &Parts) -> Result<Caller, String> {
    let access = &service.access;
    let auth = match (access.control, &access.auth) {
        (AccessControl::Enforced, Some(auth)) => auth,
        (AccessControl::Off, _) => return Ok(Caller::unrestricted()),
        (AccessControl::Enforced, None) => return Err("the port has no authentication".to_owned()),
    };
    if OPEN.contains(&request.uri.path()) {
        return Ok(Caller::nobody());
    }
    let credentials = Credentials {
        port: AuthPort::Admin,
        headers: &request.headers,
        query: request.uri.query(),
        peer: request.extensions.get::<TransportPeer>(),
    };
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
            return Err(error.to_string());
        }
    };
    let rights = access.rights_of(&identity.principal);
    let is_unknown = identity.principal.is_anonymous()
        && rights == Rights::Rules
        && rules.rules_of(&identity.principal).next().is_none();
    if is_unknown {
        refused("no_credential");
        return Err("the request has no credential: send a bearer token or a client certificate \
                    (--token-file, --cert)"
            .to_owned());
    }
    Ok(Caller { identity, rights, ends_at: ends_after.map(|after| Instant::now() + after) })
}

fn refused(reason: &'static str) {
    counter!("chancery_access_refused_total", "port" => "admin", "reason" => reason).increment(1);
}

impl Service {
    /// Returns the service for a caller. Without one, nothing is permitted.
    pub(crate) fn of(&self, extensions: &http::Extensions) -> Self {
        let caller = extensions.get::<Arc<Caller>>().cloned();
        Self { caller: caller.unwrap_or_else(|| Arc::new(Caller::nobody())), ..self.clone() }
    }

    /// Checks whether the caller may use an operation.
    ///
    /// # Errors
    /// Fails if the caller may not. The text does not tell whether the target exists.
    pub(crate) fn authorize(&self, verb: Verb, target: Target<'_>) -> Result<(), AdminError> {
        match self.may(verb, target) {
            true => Ok(()),
            false => Err(self.denied(&format!("{verb}{}", shown(target)))),
        }
    }

    /// Returns whether the caller may use an operation.
    pub(crate) fn may(&self, verb: Verb, target: Target<'_>) -> bool {
        let caller = &self.caller;
        caller.may_everything()
            || self.replica.state().access.permits(&caller.identity, verb, target)
    }

    /// Checks whether the caller may use an operation on any target, before work is done for it.
    ///
    /// # Errors
    /// Fails if the caller may not.
    pub(crate) fn authorize_somewhere(&self, verb: Verb) -> Result<(), AdminError> {
        let caller = &self.caller;
        let access = &self.replica.state().access;
        match caller.may_everything() || access.permits_somewhere(&caller.identity, verb) {
            true => Ok(()),
            false => Err(self.denied(verb.name())),
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
