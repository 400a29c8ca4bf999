//! The gRPC layer: statuses, headers, content types. Only this module knows the codes of gRPC.

use std::time::Duration;

use chancery_fanout::{End, EndCode};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE};
use tonic::{Code, Status};

use crate::framing::Encoding;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The maximum number of bytes of a status message. Clients bound the size of headers, and some texts
/// repeat the client's input.
const STATUS_MESSAGE_BYTES_MAX: usize = 1024;

/// Returns whether the content type is gRPC with protobuf messages.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim_end();
    matches!(essence, "application/grpc" | "application/grpc+proto")
}

/// Returns whether the client declared a compression of its messages.
pub(crate) fn encoding(headers: &HeaderMap) -> Encoding {
    match headers.get(GRPC_ENCODING) {
        Some(value) if value != IDENTITY => Encoding::Declared,
        _ => Encoding::Identity,
    }
}

/// An error: the `grpc-timeout` is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout is {0:?}, it has to be up to 8 digits and one of H, M, S, m, u, n")]
pub(crate) struct TimeoutError(String);

/// Returns the client's timeout for the call; `None` if there is no timeout.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, TimeoutError> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    let parse = || {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let n = digits.parse::<u64>().ok()?;
        Some(match unit {
            "H" => Duration::from_secs(n * 3600),
            "M" => Duration::from_secs(n * 60),
            "S" => Duration::from_secs(n),
            "m" => Duration::from_millis(n),
            "u" => Duration::from_micros(n),
            "n" => Duration::from_nanos(n),
            _ => return None,
        })
    };
    parse().map(Some).ok_or_else(|| TimeoutError(text.chars().take(32).collect()))
}

/// Returns the size of a request's header list in bytes, as HTTP/2 counts it (RFC 9113, 6.5.2).
pub(crate) fn header_list_bytes<B>(request: &Request<B>) -> usize {
    const EACH: usize = 32;
    let pair = |name: &str, value: usize| name.len() + value + EACH;
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let mut bytes = pair(":method", request.method().as_str().len()) + pair(":path", path);
    bytes += uri.scheme_str().map_or(0, |scheme| pair(":scheme", scheme.len()));
    bytes += uri.authority().map_or(0, |authority| pair(":authority", authority.as_str().len()));
    let headers = request.headers().iter();
    bytes + headers.map(|(name, value)| pair(name.as_str(), value.len())).sum::<usize>()
}

/// Returns the response that opens a stream. It is sent before any message, because some clients send
/// nothing until they receive it.
pub(crate) fn open<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
    headers.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
    response
}

/// Returns a response that consists of a status only. The default body is empty.
pub(crate) fn reject<B: Default>(end: &End) -> Response<B> {
    let mut response = open(B::default());
    response.headers_mut().extend(trailers(end));
    response
}

/// Returns the status that ends a stream.
pub(crate) fn trailers(end: &End) -> HeaderMap {
    let code = match end.code {
        EndCode::Ok | EndCode::Aged | EndCode::AccessChanged => Code::Ok,
        EndCode::InvalidArgument => Code::InvalidArgument,
        EndCode::ResourceExhausted => Code::ResourceExhausted,
        EndCode::Unimplemented => Code::Unimplemented,
        EndCode::Unavailable | EndCode::Silent => Code::Unavailable,
        EndCode::Internal => Code::Internal,
        EndCode::DeadlineExceeded => Code::DeadlineExceeded,
        EndCode::Unauthenticated => Code::Unauthenticated,
        EndCode::PermissionDenied => Code::PermissionDenied,
    };
    let at = end.message.floor_char_boundary(STATUS_MESSAGE_BYTES_MAX);
    let mut headers = HeaderMap::with_capacity(2);
    if Status::new(code, &end.message[..at]).add_header(&mut headers).is_err() {
        // A message that is not a valid header is left out. The code is always valid.
        headers.clear();
        headers.insert("grpc-status", HeaderValue::from(code as i32));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_message_is_percent_encoded_and_truncated() {
        let end = End::new(EndCode::InvalidArgument, "é\n".repeat(2000));
        let headers = trailers(&end);
        assert_eq!(headers["grpc-status"], "3");
        let message = headers["grpc-message"].to_str().unwrap();
        assert!(message.starts_with("%C3%A9%0A%C3"), "{message}");
        assert!(message.len() <= 3 * STATUS_MESSAGE_BYTES_MAX, "{}", message.len());
        assert_eq!(trailers(&End::ok())["grpc-status"], "0");
    }

    #[test]
    fn only_protobuf_content_types_are_accepted_as_grpc() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc+json", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(is_grpc(&headers), expected, "{value}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn timeout_header_is_parsed_in_grpc_format() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            timeout(&headers)
        };
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        for (text, expected) in [
            ("1S", Duration::from_secs(1)),
            ("0n", Duration::ZERO),
            ("20m", Duration::from_millis(20)),
            ("3u", Duration::from_micros(3)),
            ("5M", Duration::from_secs(300)),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(read(text), Ok(Some(expected)), "{text}");
        }
        for text in ["", "S", "1", "100000000S", "-1S", "1 S", "1s", "1\u{e9}", "\u{e9}S"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("grpc-timeout is "), "{error}");
        }
    }
}
