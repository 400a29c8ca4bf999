//! Sign-in with a bearer token, and sign-out. The cookie has the token itself, so that every replica accepts it.

use axum::{
    body::Body,
    extract::{Query, Request, State},
    response::{IntoResponse, Response},
};
use chancery_console::{Viewer, sign_in as sign_in_page};
use http::{HeaderValue, StatusCode, Uri, header};

use super::{answer::html, cookies, present};
use crate::{
    AdminError, authenticate,
    console_paths::is_console,
    params::Params,
    routes::{Http, body_text},
};

/// The maximum size of a form in bytes. The parser of its fields reads at most 64 KiB.
const FORM_BYTES_MAX: u64 = 60 << 10;

/// Returns the page that asks for a token.
pub(super) async fn form(request: Request) -> Response {
    let session = present::session(request.extensions());
    html(StatusCode::OK, sign_in_page::page("/ui", "", &session.csrf, &Viewer::default()))
}

/// Checks a token, and sets the cookie with it.
pub(super) async fn sign_in(State(http): State<Http>, request: Request) -> Response {
    let session = present::session(request.extensions());
    let (parts, body) = request.into_parts();
    let answer = async {
        let mut fields = fields(&parts, body).await?;
        let (token, next) = (fields.text("token")?, fields.text("next")?);
        let token = token.trim();
        if !cookies::is_token(token) {
            let text = format!(
                "the token is empty, has other characters than a bearer token, or has more than {} bytes",
                cookies::TOKEN_BYTES_MAX
            );
            return Err(AdminError::Unauthenticated(text));
        }
        authenticate::check_token(&http.deps, parts, token).await?;
        Ok((cookies::set(cookies::TOKEN, token, session.is_secure), next))
    };
    match answer.await {
        Ok((cookie, next)) => redirect(&next, cookie),
        Err(error) => {
            let (status, _) = error.http();
            let page =
                sign_in_page::page("/ui", &error.to_string(), &session.csrf, &Viewer::default());
            html(status, page)
        }
    }
}

/// Removes the cookie with the token.
pub(super) async fn sign_out(request: Request) -> Response {
    let session = present::session(request.extensions());
    let (parts, body) = request.into_parts();
    match fields(&parts, body).await {
        Ok(_) => redirect("/ui/sign-in", cookies::remove(cookies::TOKEN, session.is_secure)),
        Err(error) => error.into_response(),
    }
}

/// Leads the browser to a page of the console.
pub(super) fn redirect(next: &str, cookie: Option<HeaderValue>) -> Response {
    let is_ours = next.parse::<Uri>().is_ok_and(|uri| {
        uri.authority().is_none() && uri.scheme().is_none() && is_console(uri.path())
    });
    let next = if is_ours { next } else { "/ui" };
    let next = HeaderValue::from_str(next).unwrap_or(HeaderValue::from_static("/ui"));
    let mut answer = (StatusCode::SEE_OTHER, [(header::LOCATION, next)]).into_response();
    if let Some(cookie) = cookie {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}

/// Reads the fields of a form of the console.
///
/// # Errors
/// Fails if the form does not come from a page of this port, or does not repeat the value of the cookie.
pub(super) async fn fields(parts: &http::request::Parts, body: Body) -> Result<Params, AdminError> {
    // The protection against web pages has refused other values.
    if !["origin", "sec-fetch-site"].iter().any(|name| parts.headers.contains_key(*name)) {
        let text = "the request has neither `Origin` nor `Sec-Fetch-Site`; use the API instead of the console";
        return Err(AdminError::Forbidden(text.to_owned()));
    }
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let is_form =
        |value: &HeaderValue| value.as_bytes().starts_with(b"application/x-www-form-urlencoded");
    if !content_type.is_some_and(is_form) {
        return Err(AdminError::Parameter("the request is not a form".to_owned()));
    }
    let text = body_text(body, FORM_BYTES_MAX, "").await?;
    let invalid = || AdminError::Parameter("the form has invalid fields".to_owned());
    let uri = Uri::builder().path_and_query(format!("/?{text}")).build().map_err(|_| invalid())?;
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&uri).map_err(|_| invalid())?;
    let mut fields = Params::new(pairs);
    let given = fields.text("csrf")?;
    let known = present::session(&parts.extensions).csrf;
    if known.is_empty() || !is_equal(given.as_bytes(), known.as_bytes()) {
        let text =
            "the form is not from this browser, or its cookie has ended; load the page again";
        return Err(AdminError::Forbidden(text.to_owned()));
    }
    Ok(fields)
}

/// Compares in a time that does not depend on the content.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}
