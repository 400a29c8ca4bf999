//! The discovery services over a real socket, with a real state behind them.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod basics;
mod breaks;
mod comeback;
mod crowd;
mod few_files;
mod floods;
mod habits;
mod life;
mod lifecycle;
mod limits;
mod lost;
mod never_ack;
mod requests;
mod silent;
mod support;
