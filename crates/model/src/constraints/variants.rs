//! The rules for the variants of one name: all constrain the same keys, and no two overlap (DYN-06).
//!
//! The check enumerates cases: for each key, the values that any variant mentions, another value, and
//! the absence of the key. Parameters that agree on these cases match the same variants. The number of
//! steps is bounded, and a name that needs more is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::{Constraints, DynamicParameters};

/// The maximum number of variants of one name in a scope.
pub const VARIANTS_MAX: usize = 256;

/// The maximum number of steps for one name: cases, times the number of conditions and operators.
const STEPS_MAX: usize = 1_000_000;

/// The steps that are left for the names of one transaction or one request.
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
    let overlap = find_case(variants, budget, |tests, case| {
        let mut matching = tests.iter().enumerate().filter(|(_, test)| test.matches(case));
        let (first, _) = matching.next()?;
        let (second, _) = matching.next()?;
        Some((first, second))
    })?;
    match overlap {
        Some(((first, second), parameters)) => Err(Conflict::Overlap(first, second, parameters)),
        None => Ok(()),
    }
}

/// Returns parameters that match the constraints, or `None` if no parameters do.
///
/// # Errors
/// Fails if the constraints need more steps than the limit or the budget.
pub fn example(
    constraints: &Constraints,
    budget: &mut VariantsBudget,
) -> Result<Option<DynamicParameters>, Conflict> {
    let found = find_case(&[constraints], budget, |tests, case| {
        tests.iter().all(|test| test.matches(case)).then_some(())
    })?;
    Ok(found.map(|((), parameters)| parameters))
}

/// The keys that the variants mention, in order, and the cases of each.
type Cases<'a> = [(&'a str, Vec<Option<String>>)];

/// Constraints over cases. Keys and values are indexes, so that a step of the check allocates nothing.
enum Test {
    Always,
    Value { key: usize, case: usize },
    Exists { key: usize },
    Or(Vec<Test>),
    And(Vec<Test>),
    Not(Box<Test>),
}

impl Test {
    fn new(constraints: &Constraints, cases: &Cases<'_>) -> Self {
        let all = |all: &[Constraints]| all.iter().map(|one| Self::new(one, cases)).collect();
        let key_of = |key: &str| cases.partition_point(|(other, _)| *other < key);
        match constraints {
            Constraints::Always => Self::Always,
            Constraints::Value { key, value } => {
                let key = key_of(key);
                let mut values = cases[key].1.iter();
                let case = values.position(|case| case.as_deref() == Some(&**value));
                Self::Value { key, case: case.unwrap_or(ABSENT) }
            }
            Constraints::Exists { key } => Self::Exists { key: key_of(key) },
            Constraints::Or(list) => Self::Or(all(list)),
            Constraints::And(list) => Self::And(all(list)),
            Constraints::Not(inner) => Self::Not(Box::new(Self::new(inner, cases))),
        }
    }

    /// Returns whether the constraints match. `case` has the index of a case for each key.
    fn matches(&self, case: &[usize]) -> bool {
        match self {
            Self::Always => true,
            Self::Value { key, case: wanted } => case[*key] == *wanted,
            Self::Exists { key } => case[*key] != ABSENT,
            Self::Or(all) => all.iter().any(|one| one.matches(case)),
            Self::And(all) => all.iter().all(|one| one.matches(case)),
            Self::Not(inner) => !inner.matches(case),
        }
    }
}

/// Returns the first result of `find` in any case, and the parameters of that case.
fn find_case<T>(
    variants: &[&Constraints],
    budget: &mut VariantsBudget,
    find: impl Fn(&[Test], &[usize]) -> Option<T>,
) -> Result<Option<(T, DynamicParameters)>, Conflict> {
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
    let tests: Vec<Test> = variants.iter().map(|one| Test::new(one, &cases)).collect();
    let mut case = vec![ABSENT; cases.len()];
    loop {
        if let Some(found) = find(&tests, &case) {
            let pairs = cases.iter().zip(case);
            let pairs = pairs
                .filter_map(|((key, values), at)| Some(((*key).to_owned(), values[at].clone()?)));
            return Ok(Some((found, pairs.collect())));
        }
        // Counts up; the first digit changes fastest.
        let Some(digit) = (0..case.len()).find(|at| case[*at] + 1 < cases[*at].1.len()) else {
            return Ok(None);
        };
        case[digit] += 1;
        case[..digit].fill(ABSENT);
    }
}

/// The index of the case that a key is absent.
const ABSENT: usize = 0;

/// Returns the cases of one key: absent, each mentioned value, and another value.
fn cases_of(values: &BTreeSet<&str>) -> Vec<Option<String>> {
    let mut other = "other".to_owned();
    while values.contains(other.as_str()) {
        other.push('+');
    }
    let mentioned = values.iter().map(|value| Some((*value).to_owned()));
    std::iter::once(None).chain(mentioned).chain([Some(other)]).collect()
}
