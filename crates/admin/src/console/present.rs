//! The layer around all requests of the console: cookies before authentication, and headers and error pages after it.

use axum::{
    body::to_bytes,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use chancery_console::{Viewer, failed, foreign_link, sign_in};
use http::{Extensions, HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use super::{
    answer::{html, title},
    cookies,
};
use crate::console_paths::{ConsoleSettings, is_console};

/// The maximum size of an error that becomes a page, in bytes.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// The headers of every answer. Nothing is loaded from elsewhere, no page of another site shows a page of the console, and
/// no script or style within a page runs.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    // Browsers send no `Origin` with forms under `no-referrer`.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
];

/// The contents of the cookies of a browser.
#[derive(Debug, Clone, Default)]
pub(super) struct Session {
    /// The value that each form repeats.
    pub(super) csrf: String,
    /// Whether a cookie has a bearer token.
    pub(super) has_token: bool,
    pub(super) is_secure: bool,
}

/// Returns what the cookies of a request say.
pub(super) fn session(extensions: &Extensions) -> Session {
    extensions.get::<Session>().cloned().unwrap_or_default()
}

/// Answers a click on a link on a page of another site. The next click comes from the port itself.
pub(crate) fn link(request: &Request) -> Response {
    let address = request.uri().path_and_query().map(ToString::to_string);
    html(StatusCode::OK, foreign_link(&address.unwrap_or_default()))
}

/// Reads the cookies, and adds headers to the answer. An error becomes a page.
pub(crate) async fn present(
    State(settings): State<ConsoleSettings>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if !is_console(path) {
        return next.run(request).await;
    }
    let address = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_static = path.starts_with("/ui/static/");
    let known = cookies::find(request.headers(), cookies::CSRF).filter(|value| value.len() == 32);
    let known = known.map(str::to_owned);
    let new = if known.is_none() && is_read && !is_static { random_text() } else { None };
    let has_token = take_token(&mut request);
    let is_secure = settings.is_secure;
    let csrf = known.or_else(|| new.clone()).unwrap_or_default();
    let session = Session { csrf, has_token, is_secure };
    request.extensions_mut().insert(session.clone());
    let answer = next.run(request).await;
    let mut answer = if is_error(&answer) {
        error(answer, if is_read { &address } else { "/ui" }, &session).await
    } else {
        answer
    };
    if let Some(cookie) = new.and_then(|new| cookies::set(cookies::CSRF, &new, is_secure)) {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Makes the token in the cookie the credential of the request, unless it has another one.
fn take_token(request: &mut Request) -> bool {
    let token =
        cookies::find(request.headers(), cookies::TOKEN).filter(|one| cookies::is_token(one));
    let Some(token) = token else { return false };
    let credential = HeaderValue::from_str(&format!("Bearer {token}"));
    if request.headers().contains_key(header::AUTHORIZATION) {
        return false;
    }
    let Ok(mut credential) = credential else { return false };
    credential.set_sensitive(true);
    request.headers_mut().insert(header::AUTHORIZATION, credential);
    true
}

/// Returns whether an answer is an error of the API, which is JSON.
fn is_error(answer: &Response) -> bool {
    let content_type = answer.headers().get(header::CONTENT_TYPE);
    !answer.status().is_success()
        && content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json"))
}

/// Turns an error into a page. Without a valid credential, the page asks for one.
async fn error(answer: Response, address: &str, session: &Session) -> Response {
    let status = answer.status();
    let body = to_bytes(answer.into_body(), ERROR_BYTES_MAX).await.unwrap_or_default();
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    let message = json["error"]["message"].as_str().unwrap_or_default();
    let viewer = Viewer::default();
    if status != StatusCode::UNAUTHORIZED {
        return html(status, failed(title(status), message, &viewer));
    }
    let problem = if session.has_token {
        format!("The token is no longer accepted: {message}")
    } else {
        message.to_owned()
    };
    let mut page = html(status, sign_in::page(address, &problem, &session.csrf, &viewer));
    if session.has_token
        && let Some(cookie) = cookies::remove(cookies::TOKEN, session.is_secure)
    {
        page.headers_mut().append(header::SET_COOKIE, cookie);
    }
    page.into_response()
}

/// Returns 32 random hexadecimal digits; `None` if the system has no random numbers.
pub(super) fn random_text() -> Option<String> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(hex::encode(bytes))
}
