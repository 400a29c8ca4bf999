//! The writer of the log: a bounded queue of lines, and a thread that writes them to standard error.
//!
//! Invariant: a thread that logs never waits for the reader of standard error. If the queue is full, the writer drops
//! the line and counts it.
//!
//! The writer escapes characters that reorder or hide text.

use std::{
    borrow::Cow,
    io::{self, Write},
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use chancery_config::LogFormat;
use chancery_model::is_unprintable;
use metrics::counter;
use parking_lot::{Condvar, Mutex};
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

/// The maximum size of the queue, in bytes. The lines that the thread is writing take at most as much again.
const QUEUE_BYTES_MAX: usize = 4 << 20;
/// The capacity of the buffer that the thread keeps between two writes, in bytes.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
/// The time after a write for which the thread gathers lines. It ends early if the buffer is full or `flush` waits. A busy
/// replica thus wakes the thread once for many lines.
const GATHER: Duration = Duration::from_millis(10);
/// The delay before a retry when standard error is non-blocking and full.
const PAUSE: Duration = Duration::from_millis(10);
/// The metric of the lines that were lost.
pub(super) const DROPPED: &str = "chancery_log_lines_dropped_total";

/// A handle to the queue of log lines. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct LogWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    format: LogFormat,
    gather: Duration,
    queue: Mutex<Queue>,
    /// Notified when the first line arrives, when the buffer is full, and when `flush` waits.
    filled: Condvar,
    /// Notified when the thread has written or dropped all lines that it took from the queue.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Complete lines.
    lines: Vec<u8>,
    is_writing: bool,
    /// Whether the thread waits for the first line.
    is_idle: bool,
    /// Whether `flush` has asked for the next write without gathering.
    is_urgent: bool,
    /// The number of dropped lines that the log has not reported yet.
    dropped: u64,
}

impl LogWriter {
    /// Starts the thread, which writes to `out`.
    ///
    /// # Errors
    /// If the thread cannot start.
    pub(super) fn start(format: LogFormat, out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start_with(format, GATHER, out)
    }

    fn start_with(
        format: LogFormat,
        gather: Duration,
        out: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let writer = Self(Arc::new(Shared {
            format,
            gather,
            queue: Mutex::default(),
            filled: Condvar::default(),
            written: Condvar::default(),
        }));
        let shared = writer.clone();
        thread::Builder::new().name("chancery-stderr".to_owned()).spawn(move || shared.run(out))?;
        Ok(writer)
    }

