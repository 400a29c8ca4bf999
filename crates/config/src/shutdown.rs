//! The section `[shutdown]`: the end of the process.

use super::{
    bounds::{MINUTE, SECOND, time},
    section::section,
    units::Span,
};

section! {
    /// The section `[shutdown]`: the end of the process.
    pub struct Shutdown {
        /// The maximum time for streams and requests to end after SIGTERM.
        timeout: Span = Span::seconds(10), time(SECOND, 10 * MINUTE);
    }
}
