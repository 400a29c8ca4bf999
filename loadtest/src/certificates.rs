//! Certificates for the xDS port of a server and for its clients.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use chancery_fleet_load::stream::Target;
use chancery_testing::Ca;
use chancery_tls::ClientTlsFiles;
use serde::{Deserialize, Serialize};

use crate::{
    common::Common,
    host::Cpu,
    server::{Launch, Server},
};

/// The security of an xDS port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Security {
    Plaintext,
    /// TLS, with certificates of the server and of its clients.
    MutualTls,
}

/// A CA in a directory, which has signed the certificate of a server.
#[derive(Debug)]
pub(crate) struct Certificates {
    ca: Ca,
    dir: PathBuf,
}

/// The files of a client, for a worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientFiles {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plaintext => "plaintext",
            Self::MutualTls => "mutual TLS",
        })
    }
}

impl Security {
    /// Starts a server. Also returns its xDS port, with a certificate for clients.
    pub(crate) async fn start(
        self,
        common: &Common,
        dir: &Path,
        cpu: Option<Cpu>,
    ) -> Result<(Server, Target)> {
        let (config, files) = self.prepare(dir)?;
        let server = Launch::new(&common.binary, dir, cpu, &config)?.start().await?;
        let target = Target::new(server.xds, files.as_ref().map(ClientFiles::tls).as_ref())?;
        Ok((server, target))
    }

    /// Returns the configuration of a server, and the files of its clients.
    pub(crate) fn prepare(self, dir: &Path) -> Result<(String, Option<ClientFiles>)> {
        match self {
            Self::Plaintext => Ok((String::new(), None)),
            Self::MutualTls => {
                let certificates = Certificates::create(&dir.join("certs"))?;
                let client = certificates.client("client", "spiffe://load.test/client");
                Ok((certificates.config(), Some(client)))
            }
        }
    }
}

impl Certificates {
    /// Creates the directory, a CA, and the certificate of a server on loopback.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let certificates = Self { ca: Ca::new("loadtest"), dir: dir.to_owned() };
        let path = certificates.ca_path();
        std::fs::write(&path, certificates.ca.pem())
            .with_context(|| format!("write {}", path.display()))?;
        certificates.ca.loopback().write(dir, "server");
        Ok(certificates)
    }

    /// Returns the section of a configuration with which the xDS port requires certificates.
    pub(crate) fn config(&self) -> String {
        let dir = self.dir.display();
        format!(
            "[xds]\ntls_cert = \"{dir}/server.pem\"\ntls_key = \"{dir}/server.key\"\ntls_client_ca = \"{}\"\n",
            self.ca_path().display()
        )
    }

    /// Creates a certificate of a client with this SPIFFE ID. `name` is the name of its files.
    pub(crate) fn client(&self, name: &str, spiffe_id: &str) -> ClientFiles {
        let (cert, key) = self.ca.client(spiffe_id).write(&self.dir, name);
        ClientFiles { ca: self.ca_path(), cert, key }
    }

    fn ca_path(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }
}

impl ClientFiles {
    /// Returns the files as TLS settings name them.
    pub(crate) fn tls(&self) -> ClientTlsFiles {
        ClientTlsFiles {
            ca: Some(self.ca.clone()),
            cert_and_key: Some((self.cert.clone(), self.key.clone())),
        }
    }
}
