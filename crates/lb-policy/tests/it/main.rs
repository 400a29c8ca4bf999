//! The public interface of the crate.

mod cluster;
mod converters;
mod support;
mod typed_struct;
mod walk;
