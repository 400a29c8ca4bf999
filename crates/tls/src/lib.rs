//! TLS of all ports (xDS, admin, replication) and of the command line.
//!
//! [`TlsConfig`] names the PEM files of a port. [`PortTls`] holds the certificates of a running port, does
//! its handshakes, and reads the files again when they change. [`ClientTls`] is the side of the command
//! line. aws-lc-rs is the only cryptographic provider.
//!
//! Invariants:
//! - No session is resumed, and no early data is accepted. Every connection verifies the certificates with
//!   the current CA and revocation list.
//! - Unusable files never replace usable ones. The previous certificates stay in use, and the log and
//!   `chancery_tls_reloads_total` show the failure.
//! - A new certificate of a port affects new connections only. Open connections continue.
//! - On the ports for clients and operators, [`Peer::ended`] tells when the certificate of a client no longer
//!   permits its connection: shortly before it expires, or when a changed CA file or revocation list refuses
//!   it. The connection then asks its client to reconnect.
//! - A handshake takes at most [`HANDSHAKE_TIMEOUT`], and does not wait for other handshakes.
//! - A client of this crate always verifies the certificate of its server.

mod client;
mod client_verifier;
mod clock;
mod error;
mod files;
mod handshake;
mod material;
mod metrics;
mod peer;
mod port;
mod refusal_log;
mod security;
mod spiffe;
mod stream;
mod validity;

pub use client::{
    ClientStream, ClientTls, ClientTlsFiles, ConnectError, LastRefusal, ServerRefusal,
};
pub use clock::CredentialClock;
pub use error::{TlsError, TlsFile};
pub use handshake::{HandshakeError, HandshakeResult};
pub use material::{ClientCertificates, MinVersion, TlsConfig, TlsPort};
pub use metrics::{METRICS, register_metrics};
pub use peer::{CredentialEnd, Peer, PeerIdentity};
pub use port::{PortTls, RefusalObserver, check_server_name, host_of};
pub use security::Security;
pub use spiffe::trust_domain_rule;
pub use stream::{HANDSHAKE_TIMEOUT, Stream};
pub use validity::{Validity, expiry_warning_seconds};
