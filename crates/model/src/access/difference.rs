//! The difference between two versions of the access rules: which identities it may concern.

use std::collections::BTreeSet;

use super::{
    pattern::IdentityPattern,
    principal::{Identity, Token, TokenDigest},
    rule::AccessRule,
};

/// The number of different patterns up to which identities are compared with them. A comparison with more would cost
/// as much as a decision by all rules.
const PATTERNS_MAX: usize = 32;

/// The identities whose rights may differ between two versions of the access rules.
///
/// The rights of an identity depend on the rules that name it, and on its token. If no rule that names it changed, and
/// its token did not, its rights are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessDifference {
    /// The distinct identity patterns of the rules that differ between the versions. If there are more than
    /// [`PATTERNS_MAX`], every identity may be affected.
    patterns: Vec<IdentityPattern>,
    /// The tokens that only one version has.
    tokens: BTreeSet<TokenDigest>,
}

impl AccessDifference {
    /// Returns the difference between two lists of rules, which are sorted by name, in O(rules).
    pub(super) fn of_rules(old: &[AccessRule], new: &[AccessRule]) -> Self {
        let mut difference = Self::default();
        let mut old = old.iter().peekable();
        for new in new {
            while let Some(gone) = old.next_if(|rule| rule.name < new.name) {
                difference.add(gone);
            }
            match old.next_if(|rule| rule.name == new.name) {
                Some(same) if same == new => {}
                Some(changed) => {
                    difference.add(changed);
                    difference.add(new);
                }
                None => difference.add(new),
            }
        }
        old.for_each(|gone| difference.add(gone));
        difference
    }

    /// Adds the difference between two lists of tokens, in O(tokens).
    pub(super) fn with_tokens(mut self, old: &[Token], new: &[Token]) -> Self {
        if old != new {
            let digests = |tokens: &[Token]| tokens.iter().map(|token| token.digest).collect();
            let (before, after): (BTreeSet<_>, BTreeSet<_>) = (digests(old), digests(new));
            self.tokens.extend(before.symmetric_difference(&after));
        }
        self
    }

    fn add(&mut self, rule: &AccessRule) {
        for pattern in &rule.identities {
            self.add_pattern(pattern);
        }
    }

    fn add_pattern(&mut self, pattern: &IdentityPattern) {
        if self.patterns.len() <= PATTERNS_MAX && !self.patterns.contains(pattern) {
            self.patterns.push(pattern.clone());
        }
    }

    /// Adds the difference between the newer version and a third one.
    pub fn extend(&mut self, later: &Self) {
        for pattern in &later.patterns {
            self.add_pattern(pattern);
        }
        self.tokens.extend(&later.tokens);
    }

    /// Returns whether the rights of an identity may differ, in O(1).
    #[must_use]
    pub fn concerns(&self, identity: &Identity) -> bool {
        self.patterns.len() > PATTERNS_MAX
            || identity.token.is_some_and(|digest| self.tokens.contains(&digest))
            || self.patterns.iter().any(|pattern| pattern.matches(&identity.principal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Principal};

    fn rule(name: &str, identities: &[String]) -> AccessRule {
        let parse = |text: &String| IdentityPattern::parse(text).unwrap();
        AccessRule {
            name: name.into(),
            identities: identities.iter().map(parse).collect(),
            refuse: false,
            node: crate::NodeBinding::default(),
            read: Vec::new(),
            secrets: crate::SecretsGrant::default(),
            allow: Vec::new(),
            deny: Vec::new(),
            quota: crate::IdentityQuota::default(),
        }
    }

    fn identity(text: &str) -> Identity {
        Identity { principal: Principal::new(text).unwrap(), token: None }
    }

    #[test]
    fn only_identities_of_changed_rules_and_tokens_are_concerned() {
        let named = |name: &str, who: &str| rule(name, &[format!("spiffe://prod/{who}")]);
        let old = [named("a", "kept"), named("b", "gone"), named("c", "before")];
        let new = [named("a", "kept"), named("c", "after"), named("d", "new")];
        let token = |n: u8| Token {
            name: "ci".into(),
            digest: TokenDigest([n; 32]),
            created_ms: 0,
            expires_ms: 0,
            revision: crate::Revision(1),
        };
        let version = |rules: &[AccessRule], tokens: &[u8]| Access {
            rules: rules.to_vec(),
            tokens: tokens.iter().map(|n| token(*n)).collect(),
            ..Access::default()
        };
        let difference = version(&old, &[1, 2]).difference(&version(&new, &[2, 3]));
        for (who, expected) in
            [("kept", false), ("gone", true), ("before", true), ("after", true), ("new", true)]
        {
            assert_eq!(difference.concerns(&identity(&format!("spiffe://prod/{who}"))), expected);
        }
        for (n, expected) in [(1, true), (2, false), (3, true)] {
            let token = Some(TokenDigest([n; 32]));
            assert_eq!(difference.concerns(&Identity { token, ..identity("token:ci") }), expected);
        }
    }

    #[test]
    fn many_changed_patterns_concern_everyone() {
        let many = |n: usize| {
            let names: Vec<String> = (0..n).map(|n| format!("spiffe://prod/{n}")).collect();
            Access { rules: vec![rule("many", &names)], ..Access::default() }
        };
        let other = identity("spiffe://prod/other");
        assert!(!Access::default().difference(&many(PATTERNS_MAX)).concerns(&other));
        assert!(Access::default().difference(&many(PATTERNS_MAX + 1)).concerns(&other));
    }
}
