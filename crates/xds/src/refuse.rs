//! The explanation for a client whose connection is rejected, in the HTTP version that it speaks.

use std::{io::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_net::{OpenSocket, refusal};
use chancery_tls::PortTls;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_util::task::TaskTracker;

use crate::rest::json::quoted;

/// The maximum number of rejected connections whose first bytes are awaited. Further ones are rejected at once.
const WAITING_MAX: usize = 64;
/// The maximum time for the TLS handshake, for the first bytes, and for the explanation.
const WAIT: Duration = Duration::from_millis(500);
/// The first bytes of HTTP/2, as far as they are certain to arrive together.
const HTTP2: &[u8] = b"PRI";

/// Rejects connections beyond a limit.
#[derive(Debug)]
pub(crate) struct Refusals {
    waiting: Arc<Semaphore>,
    tracker: TaskTracker,
}

impl Refusals {
    pub(crate) fn new(tracker: TaskTracker) -> Self {
        Self { waiting: Arc::new(Semaphore::new(WAITING_MAX)), tracker }
    }

    /// Tells a client why its connection is closed, if that is possible with bounded effort.
    pub(crate) fn refuse(&self, stream: TcpStream, text: String, socket: OpenSocket) {
        let Ok(turn) = Arc::clone(&self.waiting).try_acquire_owned() else {
            // The runtime does not know yet that the new socket is writable, so this bypasses it.
            let Ok(mut stream) = stream.into_std() else { return };
            // If the write fails, the client only sees the connection close.
            drop(stream.write_all(&refusal(&text)));
            return;
        };
        self.tracker.spawn(async move {
            explain(stream, &text).await;
            drop((turn, socket));
        });
    }

    /// Returns the task that tells a client over TLS why its connection is closed. Returns `None` if that
    /// would take unbounded effort; the client then only sees the connection close.
    pub(crate) fn over_tls(
        &self,
        tls: PortTls,
        stream: TcpStream,
        text: String,
        socket: OpenSocket,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let turn = Arc::clone(&self.waiting).try_acquire_owned().ok()?;
        Some(async move {
            if let Ok(Ok(stream)) = timeout(WAIT, Box::pin(tls.accept(stream))).await {
                explain(stream, &text).await;
            }
            drop((turn, socket));
        })
    }
}

/// Sends the explanation after the first bytes of the client. If they remained unread, the close would reset the
/// connection, and the client's kernel would discard the explanation.
async fn explain(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) {
    let mut first = [0; 4096];
    let n_read = match timeout(WAIT, stream.read(&mut first)).await {
        Ok(Ok(n_read)) => n_read,
        // The client is gone.
        Ok(Err(_)) => return,
        Err(_) => 0,
    };
    let first = &first[..n_read];
    let is_http1 = first.first().is_some_and(u8::is_ascii_uppercase) && !first.starts_with(HTTP2);
    let answer = if is_http1 { http1(text) } else { Bytes::from(refusal(text)) };
    let send = async {
        stream.write_all(&answer).await?;
        stream.shutdown().await
    };
    // If the client does not read the explanation, it is dropped.
    drop(timeout(WAIT, send).await);
}

/// Returns a complete HTTP/1.1 response (REST-20).
fn http1(text: &str) -> Bytes {
    let body = format!("{{\"error\":{}}}\n", quoted(text));
    let len = body.len();
    Bytes::from(format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {len}\r\n\r\n{body}"
    ))
}
