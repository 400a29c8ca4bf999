//! The identities of callers: which credentials prove what, and which are refused.

mod certificates;
mod jwt;
mod support;
