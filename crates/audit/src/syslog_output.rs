//! Syslog as the output of records: messages of RFC 5424 over a UNIX datagram socket.
//!
//! The daemon may truncate long messages, and drop messages that come too fast.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{event::Event, time, worker::Output};

/// The priority: facility 13 (log audit), severity 6 (informational).
const PRIORITY: u8 = 13 * 8 + 6;
/// The maximum time for the daemon to take a message.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The socket of the daemon, with a connection if there is one.
#[derive(Debug)]
pub(crate) struct SyslogOutput {
    path: PathBuf,
    /// The constant part of the header, after the time.
    sender: String,
    socket: Option<UnixDatagram>,
}

impl SyslogOutput {
    /// Creates an output. It connects to the daemon when the first record is written.
    pub(crate) fn new(path: PathBuf) -> Self {
        let system = rustix::system::uname();
        // A header field has printable ASCII characters only.
        let host: String = system.nodename().to_string_lossy().chars().take(255).collect();
        let is_plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic());
        let host = if is_plain { host.as_str() } else { "-" };
        let sender = format!("{host} chancery {} audit -", std::process::id());
        Self { path, sender, socket: None }
    }

    fn connect(path: &Path) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(socket)
    }
}

impl Output for SyslogOutput {
    fn append(&mut self, _: u64, line: &[u8]) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Self::connect(&self.path)?,
        };
        let now = time::timestamp(time::millis(SystemTime::now()));
        let mut message = format!("<{PRIORITY}>1 {now} {} ", self.sender).into_bytes();
        message.extend_from_slice(line.trim_ascii_end());
        socket.send(&message)?;
        // After an error, the next record connects again: the daemon may have restarted.
        self.socket = Some(socket);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<Option<Event>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(daemon: &UnixDatagram) -> String {
        let mut message = vec![0; 64 << 10];
        let n = daemon.recv(&mut message).unwrap();
        message.truncate(n);
        String::from_utf8(message).unwrap()
    }

    #[test]
    fn record_is_sent_as_rfc_5424_also_after_a_restart_of_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut output = SyslogOutput::new(path.clone());
        output.append(1, b"{\"seq\":1}\n").unwrap_err();
        let daemon = UnixDatagram::bind(&path).unwrap();
        output.append(1, b"{\"seq\":1}\n").unwrap();
        let message = receive(&daemon);
        let fields: Vec<&str> = message.splitn(8, ' ').collect();
        assert_eq!(fields[0], "<110>1");
        assert!(fields[1].ends_with('Z') && fields[1].len() == 24, "{message}");
        assert_eq!(fields[3], "chancery");
        assert_eq!(fields[5..], ["audit", "-", "{\"seq\":1}"]);
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        output.append(2, b"{\"seq\":2}\n").unwrap_err();
        let daemon = UnixDatagram::bind(&path).unwrap();
        output.append(2, b"{\"seq\":2}\n").unwrap();
        assert!(receive(&daemon).ends_with("{\"seq\":2}"));
    }
}
