//! The flags that set the configuration of a replica.

use std::{ffi::OsStr, net::SocketAddr, path::PathBuf};

use chancery_config::{self as config, FlagValue, Flags, LISTEN_RULE, Loaded, NamedFiles, Refused};
use clap::Args;

use crate::failure::Failure;

/// Parses an address to listen on.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("it {LISTEN_RULE}"))
}

/// Parses the replication address to listen on. Other replicas may connect by a host name, which is
/// set separately.
fn raft_address(text: &str) -> Result<SocketAddr, String> {
    listen_address(text).map_err(|error| format!("{error}; put a host name into --advertise"))
}

/// The flags that set the configuration of a replica.
#[derive(Debug, Args, Default)]
pub(crate) struct ConfigFlags {
    /// Read this configuration file (TOML); every key has a default
    #[arg(long, value_name = "FILE", env = "CHANCERY_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Store the replica's data in this directory [default: ./chancery-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Listen on this address for xDS clients [default: 127.0.0.1:18000]
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    xds: Option<SocketAddr>,
    /// Listen on this address for commands, the HTTP API and metrics [default: 127.0.0.1:18001]
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    admin: Option<SocketAddr>,
    /// Listen on this address for other replicas [default: 127.0.0.1:18002]
    ///
    /// If the default address is in use, a cluster of one replica starts without this port.
    #[arg(long, value_name = "ADDR", value_parser = raft_address)]
    raft: Option<SocketAddr>,
    /// Use this replica ID, at least 1 and unique in the cluster [default: 1]
    #[arg(long, value_name = "N")]
    replica_id: Option<u64>,
    /// Tell other replicas to connect to this address [default: this replica's entry in --peers,
    /// otherwise --raft]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Join the cluster of these replicas, if the data directory is empty
    ///
    /// The addresses are those of replication ports (--raft), separated by commas. One reachable address
    /// is enough.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// Form a cluster of all these replicas, including this one, if the data directory is empty
    ///
    /// The entries are separated by commas. The replica with the lowest ID forms the cluster once all
    /// other replicas have reported that they belong to no cluster. The others join it. Not allowed with
    /// --join.
    #[arg(long, value_name = "ID=HOST:PORT", value_delimiter = ',', conflicts_with = "join")]
    peers: Vec<String>,
    /// Join as a learner, which serves streams and has no vote
    ///
    /// A learner becomes a voter only with `chancery cluster promote`. The flag needs `--join` or
    /// `--peers`. With `--peers`, the replica with the lowest ID cannot be a learner.
    #[arg(long)]
    learner: bool,
    /// Allow unencrypted ports on addresses other than loopback
    #[arg(long)]
    allow_plaintext: bool,
}

impl ConfigFlags {
    /// Loads the configuration from these flags, the environment and the file.
    pub(super) fn load(self, files: NamedFiles) -> Result<Loaded, Failure> {
        self.try_load(files)?
            .map_err(|refused| Failure::lines(refused.lines()).with_warnings(refused.warnings))
    }

    /// Loads the configuration. The inner result has the problems of the configuration.
    pub(super) fn try_load(self, files: NamedFiles) -> Result<Result<Loaded, Refused>, Failure> {
        // Values that are not UTF-8 are rejected. Otherwise they would silently be ignored or changed.
        let not_text = |name: &str, value: &OsStr| {
            Failure::new(format_args!("{name} is {value:?}, which is not UTF-8 text"))
        };
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => environment.push((name, value)),
                // These values are read elsewhere: clap reads a path, and a token must not be shown.
                Err(_) if matches!(name.as_str(), "CHANCERY_CONFIG" | "CHANCERY_TOKEN") => {}
                Err(value) if name.starts_with("CHANCERY_") => return Err(not_text(&name, &value)),
                Err(_) => {}
            }
        }
        let data_dir = match self.data_dir.clone().map(PathBuf::into_os_string) {
            None => None,
            Some(path) => Some(path.into_string().map_err(|path| not_text("--data-dir", &path))?),
        };
        Ok(config::load(&self.values(data_dir), environment, files))
    }

    /// Returns the values of the flags. `data_dir` is the directory as text.
    fn values(self, data_dir: Option<String>) -> Flags {
        let mut values = Vec::new();
        let mut set = |section, key, value: Option<toml::Value>, flag| {
            values.extend(value.map(|value| FlagValue { section, key, value, flag }));
        };
        let text = |value: Option<String>| value.map(toml::Value::String);
        let address = |address: Option<SocketAddr>| text(address.map(|a| a.to_string()));
        set("store", "data_dir", text(data_dir), "--data-dir");
        set("xds", "address", address(self.xds), "--xds");
        set("admin", "address", address(self.admin), "--admin");
        set("raft", "address", address(self.raft), "--raft");
        // A number that TOML cannot represent becomes a text, so that the error shows it.
        let number =
            |n: u64| i64::try_from(n).map_or_else(|_| n.to_string().into(), toml::Value::from);
        set("raft", "replica_id", self.replica_id.map(number), "--replica-id");
        set("raft", "advertise", text(self.advertise), "--advertise");
        let items = |items: Vec<String>| {
            (!items.is_empty()).then(|| config::list(items.iter().map(String::as_str)))
        };
        set("raft", "join", items(self.join), "--join");
        set("raft", "peers", items(self.peers), "--peers");
        set("raft", "learner", self.learner.then_some(toml::Value::Boolean(true)), "--learner");
        if self.allow_plaintext {
            for section in ["xds", "admin", "raft"] {
                let yes = Some(toml::Value::Boolean(true));
                set(section, "allow_plaintext", yes, "--allow-plaintext");
            }
        }
        Flags { file: self.config, values }
    }
}
