//! The commands `bootstrap`: the configuration with which a client connects to the xDS port.

mod client;
mod envoy;
mod grpc;

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{self, Path, PathBuf},
};

use chancery_tls::{ClientCertificates, MinVersion, TlsConfig, TlsPort, check_server_name};
use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::json;

pub(super) use self::{
    client::{Client, Server, Tls},
    envoy::{Part, files as envoy_files},
};
use crate::{
    address::{self, is_loopback},
    answer::{Answer, Output},
    exit::Exit,
    failure::Failure,
    help::examples,
    remote::TokenSource,
    text::plain,
};

/// The argument that selects standard output.
const STANDARD_OUTPUT: &str = "-";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Bootstrap {
    /// Write a bootstrap of Envoy, and the files that Envoy watches for changes
    ///
    /// With certificates or a token, the command also writes FILE-cert, FILE-ca and FILE-token beside FILE. They name the
    /// files of the client. Envoy reads these again when another file is moved over them.
    #[command(after_help = examples(&[
        "bootstrap envoy --node edge-1 --cluster edge",
        "bootstrap envoy --node edge-1 --xds https://xds.example:18000 --ca-cert ca.pem --cert client.pem \
         --cert-key client.key --out envoy.yaml",
    ]))]
    Envoy(Envoy),
    /// Write a bootstrap of a gRPC client (the file of GRPC_XDS_BOOTSTRAP)
    ///
    /// A client reads changed certificates and tokens again. gRPC uses --token-file only with TLS, and only if the variable
    /// GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS of the client is `true`.
    #[command(after_help = examples(&[
        "bootstrap grpc --node web-1 --xds https://xds.example:18000 --ca-cert ca.pem --out grpc.json",
    ]))]
    Grpc(Flags),
}

/// The arguments of `bootstrap envoy`.
#[derive(Debug, Args)]
pub(crate) struct Envoy {
    #[command(flatten)]
    flags: Flags,
    /// Accept only server certificates with this DNS name or IP address [default: the hosts of --xds]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

/// The arguments of both commands. Those with the names of global flags take their place: the certificates are those of
/// the client, not those of the caller.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// ID of the node
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    node: String,
    /// Cluster of the node [default: the ID]
    #[arg(long, value_name = "CLUSTER", value_parser = NonEmptyStringValueParser::new())]
    cluster: Option<String>,
    /// Metadata of the node, as text; repeatable
    #[arg(long, value_name = "KEY=VALUE", num_args = 1.., value_parser = metadata)]
    metadata: Vec<(String, String)>,
    /// Connect to the xDS port at ADDR, or to one of the ports of a comma-separated list
    ///
    /// ADDR is HOST:PORT or https://HOST:PORT. With --ca-cert or --cert, the client uses TLS in any case. Envoy connects
    /// to any replica of the list. A gRPC client prefers the first one.
    #[arg(
        long,
        value_name = "ADDR[,ADDR]",
        default_value = "127.0.0.1:18000",
        value_delimiter = ',',
        value_parser = address
    )]
    xds: Vec<Address>,
    /// Trust servers whose certificate a CA in FILE (PEM) signed
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Certificate of the client (PEM); requires --cert-key
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key of the client (PEM)
    #[arg(long, value_name = "FILE")]
    cert_key: Option<PathBuf>,
    /// File with the token of the client, without `Bearer`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Write the bootstrap to FILE, or to standard output (-)
    #[arg(long, value_name = "FILE", default_value = STANDARD_OUTPUT)]
    out: PathBuf,
    /// Replace existing files
    #[arg(long)]
    force: bool,
}

/// The address of an xDS port.
#[derive(Debug, Clone)]
struct Address {
    server: Server,
    is_https: bool,
}

fn address(text: &str) -> Result<Address, String> {
    let (is_https, bare) = match text.trim().strip_prefix("https://") {
        Some(bare) => (true, bare),
        None => (false, text.trim()),
    };
    let rule = || "expected HOST:PORT or https://HOST:PORT, such as 127.0.0.1:18000".to_owned();
    let endpoint = (!bare.contains(['@', '/'])).then(|| address::endpoint(bare)).flatten();
    let endpoint = endpoint.ok_or_else(rule)?;
    let port = endpoint.uri().port_u16().ok_or_else(rule)?;
    let host = address::host(endpoint.uri()).to_owned();
    check_server_name(&host).map_err(|error| error.to_string())?;
    Ok(Address { server: Server { host, port }, is_https })
}

