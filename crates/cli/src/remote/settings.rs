//! The connection settings of a command: from flags, variables and a context.

use std::{env, ffi::OsString, path::PathBuf};

use chancery_tls::ClientTlsFiles;
use clap::Args;

use super::{
    connector::Security,
    credential::{self, TokenSource},
};
use crate::{
    contexts::{Contexts, Setting},
    exit::Exit,
    failure::Failure,
};

const DEFAULT_SERVER: &str = "127.0.0.1:18001";

/// The flags for connections to servers. This module reads the variables: a context that a flag names
/// comes before them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConnectionFlags {
    /// Connect to the admin port at ADDR; try the addresses of a comma-separated list in order
    ///
    /// ADDR is HOST:PORT, https://HOST:PORT if the port uses TLS, or unix:PATH for a UNIX socket (admin.socket). In a list, the command skips a server that accepts the connection but does not answer within 5s.
    ///
    /// [env: CHANCERY_SERVER]
    ///
    /// [default: 127.0.0.1:18001]
    #[arg(long, global = true, help_heading = "Connection", value_name = "ADDR")]
    pub(super) server: Option<String>,
    /// Use the connection settings of this context (`chancery context`)
    ///
    /// Other flags override the context. Variables such as CHANCERY_SERVER override a context that CHANCERY_CONTEXT
    /// or `chancery context use` selects, but not a context that this flag selects. Without this flag, the command
    /// uses the context that CHANCERY_CONTEXT selects, or else the context that `chancery context use` selects.
    ///
    /// [env: CHANCERY_CONTEXT]
    #[arg(long, global = true, help_heading = "Connection", value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Send the token in FILE with each request; requires TLS, except to a loopback address
    ///
    /// The file is read for each request. CHANCERY_TOKEN can contain the token itself.
    ///
    /// [env: CHANCERY_TOKEN_FILE]
    #[arg(long, global = true, help_heading = "Connection", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Trust https:// servers whose certificate a CA in FILE (PEM) signed [default: the system's CAs]
    ///
    /// [env: CHANCERY_CA_CERT]
    #[arg(long, global = true, help_heading = "TLS", value_name = "FILE")]
    pub(super) ca_cert: Option<PathBuf>,
    /// Present the certificate in FILE (PEM) to https:// servers; requires --cert-key
    ///
    /// [env: CHANCERY_CERT]
    #[arg(long, global = true, help_heading = "TLS", value_name = "FILE")]
    pub(super) cert: Option<PathBuf>,
    /// Use the private key in FILE (PEM) with --cert
    ///
    /// [env: CHANCERY_CERT_KEY]
    #[arg(long, global = true, help_heading = "TLS", value_name = "FILE")]
    pub(super) cert_key: Option<PathBuf>,
}

/// The settings of one origin.
#[derive(Debug, Clone, Default)]
struct Level {
    server: Option<String>,
    ca_cert: Option<PathBuf>,
    cert: Option<PathBuf>,
    cert_key: Option<PathBuf>,
    token: Option<TokenSource>,
}

/// The settings that a command uses.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The servers, separated by commas.
    pub(crate) server: String,
    pub(crate) files: ClientTlsFiles,
    pub(crate) token: Option<TokenSource>,
}

impl ConnectionFlags {
    /// Returns the settings.
    ///
    /// # Errors
    /// Fails if the context or a variable is unusable, or if there is a certificate without its key, or a key without its
    /// certificate.
    pub(crate) fn resolve(&self) -> Result<Settings, Failure> {
        let (flags, environment) = (self.level(), environment()?);
        let context = self.context_level()?;
        let levels = match self.context {
            Some(_) => [flags, context, environment],
            None => [flags, environment, context],
        };
        let [first, second, third] = levels;
        first.or(second).or(third).settings()
    }

    fn level(&self) -> Level {
        Level {
            server: self.server.clone(),
            ca_cert: self.ca_cert.clone(),
            cert: self.cert.clone(),
            cert_key: self.cert_key.clone(),
            token: self.token_file.clone().map(TokenSource::File),
        }
    }

