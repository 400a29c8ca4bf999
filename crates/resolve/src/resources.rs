//! The resources of a node, which the caller supplies.

use bytes::Bytes;

/// One resource of a node.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// The encoded message.
    pub body: Bytes,
    /// The reason why the node may have another version; empty if it has this one.
    pub doubt: String,
}

/// The resources of one node.
pub trait Resources {
    /// Returns the resource with a type and a name.
    fn get(&self, type_url: &str, name: &str) -> Option<Resource>;

    /// Returns the names of the resources of a type, in order.
    fn names(&self, type_url: &str) -> Vec<String>;
}
