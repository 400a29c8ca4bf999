//! The resources that a client holds from an ended SotW stream.
//!
//! A reconnecting SotW client reports the version that it has, but not the contents. It may hold a
//! resource that was removed in the meantime, and its routes may still refer to that resource. The
//! removal must then wait on the new stream, as on the old one (ADS-08). A delta client lists the
//! resources that it holds. For SotW clients, the server remembers them for a while.

use chancery_model::TypeUrl;
use chancery_view::Resources;

/// The last responses of an ended stream for the full-state types that others refer to: the last
/// response that the client accepted, and those that it did not answer. All streams that were sent
/// the same lists share them.
#[derive(Debug, Default)]
pub struct Remains(pub(crate) Vec<Left>);

/// One response with its complete contents.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) type_url: TypeUrl,
    pub(crate) version: String,
    pub(crate) resources: Resources,
}
