//! The standard output as the output of records.

use std::io::{self, Write};

use crate::{event::Event, worker::Output};

/// The standard output.
#[derive(Debug)]
pub(crate) struct StdoutOutput<W> {
    out: W,
    /// Whether a part of a line was written.
    is_torn: bool,
}

impl<W> StdoutOutput<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, is_torn: false }
    }
}

impl<W: Write + Send> Output for StdoutOutput<W> {
    fn append(&mut self, _: u64, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.out.write_all(b"\n")?;
        }
        self.is_torn = true;
        self.out.write_all(line)?;
        self.out.flush()?;
        self.is_torn = false;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<Option<Event>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts the given number of bytes, then fails once.
    struct FailsOnce {
        written: Vec<u8>,
        left: usize,
    }

    impl Write for FailsOnce {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.left == 0 {
                self.left = usize::MAX;
                return Err(io::Error::other("full"));
            }
            let n = bytes.len().min(self.left);
            self.left -= n;
            self.written.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_after_a_failed_write_begins_on_its_own_line() {
        let mut output = StdoutOutput::new(FailsOnce { written: Vec::new(), left: 3 });
        output.append(1, b"first\n").unwrap_err();
        output.append(1, b"first\n").unwrap();
        output.append(2, b"second\n").unwrap();
        assert_eq!(output.out.written, b"fir\nfirst\nsecond\n");
    }
}
