//! How things are said in gRPC: statuses, headers, content types. The only place that knows its codes.

use chancery_fanout::{End, EndCode};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use tonic::{Code, Status};

use crate::{body::ResponseBody, framing::Encoding};

const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Bytes of a status message that are sent: clients bound the size of headers, and some texts repeat
/// what the client sent.
const STATUS_MESSAGE_BYTES_MAX: usize = 1024;

/// Whether a content type is that of gRPC with protobuf messages.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim_end();
    matches!(essence, "application/grpc" | "application/grpc+proto")
}

/// How the client may have compressed its messages.
pub(crate) fn encoding(headers: &HeaderMap) -> Encoding {
    match headers.get(GRPC_ENCODING) {
        Some(value) if value != IDENTITY => Encoding::Declared,
        _ => Encoding::Identity,
    }
}

/// The response that opens a stream. It goes out before any message: some clients send nothing until
/// they have it (design 4.13).
pub(crate) fn open(body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
    headers.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
    response
}

/// A response that is nothing but a status.
pub(crate) fn refuse(end: &End) -> Response<ResponseBody> {
    let mut response = open(ResponseBody::Empty);
    response.headers_mut().extend(trailers(end));
    response
}

/// A response to what is not gRPC.
pub(crate) fn not_grpc(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Empty);
    *response.status_mut() = status;
    response
}

/// The status that ends a stream.
pub(crate) fn trailers(end: &End) -> HeaderMap {
    let code = match end.code {
        EndCode::Ok => Code::Ok,
        EndCode::InvalidArgument => Code::InvalidArgument,
        EndCode::ResourceExhausted => Code::ResourceExhausted,
        EndCode::Unimplemented => Code::Unimplemented,
        EndCode::Unavailable | EndCode::Silent => Code::Unavailable,
        EndCode::Internal => Code::Internal,
    };
    let at = end.message.floor_char_boundary(STATUS_MESSAGE_BYTES_MAX);
    let mut headers = HeaderMap::with_capacity(2);
    if Status::new(code, &end.message[..at]).add_header(&mut headers).is_err() {
        // A message that can not be a header is left out; the code always can.
        headers.clear();
        headers.insert("grpc-status", HeaderValue::from(code as i32));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_percent_encoded_and_cut() {
        let end = End::new(EndCode::InvalidArgument, "é\n".repeat(2000));
        let headers = trailers(&end);
        assert_eq!(headers["grpc-status"], "3");
        let message = headers["grpc-message"].to_str().unwrap();
        assert!(message.starts_with("%C3%A9%0A%C3"), "{message}");
        assert!(message.len() <= 3 * STATUS_MESSAGE_BYTES_MAX, "{}", message.len());
        assert_eq!(trailers(&End::ok())["grpc-status"], "0");
    }

    #[test]
    fn only_grpc_with_protobuf_is_grpc() {
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
}
