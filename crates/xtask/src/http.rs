//! GET requests to programs on this machine.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result};

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a request to an address such as `127.0.0.1:18001`.
pub(crate) fn get(address: &str, path: &str) -> Result<Response> {
    get_from(address, address, path)
}

/// Sends a request for `host` to an address.
pub(crate) fn get_from(address: &str, host: &str, path: &str) -> Result<Response> {
    let timeout = Duration::from_secs(5);
    let address: SocketAddr = address.parse().with_context(|| format!("the address {address}"))?;
    let mut stream = TcpStream::connect_timeout(&address, timeout).context("connect")?;
    stream.set_read_timeout(Some(timeout)).context("set a timeout")?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
        .context("send the request")?;
    let mut response = String::new();
    stream.read_to_string(&mut response).context("read the response")?;
    parse(&response)
}

fn parse(response: &str) -> Result<Response> {
    let (head, body) = response.split_once("\r\n\r\n").context("the response head has no end")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Response { status: status.context("the response has no status")?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    #[test]
    fn response_has_status_and_body() {
        let response = super::parse("HTTP/1.1 503 Unavailable\r\na: b\r\n\r\nloading").unwrap();
        assert_eq!((response.status, response.body.as_str()), (503, "loading"));
        assert!(super::parse("HTTP/1.1 200 OK\r\n").is_err());
    }
}
