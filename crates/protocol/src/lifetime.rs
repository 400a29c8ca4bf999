//! The support of a client for the lifetimes of resources (TTL).

use chancery_model::Node;

use crate::{Protocol, encoding::LifetimeForm};

/// The features of a client that concern lifetimes (TTL-02, TTL-05).
///
/// Envoy has no feature by default; an operator lists them in `node.client_features` of its
/// bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LifetimeSupport {
    /// Whether the client understands lifetimes.
    ttl: bool,
    /// Whether the client understands wrapped resources in SotW.
    wrappers: bool,
    /// Whether a SotW client renews a lifetime only when it receives the content again.
    ///
    /// The SotW client of Envoy ignores the lifetime in a heartbeat. It also treats a resource
    /// without content as missing, so a heartbeat would remove clusters and listeners (`clients.md`
    /// rule 18).
    sotw_content: bool,
    /// A number that differs between streams, from which their intervals are derived.
    seed: u64,
}

impl LifetimeSupport {
    /// Reads the support from the node of a client. `seed` spreads the renewals of equal streams.
    #[must_use]
    pub fn of(node: &Node, seed: u64) -> Self {
        let has = |feature: &str| node.client_features.iter().any(|known| known == feature);
        Self {
            ttl: has("xds.config.supports-resource-ttl"),
            wrappers: has("xds.config.resource-in-sotw")
                || has("xds.config.supports-resource-in-sotw"),
            sotw_content: node.user_agent.split('/').next() == Some("envoy"),
            seed,
        }
    }

    /// Returns the form of lifetimes for this variant of the protocol.
    pub(crate) fn form(self, protocol: Protocol) -> LifetimeForm {
        match protocol {
            Protocol::Delta if self.ttl => LifetimeForm::Field,
            Protocol::Sotw if self.ttl && self.wrappers => LifetimeForm::Wrapper,
            Protocol::Delta | Protocol::Sotw | Protocol::Mcp => LifetimeForm::None,
        }
    }

    /// Returns whether a renewal needs the content of the resource.
    pub(crate) fn needs_content(self, protocol: Protocol) -> bool {
        protocol == Protocol::Sotw && self.sotw_content
    }

    /// Returns whether a SotW client accepts resources in a wrapper (TTL-05).
    pub(crate) fn has_wrappers(self) -> bool {
        self.wrappers
    }

    pub(crate) fn seed(self) -> u64 {
        self.seed
    }
}
