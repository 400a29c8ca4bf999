//! Protection of the admin port against web pages.
//!
//! An operator's browser can reach the port even when the page that it shows cannot. A page of
//! another site may send requests to the port (cross-site). A page whose name was made to resolve
//! to this address may even read the answers (DNS rebinding).
//!
//! Rules, in this order:
//! - `/metrics`, `/healthz` and `/readyz` reveal no configuration and accept every host name.
//!   Monitoring and probes use names that nobody configures.
//! - A request is rejected if a browser has marked it as coming from another site (`Origin`,
//!   `Sec-Fetch-Site`).
//! - Two requests of web pages are accepted under the paths of the console, if it is on: a form of a page of the port itself,
//!   and a link that opens a page in a window. The answer to a link from another site is a page with the link.
//! - A gRPC call over HTTP/2 is accepted under every host name. No browser uses HTTP/2 without TLS,
//!   and with TLS the certificate must name the host. Over HTTP/1.1 a gRPC call is rejected, because
//!   a page could send it.
//! - Any other request is rejected unless its host is an IP address, `localhost`, or a configured
//!   name.

use std::{collections::BTreeSet, net::Ipv6Addr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use chancery_audit::{Audit, Event, Port};
use http::{HeaderMap, Method, Version, header, header::HeaderName, uri::Authority};

use crate::{AdminError, console, console_paths, origin::Origin};

/// Paths that accept every host name.
const OPEN: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// The reason for a link on another site that opens a page of the console. It is answered without any work.
const FOREIGN_LINK: &str = "foreign_link";

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The host names that the port accepts, in lower case.
#[derive(Debug, Clone)]
pub(crate) struct Hosts(Arc<BTreeSet<String>>);

impl Hosts {
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = names.into_iter().map(normal).chain(["localhost".to_owned()]);
        Self(Arc::new(names.collect()))
    }

    fn allows(&self, host: &str) -> bool {
        let is_v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        is_v6.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
            || host.parse::<std::net::Ipv4Addr>().is_ok()
            || self.0.contains(&normal(host))
    }
}

fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The settings of the protection, and the log of its refusals.
#[derive(Debug, Clone)]
pub(crate) struct Protection {
    pub(crate) hosts: Hosts,
    /// Whether the port serves the console, whose forms post to it.
    pub(crate) has_console: bool,
    pub(crate) audit: Audit,
}

/// The reason for which a request is rejected: its label in the audit log, and its explanation.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    reason: &'static str,
    text: String,
}

/// Rejects requests of web pages with 403.
pub(crate) async fn refuse(
    State(protection): State<Protection>,
    request: Request,
    next: Next,
) -> Response {
    match check(&request, &protection.hosts, protection.has_console) {
        Ok(()) => next.run(request).await,
        Err(Refusal { reason: FOREIGN_LINK, .. }) => console::link(&request),
        Err(Refusal { reason, text }) => {
            let origin = Origin::of(request.extensions(), request.headers());
            let event = Event::refused(Port::Admin, "request", None, reason);
            let event = origin.add_to(event).detail("path", request.uri().path());
            protection.audit.note_stranger(event);
            AdminError::Forbidden(text).into_response()
        }
    }
}

fn check<B>(request: &http::Request<B>, hosts: &Hosts, has_console: bool) -> Result<(), Refusal> {
    let refuse = |reason, text| Err(Refusal { reason, text });
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read && OPEN.contains(&request.uri().path()) {
        return Ok(());
    }
    let authority = match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => match one(request.headers(), &header::HOST)? {
            None => None,
            Some(host) => match host.parse::<Authority>() {
                Ok(authority) => Some(authority),
                Err(_) => {
                    return refuse("bad_host", format!("the Host header {host:?} is not a host"));
                }
            },
        },
    };
    if let Some(origin) = one(request.headers(), &header::ORIGIN)? {
        // A page of the port itself, with or without TLS.
        let is_own = authority.as_ref().is_some_and(|host| {
            ["http", "https"]
                .iter()
                .any(|scheme| format!("{scheme}://{host}").eq_ignore_ascii_case(origin))
        });
        let is_form = has_console && console_paths::is_console(request.uri().path());
        if !is_own || !is_read && !is_form {
            let text = format!(
                "the request comes from a web page (Origin {origin:?}); only the forms of the console (/ui) may write"
            );
            return refuse("foreign_origin", text);
        }
    }
    let site = one(request.headers(), &SEC_FETCH_SITE)?;
    let foreign_site = site.filter(|site| *site != "same-origin" && *site != "none");
    let is_link = has_console && console_paths::is_link(request);
    if let Some(site) = foreign_site.filter(|_| !is_link) {
        let text =
            format!("the request comes from a web page of another site (Sec-Fetch-Site {site:?})");
        return refuse("foreign_site", text);
    }
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return match request.version() {
            Version::HTTP_2 => Ok(()),
            version => {
                let text = format!("gRPC needs HTTP/2, but the request uses {version:?}");
                refuse("grpc_without_http2", text)
            }
        };
    }
    match authority {
        // Every browser sends the host.
        None if foreign_site.is_none() => Ok(()),
        None => refuse("foreign_site", "the request has no Host header".to_owned()),
        Some(authority) if hosts.allows(authority.host()) => match foreign_site {
            None => Ok(()),
            Some(_) => refuse(FOREIGN_LINK, String::new()),
        },
        Some(authority) => {
            let text = format!(
                "the host {:?} is not a name of this server; use its IP address, or add the name to admin.hosts",
                authority.host()
            );
            refuse("foreign_host", text)
        }
    }
}

