//! A client of the xDS port, as its bootstrap describes it.

use std::{net::IpAddr, path::PathBuf};

/// The client, and the servers to which it connects.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) node: String,
    pub(crate) cluster: String,
    pub(crate) metadata: Vec<(String, String)>,
    /// The servers, at least one. All have the same resources.
    pub(crate) servers: Vec<Server>,
    /// `None` without TLS.
    pub(crate) tls: Option<Tls>,
    pub(crate) token_file: Option<PathBuf>,
}

/// The xDS port of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// A name, or an IP address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The TLS parameters of a client. The paths are absolute.
#[derive(Debug)]
pub(crate) struct Tls {
    /// The name that the certificate of every server must have; `None` for its own host.
    pub(crate) server_name: Option<String>,
    /// The CAs of servers; `None` for those of the system.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert_and_key: Option<(PathBuf, PathBuf)>,
}

/// Returns whether a host is an IP address.
pub(crate) fn is_ip(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}
