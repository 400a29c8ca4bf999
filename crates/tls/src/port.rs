//! The certificates of a running port, which are read again when their files change.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        pki_types::{CertificateDer, ServerName},
        server::danger::ClientCertVerifier,
    },
};

use crate::{
    error::TlsError,
    files::Stamp,
    handshake::{HandshakeError, HandshakeResult},
    material::{Sides, TlsConfig, TlsPort, unix_time},
    metrics::PortMetrics,
    peer::{Peer, Peers},
    refusal_log::RefusalLog,
    stream::{Stream, within_handshake_timeout},
    validity::Validity,
};

/// The certificates of a running port. Cheap to clone.
#[derive(Clone)]
pub struct PortTls(Arc<Shared>);

/// A function that is called for each failed handshake. It must not block.
pub type RefusalObserver = Box<dyn Fn(SocketAddr, HandshakeResult) + Send + Sync>;

struct Shared {
    config: TlsConfig,
    metrics: PortMetrics,
    refusals: RefusalLog,
    /// Called for each failed handshake, in addition to the log.
    observer: OnceLock<RefusalObserver>,
    /// The state of the files. It is locked while files are read, which may take long.
    source: Mutex<Source>,
    /// The configurations for new connections.
    sides: Mutex<Sides>,
    /// The clients of open connections that have certificates.
    peers: Arc<Peers>,
}

/// The state of the files when they were last read.
#[derive(Debug)]
struct Source {
    stamp: Stamp,
    reading: Reading,
}

/// The result of the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Usable,
    /// The key belongs to another certificate, as it does between the replacements of the two files. It
    /// is not reported yet.
    Mismatched,
    /// The files are unusable, and that is reported.
    Unusable,
}

/// Whether [`PortTls::reread`] reads unusable files again although they have not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unchanged {
    Skip,
    Retry,
}

