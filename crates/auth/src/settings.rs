//! The settings of authentication: the issuers of tokens, and where their keys are.

use std::{fmt, path::PathBuf, str::FromStr};

use chancery_model::without_credentials;
use chancery_tls::TlsError;

use crate::key_set::Algorithm;

/// The settings of an [`crate::Authenticator`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthSettings {
    /// The issuers of JSON Web Tokens, and the clusters. Their names are unique.
    pub issuers: Vec<IssuerSettings>,
    /// The number of failed authentications after which an address is refused; 0 for no limit.
    pub failures_max: u32,
}

/// An issuer of JSON Web Tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The name in principals.
    pub name: String,
    /// The kind of its tokens.
    pub kind: IssuerKind,
    /// The exact claim `iss` of its tokens.
    pub url: String,
    /// The accepted audiences. A token must name one of them.
    pub audience: Vec<String>,
    /// The accepted algorithms.
    pub algorithms: Vec<Algorithm>,
    /// The location of its public keys.
    pub keys: KeyLocation,
}

/// The kind of an issuer, which is that of its principals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IssuerKind {
    /// `jwt:NAME/SUBJECT`.
    Jwt,
    /// `k8s:NAME/NAMESPACE/ACCOUNT`.
    Kubernetes,
}

/// The location of a key set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyLocation {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// An address, which is requested at intervals.
    Url {
        /// The address.
        url: KeyUrl,
        /// The file with the CAs of the server; `None` for those of the system.
        ca: Option<PathBuf>,
    },
}

/// The address of a key set: `https://HOST[:PORT]/PATH`, or `http://` on a loopback address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUrl {
    pub(crate) is_tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
}

/// The reason why an [`crate::Authenticator`] cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file with the keys of an issuer is unusable.
    #[error("cannot read the keys of the issuer {issuer:?} in {}: {reason}", path.display())]
    KeyFile {
        /// The name of the issuer.
        issuer: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The CAs for the address of the keys are unusable.
    #[error("cannot use TLS for the keys of the issuer {issuer:?}: {error}")]
    Tls {
        /// The name of the issuer.
        issuer: String,
        /// The reason.
        error: TlsError,
    },
}

impl SettingsError {
    /// Returns the name of the issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        match self {
            Self::KeyFile { issuer, .. } | Self::Tls { issuer, .. } => issuer,
        }
    }
}

impl KeyUrl {
    /// Returns the value of the header `host`.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the host without the brackets of an IPv6 address.
    pub(crate) fn bare_host(&self) -> &str {
        let bare = self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        bare.unwrap_or(&self.host)
    }
}

impl FromStr for KeyUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = || format!("{text:?} is not https://HOST[:PORT]/PATH");
        let uri: http::Uri = text.parse().map_err(|_| rule())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(rule());
        };
        let is_tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(rule()),
        };
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(rule());
        }
        let default = if is_tls { 443 } else { 80 };
        let url = Self {
            is_tls,
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(default),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        };
        let ip = url.bare_host().parse::<std::net::IpAddr>();
        let is_loopback = url.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
        if is_tls || is_loopback {
            Ok(url)
        } else {
            Err(format!("{text:?} is not encrypted; use https, or http on a loopback address"))
        }
    }
}

/// Shows no query, which may be a credential.
impl fmt::Display for KeyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        let url = format!("{scheme}://{}{}", self.authority(), self.path);
        f.write_str(&without_credentials(&url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_url_is_https_or_loopback() {
        let shown = |text: &str| text.parse::<KeyUrl>().map(|url| url.to_string());
        assert_eq!(
            shown("https://idp.example/keys"),
            Ok("https://idp.example:443/keys".to_owned())
        );
        assert_eq!(shown("https://idp:8443"), Ok("https://idp:8443/".to_owned()));
        assert_eq!(
            shown("http://127.0.0.1:80/k?x=1"),
            Ok("http://127.0.0.1:80/k?[redacted]".to_owned())
        );
        assert_eq!(shown("http://[::1]:9/k"), Ok("http://[::1]:9/k".to_owned()));
        assert!(shown("http://localhost/k").is_ok());
        for text in
            ["", "idp", "/k", "http://idp/k", "ftp://idp/k", "https://u:p@idp/k", "https:///k"]
        {
            assert!(shown(text).is_err(), "{text}");
        }
    }
}
