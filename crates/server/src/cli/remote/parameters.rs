//! The flag that selects one variant of a resource.

use std::collections::BTreeMap;

use clap::Args;

use crate::cli::{exit::Exit, failure::Failure};

/// The dynamic parameters that select one variant.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Parameters {
    /// Select the variant for clients with this dynamic parameter; repeat it for several
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<(String, String)>,
}

impl Parameters {
    /// Returns the parameters as requests have them.
    ///
    /// # Errors
    /// Fails if a key has two values.
    pub(crate) fn into_map(self) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for (key, value) in self.parameters {
            if let Some(first) = all.insert(key.clone(), value.clone()) {
                let text = format!("--parameter: {key:?} has two values, {first:?} and {value:?}");
                return Err(Failure::with_exit(Exit::Usage, text));
            }
        }
        Ok(all)
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Returns the name of a resource as tables show it. The constraints of a variant are in brackets.
pub(crate) fn with_variant(name: &str, variant: &str) -> String {
    if variant.is_empty() { name.to_owned() } else { format!("{name} [{variant}]") }
}
