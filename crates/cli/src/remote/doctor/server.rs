//! The checks of one server: connection, TLS, answer, clock and version.

use std::time::Duration;

use chancery_admin_proto::v1 as pb;
use tokio::{net::TcpStream, time::timeout};
use tonic::{codegen::http::Uri, metadata::MetadataMap};

use super::{
    check::{Check, Outcome},
    date, local,
};
use crate::{
    address::{self, is_loopback},
    remote::{
        client::{VERSION, admin, channel, refusal},
        connector::{self, Channel, Link, Security},
    },
};

/// The checks of a server.
pub(super) const NAMES: [&str; 5] = ["server", "tls", "api", "clock", "version"];
/// The maximum time of each step.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// The difference of the clocks that is reported. Servers accept tokens with a leeway of this time.
pub(super) const CLOCK_DIFFERENCE_MAX: u64 = 30;

/// Makes the checks. Returns a connection if the server answers.
pub(super) async fn check(
    server: &str,
    security: &Security,
    checks: &mut Vec<Check>,
) -> Option<Channel> {
    let done = checks.len();
    let channel = connected(server, security, checks).await;
    // Each check has a result, and the reason is that of the check that failed.
    let made: Vec<&str> = checks[done..].iter().map(|check| check.name).collect();
    let missing: Vec<&str> = NAMES.into_iter().filter(|name| !made.contains(name)).collect();
    let detail = format!("not checked, because {server} failed another check");
    checks.extend(missing.into_iter().map(|name| Check::unknown(name, detail.clone())));
    channel
}

async fn connected(server: &str, security: &Security, checks: &mut Vec<Check>) -> Option<Channel> {
    if let Some(path) = address::socket(server) {
        if let Err(error) = tokio::net::UnixStream::connect(path).await {
            let detail = format!("no connection to {server}: {error}");
            let advice =
                "check that the server runs with admin.socket, and that this user owns the socket";
            checks.push(Check::failed("server", detail, advice));
            return None;
        }
        checks.push(Check::ok("server", format!("{server} accepts connections")));
        checks.push(Check::ok("tls", "the connection is a UNIX socket of this machine"));
        return answered(server, security, checks).await;
    }
    let Some(endpoint) = address::endpoint(server) else {
        let detail = format!("{server:?} is not the address of a server");
        checks.push(Check::failed("server", detail, "set --server to HOST:PORT"));
        return None;
    };
    let uri = endpoint.uri().clone();
    let link = match security.of_scheme(uri.scheme_str().unwrap_or_default(), server) {
        Ok(link) => link,
        Err(failure) => {
            checks.push(Check::failed("tls", failure.lines.join("; "), "correct the settings"));
            return None;
        }
    };
    let stream = match tcp(&uri).await {
        Ok(stream) => stream,
        Err(reason) => {
            let detail = format!("no connection to {server}: {reason}");
            let advice = "check that the server runs, and the network to it";
            checks.push(Check::failed("server", detail, advice));
            return None;
        }
    };
    checks.push(Check::ok("server", format!("{server} accepts connections")));
    let tls = of_tls(&uri, &link, stream).await;
    let has_failed = tls.outcome == Outcome::Failed;
    checks.push(tls);
    if has_failed {
        return None;
    }
    answered(server, security, checks).await
}

async fn tcp(uri: &Uri) -> Result<TcpStream, String> {
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let connect = TcpStream::connect((address::host(uri), uri.port_u16().unwrap_or(default)));
    match timeout(TIMEOUT, connect).await {
        Ok(connected) => connected.map_err(|error| {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_lowercase()
        }),
        Err(_) => Err(format!("it took longer than {TIMEOUT:?}")),
    }
}

