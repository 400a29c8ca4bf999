//! What a client was left with when its state-of-the-world stream ended.
//!
//! A client that comes back says which version it has, not what is in it. Where it holds what has been
//! removed in the meantime, and its routes still refer to it, the removal has to wait on the new stream as
//! it would have on the old one (ADS-08). A delta client lists what it holds; for others the server
//! remembers it for a while.

use chancery_model::TypeUrl;
use chancery_view::Resources;

/// What a client was last sent of the full-state types that others refer to: the last response that it
/// accepted, and those that it has not answered. The lists are shared by all who were sent them.
#[derive(Debug, Default)]
pub struct Remains(pub(crate) Vec<Left>);

/// One response, in full.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) type_url: TypeUrl,
    pub(crate) version: String,
    pub(crate) resources: Resources,
}
