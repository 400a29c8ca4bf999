//! Progress messages: one line per step on stderr. Stdout is reserved for cargo's output.

use std::{fmt, io::Write as _};

/// Writes one line to stderr. An error, such as a closed stderr, does not stop the command.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr().lock(), "xtask: {text}"));
}

macro_rules! say {
    ($($arg:tt)*) => { $crate::say::line(format_args!($($arg)*)) };
}
pub(crate) use say;
