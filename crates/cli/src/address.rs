//! The addresses of servers.

use std::net::IpAddr;

use tonic::{codegen::http::Uri, transport::Endpoint};

/// Returns the endpoint of a server, which is `HOST:PORT` or a URL. Only a URL may omit its port.
pub(crate) fn endpoint(server: &str) -> Option<Endpoint> {
    let url = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let endpoint = Endpoint::from_shared(url).ok()?;
    let authority = endpoint.uri().authority()?;
    let has_port = authority.port_u16().is_some_and(|port| port > 0);
    let is_host = server.contains("://") && authority.as_str() == authority.host();
    let is_address = matches!(endpoint.uri().scheme_str(), Some("http" | "https"))
        && !authority.host().is_empty()
        && (has_port || is_host);
    is_address.then_some(endpoint)
}

/// Returns whether a text is the address of a server.
pub(crate) fn is_valid(server: &str) -> bool {
    socket(server).is_some() || endpoint(server).is_some()
}

/// Returns the path of a UNIX socket, which is given as `unix:PATH`.
pub(crate) fn socket(server: &str) -> Option<&str> {
    server.strip_prefix("unix:").filter(|path| !path.is_empty())
}

/// Returns the host of a URI, without the brackets of an IPv6 address.
pub(crate) fn host(uri: &Uri) -> &str {
    let host = uri.host().unwrap_or_default();
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns whether a host is `localhost` or an address of the loopback interface.
pub(crate) fn is_loopback(host: &str) -> bool {
    let is_loopback_ip = |ip: IpAddr| ip.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback_ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_loopback_interface_are_loopback() {
        let is = |server: &str| is_loopback(host(endpoint(server).unwrap().uri()));
        for local in
            ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "LocalHost:1"]
        {
            assert!(is(local), "{local}");
        }
        for remote in [
            "0.0.0.0:1",
            "[::]:1",
            "192.0.2.1:1",
            "localhost.example:1",
            "127.0.0.1.example:1",
            "http://192.0.2.1",
        ] {
            assert!(!is(remote), "{remote}");
        }
    }
}
