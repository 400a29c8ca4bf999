//! What people read while we work: one line per step, on stderr, so that stdout stays cargo's.

use std::{fmt, io::Write as _};

/// Writes one line for the person who waits. A closed stderr is no reason to stop working.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr().lock(), "xtask: {text}"));
}

macro_rules! say {
    ($($arg:tt)*) => { $crate::say::line(format_args!($($arg)*)) };
}
pub(crate) use say;
