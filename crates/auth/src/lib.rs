//! Identities of clients, authors and operators.
//!
//! [`Authenticator::identify`] turns the credentials of a stream or a call into an [`Identity`]. The credentials are the
//! certificate of the connection, a bearer token, or the user at the other end of a UNIX socket. What the identity may
//! do is decided elsewhere.
//!
//! | credential | principal | module |
//! |---|---|---|
//! | none | `anonymous` | |
//! | a client certificate | `spiffe://…`, `cert:CA/dns/NAME` or `cert:CA/cn/NAME` | `certificate` |
//! | a static token | `token:NAME` | `static_token` |
//! | a JSON Web Token of an issuer | `jwt:ISSUER/SUBJECT` | `issuer` |
//! | a service account token of a cluster | `k8s:CLUSTER/NAMESPACE/ACCOUNT` | `kubernetes` |
//! | a connection to the UNIX socket | `unix:UID` | |
//!
//! Invariants:
//! - A bad credential is refused, and never ignored. If a call has a certificate and a bearer token, both must be
//!   valid, and the principal is that of the token.
//! - No text of an error, log message or metric contains a token.
//! - Nothing that a token contains causes a request to another server. The addresses of key sets come from the
//!   configuration only.
//! - The work and the memory for a credential are bounded. There is no slow hash.
//! - A clock that jumps back extends no credential.
//! - An address with many failures is refused before a token of it is verified, except tokens that were verified before.
//!
//! [`Identity`]: chancery_model::Identity

mod authenticator;
mod bearer;
mod certificate;
mod clock;
mod credentials;
mod error;
mod failures;
mod fetch;
pub mod fuzz;
mod issuer;
mod key_set;
mod key_source;
mod keyed_buckets;
mod known_tokens;
mod kubernetes;
mod metrics;
mod rates;
mod settings;
mod signed;
mod static_token;
mod verified;

pub use authenticator::Authenticator;
pub use credentials::{AuthPort, Credentials, Proof, TokenLookup, TransportPeer};
pub use error::{AuthError, Method, Reason};
pub use key_set::Algorithm;
pub use metrics::{METRICS, register_metrics};
pub use rates::{IdentityRates, RateExceeded};
pub use settings::{AuthSettings, IssuerKind, IssuerSettings, KeyLocation, KeyUrl, SettingsError};
pub use static_token::{NewToken, TokenError, digest_of, new_token};
