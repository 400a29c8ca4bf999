//! The caller of a request, and the settings of access to the admin port.

use chancery_auth::{Authenticator, RateExceeded};
use chancery_fanout::AccessControl;
use chancery_model::{Identity, Principal};
use tokio::time::Instant;

use crate::{AdminError, metrics::refused};

/// The settings of access to the admin port.
#[derive(Debug, Clone, Default)]
pub struct AdminAccess {
    /// Whether access rules apply.
    pub control: AccessControl,
    /// The principals that may do everything, whatever the access rules say.
    pub admins: Vec<Principal>,
    /// Authenticates callers; used only if access rules apply.
    pub auth: Option<Authenticator>,
}

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) rights: Rights,
    /// The time when the credential ends; `None` if it does not end, or with its connection.
    pub(crate) ends_at: Option<Instant>,
}

/// The extent of a caller's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Access rules do not apply.
    NotEnforced,
    /// The configuration names the caller as an administrator.
    Admin,
    /// The rights that access rules give.
    Rules,
}

impl Caller {
    /// Returns the caller of a port without access rules.
    pub(crate) fn unrestricted(identity: Identity) -> Self {
        Self { identity, rights: Rights::NotEnforced, ends_at: None }
    }

    /// Returns a caller without a credential and without rights.
    pub(crate) fn nobody() -> Self {
        Self { identity: Identity::anonymous(), rights: Rights::Rules, ends_at: None }
    }

    /// Returns whether the caller may do everything.
    pub(crate) fn may_everything(&self) -> bool {
        self.rights != Rights::Rules
    }
}

impl AdminAccess {
    /// Returns the extent of an identity's rights.
    pub(crate) fn rights_of(&self, principal: &Principal) -> Rights {
        match self.control {
            AccessControl::Off => Rights::NotEnforced,
            AccessControl::Enforced if self.admins.contains(principal) => Rights::Admin,
            AccessControl::Enforced => Rights::Rules,
        }
    }
}

/// Returns the error of an identity that sends too much, and counts it.
pub(crate) fn rate_exceeded(exceeded: &RateExceeded) -> AdminError {
    refused(exceeded.key);
    AdminError::Busy { reason: exceeded.key, text: exceeded.to_string() }
}
