//! The request for a key set over HTTP: one address, no redirects, bounded time and size.

use std::time::Duration;

use chancery_tls::{ClientStream, ClientTls};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::{key_set::SET_BYTES_MAX, metrics::Fetched, settings::KeyUrl};

/// The maximum time for a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FetchError {
    pub(crate) kind: Fetched,
    pub(crate) reason: String,
}

fn unreachable(reason: impl ToString) -> FetchError {
    FetchError { kind: Fetched::Unreachable, reason: reason.to_string() }
}

/// Requests a key set.
///
/// # Errors
/// Fails if there is no answer of at most [`SET_BYTES_MAX`] bytes within [`TIMEOUT`], or its status is not 200.
pub(crate) async fn fetch(url: &KeyUrl, tls: Option<&ClientTls>) -> Result<Bytes, FetchError> {
    let answer = tokio::time::timeout(TIMEOUT, request(url, tls)).await;
    answer.unwrap_or_else(|_| Err(unreachable(format_args!("no answer within {TIMEOUT:?}"))))
}

async fn request(url: &KeyUrl, tls: Option<&ClientTls>) -> Result<Bytes, FetchError> {
    let stream = TcpStream::connect((url.bare_host(), url.port)).await.map_err(unreachable)?;
    let stream = match tls {
        Some(tls) => tls.connect(&url.host, stream).await.map_err(unreachable)?,
        None => ClientStream::plain(stream),
    };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
    let request = Request::get(&url.path)
        .header(header::HOST, url.authority())
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(unreachable)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(unreachable)?;
        let status = response.status();
        if status != StatusCode::OK {
            let reason = format!("the server answered {status}; redirects are not followed");
            return Err(FetchError { kind: Fetched::Refused, reason });
        }
        let body = Limited::new(response.into_body(), SET_BYTES_MAX).collect().await;
        Ok(body.map_err(unreachable)?.to_bytes())
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        // The connection may end in the same moment as the answer.
        biased;
        answer = &mut answer => answer,
        _ended = &mut connection => answer.await,
    }
}
