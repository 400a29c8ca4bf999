//! Connections to servers, with or without TLS: the flags, the sockets, and the texts of their errors.

use std::{cell::OnceCell, error::Error, path::PathBuf};

use chancery_tls::{
    ClientStream, ClientTls, ClientTlsFiles, ConnectError, LastRefusal, ServerRefusal,
};
use clap::Args;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::{
    codegen::http::Uri,
    transport::{self, Channel, Endpoint},
};

use crate::cli::{exit::Exit, failure::Failure};

/// The flags for TLS connections to servers.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TlsFlags {
    /// Trust https:// servers whose certificate a CA in FILE (PEM) signed [default: the system's CAs]
    #[arg(
        long,
        global = true,
        help_heading = "TLS",
        value_name = "FILE",
        env = "CHANCERY_CA_CERT",
        hide_env_values = true
    )]
    ca_cert: Option<PathBuf>,
    /// Show the certificate in FILE (PEM) to https:// servers; requires --cert-key
    #[arg(
        long,
        global = true,
        help_heading = "TLS",
        value_name = "FILE",
        env = "CHANCERY_CERT",
        hide_env_values = true
    )]
    cert: Option<PathBuf>,
    /// Use the private key in FILE (PEM) with --cert
    #[arg(
        long,
        global = true,
        help_heading = "TLS",
        value_name = "FILE",
        env = "CHANCERY_CERT_KEY",
        hide_env_values = true
    )]
    cert_key: Option<PathBuf>,
}

/// The TLS settings of a command. The files are read when the first connection needs them.
#[derive(Debug, Default)]
pub(crate) struct Security {
    files: ClientTlsFiles,
    client: OnceCell<ClientTls>,
    last_refusal: LastRefusal,
}

/// The TLS settings for one server.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    /// `None` without TLS.
    tls: Option<ClientTls>,
    last_refusal: LastRefusal,
}

impl TlsFlags {
    /// Returns the settings.
    ///
    /// # Errors
    /// Fails if there is a certificate without its key, or a key without its certificate.
    pub(crate) fn security(self) -> Result<Security, Failure> {
        let cert_and_key = match (self.cert, self.cert_key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => {
                let text =
                    "--cert needs --cert-key, the file with its private key (CHANCERY_CERT_KEY)";
                return Err(Failure::with_exit(Exit::Usage, text));
            }
            (None, Some(_)) => {
                let text = "--cert-key needs --cert, the file with its certificate (CHANCERY_CERT)";
                return Err(Failure::with_exit(Exit::Usage, text));
            }
        };
        let files = ClientTlsFiles { ca: self.ca_cert, cert_and_key };
        Ok(Security { files, ..Security::default() })
    }
}

impl Security {
    /// Returns the TLS settings for a server with this scheme: `https`, or `http` without TLS.
    ///
    /// # Errors
    /// Fails if a file is unusable. Also fails if the flags ask for TLS, and the connection would not be
    /// encrypted.
    pub(crate) fn of_scheme(&self, scheme: &str, server: &str) -> Result<Link, Failure> {
        let link = |tls| Link { tls, last_refusal: self.last_refusal.clone() };
        if scheme != "https" {
            if self.files == ClientTlsFiles::default() {
                return Ok(link(None));
            }
            let bare = server.strip_prefix("http://").unwrap_or(server);
            return Err(Failure::new(format_args!(
                "the connection to {server} would not be encrypted, although --ca-cert or --cert is set; write \
                 https://{bare}, or omit these flags (CHANCERY_CA_CERT, CHANCERY_CERT)"
            )));
        }
        if let Some(client) = self.client.get() {
            return Ok(link(Some(client.clone())));
        }
        let client = ClientTls::new(&self.files)
            .map_err(|error| Failure::new(format_args!("cannot use TLS: {error}")))?;
        Ok(link(Some(self.client.get_or_init(|| client).clone())))
    }

    /// Returns the reason and the advice if the server refused the last connection because of TLS.
    pub(crate) fn last_advice(&self) -> Option<String> {
        self.last_refusal.get().map(advice_on)
    }
}

/// Connects to the server of an endpoint.
///
/// # Errors
/// Fails if there is no connection. [`advice`] explains errors of TLS.
pub(crate) async fn connect(endpoint: &Endpoint, link: &Link) -> Result<Channel, transport::Error> {
    let link = link.clone();
    let connector = tower::service_fn(move |uri: Uri| {
        let link = link.clone();
        async move { link.open(&uri).await.map(TokioIo::new) }
    });
    endpoint.connect_with_connector(connector).await
}

impl Link {
    async fn open(&self, uri: &Uri) -> Result<ClientStream, ConnectError> {
        self.last_refusal.clear();
        let host = uri.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let default = if self.tls.is_some() { 443 } else { 80 };
        let stream = TcpStream::connect((bare, uri.port_u16().unwrap_or(default))).await?;
        stream.set_nodelay(true)?;
        let stream = match &self.tls {
            Some(tls) => tls.connect(host, stream).await?,
            None => ClientStream::plain(stream),
        };
        Ok(stream.recording(&self.last_refusal))
    }

    /// Returns the reason and the advice if the server refused the last connection because of TLS.
    pub(crate) fn last_advice(&self) -> Option<String> {
        self.last_refusal.get().map(advice_on)
    }
}

/// Returns the reason and the advice if TLS is the cause of an error.
pub(crate) fn advice(error: &(dyn Error + 'static)) -> Option<String> {
    let causes = || std::iter::successors(Some(error), |&error| error.source());
    if let Some(error) = causes().find_map(|cause| cause.downcast_ref::<ConnectError>()) {
        let advice = match error {
            ConnectError::Io(_) => return None,
            ConnectError::UnknownCa { .. } => {
                "; set --ca-cert or CHANCERY_CA_CERT to the file of the CA that signed it"
            }
            ConnectError::WrongName { .. } => "; connect by a name that is in the certificate",
            ConnectError::NotTls => "; begin its address with http://",
            ConnectError::Refused(refusal) => advice_for(*refusal),
            ConnectError::Host(_) | ConnectError::BadCertificate(_) => "",
        };
        return Some(format!("{error}{advice}"));
    }
    causes().find_map(|cause| ServerRefusal::quoted_in(&cause.to_string())).map(advice_on)
}

fn advice_on(refusal: ServerRefusal) -> String {
    format!("{refusal}{}", advice_for(refusal))
}

fn advice_for(refusal: ServerRefusal) -> &'static str {
    match refusal {
        ServerRefusal::NeedsCertificate => {
            "; set --cert and --cert-key (CHANCERY_CERT, CHANCERY_CERT_KEY)"
        }
        ServerRefusal::UnknownCa | ServerRefusal::Expired | ServerRefusal::Revoked => {
            "; set --cert to a valid certificate of a CA that the server trusts"
        }
        ServerRefusal::NeedsTls => "; begin its address with https://",
        ServerRefusal::ProtocolVersion | ServerRefusal::Alert(_) => "",
    }
}
