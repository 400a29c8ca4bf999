//! The forms of answers to browsers.

use axum::response::{IntoResponse, Response};
use chancery_console::{Viewer, failed};
use http::{StatusCode, header};

use crate::AdminError;

pub(super) fn html(status: StatusCode, document: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        // The answer depends on the caller, and must not outlive the sign-in.
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, document).into_response()
}

/// Returns the page of an operation that failed.
pub(super) fn error_page(error: &AdminError, viewer: &Viewer) -> Response {
    let (status, _) = error.http();
    html(status, failed(title(status), &error.to_string(), viewer))
}

pub(super) fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "Sign in",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::SERVICE_UNAVAILABLE => "The replica cannot answer now",
        StatusCode::CONFLICT => "Rejected",
        _ => "The request failed",
    }
}
