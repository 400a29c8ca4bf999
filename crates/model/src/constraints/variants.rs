//! The rules for the variants of one name: all constrain the same keys, and no two overlap (DYN-06).
//!
//! The check enumerates cases: for each key, the values that any variant mentions, another value, and
//! the absence of the key. Parameters that agree on these cases match the same variants. The number of
//! steps is bounded, and a name that needs more is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::{Constraints, DynamicParameters};

/// The maximum number of variants of one name in a scope.
pub const VARIANTS_MAX: usize = 256;

/// The maximum number of steps for one name: cases, times conditions and operators.
const STEPS_MAX: usize = 1_000_000;

/// The steps that are left for the names of one transaction.
#[derive(Debug, Clone, Copy)]
pub struct VariantsBudget(pub(super) usize);

impl Default for VariantsBudget {
    /// Allows less than a second of work.
    fn default() -> Self {
        Self(20 * STEPS_MAX)
    }
}

/// The rule that the variants of a name violate. The numbers are indexes of variants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conflict {
    /// There are more variants than the limit.
    TooMany,
    /// The constraints need more steps than the limit.
    TooComplex,
    /// Two variants constrain different keys.
    Keys(usize, usize),
    /// Two variants match the same parameters.
    Overlap(usize, usize, DynamicParameters),
}

/// Checks the variants of one name.
///
/// # Errors
/// Returns the first violation. It depends only on the variants and their order.
pub fn check_variants(
    variants: &[&Constraints],
    budget: &mut VariantsBudget,
) -> Result<(), Conflict> {
    if variants.len() > VARIANTS_MAX {
        return Err(Conflict::TooMany);
    }
    let keys: Vec<BTreeSet<&str>> = variants.iter().map(|one| one.keys()).collect();
    if let Some(at) = keys.iter().position(|found| *found != keys[0]) {
        return Err(Conflict::Keys(0, at));
    }
    if variants.len() < 2 {
        return Ok(());
    }
    let overlap = find_case(variants, budget, |parameters| {
        let mut matching = variants.iter().enumerate().filter(|(_, one)| one.matches(parameters));
        let (first, _) = matching.next()?;
        let (second, _) = matching.next()?;
        Some((first, second, parameters.clone()))
    })?;
    match overlap {
        Some((first, second, parameters)) => Err(Conflict::Overlap(first, second, parameters)),
        None => Ok(()),
    }
}

/// Returns parameters that match the constraints, or `None` if no parameters do.
///
/// # Errors
/// Fails if the constraints need more steps than the limit.
pub fn example(constraints: &Constraints) -> Result<Option<DynamicParameters>, Conflict> {
    find_case(&[constraints], &mut VariantsBudget::default(), |parameters| {
        constraints.matches(parameters).then(|| parameters.clone())
    })
}

/// Returns the first result of `find` in any case.
fn find_case<T>(
    variants: &[&Constraints],
    budget: &mut VariantsBudget,
    mut find: impl FnMut(&DynamicParameters) -> Option<T>,
) -> Result<Option<T>, Conflict> {
    let mut values = BTreeMap::<&str, BTreeSet<&str>>::new();
    for variant in variants {
        for (key, found) in variant.values() {
            values.entry(key).or_default().extend(found);
        }
    }
    let cases: Vec<(&str, Vec<Option<String>>)> =
        values.into_iter().map(|(key, values)| (key, cases_of(&values))).collect();
    let nodes: usize = variants.iter().map(|one| one.n_nodes()).sum();
    let n_cases = cases.iter().try_fold(1_usize, |n, (_, values)| n.checked_mul(values.len()));
    let steps = n_cases.and_then(|n| n.checked_mul(nodes)).filter(|steps| *steps <= STEPS_MAX);
    let left = steps.and_then(|steps| budget.0.checked_sub(steps));
    budget.0 = left.ok_or(Conflict::TooComplex)?;
    let mut at = vec![0; cases.len()];
    loop {
        let parameters = cases.iter().zip(&at);
        let parameters = parameters
            .filter_map(|((key, values), at)| Some(((*key).to_owned(), values[*at].clone()?)));
        if let Some(found) = find(&parameters.collect()) {
            return Ok(Some(found));
        }
        // Counts up; the first digit changes fastest.
        let Some(digit) = (0..at.len()).find(|digit| at[*digit] + 1 < cases[*digit].1.len()) else {
            return Ok(None);
        };
        at[digit] += 1;
        at[..digit].fill(0);
    }
}

/// Returns the cases of one key: absent, each mentioned value, and another value.
fn cases_of(values: &BTreeSet<&str>) -> Vec<Option<String>> {
    let mut other = "other".to_owned();
    while values.contains(other.as_str()) {
        other.push('+');
    }
    let mentioned = values.iter().map(|value| Some((*value).to_owned()));
    std::iter::once(None).chain(mentioned).chain([Some(other)]).collect()
}
