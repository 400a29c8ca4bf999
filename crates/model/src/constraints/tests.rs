use proptest::{collection::vec, prelude::*};

use super::*;

fn value(key: &str, value: &str) -> Constraints {
    Constraints::Value { key: key.into(), value: value.into() }
}

fn exists(key: &str) -> Constraints {
    Constraints::Exists { key: key.into() }
}

fn not(inner: Constraints) -> Constraints {
    Constraints::Not(Box::new(inner))
}

fn parameters(pairs: &[(&str, &str)]) -> DynamicParameters {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn check(variants: &[&Constraints]) -> Result<(), Conflict> {
    check_variants(variants, &mut VariantsBudget::default())
}

/// Constraints over the keys `a` and `b` and the values `1` and `2`.
fn any_constraints() -> impl Strategy<Value = Constraints> {
    let key = prop_oneof![Just("a"), Just("b")];
    let leaf = prop_oneof![
        1 => Just(Constraints::Always),
        6 => (key.clone(), prop_oneof![Just("1"), Just("2"), Just("other")])
            .prop_map(|(key, text)| value(key, text)),
        3 => key.prop_map(exists),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Constraints::Or),
            vec(inner.clone(), 0..3).prop_map(Constraints::And),
            inner.prop_map(not),
        ]
    })
}

/// All parameters over two keys, the mentioned values and an unknown one.
fn all_parameters() -> Vec<DynamicParameters> {
    let values = [None, Some("1"), Some("2"), Some("other"), Some("unknown")];
    let pairs = values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b)));
    pairs
        .map(|(a, b)| {
            let both = [("a", a), ("b", b)].into_iter();
            both.filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
        })
        .collect()
}

/// DYN-03, DYN-05: each operator decides by the keys that it mentions, and by no others.
#[test]
fn operators_match_mentioned_keys_only() {
    let prod = value("env", "prod");
    let cases = [
        (Constraints::Always, true, true, true),
        (prod.clone(), false, true, false),
        (exists("env"), false, true, true),
        (not(exists("env")), true, false, false),
        (Constraints::Or(vec![prod.clone(), value("env", "test")]), false, true, true),
        (Constraints::And(vec![prod.clone(), not(exists("version"))]), false, true, false),
        (Constraints::Or(vec![]), false, false, false),
        (Constraints::And(vec![]), true, true, true),
    ];
    for (constraints, none, is_prod, is_test) in cases {
        let of = |pairs: &[(&str, &str)]| {
            let (bare, mut more) = (parameters(pairs), parameters(pairs));
            more.insert("unmentioned".into(), "x".into());
            assert_eq!(constraints.matches(&bare), constraints.matches(&more), "{constraints}");
            constraints.matches(&bare)
        };
        let found = (of(&[]), of(&[("env", "prod")]), of(&[("env", "test")]));
        assert_eq!(found, (none, is_prod, is_test), "{constraints}");
    }
}

/// DYN-02: constraints that differ only in order and nesting are the same identity.
#[test]
fn order_and_nesting_do_not_matter() {
    let (a, b) = (value("a", "1"), exists("b"));
    let flat = Constraints::And(vec![a.clone(), b.clone()]).canonical();
    let nested = Constraints::And(vec![
        not(not(b.clone())),
        Constraints::And(vec![Constraints::Or(vec![a.clone()]), Constraints::Always, b]),
    ]);
    assert_eq!(nested.canonical(), flat);
    assert_eq!(Constraints::And(vec![Constraints::Always]).canonical(), Constraints::Always);
    assert_eq!(flat.to_string(), "a=\"1\" and b exists");
    assert_eq!(not(flat).to_string(), "not (a=\"1\" and b exists)");
}

/// DYN-06: the errors of TP2's examples.
#[test]
fn variants_with_other_keys_or_a_common_match_conflict() {
    let prod = value("env", "prod");
    let prod_v1 = Constraints::And(vec![prod.clone(), value("version", "v1")]);
    let prod_none = Constraints::And(vec![prod.clone(), not(exists("version"))]);
    assert_eq!(check(&[&prod, &prod_v1]), Err(Conflict::Keys(0, 1)));
    assert_eq!(check(&[&prod_none, &prod_v1]), Ok(()));
    let either = |one, other| Constraints::Or(vec![value("env", one), value("env", other)]);
    let both = parameters(&[("env", "test")]);
    let found = check(&[&either("prod", "test"), &either("qa", "test")]);
    assert_eq!(found, Err(Conflict::Overlap(0, 1, both)));
    assert_eq!(check(&[&prod, &not(exists("env")), &value("env", "test")]), Ok(()));
    assert_eq!(check(&[&Constraints::Always, &prod]), Err(Conflict::Keys(0, 1)));
}