/// Returns the value of a header that may occur once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        let text = format!("the request has several {name} headers");
        return Err(Refusal { reason: "repeated_header", text });
    }
    let text = first.map(|value| value.to_str()).transpose();
    text.map_err(|_| Refusal {
        reason: "bad_header",
        text: format!("the header {name} is not text"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(request: http::request::Builder) -> Result<(), String> {
        let hosts = Hosts::new(["chancery-0.chancery.svc", "Admin.Example"]);
        check(&request.body(()).unwrap(), &hosts, true).map_err(|refusal| refusal.text)
    }

    fn get(host: &str) -> http::request::Builder {
        http::Request::get("/v1/resources").header("host", host)
    }

    /// Attack 50: a foreign `Host` is refused, as after DNS rebinding.
    #[test]
    fn foreign_host_is_refused_and_own_names_and_addresses_are_not() {
        for host in [
            "127.0.0.1:18001",
            "10.1.2.3",
            "[::1]:18001",
            "localhost:18001",
            "LOCALHOST",
            "chancery-0.chancery.svc:18001",
            "admin.example.",
        ] {
            assert_eq!(checked(get(host)), Ok(()), "{host}");
        }
        for host in
            ["evil.example:18001", "127.0.0.1.evil.example", "localhost.evil.example", "127.1", ""]
        {
            checked(get(host)).unwrap_err();
        }
        let post = http::Request::post("/v1/apply").header("host", "evil.example");
        let told = checked(post).unwrap_err();
        assert!(told.contains("evil.example") && told.contains("admin.hosts"), "{told}");
        // HTTP/1.0 does not require a host.
        assert_eq!(checked(http::Request::get("/v1/resources")), Ok(()));
        checked(get("localhost").header("host", "evil.example")).unwrap_err();
        // In HTTP/2 the authority is the host.
        checked(http::Request::get("http://evil.example/v1/nodes")).unwrap_err();
    }

    #[test]
    fn monitoring_endpoints_accept_any_host() {
        for path in OPEN {
            let request = http::Request::get(path).header("host", "prometheus-target.monitoring");
            assert_eq!(checked(request), Ok(()), "{path}");
        }
    }

    /// Attack 50: requests of pages of other origins are refused.
    #[test]
    fn pages_of_other_sites_are_refused() {
        for site in ["cross-site", "same-site"] {
            let told = checked(get("localhost").header("sec-fetch-site", site)).unwrap_err();
            assert!(told.contains(site), "{told}");
            let post = http::Request::post("/v1/apply").header("host", "localhost");
            checked(post.header("sec-fetch-site", site)).unwrap_err();
            let twice = get("localhost").header("sec-fetch-site", "none");
            let told = checked(twice.header("sec-fetch-site", site)).unwrap_err();
            assert_eq!(told, "the request has several sec-fetch-site headers");
        }
        for site in ["none", "same-origin"] {
            assert_eq!(checked(get("localhost").header("sec-fetch-site", site)), Ok(()));
        }
        for origin in ["http://evil.example", "null", "http://localhost:3000"] {
            checked(get("localhost:18001").header("origin", origin)).unwrap_err();
        }
        // The port itself, without and with TLS.
        for own in ["http://localhost:18001", "https://localhost:18001"] {
            assert_eq!(checked(get("localhost:18001").header("origin", own)), Ok(()));
            let post = http::Request::post("/v1/apply").header("host", "localhost:18001");
            checked(post.header("origin", own)).unwrap_err();
        }
        checked(get("localhost:18001").header("origin", "https://localhost:443")).unwrap_err();
    }

    /// The console is a page of the port itself, and other pages may link to it.
    #[test]
    fn only_own_forms_and_links_reach_the_console() {
        let post = || http::Request::post("/ui/freeze").header("host", "localhost:18001");
        assert_eq!(checked(post().header("origin", "http://localhost:18001")), Ok(()));
        for origin in ["null", "http://evil.example", "http://localhost:1"] {
            checked(post().header("origin", origin)).unwrap_err();
        }
        checked(post().header("sec-fetch-site", "cross-site")).unwrap_err();
        let hosts = Hosts::new([]);
        let link = |mode, dest, host| {
            let request = http::Request::get("/ui/nodes?id=a").header("host", host);
            let request = request.header("sec-fetch-site", "cross-site");
            let request = request.header("sec-fetch-mode", mode).header("sec-fetch-dest", dest);
            let found = check(&request.body(()).unwrap(), &hosts, true);
            found.map_err(|refusal| refusal.reason)
        };
        assert_eq!(link("navigate", "document", "localhost"), Err(FOREIGN_LINK));
        assert_eq!(link("navigate", "iframe", "localhost"), Err("foreign_site"));
        assert_eq!(link("no-cors", "image", "localhost"), Err("foreign_site"));
        assert_eq!(link("navigate", "document", "evil.example"), Err("foreign_host"));
    }

    #[test]
    fn grpc_call_with_foreign_host_requires_http_2() {
        let call = |version| {
            http::Request::post("/chancery.admin.v1.Admin/GetVersion")
                .version(version)
                .header("host", "any.name.example")
                .header("content-type", "application/grpc")
        };
        assert_eq!(checked(call(Version::HTTP_2)), Ok(()));
        let told = checked(call(Version::HTTP_11)).unwrap_err();
        assert!(told.contains("HTTP/2"), "{told}");
        checked(call(Version::HTTP_2).header("origin", "http://evil.example")).unwrap_err();
    }
}
