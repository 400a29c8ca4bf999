//! The paths of the console, and its settings.

use http::{HeaderName, Method};

const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The settings of the console.
#[derive(Debug, Clone, Copy)]
pub struct ConsoleSettings {
    /// Whether the port uses TLS, so that browsers send the cookies only over TLS.
    pub is_secure: bool,
}

/// Returns whether a path belongs to the console.
pub(crate) fn is_console(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

/// Returns whether a path of the console needs no credential: the sign-in and the static files.
pub(crate) fn is_open(path: &str) -> bool {
    path == "/ui/sign-in" || path.starts_with("/ui/static/")
}

/// Returns whether a request opens a page of the console in a window, as after a click on a link.
pub(crate) fn is_link<B>(request: &http::Request<B>) -> bool {
    let has = |name: &HeaderName, value: &str| {
        request.headers().get(name).is_some_and(|found| found == value)
    };
    request.method() == Method::GET
        && is_console(request.uri().path())
        && has(&SEC_FETCH_MODE, "navigate")
        && has(&SEC_FETCH_DEST, "document")
}
