//! Connections between replicas: TCP, with TLS over it or not.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_rustls::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, server::Connected};

use super::tls::Tls;

/// Connections that came in and have not shown a certificate yet. When there are so many, further ones wait
/// in the backlog of the kernel; each of them is gone after the timeout of a handshake.
const HANDSHAKES_MAX: usize = 256;
/// Connections that are secure and not taken yet; handshakes that are done wait when there are so many.
const READY_MAX: usize = 16;
/// What goes wrong with connections is told so often at most.
const SAY_INTERVAL: Duration = Duration::from_secs(10);
/// When no connection can be taken, most often because no file is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A secure connection that came in.
pub(crate) struct Wire(TlsStream<TcpStream>);

/// Makes a channel that connects when it is used, with TLS.
pub(crate) fn connect_lazily(endpoint: &Endpoint, address: &str, tls: &Tls) -> Channel {
    let (address, tls) = (address.to_owned(), tls.clone());
    let connector = tower::service_fn(move |_| {
        let (address, tls) = (address.clone(), tls.clone());
        async move {
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioIo::new(tls.connect(&address, stream).await?))
        }
    });
    endpoint.connect_with_connector_lazy(connector)
}

/// The connections that come in, once they are secure. Each has its handshake in a task of its own, so that
/// nobody waits for anybody who says nothing.
pub(crate) fn accept(listener: TcpListener, tls: Tls) -> ReceiverStream<io::Result<Wire>> {
    let (ready, connections) = mpsc::channel(READY_MAX);
    tokio::spawn(async move {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let refusals = Arc::new(Refusals::default());
        loop {
            let permit = Arc::clone(&handshakes).acquire_owned().await;
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ready.closed() => return,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    refusals.say(&format!("a connection of a replica can not be taken: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (tls, ready, refusals) = (tls.clone(), ready.clone(), Arc::clone(&refusals));
            tokio::spawn(async move {
                let accepted = match stream.set_nodelay(true) {
                    Ok(()) => tls.accept(stream).await,
                    Err(error) => Err(error),
                };
                drop(permit);
                match accepted {
                    // Nobody takes it when the port is not served any more.
                    Ok(stream) => drop(ready.send(Ok(Wire(stream))).await),
                    Err(error) => {
                        refusals
                            .say(&format!("{from} is refused on the replication port: {error}"));
                    }
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

/// Says now and then who was refused.
#[derive(Default)]
struct Refusals(Mutex<Option<Instant>>);

impl Refusals {
    fn say(&self, text: &str) {
        let mut last = self.0.lock();
        if last.is_none_or(|last| last.elapsed() >= SAY_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!("{text}");
        }
    }
}

impl Connected for Wire {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Wire").finish_non_exhaustive()
    }
}
