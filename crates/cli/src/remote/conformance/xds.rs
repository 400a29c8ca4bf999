//! The connections of the conformance kit to the xDS port: TLS, client certificate and token.

use std::{io, path::PathBuf};

use axum::http::HeaderValue;
use chancery_conformance::{Connecting, Connection, HttpVersion, Transport};
use chancery_tls::{ClientStream, ClientTls, ClientTlsFiles, LastRefusal};
use clap::Args;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;

use crate::{
    address::{self, is_loopback},
    exit::Exit,
    failure::Failure,
    remote::{
        connector::{self, Security, advice_on},
        credential::TokenSource,
        mirror::address::split,
    },
};

/// The flags for the xDS port. Without them, the settings for the admin port apply if the port uses TLS.
#[derive(Debug, Args)]
pub(super) struct XdsFlags {
    /// Trust the xDS port if a CA in FILE (PEM) signed its certificate [default: --ca-cert]
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    xds_ca_cert: Option<PathBuf>,
    /// Present the certificate in FILE (PEM) to the xDS port; requires --xds-cert-key [default: --cert]
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "xds_cert_key")]
    xds_cert: Option<PathBuf>,
    /// Use the private key in FILE (PEM) with --xds-cert
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "xds_cert")]
    xds_cert_key: Option<PathBuf>,
    /// Expect the certificate of the xDS port to name NAME [default: the host of --xds]
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    xds_server_name: Option<String>,
    /// Send the token in FILE to the xDS port [default: --token-file]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    xds_token_file: Option<PathBuf>,
}

/// Connections to the xDS port and to the port of REST polls.
pub(super) struct XdsTransport {
    /// The settings for HTTP/2 and for HTTP/1.1; `None` without TLS.
    tls: Option<[ClientTls; 2]>,
    server_name: Option<String>,
    authorization: Option<HeaderValue>,
    last_refusal: LastRefusal,
}

impl XdsFlags {
    /// Reads the files for a server at this address.
    pub(super) fn transport(
        &self,
        server: &str,
        admin: &Security,
    ) -> Result<XdsTransport, Failure> {
        let (scheme, bare) = split(server);
        let is_tls = scheme == "https";
        let has_flags =
            self.xds_ca_cert.is_some() || self.xds_cert.is_some() || self.xds_server_name.is_some();
        if has_flags && !is_tls {
            let text = format!(
                "the connection to {server} would not be encrypted, although flags for the TLS of the xDS port are \
                 set; write https://{bare}, or omit these flags"
            );
            return Err(Failure::with_exit(Exit::Usage, text));
        }
        let files = ClientTlsFiles {
            ca: self.xds_ca_cert.clone().or_else(|| admin.files().ca.clone()),
            cert_and_key: match (&self.xds_cert, &self.xds_cert_key) {
                (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
                _ => admin.files().cert_and_key.clone(),
            },
        };
        let read = |tls: Result<ClientTls, _>| {
            tls.map_err(|error| Failure::new(format_args!("cannot use TLS: {error}")))
        };
        let tls = if is_tls {
            Some([read(ClientTls::new(&files))?, read(ClientTls::for_http1(&files))?])
        } else {
            None
        };
        let token = self.xds_token_file.clone().map(TokenSource::File);
        let is_safe = is_tls || is_local(bare);
        if token.is_some() && !is_safe {
            return Err(Failure::new(format_args!(
                "the token is not sent to {server}: the connection would not be encrypted; write https://{bare}, or \
                 omit --xds-token-file"
            )));
        }
        let token = token.or_else(|| admin.token().filter(|_| is_safe).cloned());
        let header = token.map(|token| token.header().map_err(Failure::new)).transpose()?;
        let authorization = header.and_then(|value| {
            // The characters of a token are those of a header.
            let mut value = HeaderValue::from_str(value.to_str().ok()?).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let server_name = self.xds_server_name.clone();
        Ok(XdsTransport { tls, server_name, authorization, last_refusal: LastRefusal::default() })
    }
}

/// Returns whether `HOST:PORT` is an address of this machine.
fn is_local(bare: &str) -> bool {
    let uri = format!("http://{bare}").parse::<Uri>();
    uri.is_ok_and(|uri| is_loopback(address::host(&uri)))
}

/// Returns advice with the flags for the xDS port. The other flags and the variables also apply to the admin port.
fn for_xds_port(advice: &str) -> String {
    let replaced = [
        (" (CHANCERY_CERT, CHANCERY_CERT_KEY)", ""),
        (" or CHANCERY_CA_CERT", ""),
        ("--ca-cert", "--xds-ca-cert"),
        ("--cert", "--xds-cert"),
    ];
    replaced.into_iter().fold(advice.to_owned(), |text, (general, own)| text.replace(general, own))
}

impl Transport for XdsTransport {
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    fn connect<'a>(&'a self, address: &'a str, version: HttpVersion) -> Connecting<'a> {
        Box::pin(async move {
            self.last_refusal.clear();
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = match &self.tls {
                None => ClientStream::plain(stream),
                Some([http2, http1]) => {
                    let tls = if version == HttpVersion::Http2 { http2 } else { http1 };
                    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                    let name = self.server_name.as_deref().unwrap_or(host);
                    let connected = tls.connect(name, stream).await;
                    connected.map_err(|error| {
                        let text = connector::advice(&error);
                        let text = text.map(|advice| for_xds_port(&advice));
                        io::Error::other(text.unwrap_or_else(|| error.to_string()))
                    })?
                }
            };
            Ok(Box::new(stream.recording(&self.last_refusal)) as Box<dyn Connection>)
        })
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.clone()
    }

    fn refusal(&self) -> Option<String> {
        self.last_refusal.get().map(|refusal| for_xds_port(&advice_on(refusal)))
    }
}

#[cfg(test)]
mod tests {
    use chancery_tls::ServerRefusal;

    use super::*;

    #[test]
    fn advice_names_the_flags_of_the_xds_port() {
        let advice = |refusal| for_xds_port(&advice_on(refusal));
        let needed = advice(ServerRefusal::NeedsCertificate);
        assert!(needed.ends_with("; set --xds-cert and --xds-cert-key"), "{needed}");
        let unknown = advice(ServerRefusal::UnknownCa);
        assert!(unknown.contains("; set --xds-cert to a valid certificate"), "{unknown}");
        let ca = for_xds_port("set --ca-cert or CHANCERY_CA_CERT to the file");
        assert_eq!(ca, "set --xds-ca-cert to the file");
    }
}