/// The interval at which [`PortTls::keep_fresh`] checks the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl PortTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Fails if a file is unusable, or the key does not belong to the certificate.
    pub fn new(config: TlsConfig) -> Result<Self, TlsError> {
        // The stamp comes first, so that a change during the reading is noticed later.
        let stamp = config.stamp();
        let sides = Mutex::new(config.read()?);
        let metrics = PortMetrics::new(config.port);
        let source = Mutex::new(Source { stamp, reading: Reading::Usable });
        let (refusals, observer, peers) = Default::default();
        let tls =
            Self(Arc::new(Shared { config, metrics, refusals, observer, source, sides, peers }));
        tls.update_gauge();
        Ok(tls)
    }

    /// Checks the files every second, and reads them again if they have changed. Ends only if the runtime
    /// does.
    pub async fn keep_fresh(self) {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let tls = self.clone();
            // The files may be on a disk that does not answer.
            if tokio::task::spawn_blocking(move || tls.refresh()).await.is_err() {
                return;
            }
        }
    }

    /// Reads the files again if they have changed, or were unusable. Ends the connections whose certificates
    /// are about to expire. Updates the remaining time of the certificate of the port.
    pub fn refresh(&self) {
        let count = |end| self.0.metrics.on_end(end);
        self.0.peers.end_expired(unix_time(), count);
        self.reread(Unchanged::Retry);
        self.update_gauge();
    }

    fn update_gauge(&self) {
        let validity = self.validity();
        let PortMetrics { seconds_left, lifetime_seconds, .. } = &self.0.metrics;
        seconds_left.set(seconds(validity.not_after.saturating_sub(unix_time())));
        lifetime_seconds.set(seconds(validity.lifetime()));
    }

    /// Returns the validity of the certificate in use.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.0.sides.lock().validity
    }

    /// Returns the seconds until the certificate in use expires; negative if it has expired.
    #[must_use]
    pub fn seconds_left(&self) -> f64 {
        seconds(self.validity().not_after.saturating_sub(unix_time()))
    }

    /// Reads the files again. Returns at once if another thread is reading them.
    fn reread(&self, unchanged: Unchanged) {
        let Some(mut source) = self.0.source.try_lock() else { return };
        let stamp = self.0.config.stamp();
        let has_changed = stamp != source.stamp;
        let is_due = source.reading != Reading::Usable && unchanged == Unchanged::Retry;
        if !has_changed && !is_due {
            return;
        }
        // Set even on failure, so that only `refresh` reads unusable files repeatedly.
        source.stamp = stamp;
        let purpose = self.0.config.port.purpose();
        match self.0.config.read() {
            Ok(sides) => {
                tracing::info!("read the changed certificate files for {purpose}");
                let verifier = sides.verifier.clone();
                *self.0.sides.lock() = sides;
                self.0.metrics.reloaded.increment(1);
                source.reading = Reading::Usable;
                if let Some(verifier) = verifier {
                    self.0.peers.verify_again(&*verifier, |end| self.0.metrics.on_end(end));
                }
            }
            // The second of the two files usually follows before the next check.
            Err(TlsError::Mismatch { .. }) if has_changed => source.reading = Reading::Mismatched,
            Err(error) => {
                if has_changed || source.reading == Reading::Mismatched {
                    self.0.metrics.reload_failed.increment(1);
                    tracing::error!(%error, "the certificate files for {purpose} have changed and are unusable; \
                        the previous certificates stay in use");
                }
                source.reading = Reading::Unusable;
            }
        }
    }

    /// Checks the files if connections are rare, as those between replicas and to MCP sources. On the other ports,
    /// only [`Self::keep_fresh`] checks the files.
    fn before_connection(&self) {
        if matches!(self.0.config.port, TlsPort::Raft | TlsPort::Mcp) {
            self.reread(Unchanged::Skip);
        }
    }

    /// Does the handshake of an incoming connection, and counts its result.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes longer than [`crate::HANDSHAKE_TIMEOUT`].
    pub async fn accept(&self, stream: TcpStream) -> Result<Stream, HandshakeError> {
        self.before_connection();
        let Sides { server, verifier, .. } = self.0.sides.lock().clone();
        let accept = TlsAcceptor::from(server).accept(stream);
        let accepted = within_handshake_timeout(accept).await.and_then(|stream| {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let peer = self.identify(chain, verifier.as_ref())?;
            Ok(Stream::Tls(Box::new(stream.into()), peer))
        });
        let accepted = accepted.map_err(HandshakeError::new);
        let result = accepted.as_ref().map_or_else(|error| error.result, |_| HandshakeResult::Ok);
        self.0.metrics.on_handshake(result);
        accepted
    }

    /// Returns the client with this chain of certificates, which `verifier` has accepted.
    fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        verifier: Option<&Arc<dyn ClientCertVerifier>>,
    ) -> io::Result<Option<Peer>> {
        if chain.is_empty() || !self.0.config.port.identifies_clients() {
            return Ok(None);
        }
        let peer = self.0.peers.add(chain, &self.0.config.clients, unix_time())?;
        let current = self.0.sides.lock().verifier.clone();
        // The peer is registered, so that either this check or that of the change sees it.
        if let (Some(used), Some(current)) = (verifier, &current)
            && !Arc::ptr_eq(used, current)
            && let Some(end) = peer.verify_again(&**current)
        {
            self.0.metrics.on_end(end);
        }
        Ok(Some(peer))
    }

    /// Logs a failed handshake, at a limited rate, and calls the observer.
    pub fn log_refusal(&self, peer: SocketAddr, error: &HandshakeError) {
        self.0.refusals.write(self.0.config.port, peer, error);
        if let Some(observer) = self.0.observer.get() {
            observer(peer, error.result);
        }
    }

    /// Sets the observer of failed handshakes. The first one stays.
    pub fn observe_refusals(&self, observer: RefusalObserver) {
        // A second observer is dropped.
        drop(self.0.observer.set(observer));
    }

    /// Does the handshake of an outgoing connection to a server with this name.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes longer than [`crate::HANDSHAKE_TIMEOUT`], or if the port
    /// opens no connections.
    pub async fn connect(&self, name: &str, stream: TcpStream) -> io::Result<Stream> {
        let name = server_name(name).map_err(io::Error::other)?;
        self.before_connection();
        let client = self.0.sides.lock().client.clone();
        let client = client.ok_or_else(|| io::Error::other("the port makes no connections"))?;
        let connect = TlsConnector::from(client).connect(name, stream);
        within_handshake_timeout(connect)
            .await
            .map(|stream| Stream::Tls(Box::new(stream.into()), None))
    }
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
#[must_use]
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Checks that a certificate can have this name.
///
/// # Errors
/// Fails if the name is neither a DNS name nor an IP address.
pub fn check_server_name(name: &str) -> Result<(), TlsError> {
    server_name(name).map(drop)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 seconds")]
fn seconds(time: i64) -> f64 {
    time as f64
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned())
        .map_err(|error| TlsError::ServerName { name: name.to_owned(), reason: error.to_string() })
}

impl std::fmt::Debug for PortTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortTls").field(&self.0.config).finish()
    }
}

#[cfg(test)]
mod tests;
