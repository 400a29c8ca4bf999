//! The discovery services over a real socket, with a real state behind them.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod basics;
mod few_files;
mod habits;
mod hostile;
mod lifecycle;
mod support;
