//! Connections to servers, with or without TLS: the sockets, the token, and the texts of their errors.

use std::{cell::OnceCell, error::Error, io, net::SocketAddr};

use chancery_fleet_load::stream::Target;
use chancery_tls::{
    ClientStream, ClientTls, ClientTlsFiles, ConnectError, LastRefusal, ServerRefusal,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tonic::{
    codegen::http::{HeaderValue, Uri},
    service::interceptor::InterceptedService,
    transport::{self, Endpoint},
};

use super::credential::{Bearer, TokenSource};
use crate::{
    address::{self, is_loopback},
    failure::Failure,
};

/// A connection that adds the token to each request.
pub(crate) type Channel = InterceptedService<transport::Channel, Bearer>;

/// The TLS settings and the token of a command. The files are read when the first connection needs them.
#[derive(Debug, Default)]
pub(crate) struct Security {
    files: ClientTlsFiles,
    bearer: Bearer,
    client: OnceCell<ClientTls>,
    last_refusal: LastRefusal,
}

/// The TLS settings and the token for one server.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    /// `None` without TLS.
    tls: Option<ClientTls>,
    bearer: Bearer,
    last_refusal: LastRefusal,
}

impl Security {
    pub(crate) fn new(files: ClientTlsFiles, token: Option<TokenSource>) -> Self {
        Self { files, bearer: Bearer::new(token), ..Self::default() }
    }

    /// Returns the files of the TLS settings.
    pub(crate) fn files(&self) -> &ClientTlsFiles {
        &self.files
    }

    /// Returns the source of the token, if there is one.
    pub(crate) fn token(&self) -> Option<&TokenSource> {
        self.bearer.source()
    }

    /// Returns the settings for a server with this scheme: `https`, or `http` without TLS.
    ///
    /// # Errors
    /// Fails if a file or the token is unusable. Also fails if the connection would not be encrypted, although
    /// the settings ask for TLS or there is a token. Without TLS, a token is for loopback addresses only.
    pub(crate) fn of_scheme(&self, scheme: &str, server: &str) -> Result<Link, Failure> {
        let bearer = self.bearer.clone();
        let link = |tls| Link { tls, bearer, last_refusal: self.last_refusal.clone() };
        if let Some(token) = self.bearer.source() {
            token.header().map_err(Failure::new)?;
        }
        if scheme != "https" {
            let bare = server.strip_prefix("http://").unwrap_or(server);
            if self.files == ClientTlsFiles::default() {
                let is_local = address::endpoint(server)
                    .is_some_and(|endpoint| is_loopback(address::host(endpoint.uri())));
                if self.bearer.source().is_none() || is_local {
                    return Ok(link(None));
                }
                return Err(Failure::new(format_args!(
                    "the token is not sent to {server}: the connection would not be encrypted; write https://{bare}, \
                     or omit the token (--token-file, CHANCERY_TOKEN_FILE, CHANCERY_TOKEN)"
                )));
            }
            return Err(Failure::new(format_args!(
                "the connection to {server} would not be encrypted, although --ca-cert or --cert is set; write \
                 https://{bare}, or omit these flags (CHANCERY_CA_CERT, CHANCERY_CERT, or the context)"
            )));
        }
        if let Some(client) = self.client.get() {
            return Ok(link(Some(client.clone())));
        }
        let client = ClientTls::new(&self.files)
            .map_err(|error| Failure::new(format_args!("cannot use TLS: {error}")))?;
        Ok(link(Some(self.client.get_or_init(|| client).clone())))
    }

    /// Adds the token to the requests of a channel that does not leave this machine.
    pub(crate) fn with_token(&self, channel: transport::Channel) -> Channel {
        InterceptedService::new(channel, self.bearer.clone())
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
    let (link, bearer) = (link.clone(), link.bearer.clone());
    let connector = tower::service_fn(move |uri: Uri| {
        let link = link.clone();
        async move { link.open(&uri).await.map(TokioIo::new) }
    });
    let channel = endpoint.connect_with_connector(connector).await?;
    Ok(InterceptedService::new(channel, bearer))
}

impl Link {
    /// Returns the TLS settings; `None` without TLS.
    pub(crate) fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_ref()
    }

    /// Returns the xDS port of a server for thin clients.
    ///
    /// # Errors
    /// Fails if the token is unusable.
    pub(crate) fn target(&self, host: &str, at: SocketAddr) -> Result<Target, Failure> {
        let token = self.bearer.source().map(TokenSource::header).transpose();
        let token = token.map_err(Failure::new)?;
        let token = token.and_then(|token| HeaderValue::from_bytes(token.as_bytes()).ok());
        Ok(Target::of_host(host, at, self.tls.clone(), token))
    }

    async fn open(&self, uri: &Uri) -> Result<ClientStream, ConnectError> {
        self.last_refusal.clear();
        let (host, bare) = (uri.host().unwrap_or_default(), address::host(uri));
        let default = if self.tls.is_some() { 443 } else { 80 };
        let at = (bare, uri.port_u16().unwrap_or(default));
        let stream = if self.tls.is_none() && self.bearer.source().is_some() {
            connect_to_loopback(at).await?
        } else {
            TcpStream::connect(at).await?
        };
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

/// Connects to an address of the loopback interface. `localhost` could have other addresses.
async fn connect_to_loopback(at: (&str, u16)) -> io::Result<TcpStream> {
    let mut addresses: Vec<_> = lookup_host(at).await?.collect();
    addresses.retain(|address| address.ip().to_canonical().is_loopback());
    if addresses.is_empty() {
        let text = format!("{:?} is not a loopback address, and the token needs TLS", at.0);
        return Err(io::Error::other(text));
    }
    TcpStream::connect(addresses.as_slice()).await
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
            ConnectError::NotTls => "; write its address without https://",
            ConnectError::Refused(refusal) => advice_for(*refusal),
            ConnectError::Host(_) | ConnectError::BadCertificate(_) => "",
        };
        return Some(format!("{error}{advice}"));
    }
    causes().find_map(|cause| ServerRefusal::quoted_in(&cause.to_string())).map(advice_on)
}

/// Returns the reason and the advice after a refusal of TLS.
pub(crate) fn advice_on(refusal: ServerRefusal) -> String {
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
