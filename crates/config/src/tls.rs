//! The TLS keys of the ports for clients and operators. `raft.rs` has those of replicas.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use chancery_tls::{
    ClientCertificates, MinVersion, TlsConfig, TlsError, TlsFile, TlsPort, Validity,
};

use super::{Config, section::one_of};

// The descriptions of keys of both ports.
pub(crate) const CLIENT_CERT: &str = "Whether clients need a certificate if tls_client_ca is set: required, or optional for clients with tokens. A client with an invalid certificate is always rejected.";
pub(crate) const CRL: &str = "A file with revocation lists of these CAs (PEM). Certificates of a CA without a list are accepted.";
pub(crate) const TRUST_DOMAINS: &str = "The CAs of trust domains: a list of DOMAIN=FILE (PEM). If it is not empty, a client with a SPIFFE ID needs a certificate of a CA of its trust domain. tls_client_ca is then for certificates without a SPIFFE ID.";
pub(crate) const CLIENT_CA_NAME: &str = "The name of these CAs in the principals of certificates without a SPIFFE ID: cert:NAME/dns/DNS-NAME or cert:NAME/cn/COMMON-NAME.";
pub(crate) const CLIENT_CA_CN: &str = "Whether a certificate without a SPIFFE ID identifies its client by the common name. If false, the certificate must have exactly one DNS name.";

one_of! {
    /// The lowest TLS version that a port accepts.
    pub enum TlsMin {
        Tls12 = "1.2",
        Tls13 = "1.3",
    }
}

one_of! {
    /// Whether the clients of a port need a certificate.
    pub enum TlsClientCert {
        Required = "required",
        Optional = "optional",
    }
}

/// The TLS keys of one section. A path that is not set is empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) section: &'static str,
    pub(crate) port: TlsPort,
    pub(crate) cert: &'a str,
    pub(crate) key: &'a str,
    pub(crate) client_ca: &'a str,
    pub(crate) client_cert: TlsClientCert,
    pub(crate) crl: &'a str,
    pub(crate) trust_domains: &'a [String],
    pub(crate) ca_name: &'a str,
    pub(crate) ca_cn: bool,
    pub(crate) min: TlsMin,
}

/// Returns the section, the key and the problem of each certificate file with a certificate that is not valid at
/// `now`, in seconds since the Unix epoch. A replica starts with such a file. Omits files that cannot be read.
pub(crate) fn certificates_refused_at(
    config: &Config,
    now: i64,
) -> Vec<(&'static str, &'static str, String)> {
    let paths = [
        ("xds", &config.xds.tls_cert),
        ("admin", &config.admin.tls_cert),
        ("raft", &config.raft.tls_cert),
        ("mcp", &config.mcp.tls_cert),
    ];
    let refused = |(section, path): (&'static str, &String)| {
        let Validity { not_before, not_after } = Validity::of_file(Path::new(path)).ok()?;
        let why = match (now < not_before, now > not_after) {
            (true, _) => "contains a certificate that is not valid yet",
            (_, true) => "contains an expired certificate",
            (false, false) => return None,
        };
        let text = format!("{path} {why}; a replica starts, but peers may refuse the certificate");
        Some((section, "tls_cert", text))
    };
    paths.into_iter().filter(|(_, path)| !path.is_empty()).filter_map(refused).collect()
}

/// Returns the section, the key and the rule of each TLS key that breaks a rule.
pub(crate) fn tls_rules(config: &Config) -> Vec<(&'static str, &'static str, String)> {
    let mut broken = config.xds.tls_keys().rules();
    broken.extend(config.admin.tls_keys().rules());
    // The other port has no key for the version.
    if config.xds.tls_min != TlsMin::Tls12 && config.xds.tls().is_none() {
        broken.push(("xds", "tls_min", config.xds.tls_keys().no_effect()));
    }
    broken
}

