//! The discovery services over a real socket, with a real state behind them.

mod basics;
mod hostile;
mod lifecycle;
mod support;
