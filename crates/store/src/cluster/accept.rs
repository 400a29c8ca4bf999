//! The replication port: who is let in.
//!
//! Replicas are few, and whoever reaches the port can open connections; so their number has a bound, and one
//! that is no replica's costs the replicas nothing.
//!
//! Invariants:
//! - The loop waits for nobody. TLS and the first words, which are those of HTTP/2, are heard in a task of
//!   each connection's own, and have to come in time.
//! - There are never more than so many connections ([`Places`]). One more takes the place of another: of one
//!   that has not said those words yet, or else of one that has made no call, or else of the one that has been
//!   silent for the longest time. A replica makes calls, and says something every second.
//! - When no file is free the loop pauses and goes on.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    places::{Freed, Place, Places},
    tls::Tls,
    wire::{Stream, Wire},
};
use crate::metrics::{PortMetrics, Refused};

/// The first words of HTTP/2 (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// They have to have come by then, after TLS if there is any.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first byte of a connection with TLS: the kind of a record, a handshake's.
const TLS_HANDSHAKE: u8 = 0x16;
/// Connections that are let in and not taken yet; further ones wait, in their places.
const READY_MAX: usize = 16;
/// What goes wrong with connections is told so often at most, of each kind.
const SAY_INTERVAL: Duration = Duration::from_secs(10);
/// When no connection can be taken, most often because no file is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection was not let in.
#[derive(Debug)]
struct Refusal {
    kind: Refused,
    reason: String,
}

impl Refusal {
    fn new(kind: Refused, reason: impl ToString) -> Self {
        Self { kind, reason: reason.to_string() }
    }
}

/// What the loop and the tasks of its connections share.
struct Port {
    tls: Option<Tls>,
    metrics: PortMetrics,
    /// When each kind of trouble was last told, and how often it was not since.
    told: Mutex<[(Option<Instant>, u64); Refused::ALL.len()]>,
}

/// The connections that come in, once they have said that they speak HTTP/2. Ends when what is given back is
/// dropped.
pub(crate) fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
    connections_max: usize,
) -> ReceiverStream<io::Result<Wire>> {
    let (ready, connections) = mpsc::channel(READY_MAX);
    let metrics = PortMetrics::new();
    let places = Places::new(connections_max, metrics.connections.clone());
    let port = Arc::new(Port { tls, metrics, told: Mutex::default() });
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ready.closed() => return,
            };
            match accepted {
                Ok((stream, from)) => {
                    let (place, freed) = places.take();
                    if freed == Freed::ByForce {
                        port.say(Refused::Limit, || {
                            format!(
                                "{connections_max} connections to the replication port are open \
                                 (raft.connections_max): {from} takes the place of another one"
                            )
                        });
                    }
                    tokio::spawn(Arc::clone(&port).let_in(stream, from, place, ready.clone()));
                }
                Err(error) => {
                    port.say(Refused::Accept, || {
                        format!("a connection of a replica can not be taken: {error}")
                    });
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(connections)
}

impl Port {
    async fn let_in(
        self: Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        place: Place,
        ready: mpsc::Sender<io::Result<Wire>>,
    ) {
        let greeted = tokio::select! {
            greeted = self.greet(stream) => greeted,
            () = place.lost() => return,
        };
        match greeted {
            Ok(stream) => {
                place.greeted();
                // Nobody takes it when the port is not served any more.
                drop(ready.send(Ok(Wire::new(stream, place))).await);
            }
            Err(Refusal { kind, reason }) => {
                self.say(kind, || format!("{from} is refused on the replication port: {reason}"));
            }
        }
    }

    async fn greet(&self, stream: TcpStream) -> Result<Stream, Refusal> {
        stream.set_nodelay(true).map_err(|error| Refusal::new(Refused::Silent, error))?;
        let mut stream = match &self.tls {
            Some(tls) => {
                let accepted = tls.accept(stream).await;
                let refused = |error| Refusal::new(Refused::Tls, error);
                Stream::Tls(Box::new(accepted.map_err(refused)?))
            }
            None => Stream::Plain(stream),
        };
        match tokio::time::timeout(PREFACE_TIMEOUT, read_preface(&mut stream)).await {
            Ok(read) => read.map(|()| stream),
            Err(_) => {
                let reason = format!("it has not begun to speak HTTP/2 within {PREFACE_TIMEOUT:?}");
                Err(Refusal::new(Refused::Silent, reason))
            }
        }
    }

    /// Counts what has gone wrong, and tells it unless the same kind was told a moment ago.
    fn say(&self, kind: Refused, text: impl FnOnce() -> String) {
        self.metrics.refused(kind).increment(1);
        let mut told = self.told.lock();
        let (last, left_out) = &mut told[kind as usize];
        if last.is_some_and(|last| last.elapsed() < SAY_INTERVAL) {
            *left_out += 1;
            return;
        }
        tracing::warn!(left_out, "{}", text());
        (*last, *left_out) = (Some(Instant::now()), 0);
    }
}

/// Reads the first words, and no more than those. Whoever says something else is not waited for.
async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), Refusal> {
    let mut read = [0; PREFACE.len()];
    let mut len = 0;
    while len < PREFACE.len() {
        match stream.read(&mut read[len..]).await {
            Ok(0) => return Err(Refusal::new(Refused::Silent, "it has closed the connection")),
            Ok(more) => len += more,
            Err(error) => return Err(Refusal::new(Refused::Silent, error)),
        }
        if read[..len] != PREFACE[..len] {
            return Err(Refusal::new(
                Refused::Protocol,
                match read[0] {
                    TLS_HANDSHAKE => {
                        "it speaks TLS, and this replica does not (raft.tls_cert is not set here)"
                    }
                    _ => "it does not speak HTTP/2",
                },
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(mut bytes: &[u8]) -> Result<usize, Refused> {
        let before = bytes.len();
        let read = read_preface(&mut bytes).await;
        read.map(|()| before - bytes.len()).map_err(|refusal| refusal.kind)
    }

    #[tokio::test]
    async fn only_the_first_words_of_http_2_are_taken() {
        let whole = [PREFACE.as_slice(), b"more"].concat();
        assert_eq!(read(&whole).await, Ok(24));
        assert_eq!(read(b"").await, Err(Refused::Silent));
        assert_eq!(read(&PREFACE[..23]).await, Err(Refused::Silent));
        assert_eq!(read(b"GET / HTTP/1.1\r\n").await, Err(Refused::Protocol));
        let mut tls: &[u8] = b"\x16\x03\x01\x02\x00";
        let refusal = read_preface(&mut tls).await.unwrap_err();
        assert!(refusal.reason.contains("raft.tls_cert is not set here"), "{refusal:?}");
    }
}