/// Checks the files of all ports. Returns the section and the key of each error.
pub(crate) fn unusable_tls_files(config: &Config) -> Vec<(&'static str, &'static str, TlsError)> {
    let mut unusable = Vec::new();
    for error in config.raft.tls_files().check() {
        let key = match error.file() {
            Some(TlsFile::Cert) => "tls_cert",
            Some(TlsFile::Key) => "tls_key",
            Some(TlsFile::Ca | TlsFile::Crl | TlsFile::TrustDomain) => "tls_ca",
            None => "tls_server_name",
        };
        unusable.push(("raft", key, error));
    }
    for error in config.mcp.tls_files().check() {
        let key = match error.file() {
            Some(TlsFile::Cert) | None => "tls_cert",
            Some(TlsFile::Key) => "tls_key",
            Some(TlsFile::Crl) => "tls_crl",
            Some(TlsFile::Ca | TlsFile::TrustDomain) => "tls_ca",
        };
        unusable.push(("mcp", key, error));
    }
    for keys in [config.xds.tls_keys(), config.admin.tls_keys()] {
        for error in keys.files().check() {
            let key = match error.file() {
                Some(TlsFile::Cert) | None => "tls_cert",
                Some(TlsFile::Key) => "tls_key",
                Some(TlsFile::Ca) => "tls_client_ca",
                Some(TlsFile::Crl) => "tls_crl",
                Some(TlsFile::TrustDomain) => "tls_trust_domains",
            };
            unusable.push((keys.section, key, error));
        }
    }
    unusable
}

impl Keys<'_> {
    /// Returns the files for TLS, or `None` without TLS.
    pub(crate) fn config(&self) -> Option<TlsConfig> {
        (!self.cert.is_empty() && !self.key.is_empty()).then(|| self.files())
    }

    fn files(&self) -> TlsConfig {
        TlsConfig {
            port: self.port,
            cert: PathBuf::from(self.cert),
            key: PathBuf::from(self.key),
            ca: PathBuf::from(self.client_ca),
            crl: PathBuf::from(self.crl),
            min_version: match self.min {
                TlsMin::Tls12 => MinVersion::Tls12,
                TlsMin::Tls13 => MinVersion::Tls13,
            },
            clients: ClientCertificates {
                required: self.client_cert == TlsClientCert::Required,
                ca_name: self.ca_name.into(),
                by_common_name: self.ca_cn,
                trust_domains: self
                    .trust_domains
                    .iter()
                    .filter_map(|text| trust_domain(text).ok())
                    .map(|(name, path)| (name.into(), path.into()))
                    .collect(),
            },
        }
    }

    fn no_effect(&self) -> String {
        let section = self.section;
        format!(
            "has no effect without {section}.tls_cert and {section}.tls_key; set these keys too"
        )
    }

    fn rules(&self) -> Vec<(&'static str, &'static str, String)> {
        let section = self.section;
        let mut broken = Vec::new();
        for (key, path, other) in
            [("tls_cert", self.cert, self.key), ("tls_key", self.key, self.cert)]
        {
            if path.is_empty() && !other.is_empty() {
                let rule = format!(
                    "is missing; set both {section}.tls_cert and {section}.tls_key, or neither of them"
                );
                broken.push((section, key, rule));
            }
        }
        let has_any = !self.cert.is_empty() || !self.key.is_empty();
        if !self.client_ca.is_empty() && !has_any {
            broken.push((section, "tls_client_ca", self.no_effect()));
        }
        let need_ca = [
            ("tls_crl", !self.crl.is_empty()),
            ("tls_client_cert", self.client_cert == TlsClientCert::Optional),
            ("client_ca_cn", self.ca_cn),
            ("tls_trust_domains", !self.trust_domains.is_empty()),
        ];
        for (key, _) in
            need_ca.into_iter().filter(|(_, is_set)| *is_set && self.client_ca.is_empty())
        {
            let rule = format!("has no effect without {section}.tls_client_ca; set this key too");
            broken.push((section, key, rule));
        }
        let mut names = BTreeSet::new();
        for text in self.trust_domains {
            let rule = match trust_domain(text) {
                Ok((name, _)) if names.insert(name) => continue,
                Ok((name, _)) => format!("has the trust domain {name} twice"),
                Err(rule) => rule,
            };
            broken.push((section, "tls_trust_domains", rule));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !(1..=64).contains(&self.ca_name.len()) || !self.ca_name.chars().all(allowed) {
            let rule = "must have 1 to 64 letters, digits, '.', '-' and '_'";
            broken.push((section, "client_ca_name", rule.to_owned()));
        }
        broken
    }
}

