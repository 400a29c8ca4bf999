//! The constant properties of a subscription.

use chancery_model::{
    TypeUrl,
    types::{Properties, properties},
};

use crate::{Config, Protocol};

/// The type of a subscription, and the rules that follow from it.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) type_url: TypeUrl,
    pub(crate) properties: &'static Properties,
    pub(crate) protocol: Protocol,
    /// Whether the client is sent errors for names that do not exist (ERR-14).
    pub(crate) sends_errors: bool,
}

impl Kind {
    pub(crate) fn new(type_url: TypeUrl, protocol: Protocol, config: &Config) -> Self {
        let properties = properties(&type_url);
        // SOTW-76: the clients of the other types reject a response without their resource.
        let may_be_empty = protocol == Protocol::Delta || properties.announce_removal;
        Self {
            properties,
            type_url,
            protocol,
            sends_errors: config.resource_errors && may_be_empty && protocol != Protocol::Mcp,
        }
    }

    /// Returns whether each response contains all subscribed resources (SOTW-70).
    pub(crate) fn is_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.properties.full_state
    }

    /// Returns whether resources are kept for the client's next stream: its removals may have to
    /// wait for other types, and the client does not report what it holds.
    pub(crate) fn is_remembered(&self) -> bool {
        self.is_full_state() && !self.properties.referrers.is_empty()
    }

    /// Returns whether the type supports a wildcard (SOTW-68). In SotW, a type without a SotW
    /// method supports no wildcard (SVC-05).
    pub(crate) fn allows_wildcard(&self) -> bool {
        let service = self.properties.service.as_ref();
        self.properties.wildcard
            && (self.protocol != Protocol::Sotw || service.is_none_or(|s| s.sotw.is_some()))
    }
}
