//! The names of variants.

use std::fmt::Write;

use crate::{
    Constraints, NameError, ResourceName,
    internal_name::{VARIANT, base_of, constraints_of},
};

impl ResourceName {
    /// Returns the name of the variant with these constraints. Returns the name unchanged if the
    /// constraints match everything.
    #[must_use]
    pub fn variant(&self, constraints: &Constraints) -> Self {
        let constraints = constraints.clone().canonical();
        if constraints == Constraints::Always {
            return self.clone();
        }
        let mut text = format!("{}{VARIANT}", base_of(self.as_str()));
        for byte in constraints.encode() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self::trusted(&text)
    }

    /// Validates a name from the store, which may be that of a variant.
    ///
    /// # Errors
    /// Fails if the name or its constraints are invalid.
    pub fn stored(name: &str) -> Result<Self, NameError> {
        let Some(constraints) = constraints_of(name) else { return Self::new(name) };
        let variant = Self::new(base_of(name))?.variant(&constraints);
        if variant.as_str() == name { Ok(variant) } else { Self::new(name) }
    }

    /// Returns the published name: without constraints and parameters.
    #[must_use]
    pub fn base(&self) -> &str {
        base_of(self.as_str())
    }

    /// Returns the published name.
    #[must_use]
    pub fn to_base(&self) -> Self {
        match self.base() {
            base if base.len() == self.as_str().len() => self.clone(),
            base => Self::trusted(base),
        }
    }

    /// Returns whether this is the name of a variant.
    #[must_use]
    pub fn is_variant(&self) -> bool {
        self.as_str().bytes().any(|byte| u32::from(byte) == u32::from(VARIANT))
    }

    /// Returns the constraints of a variant, or `None` for any other name.
    #[must_use]
    pub fn constraints(&self) -> Option<Constraints> {
        constraints_of(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{has_internal_mark, located_name, parameters_of};

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    /// DYN-02: name and constraints together are the identity.
    #[test]
    fn variant_has_its_name_and_constraints() {
        let prod = Constraints::Value { key: "env".into(), value: "prod".into() };
        let variant = name("web").variant(&prod);
        assert_ne!(variant, name("web"));
        assert_eq!((variant.base(), variant.constraints()), ("web", Some(prod.clone())));
        assert!(variant.is_variant() && !name("web").is_variant());
        assert_eq!(variant.to_base(), name("web"));
        assert_eq!(name("web").variant(&Constraints::Always), name("web"));
        assert_eq!(variant.to_string(), "web [env=\"prod\"]");
        assert_eq!(ResourceName::stored(variant.as_str()), Ok(variant.clone()));
        assert!(ResourceName::new(variant.as_str()).is_err(), "no author can write it");
        for damaged in ["web\u{1}", "web\u{1}0", "web\u{1}zz", "web\u{1}+8", "\u{1}0a"] {
            assert!(ResourceName::stored(damaged).is_err(), "{damaged:?}");
        }
    }

    proptest! {
        /// DYN-12: equal names and parameters have equal internal names, and others differ.
        #[test]
        fn parameters_survive_their_encoding(
            pairs in proptest::collection::btree_map(".{0,6}", ".{0,6}", 1..4),
            base in "[a-z/%&=]{0,6}",
        ) {
            let text = located_name(&base, &pairs);
            prop_assert_eq!(base_of(&text), base.as_str());
            prop_assert_eq!(parameters_of(&text), Some(pairs));
            prop_assert!(has_internal_mark(&text));
        }
    }
}