fn metadata(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as team=shop".to_owned()),
    }
}

impl Bootstrap {
    /// Runs the command.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        match self {
            Self::Envoy(Envoy { flags, server_name }) => {
                let client = flags.client(server_name)?;
                if client.tls.as_ref().is_some_and(|tls| tls.ca.is_none()) {
                    return Err(usage(
                        "Envoy verifies no server without CAs; set --ca-cert, for example to the CAs of the system",
                    ));
                }
                let out = flags.out_path()?;
                let place = |part: Part| beside(&out, part.suffix());
                let text = |part| place(part).display().to_string();
                let files = envoy_files(&client, text);
                if flags.is_for_standard_output() && files.len() > 1 {
                    return Err(usage(
                        "Envoy reads certificates and tokens by files beside its bootstrap; name the bootstrap with --out",
                    ));
                }
                let files = files.into_iter().map(|(part, content)| (place(part), content));
                flags.write(files.collect(), answer)
            }
            Self::Grpc(flags) => {
                let client = flags.client(None)?;
                if client.token_file.is_some() && client.tls.is_none() {
                    return Err(usage(
                        "gRPC clients send no token without TLS; set --ca-cert, or write https:// before the address of --xds",
                    ));
                }
                // C-core sends the whole content of the file, and a header with a line break is invalid.
                if let Some(token) = &client.token_file
                    && fs::read(token).is_ok_and(|token| token.trim_ascii() != token)
                {
                    return Err(Failure::new(format_args!(
                        "the token file {} begins or ends with white space, which gRPC clients send; remove it",
                        token.display()
                    )));
                }
                let content = format!("{:#}\n", grpc::bootstrap(&client));
                flags.write(vec![(flags.out_path()?, content)], answer)
            }
        }
    }
}

impl Flags {
    /// Returns the client. Checks its files, as far as they exist on this machine.
    fn client(&self, server_name: Option<String>) -> Result<Client, Failure> {
        let cert_and_key = match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => Some((absolute(cert)?, absolute(key)?)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(usage("--cert needs --cert-key, the file with its private key"));
            }
            (None, Some(_)) => {
                return Err(usage("--cert-key needs --cert, the file with its certificate"));
            }
        };
        let ca = self.ca_cert.as_deref().map(absolute).transpose()?;
        let is_https = self.is_https()?;
        let servers = self.servers()?;
        if let Some(name) = &server_name {
            check_server_name(name)
                .map_err(|error| usage(format_args!("--server-name: {error}")))?;
        }
        let has_tls = is_https || ca.is_some() || cert_and_key.is_some();
        if server_name.is_some() && !has_tls {
            return Err(usage("--server-name has no effect without TLS; set --ca-cert"));
        }
        let tls = has_tls.then_some(Tls { server_name, ca, cert_and_key });
        let token_file = self.token_file.as_deref().map(absolute).transpose()?;
        let far = servers.iter().find(|server| !is_loopback(&server.host));
        if let Some(Server { host, .. }) = far.filter(|_| token_file.is_some() && tls.is_none()) {
            return Err(usage(format_args!(
                "the client would send its token to {host} without encryption; set --ca-cert, or write https:// before the \
                 address of --xds"
            )));
        }
        let mut keys: Vec<&str> = self.metadata.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(usage(format_args!("--metadata has the key {:?} twice", twice[0])));
        }
        check_files(tls.as_ref(), token_file.as_deref())?;
        Ok(Client {
            node: self.node.clone(),
            cluster: self.cluster.clone().unwrap_or_else(|| self.node.clone()),
            metadata: self.metadata.clone(),
            servers,
            tls,
            token_file,
        })
    }

    /// Returns whether the addresses ask for TLS.
    fn is_https(&self) -> Result<bool, Failure> {
        let n_https = self.xds.iter().filter(|address| address.is_https).count();
        if n_https > 0 && n_https < self.xds.len() {
            let rule =
                "--xds has addresses with and without https://; write https:// before all of them";
            return Err(usage(rule));
        }
        Ok(n_https > 0)
    }

    /// Returns the servers, each of which occurs once.
    fn servers(&self) -> Result<Vec<Server>, Failure> {
        let mut servers: Vec<Server> = Vec::new();
        for Address { server, .. } in &self.xds {
            if servers.contains(server) {
                let Server { host, port } = server;
                return Err(usage(format_args!("--xds has {host}:{port} twice")));
            }
            servers.push(server.clone());
        }
        Ok(servers)
    }

    fn is_for_standard_output(&self) -> bool {
        self.out.as_os_str() == STANDARD_OUTPUT
    }

    /// Returns the absolute path of the bootstrap, which other files name.
    fn out_path(&self) -> Result<PathBuf, Failure> {
        absolute(&self.out)
    }

    /// Writes the files, the bootstrap last. Writes none if one of them exists.
    fn write(&self, files: Vec<(PathBuf, String)>, answer: &mut Answer<'_>) -> Result<(), Failure> {
        if self.is_for_standard_output() {
            return Ok(files
                .iter()
                .try_for_each(|(_, content)| answer.out.write_all(content.as_bytes()))?);
        }
        let existing = files.iter().find(|(path, _)| path.symlink_metadata().is_ok());
        if let Some((path, _)) = existing.filter(|_| !self.force) {
            return Err(Failure::new(format_args!(
                "{} exists, and is not overwritten; choose another name, or use --force",
                path.display()
            )));
        }
        for (path, content) in files.iter().rev() {
            replace(path, content).map_err(|error| {
                Failure::new(format_args!("cannot write {}: {error}", path.display()))
            })?;
        }
        let names: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        match answer.output {
            Output::Text | Output::Wide => answer.text(|out| {
                names.iter().try_for_each(|name| writeln!(out, "wrote {}", plain(name)))
            }),
            Output::Yaml => answer.yaml(&json!({"files": names})),
            Output::Json | Output::Sarif => answer.json(&json!({"files": names})),
        }
    }
}

