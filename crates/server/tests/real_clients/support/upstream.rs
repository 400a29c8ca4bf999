//! The services behind Envoy. Each answers with its name, or with a header or the path of the request.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

use anyhow::Result;

/// The answer of a service.
#[derive(Debug, Clone, Copy)]
enum Says {
    Name(&'static str),
    /// The value of this header (in lower case), or `none`.
    Header(&'static str),
    /// The path of the request.
    Path,
}

/// Starts an HTTP/1.1 server that answers every request with `name`, and returns its port. The
/// server runs until the test process ends, so that requests to a former endpoint do not fail.
pub(crate) fn spawn(name: &'static str) -> Result<u16> {
    start(Says::Name(name))
}

/// Starts a server that answers with the value of this header of the request.
pub(crate) fn spawn_echo(header: &'static str) -> Result<u16> {
    start(Says::Header(header))
}

/// Starts a server that answers with the path of the request.
pub(crate) fn spawn_path() -> Result<u16> {
    start(Says::Path)
}

fn start(says: Says) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Envoy opens only a few connections.
            thread::spawn(move || drop(serve(stream, says)));
        }
    });
    Ok(port)
}

fn serve(stream: TcpStream, says: Says) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut told) = (String::new(), None);
    while reader.read_line(&mut line)? > 0 {
        if let (Says::Header(wanted), Some((name, value))) =
            (says, line.trim_end().split_once(": "))
            && name.eq_ignore_ascii_case(wanted)
        {
            told = Some(value.to_owned());
        }
        if let (Says::Path, true) = (says, line.trim_end().ends_with(" HTTP/1.1")) {
            told = line.split(' ').nth(1).map(str::to_owned);
        }
        // An empty line ends a request, because the requests have no body.
        if line == "\r\n" {
            let told = told.take();
            let body = match says {
                Says::Name(name) => name,
                Says::Header(_) | Says::Path => told.as_deref().unwrap_or("none"),
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            writer.write_all((head + body).as_bytes())?;
        }
        line.clear();
    }
    Ok(())
}
