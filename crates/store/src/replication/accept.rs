//! Accepts connections to the replication port.
//!
//! Anyone who reaches the port can open connections, but a cluster has few replicas. The number of
//! connections is therefore limited. An excess connection displaces the one that is least likely to belong
//! to a replica.
//!
//! Invariants:
//! - The accept loop never waits for a client. Each connection has a task for the TLS handshake and the
//!   HTTP/2 connection preface, with timeouts.
//! - The number of connections never exceeds the limit of [`Slots`]. A connection beyond it displaces
//!   another one: first one without a preface, then one without a call, then the one that was silent
//!   longest. A replica makes calls, and sends something every second.
//! - When no file descriptor is free, the loop pauses and then continues.

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
    connection::{PREFACE, Stream, Wire},
    slots::{Freed, Place, Slots},
    tls::Tls,
};
use crate::metrics::{PortMetrics, Refused};

/// The maximum time to the end of the preface, measured after the TLS handshake if there is one.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first byte of a TLS connection: the record type of a handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// The maximum number of accepted connections that the server has not taken yet. Further ones wait, and
/// keep their places.
const READY_MAX: usize = 16;
/// The minimum time between two log messages about the same kind of problem.
const SAY_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a failed accept, which most often means that no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The reason why a connection was rejected.
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

/// The state that the accept loop shares with the tasks of its connections.
struct Port {
    tls: Option<Tls>,
    metrics: PortMetrics,
    /// The time of the last log message about each kind of problem, and the number of suppressed ones since.
    told: Mutex<[(Option<Instant>, u64); Refused::ALL.len()]>,
}

/// Returns the incoming connections that have sent the HTTP/2 preface. Accepting ends when the returned
/// stream is dropped.
pub(crate) fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
    connections_max: usize,
) -> ReceiverStream<io::Result<Wire>> {
    let (ready, connections) = mpsc::channel(READY_MAX);
    let metrics = PortMetrics::new();
    let places = Slots::new(connections_max, metrics.connections.clone());
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
                                "the replication port has {connections_max} open connections, the limit \
                                 (`raft.connections_max`): {from} displaces another connection"
                            )
                        });
                    }
                    tokio::spawn(Arc::clone(&port).admit_replica(
                        stream,
                        from,
                        place,
                        ready.clone(),
                    ));
                }
                Err(error) => {
                    port.say(Refused::Accept, || {
                        format!("cannot accept a connection to the replication port: {error}")
                    });
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(connections)
}

impl Port {
    async fn admit_replica(
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
                // Fails if the port is no longer served.
                drop(ready.send(Ok(Wire::new(stream, place))).await);
            }
            Err(Refusal { kind, reason }) => {
                self.say(kind, || format!("{from} was rejected on the replication port: {reason}"));
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
                let reason = format!("it sent no HTTP/2 preface within {PREFACE_TIMEOUT:?}");
                Err(Refusal::new(Refused::Silent, reason))
            }
        }
    }

    /// Counts a problem, and logs it unless a problem of the same kind was logged within [`SAY_INTERVAL`].
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

/// Reads the preface and not a byte more. Fails at the first wrong byte.
async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), Refusal> {
    let mut read = [0; PREFACE.len()];
    let mut len = 0;
    while len < PREFACE.len() {
        match stream.read(&mut read[len..]).await {
            Ok(0) => return Err(Refusal::new(Refused::Silent, "it closed the connection")),
            Ok(more) => len += more,
            Err(error) => return Err(Refusal::new(Refused::Silent, error)),
        }
        if read[..len] != PREFACE[..len] {
            return Err(Refusal::new(
                Refused::Protocol,
                match read[0] {
                    TLS_HANDSHAKE => "it uses TLS, but `raft.tls_cert` is not set on this replica",
                    _ => "it does not use HTTP/2",
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
        assert!(refusal.reason.contains("`raft.tls_cert` is not set"), "{refusal:?}");
    }
}
