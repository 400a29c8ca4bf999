//! The filter chains that a listener requests by their names (FCDS).

use std::collections::BTreeSet;

use prost_reflect::DescriptorPool;

use crate::wire::{Raw, Reader, last, last_text};

/// The field whose actions name the chains.
const MATCHER: &str = "filter_chain_matcher";
/// The type of an action that names a chain.
const NAME: &str = "google.protobuf.StringValue";

/// The numbers of the fields of a listener that concern its chains.
#[derive(Debug)]
pub(super) struct Chains {
    /// The configuration of FCDS, and the config source in it.
    discovery: (u32, u32),
    /// The chains of the listener itself, and the name of a chain.
    own: (u32, u32),
}

impl Chains {
    pub(super) fn of(pool: &DescriptorPool) -> Option<Self> {
        let numbers = |outer: &str, field: &str, inner: &str| {
            let field = pool.get_message_by_name(outer)?.get_field_by_name(field)?;
            let inner = field.kind().as_message()?.get_field_by_name(inner)?.number();
            Some((field.number(), inner))
        };
        let listener = "envoy.config.listener.v3.Listener";
        Some(Self {
            discovery: numbers(listener, "fcds_config", "config_source")?,
            own: numbers(listener, "filter_chains", "name")?,
        })
    }

    /// Returns the message with the config source of the listener's chains, and the number of the field with the
    /// source. `None` if the listener does not request chains.
    pub(super) fn source<'a>(&self, listener: &'a [u8]) -> Option<(&'a [u8], u32)> {
        last(listener, self.discovery.0).map(|config| (config, self.discovery.1))
    }

    /// Returns the names of the chains that are part of the listener. It does not request them.
    pub(super) fn own<'a>(&self, listener: &'a [u8]) -> BTreeSet<&'a str> {
        let mut names = BTreeSet::new();
        let mut reader = Reader(listener);
        while let Ok(Some((number, raw))) = reader.next() {
            if let (true, Raw::Len(chain)) = (number == self.own.0, raw) {
                names.extend(last_text(chain, self.own.1));
            }
        }
        names
    }
}

/// Returns the chain that an `Any` names, if it is an action of the listener's matcher. `root` is the listener's field
/// that contains the `Any`.
pub(super) fn named<'a>(type_name: &str, any: &'a [u8], root: &str) -> Option<&'a str> {
    let is_name = type_name == NAME && root == MATCHER;
    is_name.then(|| last(any, 2).and_then(|value| last_text(value, 1))).flatten()
}