/// DYN-06: the enumeration of cases has a bound, for one name and for one transaction.
#[test]
fn complex_or_numerous_variants_are_refused() {
    let wide = |last: &str| {
        let keys = (0..20).map(|n| value(&format!("k{n}"), last));
        Constraints::And(keys.collect())
    };
    assert_eq!(check(&[&wide("1"), &wide("2")]), Err(Conflict::TooComplex));
    let all: Vec<Constraints> = (0..=VARIANTS_MAX).map(|n| value("k", &n.to_string())).collect();
    let all: Vec<&Constraints> = all.iter().collect();
    assert_eq!(check(&all), Err(Conflict::TooMany));
    assert_eq!(check(&all[1..]), Ok(()));
    let mut budget = VariantsBudget(200_000);
    let checked = (0..100).take_while(|_| check_variants(&all[1..], &mut budget).is_ok());
    assert_eq!(checked.count(), 3, "256 variants in 258 cases");
}

/// Everything that is read is bounded before it is built.
#[test]
fn oversized_constraints_are_rejected() {
    let nested = |depth: usize| (0..depth).fold(exists("k"), |inner, _| not(inner)).encode();
    assert!(Constraints::decode(&nested(15)).is_ok());
    assert_eq!(Constraints::decode(&nested(16)), Err(ConstraintsError::TooDeep));
    let wide = |n: usize| Constraints::Or(vec![Constraints::Always; n]).encode();
    assert!(Constraints::decode(&wide(127)).is_ok());
    assert_eq!(Constraints::decode(&wide(128)), Err(ConstraintsError::TooMany));
    let long = value("k", &"x".repeat(CONSTRAINTS_BYTES_MAX)).encode();
    assert!(matches!(Constraints::decode(&long), Err(ConstraintsError::TooLong(_))));
    assert_eq!(Constraints::decode(&[0x0a, 0]), Err(ConstraintsError::NoKey));
    let bare = Constraints::decode(&[0x0a, 3, 0x0a, 1, b'k']).unwrap_err();
    assert!(bare.to_string().contains("the key \"k\" has neither a value nor exists"), "{bare}");
    assert!(matches!(Constraints::decode(&[0x08, 1]), Err(ConstraintsError::Malformed(_))));
}

proptest! {
    /// The canonical form matches the same parameters, survives its encoding, and is its own
    /// canonical form.
    #[test]
    fn canonical_form_keeps_the_meaning(constraints in any_constraints()) {
        let canonical = constraints.clone().canonical();
        for parameters in all_parameters() {
            prop_assert_eq!(canonical.matches(&parameters), constraints.matches(&parameters));
        }
        prop_assert_eq!(&canonical.clone().canonical(), &canonical);
        let decoded = Constraints::decode(&canonical.encode());
        prop_assert_eq!(decoded.as_ref(), Ok(&canonical));
        prop_assert_eq!(Constraints::decode(&constraints.encode()), decoded);
    }

    /// DYN-06: variants are refused exactly if their keys differ or some parameters match two of them.
    #[test]
    fn conflicts_equal_those_of_all_assignments(all in vec(any_constraints(), 1..4)) {
        let all: Vec<Constraints> = all.into_iter().map(Constraints::canonical).collect();
        let refs: Vec<&Constraints> = all.iter().collect();
        let has_same_keys = all.iter().all(|one| one.keys() == all[0].keys());
        let two_match = |parameters: &DynamicParameters| {
            all.iter().filter(|one| one.matches(parameters)).count() > 1
        };
        let overlaps = all_parameters().iter().any(two_match);
        match check(&refs) {
            Ok(()) => prop_assert!(has_same_keys && !overlaps),
            Err(Conflict::Keys(first, second)) => {
                prop_assert_ne!(all[first].keys(), all[second].keys());
            }
            Err(Conflict::Overlap(first, second, parameters)) => {
                prop_assert!(all[first].matches(&parameters) && all[second].matches(&parameters));
                prop_assert!(has_same_keys && first < second);
            }
            Err(other) => prop_assert!(false, "{:?}", other),
        }
        for one in &all {
            let expected = all_parameters().iter().any(|parameters| one.matches(parameters));
            prop_assert_eq!(example(one, &mut VariantsBudget::default()).unwrap().is_some(), expected);
        }
    }
}
