//! The behavior of types that Chancery does not know (`xds.types`).

use chancery_model::{TypeUrl, types};
use serde::{Deserialize, Serialize};

use super::{
    Xds,
    bounds::{Field, Form, optional, required},
};

/// The keys of an entry.
pub(super) const TYPE_KEYS: &[Field] = &[
    required("type", Form::Text),
    optional("wildcard", Form::Flag),
    optional("full_state", Form::Flag),
];

/// An entry of `types`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TypeOfResources {
    r#type: String,
    #[serde(default = "yes")]
    wildcard: bool,
    #[serde(default = "yes")]
    full_state: bool,
}

fn yes() -> bool {
    true
}

impl Xds {
    /// Returns the configuration of types that are not known.
    ///
    /// # Errors
    /// Returns the rule that an entry breaks.
    pub(crate) fn configured_types(&self) -> Result<Vec<types::Configured>, String> {
        let of = |entry: &TypeOfResources| {
            let type_url = TypeUrl::new(&entry.r#type)
                .map_err(|error| format!("{:?} is not a type URL: {error}", entry.r#type))?;
            let TypeOfResources { wildcard, full_state, .. } = *entry;
            Ok(types::Configured { type_url, wildcard, full_state })
        };
        let all = self.types.iter().map(of).collect::<Result<Vec<_>, String>>()?;
        types::check_configured(&all)?;
        Ok(all)
    }
}
