//! The identities of callers: which credentials prove what, and which are refused.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod certificates;
mod jwt;
mod support;
