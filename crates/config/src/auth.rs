//! The section `[auth]`: the issuers of tokens that clients, authors and operators may use.

use std::{collections::BTreeSet, path::PathBuf};

use chancery_auth::{
    Algorithm, AuthSettings, Authenticator, IssuerKind, IssuerSettings, KeyLocation, KeyUrl,
};

use super::{
    bounds::{count, tables},
    entry::entry,
    section::section,
};

section! {
    /// The section `[auth]`.
    pub struct Auth {
        /// The issuers of JSON Web Tokens. The principal of a token is jwt:NAME/SUBJECT.
        issuers: Vec<Issuer>, tables(Issuer::FIELDS);
        /// The Kubernetes clusters whose service accounts have identities. The principal of a token
        /// is k8s:NAME/NAMESPACE/ACCOUNT. It must be bound, as a projected token is, to one of the
        /// audiences.
        clusters: Vec<Issuer>, tables(Issuer::FIELDS);
        /// The number of failed authentications after which no token from the same address is
        /// verified. One failure per second is forgotten. Tokens that the replica has verified
        /// before are not affected. 0 is no limit.
        failures_max: u32 = 100, count(0, 1_000_000);
    }
}

entry! {
    /// An entry of `issuers` or `clusters`.
    pub struct Issuer {
        /// The name in principals.
        name: String;
        /// The exact claim `iss` of the tokens.
        url: String;
        /// The audiences of which a token must name one.
        audience: Vec<String> = vec!["chancery".to_owned()];
        /// The algorithms of signatures: RS256, RS384, RS512, PS256, ES256, ES384 and EdDSA.
        algorithms: Vec<String> = [Algorithm::Rs256, Algorithm::Es256].map(|one| one.to_string()).to_vec();
        /// The file with the public keys, which is read again when it changes.
        jwks_file: Option<PathBuf> = None;
        /// The URL of the public keys, instead of `jwks_file`: https://, or http:// on loopback. The replica requests it
        /// every 5 minutes.
        jwks_url: Option<String> = None;
        /// The CAs of the server of `jwks_url` (PEM), instead of those of the system.
        jwks_ca: Option<PathBuf> = None;
    }
}

/// The maximum length of the name of an issuer, which is a part of principals.
const NAME_BYTES_MAX: usize = 64;

impl Auth {
    /// Returns the entries with their key and kind.
    fn all(&self) -> impl Iterator<Item = (&'static str, IssuerKind, &Issuer)> {
        let issuers = self.issuers.iter().map(|issuer| ("issuers", IssuerKind::Jwt, issuer));
        let clusters =
            self.clusters.iter().map(|issuer| ("clusters", IssuerKind::Kubernetes, issuer));
        issuers.chain(clusters)
    }

    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let (mut broken, mut names) = (Vec::new(), BTreeSet::new());
        for (key, _, issuer) in self.all() {
            let name = &issuer.name;
            broken
                .extend(issuer.rules().into_iter().map(|rule| (key, format!("{name:?}: {rule}"))));
            if !names.insert(name) {
                broken.push((key, format!("two issuers or clusters have the name {name:?}")));
            }
        }
        broken
    }

    /// Returns the settings of authentication. The rules of the configuration exclude values that are not valid.
    pub fn settings(&self) -> AuthSettings {
        let issuers = self.all().filter_map(|(_, kind, issuer)| issuer.settings(kind));
        AuthSettings { issuers: issuers.collect(), failures_max: self.failures_max }
    }

    /// Checks the files of all entries. Returns the key of each error.
    pub(crate) fn unusable_files(&self) -> Vec<(&'static str, String)> {
        let key = |name: &str| self.all().find(|(_, _, issuer)| issuer.name == name);
        let errors = Authenticator::check(&self.settings()).into_iter();
        let with_key = errors.map(|error| {
            let key = key(error.issuer()).map_or("issuers", |(key, ..)| key);
            (key, error.to_string())
        });
        with_key.collect()
    }
}

