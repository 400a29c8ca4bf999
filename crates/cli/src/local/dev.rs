//! The commands `dev`: certificates for tests and demonstrations, with the configurations that use them.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose::{self, ClientAuth, ServerAuth},
    IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

use super::bootstrap::{Client, Part, Server, Tls, envoy_files};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::examples,
    text::plain,
};

/// The time by which the validity begins in the past, for clocks that differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// The configuration of `serve`. `DIR` stands for the directory.
const SERVE: &str = include_str!("dev/chancery.toml");

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Dev {
    /// Create CAs and certificates for tests, and configurations that use them
    ///
    /// Creates one CA for servers and their xDS clients, one for operators, and one for replicas. The
    /// private keys of the CAs are not kept. `chancery.toml` is a configuration of `serve` with TLS on all
    /// ports, and `envoy.yaml` a bootstrap of Envoy. Do not use these certificates in production.
    #[command(after_help = examples(&["dev certs --dir certs", "serve --config certs/chancery.toml"]))]
    Certs(Certs),
}

/// The arguments of `dev certs`.
#[derive(Debug, Args)]
pub(crate) struct Certs {
    /// Write the files into this directory; existing files are not overwritten
    #[arg(long)]
    dir: PathBuf,
    /// Also name these hosts or IP addresses in the certificates of servers and replicas
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    name: Vec<String>,
    /// Let the certificates expire after N days
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    days: u16,
}

/// A CA whose key exists only in memory.
struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    validity: Duration,
}

/// A file to write.
struct File {
    name: &'static str,
    content: String,
    /// The permissions.
    mode: u32,
}

impl Dev {
    /// Runs the command.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        match self {
            Self::Certs(certs) => certs.run(answer),
        }
    }
}

impl Certs {
    fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let dir = &self.dir;
        fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        let absolute = dir.canonicalize().map_err(|error| cannot_write(dir, &error))?;
        let Some(absolute) = absolute.to_str().filter(|path| !path.contains(['"', '\\'])) else {
            return Err(Failure::new(format_args!(
                "cannot write configurations with the directory {}: its path must be UTF-8, without quotes and \
                 backslashes",
                dir.display()
            )));
        };
        let files = self.files(absolute)?;
        // No file is written if one of them exists.
        if let Some(file) = files.iter().find(|file| dir.join(file.name).symlink_metadata().is_ok())
        {
            let path = dir.join(file.name);
            return Err(Failure::new(format_args!(
                "{} exists, and is not overwritten; remove it, or choose another directory",
                path.display()
            )));
        }
        for file in &files {
            file.write(dir).map_err(|error| cannot_write(&dir.join(file.name), &error))?;
        }
        let names: Vec<&str> = files.iter().map(|file| file.name).collect();
        if answer.output == Output::Text {
            let dir = plain(&dir.display().to_string());
            return answer
                .text(|out| names.iter().try_for_each(|name| writeln!(out, "wrote {dir}/{name}")));
        }
        let result = json!({"dir": absolute, "files": names, "days": self.days});
        match answer.output {
            Output::Yaml => answer.yaml(&result),
            _ => answer.json(&result),
        }
    }

    fn files(&self, dir: &str) -> Result<Vec<File>, Failure> {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        hosts.extend(self.name.iter().map(|name| name.trim().to_owned()));
        let validity = DAY * u32::from(self.days);
        let ca = |name| Ca::new(name, validity).map_err(cannot_create);
        let (servers, operators, replicas) = (
            ca("chancery test CA")?,
            ca("chancery test CA of operators")?,
            ca("chancery test CA of replicas")?,
        );
        let server = servers.sign("server", &hosts, None, &[ServerAuth])?;
        let client =
            servers.sign("client", &[], Some("spiffe://chancery.test/client"), &[ClientAuth])?;
        let operator = operators.sign(
            "operator",
            &[],
            Some("spiffe://chancery.test/operator"),
            &[ClientAuth],
        )?;
        let replica = replicas.sign("replica", &hosts, None, &[ClientAuth, ServerAuth])?;
        let public = |name, content| File { name, content, mode: 0o644 };
        let key = |name, content| File { name, content, mode: 0o600 };
        let mut files = vec![
            public("ca.pem", servers.issuer.pem()),
            public("server.pem", server.0),
            key("server.key", server.1),
            public("client.pem", client.0),
            key("client.key", client.1),
            public("operators-ca.pem", operators.issuer.pem()),
            public("operator.pem", operator.0),
            key("operator.key", operator.1),
            public("replicas-ca.pem", replicas.issuer.pem()),
            public("replica.pem", replica.0),
            key("replica.key", replica.1),
            public("chancery.toml", SERVE.replace("DIR", dir)),
        ];
        let path = |name: &str| Path::new(dir).join(name);
        let tls = Tls {
            server_name: Some("localhost".to_owned()),
            ca: Some(path("ca.pem")),
            cert_and_key: Some((path("client.pem"), path("client.key"))),
        };
        let client = Client {
            node: "envoy-1".to_owned(),
            cluster: "dev".to_owned(),
            metadata: Vec::new(),
            servers: vec![Server { host: "127.0.0.1".to_owned(), port: 18000 }],
            tls: Some(tls),
            token_file: None,
        };
        let envoy = envoy_files(&client, |part| path(envoy_file(part)).display().to_string());
        files.extend(envoy.into_iter().map(|(part, content)| public(envoy_file(part), content)));
        Ok(files)
    }
}

/// Returns the name of a file of Envoy's configuration.
fn envoy_file(part: Part) -> &'static str {
    match part {
        Part::Bootstrap => "envoy.yaml",
        Part::Cert => "envoy-cert.yaml",
        Part::Ca => "envoy-ca.yaml",
        Part::Token => "envoy-token.yaml",
    }
}

impl Ca {
    fn new(name: &str, validity: Duration) -> Result<Self, rcgen::Error> {
        let mut params = params(name, &[], validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer, validity })
    }

    /// Returns a certificate and its key in PEM.
    fn sign(
        &self,
        name: &str,
        hosts: &[String],
        uri: Option<&str>,
        uses: &[ExtendedKeyUsagePurpose],
    ) -> Result<(String, String), Failure> {
        let sign = || {
            let mut params = params(name, hosts, self.validity)?;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = uses.to_vec();
            params.use_authority_key_identifier_extension = true;
            if let Some(uri) = uri {
                params.subject_alt_names.push(SanType::URI(uri.try_into()?));
            }
            let key = KeyPair::generate()?;
            Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
        };
        sign().map_err(cannot_create)
    }
}

/// Returns the parameters of a certificate that is valid from now on.
fn params(
    name: &str,
    hosts: &[String],
    validity: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts.to_vec())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + validity;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

impl File {
    /// Creates the file. Fails if it exists.
    fn write(&self, dir: &Path) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(self.mode).open(dir.join(self.name))?;
        file.write_all(self.content.as_bytes())
    }
}

fn cannot_create(error: rcgen::Error) -> Failure {
    Failure::new(format_args!("cannot create a certificate: {error}"))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot write {}: {error}", path.display()))
}
