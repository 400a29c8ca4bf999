//! The credentials of a caller, and the identity that they prove.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_model::{Identity, Principal, Token, TokenDigest};
use chancery_tls::PeerIdentity;
use http::HeaderMap;

use crate::certificate;

/// The shortest time for which a stream continues, so that clients with an expiring token do not reconnect in a loop.
const STREAM_SECONDS_MIN: f64 = 1.0;
/// The largest random time by which a stream ends before its token expires.
const JITTER_SECONDS_MAX: f64 = 60.0;

/// A port on which callers authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthPort {
    /// The port for xDS clients.
    Xds,
    /// The port for authors and operators, and its UNIX socket.
    Admin,
}

/// The credentials of a stream or a call.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    /// The port that received the request. The accepted methods depend on it.
    pub port: AuthPort,
    /// The headers of the request.
    pub headers: &'a HeaderMap,
    /// The query of the URL, which must not contain a token.
    pub query: Option<&'a str>,
    /// The caller, as the connection identifies it.
    pub peer: Option<&'a TransportPeer>,
    /// The address of the caller; `None` for a UNIX socket.
    pub address: Option<IpAddr>,
}

/// The other end of a connection, if the connection identifies it. The ports put it into the extensions of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportPeer {
    /// The client with this verified certificate.
    Certificate(Arc<PeerIdentity>),
    /// A process of this user, over a UNIX socket.
    UnixUser(u32),
}

/// A proved identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The principal, and the token of Chancery that proved it.
    pub identity: Identity,
    /// The time at which the credential expires. `None` if it does not, or if its connection ends with it, as that of
    /// a certificate does.
    pub expires: Option<SystemTime>,
    /// The time at which the credential was checked. It may be later than that of a wall clock that jumped back.
    pub(crate) checked: Option<SystemTime>,
}

/// A search for a token of Chancery by its digest.
pub type TokenLookup<'a> = dyn Fn(&TokenDigest) -> Option<Token> + Send + Sync + 'a;

impl AuthPort {
    pub(crate) const ALL: [Self; 2] = [Self::Xds, Self::Admin];

    /// Returns the label of metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Xds => "xds",
            Self::Admin => "admin",
        }
    }
}

impl TransportPeer {
    /// Returns the principal of the peer; `None` if its certificate has no name that identifies it.
    #[must_use]
    pub fn principal(&self) -> Option<Principal> {
        match self {
            Self::Certificate(peer) => certificate::principal(peer).ok(),
            Self::UnixUser(user) => Some(Principal::unix(*user)),
        }
    }
}

impl Proof {
    pub(crate) fn of(identity: Identity) -> Self {
        Self { identity, expires: None, checked: None }
    }

    /// Returns the time after which a stream with this credential ends with "reconnect": a random time before the
    /// credential expires, so that streams with tokens of the same age do not end together.
    #[must_use]
    pub fn ends_after(&self, now: SystemTime) -> Option<Duration> {
        let now = self.checked.map_or(now, |checked| checked.max(now));
        let left = self.expires?.duration_since(now).unwrap_or_default().as_secs_f64();
        let early = 1.0 + (left / 10.0).min(JITTER_SECONDS_MAX) * fastrand::f64();
        Some(Duration::from_secs_f64((left - early).max(STREAM_SECONDS_MIN.min(left))))
    }
}