impl Issuer {
    fn rules(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_name = (1..=NAME_BYTES_MAX).contains(&self.name.len());
        if !is_name || !self.name.chars().all(allowed) {
            broken.push(format!(
                "name must have 1 to {NAME_BYTES_MAX} letters, digits, '.', '-' and '_'"
            ));
        }
        if self.url.is_empty() {
            broken.push("url must be the claim `iss` of the tokens".to_owned());
        }
        if self.audience.is_empty() || self.audience.iter().any(String::is_empty) {
            broken.push("audience must name at least one audience".to_owned());
        }
        if self.algorithms.is_empty() {
            broken.push("algorithms must name at least one algorithm".to_owned());
        }
        let wrong = self.algorithms.iter().filter_map(|name| name.parse::<Algorithm>().err());
        broken.extend(wrong.map(|error| format!("algorithms: {error}")));
        match (&self.jwks_file, &self.jwks_url) {
            (Some(_), None) => {}
            (None, Some(url)) => {
                let error = url.parse::<KeyUrl>().err();
                broken.extend(error.map(|error| format!("jwks_url: {error}")));
            }
            _ => broken.push("exactly one of jwks_file and jwks_url is required".to_owned()),
        }
        let is_https = self.jwks_url.as_ref().is_some_and(|url| url.starts_with("https:"));
        if self.jwks_ca.is_some() && !is_https {
            broken.push("jwks_ca has no effect without an https:// jwks_url".to_owned());
        }
        broken
    }

    fn settings(&self, kind: IssuerKind) -> Option<IssuerSettings> {
        let keys = match (&self.jwks_file, &self.jwks_url) {
            (Some(file), _) => KeyLocation::File(file.clone()),
            (None, url) => {
                KeyLocation::Url { url: url.as_ref()?.parse().ok()?, ca: self.jwks_ca.clone() }
            }
        };
        Some(IssuerSettings {
            name: self.name.clone(),
            kind,
            url: self.url.clone(),
            audience: self.audience.clone(),
            algorithms: self.algorithms.iter().filter_map(|name| name.parse().ok()).collect(),
            keys,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(toml: &str) -> Vec<String> {
        let auth: Auth = toml::from_str(toml).unwrap();
        auth.rules().into_iter().map(|(key, rule)| format!("{key}: {rule}")).collect()
    }

    #[test]
    fn issuer_has_defaults() {
        let auth: Auth = toml::from_str(
            "[[issuers]]\nname = 'corp'\nurl = 'https://idp'\njwks_url = 'https://idp/keys'\n\
             [[clusters]]\nname = 'eu1'\nurl = 'https://kubernetes.default.svc'\njwks_file = '/k'",
        )
        .unwrap();
        assert_eq!(auth.rules(), []);
        let [corp, eu1] = &auth.settings().issuers[..] else { panic!("{auth:?}") };
        assert_eq!((&*corp.name, corp.kind), ("corp", IssuerKind::Jwt));
        assert_eq!((&*eu1.name, eu1.kind), ("eu1", IssuerKind::Kubernetes));
        assert_eq!(corp.audience, ["chancery"]);
        assert_eq!(corp.algorithms, [Algorithm::Rs256, Algorithm::Es256]);
        assert_eq!(eu1.keys, KeyLocation::File("/k".into()));
    }

    #[test]
    fn wrong_value_of_an_issuer_is_reported_with_its_name() {
        let of = |rest: &str| broken(&format!("issuers = [{{name = 'a', url = 'u', {rest}}}]"));
        assert_eq!(of("jwks_file = '/k'"), Vec::<String>::new());
        let both = ["issuers: \"a\": exactly one of jwks_file and jwks_url is required"];
        assert_eq!(of("audience = ['x']"), both);
        assert_eq!(of("jwks_file = '/k', jwks_url = 'https://k'"), both);
        assert!(of("jwks_url = 'http://idp/k'")[0].contains("is not encrypted"));
        assert!(
            of("jwks_file = '/k', algorithms = ['HS256']")[0].contains("\"HS256\" is not one of")
        );
        assert!(
            of("jwks_file = '/k', algorithms = ['none']")[0].contains("\"none\" is not one of")
        );
        assert_eq!(of("jwks_file = '/k', algorithms = []").len(), 1);
        assert_eq!(of("jwks_file = '/k', audience = ['']").len(), 1);
        assert!(of("jwks_file = '/k', jwks_ca = '/c'")[0].contains("has no effect"));
        let twice = "issuers = [{name = 'a', url = 'u', jwks_file = '/k'}]\n\
                     clusters = [{name = 'a', url = '', jwks_file = '/k'}, {name = 'a/b', url = 'u', jwks_file = '/k'}]";
        assert_eq!(broken(twice).len(), 3, "{:?}", broken(twice));
    }
}
