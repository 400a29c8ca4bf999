//! A minimal HTTP/1.1 client for admin ports and load.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};

use super::{STEP, wait_for};

/// The time limit of a request. Envoy may wait up to 60 s for a missing resource; tests that need an earlier answer check
/// it.
const TIMEOUT: Duration = STEP;

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    /// The headers, with names in lower case.
    headers: Vec<(String, String)>,
    /// Whether the server closes the connection after the response.
    pub(crate) closes: bool,
}

impl Answer {
    /// Returns the first value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        values.next().map(|(_, value)| value.as_str())
    }
}

/// The parts of a request that decide where Envoy routes it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: &'static str,
    host: String,
    path: String,
    /// Complete header lines.
    headers: String,
}

impl Request {
    pub(crate) fn new(path: &str) -> Self {
        Self { method: "GET", host: "localhost".into(), path: path.into(), headers: String::new() }
    }

    /// A POST request without a body.
    pub(crate) fn post(path: &str) -> Self {
        let headers = "content-length: 0\r\n".into();
        Self { method: "POST", headers, ..Self::new(path) }
    }

    /// A request with all its parts. `headers` are complete lines.
    pub(crate) fn of(method: &'static str, host: &str, path: &str, headers: String) -> Self {
        Self { method, host: host.into(), path: path.into(), headers }
    }

    pub(crate) fn to_host(host: &str) -> Self {
        Self { host: host.into(), ..Self::new("/") }
    }

    pub(crate) fn with_header(name: &str, value: &str) -> Self {
        Self { headers: format!("{name}: {value}\r\n"), ..Self::new("/") }
    }
}

/// A keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(port: u16) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)
            .with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and reads the whole answer. Returns `None` if the connection was closed
    /// before the first byte of the answer. Every client retries in that case on a connection that
    /// was used before.
    pub(crate) fn get(&mut self, request: &Request) -> Result<Option<Answer>> {
        let Request { method, host, path, headers } = request;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        match self.0.get_mut().write_all(request.as_bytes()) {
            Err(error) if is_closed(error.kind()) => return Ok(None),
            sent => sent.context("send a request")?,
        }
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => return Ok(None),
            Err(error) if is_closed(error.kind()) && line.is_empty() => return Ok(None),
            read => read.context("read the status line")?,
        };
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| anyhow!("no status in {line:?}"))?;
        let (mut length, mut closes, mut chunked) = (None, false, false);
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).context("read a header")?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
            match name.as_str() {
                "content-length" => length = Some(value.parse::<usize>()?),
                "connection" => closes = value.eq_ignore_ascii_case("close"),
                "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
                _ => (),
            }
            headers.push((name, value));
        }
        let body = match length {
            Some(length) => self.exactly(length)?,
            None if chunked => self.chunks()?,
            None => bail!("the answer has no length"),
        };
        let body = String::from_utf8(body).context("read the body")?;
        Ok(Some(Answer { status, body, headers, closes }))
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).context("read the body")?;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).context("read a chunk's length")?;
            let length = usize::from_str_radix(line.trim_end(), 16).context("a chunk's length")?;
            body.extend(self.exactly(length)?);
            self.exactly(2)?;
            if length == 0 {
                return Ok(body);
            }
        }
    }
}

fn is_closed(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
    )
}

/// Sends one request on a new connection. Accepts any status.
pub(crate) fn ask(port: u16, request: &Request) -> Result<Answer> {
    Connection::open(port)?
        .get(request)?
        .with_context(|| format!("{}: the connection was closed", request.path))
}

/// Sends one request on a new connection. Fails unless the status is 200.
pub(crate) fn get(port: u16, path: &str) -> Result<String> {
    let answer = ask(port, &Request::new(path))?;
    if answer.status != 200 {
        bail!("{path}: status {}: {}", answer.status, answer.body);
    }
    Ok(answer.body)
}

/// Waits until a request on a new connection is answered.
pub(crate) fn wait_for_answer(port: u16) -> Result<String> {
    wait_for("the first answer through Envoy", STEP, || get(port, "/").map(Some))
}
