//! The services behind Envoy: each says its name.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

use anyhow::Result;

/// Starts an HTTP/1.1 server that answers every request with `name`; returns its port. It runs until
/// the test process ends: a request to an endpoint that was moved away must not fail for that.
pub(crate) fn spawn(name: &'static str) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // As many as Envoy opens: a handful.
            thread::spawn(move || drop(serve(stream, name)));
        }
    });
    Ok(port)
}

fn serve(stream: TcpStream, name: &str) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        // An empty line ends a request; our requests have no body.
        if line == "\r\n" {
            writer.write_all(answer.as_bytes())?;
        }
        line.clear();
    }
    Ok(())
}
