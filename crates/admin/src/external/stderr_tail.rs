//! The end of the standard error of the external validator, without secrets.

use std::{
    io::{ErrorKind, Read},
    process::ChildStderr,
    thread,
    time::{Duration, Instant},
};

use chancery_fanout::SecretFinder;
use rustix::io::ioctl_fionbio;

use super::settings::Resource;

/// The interval of looks at the process and its standard error.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// The length of the end of the standard error that is kept until the run ends. An Envoy that rejects its
/// input quotes it before the reason.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// The length of the beginning that is not shown if it is not the beginning of the standard error. It may be the end of
/// a secret, too short to be recognized.
const CUT_BYTES: usize = 128;
/// The maximum length of what is shown.
pub(super) const SHOWN_BYTES_MAX: usize = 2048;
/// The maximum number of reads before another look at the process.
const READS_MAX: usize = 64;

/// The end of the standard error of a run.
pub(super) struct StderrTail {
    /// `None` after its end.
    pipe: Option<ChildStderr>,
    tail: Vec<u8>,
    is_cut: bool,
}

impl StderrTail {
    /// Reads the pipe without waiting, because a process that outlives the run may keep it open.
    pub(super) fn new(pipe: Option<ChildStderr>) -> Self {
        let pipe = pipe.filter(|pipe| ioctl_fionbio(pipe, true).is_ok());
        Self { pipe, tail: Vec::new(), is_cut: false }
    }

    /// Reads what the pipe has, up to a limit.
    pub(super) fn read(&mut self) {
        let mut buffer = [0; KEPT_BYTES_MAX];
        for _ in 0..READS_MAX {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut buffer) {
                Ok(n @ 1..) => {
                    self.tail.extend_from_slice(&buffer[..n]);
                    let surplus = self.tail.len().saturating_sub(KEPT_BYTES_MAX);
                    self.is_cut |= surplus > 0;
                    self.tail.drain(..surplus);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => self.pipe = None,
            }
        }
    }

    /// Reads until the end of the pipe, or until the deadline.
    pub(super) fn read_until(&mut self, deadline: Instant) {
        self.read();
        while self.pipe.is_some() && Instant::now() < deadline {
            thread::sleep(LOOK);
            self.read();
        }
    }

    /// Returns the end of the text as one line, without the secrets of the resources.
    pub(super) fn shown(&self, resources: &[Resource]) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let finder = SecretFinder::new(chancery_admission::secret_values);
        let bodies = resources.iter().map(|(type_url, body)| (type_url, &**body));
        let Some(clean) = finder.without_secrets(&text, bodies) else {
            return "its text is not shown, because the write has too many secrets to remove"
                .to_owned();
        };
        let cut = if self.is_cut { clean.ceil_char_boundary(CUT_BYTES) } else { 0 };
        let lines = clean[cut..].lines().map(str::trim).filter(|line| !line.is_empty());
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let line: String = lines.collect::<Vec<_>>().join("; ").chars().map(printable).collect();
        let start = line.ceil_char_boundary(line.len().saturating_sub(SHOWN_BYTES_MAX));
        line[start..].to_owned()
    }
}
