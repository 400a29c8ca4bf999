//! The authentication of a request: of a stream when it opens, and of each poll.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_auth::{AuthError, AuthPort, Authenticator, Credentials};
use chancery_fanout::AccessControl;
use chancery_model::Identity;
use http::Request;
use metrics::counter;

use crate::{connection::Connection, shared::Shared};

/// The authenticated client of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Arc<Identity>,
    /// The time after which a stream of the client ends, because its credential expires.
    pub(crate) ends_after: Option<Duration>,
}

/// The reason why a client is not authenticated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unauthenticated {
    #[error(transparent)]
    Credential(#[from] AuthError),
    #[error("the request has no credential: send a bearer token or a client certificate")]
    Missing,
}

impl Caller {
    /// Returns the caller of a port that does not authenticate.
    pub(crate) fn anonymous() -> Self {
        Self { identity: Arc::new(Identity::anonymous()), ends_after: None }
    }

    /// Authenticates the client of a request.
    pub(crate) async fn of<B>(
        shared: &Shared,
        auth: &Authenticator,
        connection: &Connection,
        request: &Request<B>,
    ) -> Result<Self, Unauthenticated> {
        let access = shared.fanout.access();
        let peer = connection.transport_peer();
        let credentials = Credentials {
            port: AuthPort::Xds,
            headers: request.headers(),
            query: request.uri().query(),
            peer: peer.as_ref(),
        };
        let now = SystemTime::now();
        let proof = auth.identify(credentials, now, &|digest| access.token(digest).cloned()).await;
        let proof = proof.inspect_err(|error| refused(error.reason()))?;
        let principal = &proof.identity.principal;
        if principal.is_anonymous() && access.rules_of(principal).next().is_none() {
            refused("no_credential");
            return Err(Unauthenticated::Missing);
        }
        let ends_after = proof.ends_after(now);
        Ok(Self { identity: Arc::new(proof.identity), ends_after })
    }
}

impl Shared {
    /// Returns what authenticates clients; `None` if access rules do not apply.
    pub(crate) fn auth(&self) -> Option<&Authenticator> {
        match self.fanout.access_control() {
            AccessControl::Off => None,
            AccessControl::Enforced => self.config.auth.as_ref(),
        }
    }
}

fn refused(reason: &'static str) {
    counter!("chancery_access_refused_total", "port" => "xds", "reason" => reason).increment(1);
}