/// Checks chain, name and time of the server's certificate, or whether the connection may be unencrypted.
async fn of_tls(uri: &Uri, link: &Link, stream: TcpStream) -> Check {
    const NAME: &str = "tls";
    let host = address::host(uri);
    let Some(tls) = link.tls() else {
        return if is_loopback(host) {
            Check::ok(NAME, "the connection is not encrypted, and stays on this machine")
        } else {
            Check::warning(
                NAME,
                format!("the connection to {host} is not encrypted"),
                "set admin.tls_cert and admin.tls_key of the server, and use https://",
            )
        };
    };
    match tls.connect(host, stream).await {
        Ok(stream) => match stream.server_validity() {
            Some(validity) => {
                let whose = format!("the certificate of {host} is trusted, and");
                local::of_validity(NAME, &whose, validity, local::unix_time())
            }
            None => Check::unknown(NAME, "the server shows no certificate that can be read"),
        },
        Err(error) => {
            let text = connector::advice(&error).unwrap_or_else(|| error.to_string());
            Check::failed(NAME, text, "see \"Failed handshakes\" in docs/security.md")
        }
    }
}

/// Checks the answer to a cheap request.
async fn answered(server: &str, security: &Security, checks: &mut Vec<Check>) -> Option<Channel> {
    let channel = match channel(server, security).await {
        Ok(channel) => channel,
        Err(failure) => {
            checks.push(Check::failed("api", failure.lines.join("; "), ""));
            return None;
        }
    };
    let mut client = admin(channel.clone());
    let answer = match timeout(TIMEOUT, client.get_version(pb::GetVersionRequest {})).await {
        Ok(answer) => answer,
        Err(_) => {
            let detail =
                format!("{server} accepts connections, but has not answered within {TIMEOUT:?}");
            checks.push(Check::failed("api", detail, "the server may hang: see its log"));
            return None;
        }
    };
    match answer {
        Ok(response) => {
            checks.push(Check::ok("api", format!("{server} answers")));
            checks.push(of_clock(response.metadata(), local::unix_time()));
            checks.push(of_version(&response.into_inner().version));
            Some(channel)
        }
        Err(status) => {
            let advice = security.last_advice().map(|advice| format!("{server}: {advice}"));
            let reason = advice.unwrap_or_else(|| refusal(&status).at(server).lines.join("; "));
            checks.push(Check::failed("api", reason, ""));
            if status.metadata().contains_key("date") {
                checks.push(of_clock(status.metadata(), local::unix_time()));
            }
            None
        }
    }
}

/// Compares the clock of this machine with the one of the server.
fn of_clock(headers: &MetadataMap, now: i64) -> Check {
    const NAME: &str = "clock";
    let date = headers.get("date").and_then(|date| date.to_str().ok()).and_then(date::parse);
    let Some(date) = date else {
        return Check::unknown(NAME, "the server does not report its time");
    };
    let difference = now.abs_diff(date);
    let direction = if date < now { "behind" } else { "ahead of" };
    if difference > CLOCK_DIFFERENCE_MAX {
        Check::warning(
            NAME,
            format!("the clock of the server is {difference}s {direction} the one of this machine"),
            "synchronize both clocks: certificates and tokens depend on them",
        )
    } else {
        Check::ok(NAME, format!("the clocks differ by at most {CLOCK_DIFFERENCE_MAX}s"))
    }
}

fn of_version(server: &str) -> Check {
    if server == VERSION {
        Check::ok("version", format!("program and server have version {VERSION}"))
    } else {
        Check::warning(
            "version",
            format!("this program has version {VERSION}, and the server {server}"),
            "use the program of the same release",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_by_more_than_30_seconds_are_reported() {
        let mut headers = MetadataMap::new();
        assert_eq!(of_clock(&headers, 0).outcome, Outcome::Unknown);
        headers.insert("date", "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let date = 784_111_777;
        for (now, expected) in [
            (date, None),
            (date + 30, None),
            (date - 30, None),
            (date + 31, Some("the clock of the server is 31s behind the one of this machine")),
            (date - 31, Some("the clock of the server is 31s ahead of the one of this machine")),
        ] {
            let check = of_clock(&headers, now);
            let detail = (check.outcome == Outcome::Warning).then_some(check.detail.as_str());
            assert_eq!(detail, expected, "{check:?}");
        }
    }

    #[test]
    fn another_version_is_a_warning() {
        assert_eq!(of_version(VERSION).outcome, Outcome::Ok);
        assert_eq!(of_version("9.9.9").outcome, Outcome::Warning);
    }
}
