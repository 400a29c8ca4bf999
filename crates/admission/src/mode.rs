//! The treatment of resources that clients would reject: per server, per scope and per call.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use chancery_model::ScopeName;

use crate::profile::{Profiles, Treatment};

/// The treatment of resources that a client would reject. The strictest mode is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ValidationMode {
    /// Refuses the whole transaction.
    #[default]
    Enforce,
    /// Stores the resources and reports the findings.
    Warn,
    /// Does not check the resources.
    Off,
}

impl ValidationMode {
    const NAMES: [(&'static str, Self); 3] =
        [("enforce", Self::Enforce), ("warn", Self::Warn), ("off", Self::Off)];
}

impl fmt::Display for ValidationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, mode)| mode == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for ValidationMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| format!("expected enforce, warn or off, found {text:?}"))
    }
}

/// The modes of an input, and the clients of its scopes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Validation {
    /// The mode of this call, which overrides the others.
    pub call: Option<ValidationMode>,
    /// The modes of scopes.
    pub scopes: Arc<BTreeMap<ScopeName, ValidationMode>>,
    /// The mode of all other scopes.
    pub default: ValidationMode,
    /// The clients for which the resources of each scope are checked.
    pub profiles: Profiles,
}

impl Validation {
    /// Returns one mode for all scopes.
    #[must_use]
    pub fn of(mode: ValidationMode) -> Self {
        Self { default: mode, ..Self::default() }
    }

    /// Returns whether no scope is checked.
    #[must_use]
    pub fn is_off(&self) -> bool {
        match self.call {
            Some(mode) => mode == ValidationMode::Off,
            None => {
                self.scopes.values().chain([&self.default]).all(|mode| *mode == ValidationMode::Off)
            }
        }
    }

    /// Returns the mode for findings about what Envoy rejects in a scope: `warn` if no Envoy is known to see
    /// the scope, and `off` if none does.
    #[must_use]
    pub fn envoy_mode(&self, scope: &ScopeName) -> ValidationMode {
        match (self.mode(scope), self.profiles.audience(scope).envoy()) {
            (mode, Treatment::Refuse) => mode,
            (ValidationMode::Off, _) | (_, Treatment::Ignore) => ValidationMode::Off,
            (_, Treatment::Warn) => ValidationMode::Warn,
        }
    }

    /// Returns the mode for a scope.
    #[must_use]
    pub fn mode(&self, scope: &ScopeName) -> ValidationMode {
        self.call.or_else(|| self.scopes.get(scope).copied()).unwrap_or(self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_of_call_overrides_mode_of_scope_and_of_server() {
        let scope = |name| ScopeName::new(name).unwrap();
        let scopes = BTreeMap::from([(scope("dev"), ValidationMode::Off)]);
        let server =
            Validation { scopes: Arc::new(scopes), ..Validation::of(ValidationMode::Warn) };
        assert_eq!(server.mode(&scope("dev")), ValidationMode::Off);
        assert_eq!(server.mode(&scope("edge")), ValidationMode::Warn);
        let call = Validation { call: Some(ValidationMode::Enforce), ..server };
        assert_eq!(call.mode(&scope("dev")), ValidationMode::Enforce);
        for mode in [ValidationMode::Enforce, ValidationMode::Warn, ValidationMode::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("on".parse::<ValidationMode>().unwrap_err().contains("expected enforce"));
    }
}
