//! The section `[admin]`: the port for authors and operators.

use std::{net::SocketAddr, path::Path};

use chancery_tls::{TlsConfig, TlsPort};

use super::{
    bounds::{GIB, HOUR, KIB, LISTEN, bytes, count, time, words},
    loopback,
    section::{one_of, section},
    tls::{self, TlsClientCert, TlsMin},
    units::{ByteSize, Span},
};

section! {
    /// The section `[admin]`: the port for authors and operators.
    pub struct Admin {
        /// The address to listen on for the command line, the HTTP API and metrics. Port 0 selects
        /// a free port.
        address: SocketAddr = loopback(18001), LISTEN;
        /// Whether an unencrypted port may listen on addresses other than loopback.
        allow_plaintext: bool;
        /// The certificate file of the port (PEM), with intermediate certificates. With tls_cert
        /// and tls_key, the port uses TLS 1.3. The files are read again when they change.
        tls_cert: String;
        /// The file with the private key of tls_cert (PEM).
        tls_key: String;
        /// The file with the CAs that sign the certificates of authors, operators and monitoring
        /// (PEM). If it is set, clients without such a certificate are rejected.
        tls_client_ca: String;
        #[doc = tls::CLIENT_CERT]
        tls_client_cert: TlsClientCert = TlsClientCert::Required, words(TlsClientCert::WORDS);
        #[doc = tls::CRL]
        tls_crl: String;
        #[doc = tls::TRUST_DOMAINS]
        tls_trust_domains: Vec<String>;
        #[doc = tls::CLIENT_CA_NAME]
        client_ca_name: String = "operators".into();
        #[doc = tls::CLIENT_CA_CN]
        client_ca_cn: bool;
        /// The path of a UNIX socket that serves the same API, such as /run/chancery/admin.sock;
        /// empty for none. Its owner and root may connect (mode 600). The principal is unix:UID.
        socket: String;
        /// The host names, without a port, under which the HTTP API may be called. IP addresses,
        /// localhost and the host of raft.advertise are always allowed. /metrics, /healthz, /readyz
        /// and gRPC accept every name.
        hosts: Vec<String>;
        /// Whether the port serves the console at /ui: pages for people, with the rights of the API.
        console: ConsoleMode = ConsoleMode::On, words(ConsoleMode::WORDS);
        /// The maximum size of a request, which contains all manifests of one apply.
        request_bytes_max: ByteSize = ByteSize::mib(512), bytes(64 * KIB, 2 * GIB);
        /// The maximum number of connections. A further connection replaces an idle one, or is
        /// rejected if all are busy.
        connections_max: usize = 1000, count(1, 100_000);
        /// The maximum time from the start of a connection to the end of its first request header.
        header_timeout: Span = Span::seconds(10), time(100, HOUR);
        /// The maximum time that a connection may have no request, or not read its response.
        // Longer than the usual interval between two requests for metrics.
        idle_timeout: Span = Span::seconds(120), time(100, HOUR);
        /// The maximum time for the body of a request to arrive, plus 1s for each 16KiB.
        body_timeout: Span = Span::seconds(30), time(100, HOUR);
    }
}

one_of! {
    /// Whether the admin port serves the console.
    pub enum ConsoleMode {
        On = "on",
        Off = "off",
    }
}

impl Admin {
    pub(crate) fn tls_keys(&self) -> tls::Keys<'_> {
        tls::Keys {
            section: "admin",
            port: TlsPort::Admin,
            cert: &self.tls_cert,
            key: &self.tls_key,
            client_ca: &self.tls_client_ca,
            client_cert: self.tls_client_cert,
            crl: &self.tls_crl,
            trust_domains: &self.tls_trust_domains,
            ca_name: &self.client_ca_name,
            ca_cn: self.client_ca_cn,
            min: TlsMin::Tls13,
        }
    }

    /// Returns the files for TLS on the port, or `None` without TLS.
    pub fn tls(&self) -> Option<TlsConfig> {
        self.tls_keys().config()
    }

    /// Returns the path of the UNIX socket, if there is one.
    pub fn socket(&self) -> Option<&Path> {
        (!self.socket.is_empty()).then(|| Path::new(&self.socket))
    }
}