/// Writes a file atomically. Everybody may read it: it contains names of files only.
fn replace(path: &Path, content: &str) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".chancery-bootstrap-")
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(path.parent().unwrap_or(Path::new("/")))?;
    file.write_all(content.as_bytes())?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Returns the path of a file beside `path`: `envoy-ca.yaml` beside `envoy.yaml`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let text =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = match text(path.extension()) {
        extension if extension.is_empty() => extension,
        extension => format!(".{extension}"),
    };
    path.with_file_name(format!("{}{suffix}{extension}", text(path.file_stem())))
}

/// Returns an absolute path that can be written into a configuration.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let absolute = path::absolute(path)
        .map_err(|error| usage(format_args!("cannot find {}: {error}", path.display())))?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(usage(format_args!("the path {} is not UTF-8 text", path.display()))),
    }
}

/// Fails if a file is unusable. Only warns about files that do not exist here: the client may run elsewhere.
fn check_files(tls: Option<&Tls>, token: Option<&Path>) -> Result<(), Failure> {
    let exists = |path: &Path| {
        let exists = path.exists();
        if !exists {
            let path = plain(&path.display().to_string());
            drop(writeln!(
                io::stderr().lock(),
                "warning: {path} does not exist on this machine; the client needs it under this path"
            ));
        }
        exists
    };
    let existing =
        |path: Option<&PathBuf>| path.filter(|path| exists(path)).cloned().unwrap_or_default();
    if let Some(Tls { ca, cert_and_key, .. }) = tls {
        let own = cert_and_key.as_ref();
        let files = TlsConfig {
            clients: ClientCertificates::default(),
            port: TlsPort::Xds,
            cert: existing(own.map(|(cert, _)| cert)),
            key: existing(own.map(|(_, key)| key)),
            ca: existing(ca.as_ref()),
            crl: PathBuf::new(),
            min_version: MinVersion::Tls12,
        };
        let problems = files.check();
        if !problems.is_empty() {
            return Err(Failure::lines(problems));
        }
    }
    match token.filter(|path| exists(path)) {
        Some(path) => TokenSource::File(path.to_owned()).header().map(drop).map_err(Failure::new),
        None => Ok(()),
    }
}

fn usage(text: impl std::fmt::Display) -> Failure {
    Failure::with_exit(Exit::Usage, text)
}
