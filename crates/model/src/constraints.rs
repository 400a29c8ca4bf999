//! Constraints on dynamic parameters, which distinguish the variants of a resource (TP2).
//!
//! A client subscribes to a name with parameters, and receives the variant whose constraints match
//! them. The name and the constraints together identify a resource (DYN-02). Constraints therefore
//! have a canonical form: order and nesting of conditions do not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

mod encoding;
mod variants;

pub use encoding::{CONSTRAINTS_BYTES_MAX, ConstraintsError};
pub use variants::{Conflict, VARIANTS_MAX, VariantsBudget, check_variants, example};

/// The dynamic parameters of a subscription, or of a node.
pub type DynamicParameters = BTreeMap<String, String>;

/// `envoy.service.discovery.v3.DynamicParameterConstraints`, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Constraints {
    /// Matches everything (DYN-05).
    Always,
    /// Matches if the key has this value.
    Value {
        /// The key of the dynamic parameter.
        key: Box<str>,
        /// The value that it must have.
        value: Box<str>,
    },
    /// Matches if the key is present.
    Exists {
        /// The key of the dynamic parameter.
        key: Box<str>,
    },
    /// Matches if any of these match; an empty list matches nothing.
    Or(Vec<Constraints>),
    /// Matches if all of these match.
    And(Vec<Constraints>),
    /// Matches if this does not match.
    Not(Box<Constraints>),
}

impl Constraints {
    /// Returns whether the constraints match the parameters. Keys that the constraints do not mention do
    /// not matter (DYN-03).
    #[must_use]
    pub fn matches(&self, parameters: &DynamicParameters) -> bool {
        match self {
            Self::Always => true,
            Self::Value { key, value } => {
                parameters.get(&**key).is_some_and(|found| **found == **value)
            }
            Self::Exists { key } => parameters.contains_key(&**key),
            Self::Or(all) => all.iter().any(|one| one.matches(parameters)),
            Self::And(all) => all.iter().all(|one| one.matches(parameters)),
            Self::Not(inner) => !inner.matches(parameters),
        }
    }

    /// Returns the keys that the constraints mention.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<&str> {
        self.values().into_keys().collect()
    }

    /// Returns the values that the constraints mention, by key.
    fn values(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let (mut out, mut open) = (BTreeMap::<&str, BTreeSet<&str>>::new(), vec![self]);
        while let Some(one) = open.pop() {
            match one {
                Self::Always => {}
                Self::Value { key, value } => {
                    out.entry(key).or_default().insert(value);
                }
                Self::Exists { key } => drop(out.entry(key).or_default()),
                Self::Or(all) | Self::And(all) => open.extend(all),
                Self::Not(inner) => open.push(inner),
            }
        }
        out
    }

    /// Returns the number of conditions and operators.
    fn n_nodes(&self) -> usize {
        match self {
            Self::Always | Self::Value { .. } | Self::Exists { .. } => 1,
            Self::Or(all) | Self::And(all) => 1 + all.iter().map(Self::n_nodes).sum::<usize>(),
            Self::Not(inner) => 1 + inner.n_nodes(),
        }
    }

    /// Converts to the canonical form: lists are flat, sorted and without duplicates, a list of one is
    /// its only element, and there is no double negation.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::Not(inner) => match inner.canonical() {
                Self::Not(twice) => *twice,
                other => Self::Not(Box::new(other)),
            },
            Self::And(all) => {
                let flat = flatten(all, |one| match one {
                    Self::And(inner) => Ok(inner),
                    other => Err(other),
                });
                let mut flat: Vec<Self> =
                    flat.into_iter().filter(|one| *one != Self::Always).collect();
                match flat.len() {
                    0 => Self::Always,
                    1 => flat.remove(0),
                    _ => Self::And(flat),
                }
            }
            Self::Or(all) => {
                let mut flat = flatten(all, |one| match one {
                    Self::Or(inner) => Ok(inner),
                    other => Err(other),
                });
                if flat.len() == 1 { flat.remove(0) } else { Self::Or(flat) }
            }
            leaf => leaf,
        }
    }
}

/// Returns the canonical elements of a list, sorted and without duplicates. An element can itself be a list
/// of the same kind, such as an `and` inside an `and`. For such an element, `inner` returns its elements,
/// which replace it.
fn flatten(
    all: Vec<Constraints>,
    inner: impl Fn(Constraints) -> Result<Vec<Constraints>, Constraints>,
) -> Vec<Constraints> {
    let mut flat = BTreeSet::new();
    for one in all {
        match inner(one.canonical()) {
            Ok(elements) => flat.extend(elements),
            Err(other) => drop(flat.insert(other)),
        }
    }
    flat.into_iter().collect()
}

/// Shows the constraints to people: `env="prod" and not version="v1"`.
impl fmt::Display for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Self], between: &str| {
            for (n, one) in all.iter().enumerate() {
                f.write_str(if n == 0 { "" } else { between })?;
                one.put_operand(f)?;
            }
            Ok(())
        };
        match self {
            Self::Always => f.write_str("always"),
            Self::Value { key, value } => write!(f, "{}={value:?}", key.escape_debug()),
            Self::Exists { key } => write!(f, "{} exists", key.escape_debug()),
            Self::Or(all) if all.is_empty() => f.write_str("never"),
            Self::Or(all) => list(f, all, " or "),
            Self::And(all) => list(f, all, " and "),
            Self::Not(inner) => {
                f.write_str("not ")?;
                inner.put_operand(f)
            }
        }
    }
}

impl Constraints {
    fn put_operand(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Or(all) if !all.is_empty() => write!(f, "({self})"),
            Self::And(_) => write!(f, "({self})"),
            _ => write!(f, "{self}"),
        }
    }
}

/// Shows parameters to people: `env="prod", version="v1"`.
#[must_use]
pub fn show_parameters(parameters: &DynamicParameters) -> String {
    let shown = parameters.iter().map(|(key, value)| format!("{}={value:?}", key.escape_debug()));
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "no parameters".to_owned() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests;
