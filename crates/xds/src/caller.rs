//! The authentication of a request: of a stream when it opens, and of each poll.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_auth::{AuthError, AuthPort, Authenticator, Credentials, RateExceeded};
use chancery_fanout::{ClientEvent, ClientEventKind, Fanout, access_refused};
use chancery_model::{Identity, IdentityQuota};
use http::Request;

use crate::{connection::Connection, shared::Shared};

/// The authenticated client of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Arc<Identity>,
    /// The time after which a stream of the client ends, because its credential expires.
    pub(crate) ends_after: Option<Duration>,
    /// The rate of the identity, if its access rules limit it.
    pub(crate) rate: Option<RequestRate>,
}

/// The rate of the requests of an identity.
#[derive(Debug, Clone)]
pub(crate) struct RequestRate {
    auth: Authenticator,
    fanout: Fanout,
    identity: Arc<Identity>,
    quota: IdentityQuota,
    peer: SocketAddr,
}

impl RequestRate {
    /// Counts a request. Passes on a refusal.
    ///
    /// # Errors
    /// Fails if the identity has sent too many.
    pub(crate) fn take(&self) -> Result<(), RateExceeded> {
        let principal = &self.identity.principal;
        self.auth.rates().request(principal, &self.quota).inspect_err(|exceeded| {
            access_refused(exceeded.key);
            self.fanout.observe(ClientEvent {
                kind: ClientEventKind::Refused(exceeded.key),
                principal: Some(principal),
                peer: self.peer,
                node: "",
            });
        })
    }
}

/// The reason why a client is not authenticated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unauthenticated {
    #[error(transparent)]
    Credential(#[from] AuthError),
    #[error("the request has no credential: send a bearer token or a client certificate")]
    Missing,
    #[error(transparent)]
    Rate(#[from] RateExceeded),
}

impl Unauthenticated {
    /// Returns the reason, for metrics and the audit log.
    fn reason(&self) -> &'static str {
        match self {
            Self::Credential(error) => error.reason(),
            Self::Missing => "no_credential",
            Self::Rate(exceeded) => exceeded.key,
        }
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn is_limit(&self) -> bool {
        match self {
            Self::Credential(error) => error.is_limited(),
            Self::Missing => false,
            Self::Rate(_) => true,
        }
    }
}

impl Caller {
    /// Returns the client of a port without access rules. Its certificate proves an identity, which the status of nodes
    /// and the audit log show.
    pub(crate) fn unrestricted(connection: &Connection) -> Self {
        let principal = connection.transport_peer().and_then(|peer| peer.principal());
        let identity = match principal {
            Some(principal) => Identity { principal, token: None },
            None => Identity::anonymous(),
        };
        Self { identity: Arc::new(identity), ends_after: None, rate: None }
    }

    /// Authenticates the client of a request, and counts the request. Passes on a refusal.
    pub(crate) async fn of<B>(
        shared: &Shared,
        auth: &Authenticator,
        connection: &Connection,
        request: &Request<B>,
    ) -> Result<Self, Unauthenticated> {
        let caller = Self::identify(shared, auth, connection, request).await;
        let caller = caller.inspect_err(|error| {
            access_refused(error.reason());
            shared.fanout.observe(ClientEvent {
                kind: ClientEventKind::Unauthenticated(error.reason()),
                principal: None,
                peer: connection.peer(),
                node: "",
            });
        })?;
        if let Some(rate) = &caller.rate {
            rate.take()?;
        }
        Ok(caller)
    }

    async fn identify<B>(
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
            address: Some(connection.peer().ip()),
        };
        let now = SystemTime::now();
        let proof = auth.identify(credentials, now, &|digest| access.token(digest).cloned()).await;
        let proof = proof?;
        let principal = &proof.identity.principal;
        if principal.is_anonymous() && access.rules_of(principal).next().is_none() {
            return Err(Unauthenticated::Missing);
        }
        let ends_after = proof.ends_after(now);
        let quota = access.quota_of(principal);
        let identity = Arc::new(proof.identity);
        let rate = quota.requests_per_second.map(|_| RequestRate {
            auth: auth.clone(),
            fanout: shared.fanout.clone(),
            peer: connection.peer(),
            identity: Arc::clone(&identity),
            quota,
        });
        Ok(Self { identity, ends_after, rate })
    }
}