/// Parses `DOMAIN=FILE`.
fn trust_domain(text: &str) -> Result<(&str, &str), String> {
    let parts = text.split_once('=').filter(|(_, path)| !path.is_empty());
    let parts = parts.ok_or_else(|| format!("must contain DOMAIN=FILE, not {text:?}"))?;
    match chancery_tls::trust_domain_rule(parts.0) {
        Some(rule) => Err(format!("has {text:?}: {rule}")),
        None => Ok(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Certificates of rcgen are valid from 1975 to 4096.
    #[test]
    fn expired_or_not_yet_valid_certificate_is_reported() {
        let signed = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), signed.cert.pem()).unwrap();
        let path = file.path().display().to_string();
        let mut config = Config::default();
        config.admin.tls_cert.clone_from(&path);
        config.raft.tls_cert = "/none".into();
        let found = |year: i64| {
            let found = certificates_refused_at(&config, (year - 1970) * 31_556_952);
            found.into_iter().map(|(section, key, text)| format!("{section}.{key}: {text}"))
        };
        let effect = "a replica starts, but peers may refuse the certificate";
        assert!(found(1972).eq([format!(
            "admin.tls_cert: {path} contains a certificate that is not valid yet; {effect}"
        )]));
        assert!(found(2026).eq([""; 0]));
        assert!(
            found(4100)
                .eq([format!("admin.tls_cert: {path} contains an expired certificate; {effect}")])
        );
    }

    #[test]
    fn incomplete_tls_keys_are_rejected() {
        let broken = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            let rules = tls_rules(&config).into_iter();
            rules.map(|(section, key, rule)| format!("{section}.{key} {rule}")).collect::<Vec<_>>()
        };
        assert_eq!(broken(|_| ()), [""; 0]);
        let both = "is missing; set both xds.tls_cert and xds.tls_key, or neither of them";
        assert_eq!(
            broken(|config| config.xds.tls_cert = "c".into()),
            [format!("xds.tls_key {both}")]
        );
        assert_eq!(
            broken(|config| config.xds.tls_key = "k".into()),
            [format!("xds.tls_cert {both}")]
        );
        let without = "has no effect without admin.tls_cert and admin.tls_key; set these keys too";
        assert_eq!(
            broken(|config| config.admin.tls_client_ca = "a".into()),
            [format!("admin.tls_client_ca {without}")]
        );
        assert_eq!(
            broken(|config| config.xds.tls_crl = "l".into()),
            ["xds.tls_crl has no effect without xds.tls_client_ca; set this key too"]
        );
        assert_eq!(
            broken(|config| config.admin.tls_client_cert = TlsClientCert::Optional),
            ["admin.tls_client_cert has no effect without admin.tls_client_ca; set this key too"]
        );
        assert_eq!(
            broken(|config| config.xds.client_ca_cn = true),
            ["xds.client_ca_cn has no effect without xds.tls_client_ca; set this key too"]
        );
        assert_eq!(
            broken(|config| {
                config.xds.tls_cert = "c".into();
                config.xds.tls_key = "k".into();
                config.xds.tls_client_ca = "a".into();
                let domains = ["a.example=x", "a.example=y", "B=x", "b", "c="];
                config.xds.tls_trust_domains = domains.map(str::to_owned).to_vec();
            }),
            [
                "xds.tls_trust_domains has the trust domain a.example twice",
                "xds.tls_trust_domains has \"B=x\": its trust domain may contain only a-z, 0-9, '.', '-' and '_'",
                "xds.tls_trust_domains must contain DOMAIN=FILE, not \"b\"",
                "xds.tls_trust_domains must contain DOMAIN=FILE, not \"c=\"",
            ]
        );
        assert_eq!(
            broken(|config| config.xds.client_ca_name = "a/b".into()),
            ["xds.client_ca_name must have 1 to 64 letters, digits, '.', '-' and '_'"]
        );
        let without = "has no effect without xds.tls_cert and xds.tls_key; set these keys too";
        assert_eq!(
            broken(|config| config.xds.tls_min = TlsMin::Tls13),
            [format!("xds.tls_min {without}")]
        );
    }
}
