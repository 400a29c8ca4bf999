//! The store from outside: what a replica promises, whatever happens to it.

mod child;
mod damage;
mod directory;
mod full_disk;
mod kill;
mod log;
mod replica;
mod support;
