//! Thin xDS clients: many of them fit in one thread, and none decodes what it receives.

pub mod scan;
pub mod stream;