    /// Waits until the thread has written or dropped all lines, at most for `patience`. Returns whether it has.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut queue = self.0.queue.lock();
        while queue.is_writing || !queue.lines.is_empty() {
            if !queue.lines.is_empty() {
                queue.is_urgent = true;
                self.0.filled.notify_one();
            }
            if self.0.written.wait_until(&mut queue, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    fn push(&self, line: &[u8]) {
        let line = escaped(self.0.format, line);
        let mut queue = self.0.queue.lock();
        if queue.lines.len() + line.len() > QUEUE_BYTES_MAX {
            queue.dropped += 1;
            drop(queue);
            counter!(DROPPED).increment(1);
            return;
        }
        queue.lines.extend_from_slice(&line);
        let is_due = queue.is_idle || queue.lines.len() >= BUFFER_BYTES_KEPT;
        drop(queue);
        if is_due {
            self.0.filled.notify_one();
        }
    }

    fn run(&self, mut out: impl Write) {
        let (mut lines, mut is_accepted) = (Vec::new(), true);
        let mut gather_until = Instant::now();
        loop {
            self.take(&mut lines, gather_until);
            if is_accepted {
                // The swap has emptied the queue, so the report has space, unless other threads fill the queue first. It
                // follows the lines that were queued before the first dropped line.
                self.report();
            }
            let lost = write_lines(&mut out, &lines);
            is_accepted = lost == 0;
            if lost > 0 {
                counter!(DROPPED).increment(lost);
                self.0.queue.lock().dropped += lost;
            }
            lines.clear();
            lines.shrink_to(BUFFER_BYTES_KEPT);
            gather_until = Instant::now() + self.0.gather;
        }
    }

    /// Waits until lines are due, and swaps the queue with the buffer of written lines.
    fn take(&self, written: &mut Vec<u8>, gather_until: Instant) {
        let mut queue = self.0.queue.lock();
        queue.is_writing = false;
        self.0.written.notify_all();
        while queue.lines.len() < BUFFER_BYTES_KEPT && !queue.is_urgent {
            if self.0.filled.wait_until(&mut queue, gather_until).timed_out() {
                break;
            }
        }
        queue.is_idle = true;
        while queue.lines.is_empty() {
            self.0.filled.wait(&mut queue);
        }
        queue.is_idle = false;
        queue.is_urgent = false;
        queue.is_writing = true;
        mem::swap(&mut queue.lines, written);
    }

    /// Logs the number of dropped lines, if there are any.
    fn report(&self) {
        let dropped = mem::take(&mut self.0.queue.lock().dropped);
        if dropped > 0 {
            warn!(
                dropped,
                "lines of the log were dropped, because standard error did not accept them in time"
            );
        }
    }
}

/// Escapes the characters outside of ASCII that a terminal or a viewer acts on, such as bidirectional controls. The
/// formatter of tracing escapes only the ASCII control characters.
fn escaped(format: LogFormat, line: &[u8]) -> Cow<'_, [u8]> {
    if line.is_ascii() {
        return line.into();
    }
    let text = String::from_utf8_lossy(line);
    let is_bad = |c: char| !c.is_ascii() && is_unprintable(c);
    if !text.contains(is_bad) {
        return line.into();
    }
    let mut out = String::with_capacity(line.len() * 2);
    for c in text.chars() {
        match (is_bad(c), format) {
            (false, _) => out.push(c),
            (true, LogFormat::Text) => out.extend(c.escape_unicode()),
            // In JSON, such a character can be in strings only.
            (true, LogFormat::Json) => {
                out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    out.into_bytes().into()
}

/// Writes lines until an error occurs. Returns the number of lines that are not completely written.
fn write_lines(out: &mut impl Write, mut rest: &[u8]) -> u64 {
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(n @ 1..) => rest = rest.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Ok(0) | Err(_) => {
                let n_lines = rest.iter().filter(|byte| **byte == b'\n').count();
                return u64::try_from(n_lines).unwrap_or(u64::MAX);
            }
        }
    }
    0
}

/// The formatter of the log passes each complete line in one call of `write`.
impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// An output that accepts each write only when the test permits it.
    struct Gate {
        permits: Receiver<io::Result<()>>,
        written: SyncSender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.permits.recv().map_err(io::Error::other)??;
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Bidirectional controls and invisible characters of a client's text do not reach the log.
    #[test]
    fn characters_that_reorder_or_hide_text_are_escaped() {
        let line = "é \u{202e}\u{e0041}\n".as_bytes();
        assert_eq!(escaped(LogFormat::Text, line), "é \\u{202e}\\u{e0041}\n".as_bytes());
        assert_eq!(escaped(LogFormat::Json, line), "é \\u202e\\udb40\\udc41\n".as_bytes());
        assert!(matches!(escaped(LogFormat::Text, "é\n".as_bytes()), Cow::Borrowed(_)));
    }

    /// After a write, the thread gathers lines until the buffer is full, or somebody waits for them.
    #[test]
    fn lines_after_a_write_are_written_together() {
        let (permit, permits) = sync_channel(8);
        let (written, reader) = sync_channel(8);
        let (hour, out) = (Duration::from_secs(3600), Gate { permits, written });
        let writer = LogWriter::start_with(LogFormat::Text, hour, out).unwrap();
        (0..8).for_each(|_| permit.send(Ok(())).unwrap());
        writer.push(b"first\n");
        assert_eq!(reader.recv().unwrap(), b"first\n");
        writer.push(b"second\n");
        writer.push(b"third\n");
        assert!(writer.flush(Duration::from_secs(60)));
        assert_eq!(reader.recv().unwrap(), b"second\nthird\n");
        let line = [vec![b'x'; 1023], vec![b'\n']].concat();
        (0..64).for_each(|_| writer.push(&line));
        assert_eq!(reader.recv().unwrap().len(), 64 << 10);
    }

    #[test]
    fn full_queue_drops_lines_without_waiting_and_later_writes_the_others() {
        let (permit, permits) = sync_channel(8);
        let (written, reader) = sync_channel(8);
        let writer = LogWriter::start(LogFormat::Text, Gate { permits, written }).unwrap();
        let line = [vec![b'x'; 1023], vec![b'\n']].concat();
        // The thread takes the first line and hangs. The queue has space for 4096 lines.
        writer.push(b"first\n");
        while !writer.0.queue.lock().lines.is_empty() {
            thread::yield_now();
        }
        (0..5000).for_each(|_| writer.push(&line));
        assert_eq!(writer.0.queue.lock().dropped, 5000 - 4096);
        assert!(!writer.flush(Duration::ZERO), "flush times out while the output blocks");
        permit.send(Ok(())).unwrap();
        assert_eq!(reader.recv().unwrap(), b"first\n");
        permit.send(Ok(())).unwrap();
        assert_eq!(reader.recv().unwrap().len(), 4096 * 1024);
        assert!(writer.flush(Duration::from_secs(60)));
        // A broken output loses lines, and the thread continues.
        permit.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
        writer.push(b"second\nthird\n");
        assert!(writer.flush(Duration::from_secs(60)));
        assert_eq!(writer.0.queue.lock().dropped, 2);
    }
}
