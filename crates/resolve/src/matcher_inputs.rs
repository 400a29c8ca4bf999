//! The inputs of matchers that a request decides.

use crate::{
    headers::{HeaderValue, Seen, query_parameter},
    matcher::Input,
    message::Content,
    request::Request,
};

/// Returns the value of an input of an HTTP request.
pub(crate) fn request_input(input: &Content, seen: &Seen<'_>) -> Input {
    let Some(config) = input.message() else { return unknown(input) };
    match input.short_name() {
        "HttpRequestHeaderMatchInput" => match seen.header(config.text("header_name")) {
            HeaderValue::Known(value) => Input::Known(value),
            HeaderValue::Unknown => Input::Unknown(format!(
                "the node sets the header {:?} itself",
                config.text("header_name")
            )),
        },
        "HttpRequestQueryParamMatchInput" => {
            let value = query_parameter(&seen.path, config.text("query_param"));
            // Envoy decodes the value.
            match value {
                Some(value) if value.contains('%') => Input::Unknown(
                    "the query parameter has escapes, which are not decoded here".to_owned(),
                ),
                value => Input::Known(value.map(str::to_owned)),
            }
        }
        _ => unknown(input),
    }
}

/// Returns the value of an input of a connection.
pub(crate) fn connection_input(input: &Content, request: &Request, port: i64) -> Input {
    match input.short_name() {
        "DestinationPortInput" => Input::Known(Some(port.to_string())),
        "ServerNameInput" => Input::Known(request.is_tls().then(|| request.host.clone())),
        "TransportProtocolInput" => {
            Input::Known(Some(if request.is_tls() { "tls" } else { "raw_buffer" }.to_owned()))
        }
        _ => unknown(input),
    }
}

fn unknown(input: &Content) -> Input {
    Input::Unknown(format!("the input {} is not known", input.short_name()))
}
