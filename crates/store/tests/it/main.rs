//! The store from outside: what a replica promises, whatever happens to it.

mod replica;
mod support;