    /// Returns the settings of the context, if one is chosen.
    fn context_level(&self) -> Result<Level, Failure> {
        let contexts = Contexts::load()?;
        let Some((name, chosen_by)) = self.chosen(&contexts)? else { return Ok(Level::default()) };
        let context = contexts.get(&name, chosen_by)?;
        let text = |key| context.0.get(&key);
        let path = |key| text(key).map(|path| contexts.resolve(path));
        Ok(Level {
            server: text(Setting::Server).cloned(),
            ca_cert: path(Setting::CaCert),
            cert: path(Setting::Cert),
            cert_key: path(Setting::CertKey),
            token: path(Setting::TokenFile).map(TokenSource::File),
        })
    }

    /// Returns the name of the context, and the origin of the name.
    pub(crate) fn chosen(
        &self,
        contexts: &Contexts,
    ) -> Result<Option<(String, &'static str)>, Failure> {
        const NAME: &str = "CHANCERY_CONTEXT";
        let variable = text(NAME)?.filter(|name| !name.is_empty());
        Ok(match (&self.context, variable, &contexts.current) {
            (Some(name), ..) => Some((name.clone(), "--context")),
            (None, Some(name), _) => Some((name, NAME)),
            (None, None, Some(name)) => Some((name.clone(), "`current` of the file")),
            (None, None, None) => None,
        })
    }
}

impl Level {
    /// Adds the settings of another origin where this one has none.
    fn or(self, other: Self) -> Self {
        Self {
            server: self.server.or(other.server),
            ca_cert: self.ca_cert.or(other.ca_cert),
            cert: self.cert.or(other.cert),
            cert_key: self.cert_key.or(other.cert_key),
            token: self.token.or(other.token),
        }
    }

    fn settings(self) -> Result<Settings, Failure> {
        let cert_and_key = match (self.cert, self.cert_key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(usage(
                    "--cert needs --cert-key, the file with its private key (CHANCERY_CERT_KEY)",
                ));
            }
            (None, Some(_)) => {
                return Err(usage(
                    "--cert-key needs --cert, the file with its certificate (CHANCERY_CERT)",
                ));
            }
        };
        let server = self.server.unwrap_or_else(|| DEFAULT_SERVER.to_owned());
        if server
            .split(',')
            .any(|server| server.contains('@') && !server.trim().starts_with("unix:"))
        {
            // The address is not shown, because it may contain a password.
            return Err(usage(
                "the address of a server contains a user or a password, which have no effect; write HOST:PORT, and \
                 use --token-file or --cert (--server, CHANCERY_SERVER)",
            ));
        }
        let files = ClientTlsFiles { ca: self.ca_cert, cert_and_key };
        Ok(Settings { server, files, token: self.token })
    }
}

impl Settings {
    pub(crate) fn security(&self) -> Security {
        Security::new(self.files.clone(), self.token.clone())
    }
}

/// Returns the settings of the variables.
fn environment() -> Result<Level, Failure> {
    let token = match (text(credential::VARIABLE)?, file("CHANCERY_TOKEN_FILE")?) {
        (Some(_), Some(_)) => {
            return Err(usage(
                "CHANCERY_TOKEN and CHANCERY_TOKEN_FILE are both set; unset one of them",
            ));
        }
        (Some(token), None) => Some(TokenSource::Variable(token)),
        (None, path) => path.map(TokenSource::File),
    };
    Ok(Level {
        server: text("CHANCERY_SERVER")?,
        ca_cert: file("CHANCERY_CA_CERT")?,
        cert: file("CHANCERY_CERT")?,
        cert_key: file("CHANCERY_CERT_KEY")?,
        token,
    })
}

fn text(name: &str) -> Result<Option<String>, Failure> {
    // The value may be a secret, so the message does not show it.
    let not_text = |_| usage(format_args!("{name} is not UTF-8 text"));
    env::var_os(name).map(OsString::into_string).transpose().map_err(not_text)
}

fn file(name: &str) -> Result<Option<PathBuf>, Failure> {
    match env::var_os(name) {
        Some(path) if path.is_empty() => {
            Err(usage(format_args!("{name} is empty; unset it, or set it to a file")))
        }
        path => Ok(path.map(PathBuf::from)),
    }
}

fn usage(text: impl std::fmt::Display) -> Failure {
    Failure::with_exit(Exit::Usage, text)
}
