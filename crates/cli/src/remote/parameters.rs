//! The flag that selects one variant of a resource.

use std::collections::BTreeMap;

use clap::Args;

use crate::{exit::Exit, failure::Failure};

/// The dynamic parameters that select one variant.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Parameters {
    /// Select the variant that clients with this dynamic parameter receive; repeatable
    ///
    /// KEY=VALUE is one dynamic parameter, such as env=prod. With several flags, the client has all of
    /// these parameters; each KEY has one VALUE. A resource without constraints matches all clients.
    ///
    /// Without this flag, `get` and `describe` show all variants of the name, and `delete` deletes the
    /// variant for clients without parameters. `explain` and `get --node` use the parameters of the node.
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

/// The maximum length in characters of constraints that a table shows whole.
const VARIANT_LETTERS_MAX: usize = 60;
/// The lengths of the two ends that a table shows of longer constraints.
const VARIANT_HEAD: usize = 40;
const VARIANT_TAIL: usize = 19;

/// Returns constraints as a column of a table shows them: long ones without their middle.
pub(crate) fn shortened(variant: &str) -> String {
    let letters: Vec<char> = variant.chars().collect();
    if letters.len() <= VARIANT_LETTERS_MAX {
        return variant.to_owned();
    }
    let (head, tail) = (&letters[..VARIANT_HEAD], &letters[letters.len() - VARIANT_TAIL..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

/// Returns the name of a resource as tables show it. The constraints of a variant are in brackets.
pub(crate) fn with_variant(name: &str, variant: &str) -> String {
    if variant.is_empty() { name.to_owned() } else { format!("{name} [{variant}]") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_constraints_are_shown_without_their_middle() {
        let short = "x".repeat(VARIANT_LETTERS_MAX);
        assert_eq!(shortened(&short), short);
        let long = format!("{}é{}", "a".repeat(50), "b".repeat(50));
        let shown = shortened(&long);
        assert_eq!(shown.chars().count(), VARIANT_LETTERS_MAX);
        assert_eq!(shown, format!("{}…{}", "a".repeat(40), "b".repeat(19)));
    }
}
