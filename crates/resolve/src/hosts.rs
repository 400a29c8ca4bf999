//! The selection of a virtual host by its domains.

/// A domain of a virtual host, in the order of Envoy's precedence: a later variant wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// `*`.
    Any,
    /// `shop.*`, with the length of the fixed part.
    Prefix(usize),
    /// `*.example`, with the length of the fixed part.
    Suffix(usize),
    /// The whole host.
    Exact,
}

/// Returns how a domain matches a host in lower case; `None` if it does not match.
pub(crate) fn rank(domain: &str, host: &str) -> Option<Rank> {
    let domain = domain.to_ascii_lowercase();
    if domain == "*" {
        return Some(Rank::Any);
    }
    // A wildcard stands for at least one character.
    if let Some(suffix) = domain.strip_prefix('*') {
        let matches = host.len() > suffix.len() && host.ends_with(suffix);
        return matches.then_some(Rank::Suffix(suffix.len()));
    }
    if let Some(prefix) = domain.strip_suffix('*') {
        let matches = host.len() > prefix.len() && host.starts_with(prefix);
        return matches.then_some(Rank::Prefix(prefix.len()));
    }
    (domain == host).then_some(Rank::Exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_domain_wins() {
        let domains = ["*", "a.*", "a.b.*", "*.c", "*.b.c", "A.B.C", "*b.c:80"];
        let best = |host: &str| {
            let ranked = domains.iter().filter_map(|domain| Some((rank(domain, host)?, *domain)));
            ranked.max().map(|(_, domain)| domain)
        };
        for (host, expected) in [
            ("a.b.c", "A.B.C"),
            ("x.b.c", "*.b.c"),
            ("x.c", "*.c"),
            (".c", "*"),
            ("a.b.d", "a.b.*"),
            ("a.d", "a.*"),
            ("a.", "*"),
            ("a.b.c:80", "*b.c:80"),
            ("other", "*"),
        ] {
            assert_eq!(best(host), Some(expected), "{host}");
        }
        assert_eq!(rank("shop.example", "shop.example:8080"), None);
    }
}
