//! The definition of the command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use chancery_store::{REPLICA_ID_MAX, RequestId};
use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{NonEmptyStringValueParser, RangedU64ValueParser},
};
use clap_complete::Shell;

use crate::config::{LISTEN_RULE, Span};

/// Run and operate Chancery, an xDS control plane
///
/// `chancery serve` runs a replica. The other commands connect to the admin port of a replica,
/// unless they work on files.
///
/// TYPE is a full type URL or an alias: cluster or cds, endpoint or eds, listener or lds, route or
/// rds, scoped-route or srds, virtual-host or vhds, secret or sds, runtime or rtds, extension or
/// ecds.
///
/// Exit codes: 0 for success, 1 if the command was rejected or failed, 2 for wrong usage. Messages
/// go to standard error. Commands with --wait also use 3 and 4; see their help.
#[derive(Debug, Parser)]
#[command(name = "chancery", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Connect to the admin port at ADDR; a list, separated by commas, is tried in order. In a
    /// list, a server that accepts the connection but does not answer within 5s is skipped
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "CHANCERY_SERVER",
        default_value = "127.0.0.1:18001",
        hide_env_values = true
    )]
    pub(crate) server: String,

    /// Print text for people, JSON, or YAML; commands without YAML print JSON instead
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The format of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
    Yaml,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a replica in the foreground
    ///
    /// When the replica is ready, it prints one line with its addresses. The log goes to standard
    /// error. SIGTERM or SIGINT drains the replica; a second signal ends it at once.
    ///
    /// `chancery config print` shows all configuration keys. Each key can be set in the file or by
    /// the environment variable `CHANCERY_<SECTION>_<KEY>`.
    Serve(Serve),
    /// Publish manifests in one atomic transaction
    #[command(after_help = write_help(&["apply -f web.yaml --dry-run", "apply -f web.yaml --wait=10s"]))]
    Apply(Apply),
    /// Delete resources in one atomic transaction
    #[command(after_help = write_help(&["delete cluster web cart --wait=10s"]))]
    Delete(Delete),
    /// Show resources; `-o yaml` prints a manifest
    Get(Get),
    /// Describe one resource: its scopes, the nodes that see it, and rejections
    Describe(Describe),
    /// List the nodes that are connected to the contacted replica
    Nodes(Nodes),
    /// Show one connected node: its subscriptions, versions and rejections
    ///
    /// The contacted replica knows only the nodes that are connected to it.
    Node(Node),
    /// Explain why a node does or does not receive a resource
    Explain(Explain),
    /// Publish the static resources of an Envoy bootstrap
    #[command(after_help = write_help(&["import envoy.yaml --scope edge"]))]
    Import(Import),
    /// List or delete the rules that assign scopes to nodes
    #[command(subcommand)]
    Assignments(Assignments),
    /// Show the newest revisions
    History(History),
    /// Show and change the members of the cluster
    #[command(subcommand)]
    Cluster(Cluster),
    /// Save the state of the cluster to a file
    #[command(after_help = examples(&["backup chancery.bak", "backup - | gzip > chancery.bak.gz"]))]
    Backup(Backup),
    /// Create the data directory of the first replica of a new cluster from a backup
    #[command(after_help = examples(&["restore chancery.bak --data-dir /var/lib/chancery"]))]
    Restore(Restore),
    /// Check or print the configuration of `serve`
    #[command(subcommand)]
    Config(Config),
    /// Show the version of this program, and of the server if it is reachable
    Version,
    /// Print a completion script for a shell
    Completions {
        /// Shell to generate the script for
        shell: Shell,
    },
}

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
    pub(crate) config: Option<PathBuf>,
    /// Store the replica's data in this directory [default: ./chancery-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Listen on this address for xDS clients [default: 127.0.0.1:18000]
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub(crate) xds: Option<SocketAddr>,
    /// Listen on this address for commands, the HTTP API and metrics [default: 127.0.0.1:18001]
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub(crate) admin: Option<SocketAddr>,
    /// Listen on this address for other replicas [default: 127.0.0.1:18002, if it is free]
    #[arg(long, value_name = "ADDR", value_parser = raft_address)]
    pub(crate) raft: Option<SocketAddr>,
    /// Use this replica ID, from 1 and unique in the cluster [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) replica_id: Option<u64>,
    /// Tell other replicas to connect to this address [default: the entry in --peers, or else
    /// --raft]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Join the cluster of the replicas at these replication addresses, if the data directory is
    /// empty
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) join: Vec<String>,
    /// Form a new cluster of all these replicas, including this one, if the data directory is empty
    #[arg(long, value_name = "ID=HOST:PORT", value_delimiter = ',', conflicts_with = "join")]
    pub(crate) peers: Vec<String>,
    /// Join as a learner, which serves streams and does not become a voter by itself
    #[arg(long)]
    pub(crate) learner: bool,
    /// Allow unencrypted ports on addresses other than loopback
    #[arg(long)]
    pub(crate) allow_plaintext: bool,
}

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) config: ConfigFlags,
}

/// Returns the examples at the end of a command's help.
fn examples(examples: &[&str]) -> String {
    let examples: Vec<String> =
        examples.iter().map(|example| format!("  chancery {example}")).collect();
    format!("Examples:\n{}", examples.join("\n"))
}

/// Returns the end of the help of a command that writes resources: examples and exit codes.
fn write_help(lines: &[&str]) -> String {
    let examples = examples(lines);
    format!(
        "{examples}\n\n\
         Exit codes:\n  \
         0  Written. With --wait: every session that the write concerns has acknowledged it.\n  \
         1  Rejected or failed. With --wait also: written, but a session rejected it or did not answer in time.\n  \
         2  Wrong usage.\n  \
         3  With --wait: written, but not confirmed: the write concerns no session of this replica.\n  \
         4  With --wait: written, but it is unknown whether all sessions have it: a session ended before it answered, \
         or the cluster has other replicas, whose sessions were not asked."
    )
}

/// The flags of all commands that write resources.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Write {
    /// Show what would change, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Compute the dry run from this replica's own state, without asking the leader
    #[arg(long, requires = "dry_run")]
    pub(crate) stale: bool,
    /// Wait until the sessions that the write concerns acknowledge it, at most TIME [--wait alone:
    /// 30s]
    ///
    /// TIME is a number with a unit: 250ms, 10s, 5m or 1h. A write concerns a session that
    /// subscribes to a changed resource, by name or by a wildcard. The node of the session must see
    /// the resource, or must have seen it before. A write that changes assignments also concerns
    /// the sessions whose scopes it changes. A write that changes nothing concerns the sessions
    /// that subscribe to the resources it names. The command asks only sessions of the replica that
    /// takes the write, and lists those that have not acknowledged. See the exit codes below.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30s",
        conflicts_with = "dry_run"
    )]
    pub(crate) wait: Option<Span>,
    /// Append this text to the version that clients see, for example a Git SHA
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) label: Option<String>,
    /// Reject the write if a scope that it touches has changed after this revision
    #[arg(long, value_name = "REVISION")]
    pub(crate) if_revision: Option<u64>,
    /// Record this author in the history [default: $USER, or none if that is unset]
    #[arg(long)]
    pub(crate) author: Option<String>,
    /// Record this reason in the history
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Identify the write by 32 hexadecimal digits [default: random]
    ///
    /// Use the same ID to retry safely when the outcome of the first attempt is unknown: a write
    /// takes effect once under one ID.
    #[arg(long, value_name = "HEX", conflicts_with = "dry_run")]
    pub(crate) request_id: Option<RequestId>,
}

impl Write {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(Span::duration)
    }
}

/// The flags of all commands that read the state.
#[derive(Debug, Args, Clone, Copy, Default)]
pub(crate) struct Read {
    /// Show the replica's own state, which may be outdated, without asking the leader
    #[arg(long)]
    pub(crate) stale: bool,
}

/// The arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Read manifests (YAML or JSON) from a file, a directory, or standard input (-); repeatable
    ///
    /// A directory is searched with its subdirectories for *.yaml, *.yml and *.json. Hidden names
    /// and links to directories are skipped.
    #[arg(short, long = "file", value_name = "FILE|DIR|-", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Use this scope for documents that do not name one
    #[arg(long, default_value = "default")]
    pub(crate) scope: String,
    /// Delete all other resources of the scopes that the input names
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// The arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Envoy bootstrap (YAML or JSON), or - for standard input
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// Publish in this scope
    #[arg(long, default_value = "default")]
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// The arguments of `delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: String,
    /// Names of the resources
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Delete from this scope
    #[arg(long, default_value = "default")]
    pub(crate) scope: String,
    /// Reject the deletion unless the resource has this version, as `get` shows it; only with one
    /// NAME
    #[arg(long, value_name = "VERSION", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) if_version: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// The arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: Option<String>,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Show only this scope
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Show only what this connected node sees
    #[arg(long, value_name = "ID")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// The arguments of `describe`.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: String,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Show only this scope
    #[arg(long)]
    pub(crate) scope: Option<String>,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// The arguments of `nodes`.
#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// Show only nodes whose ID matches; `*` matches any sequence of characters
    #[arg(long, value_name = "PATTERN")]
    pub(crate) id: Option<String>,
    /// Show only nodes in this state
    #[arg(long, value_parser = ["synced", "pending", "nacked", "unassigned"])]
    pub(crate) state: Option<String>,
}

/// The arguments of `node`.
#[derive(Debug, Args)]
pub(crate) struct Node {
    /// ID of the node
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// The arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// ID of the node
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: Option<String>,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// The subcommands of `assignments`.
#[derive(Debug, Subcommand)]
pub(crate) enum Assignments {
    /// List the assignments in the order in which they are tried
    List {
        #[command(flatten)]
        read: Read,
    },
    /// Delete an assignment
    #[command(after_help = write_help(&["assignments delete edge"]))]
    Delete {
        /// Name of the assignment
        name: String,
        #[command(flatten)]
        write: Write,
    },
}

/// The arguments of `history`.
#[derive(Debug, Args)]
pub(crate) struct History {
    /// Show at most N revisions, the newest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// Returns the parser of a replica ID.
fn replica_id() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=REPLICA_ID_MAX)
}

/// The subcommands of `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Show the members, the leader, problems, and the replica that answers
    ///
    /// The exit code is 0 if a replica answers, even if it has no leader. In JSON, `leader` is null
    /// if there is no leader.
    Status {
        /// Exit with code 1, after the output, without a leader or if a replica has diverged
        #[arg(long)]
        check: bool,
    },
    /// Add a replica as a learner, which becomes a voter when it has caught up
    ///
    /// A replica that starts with `--join` or `--peers` adds itself.
    #[command(after_help = examples(&["cluster add 4 10.0.0.4:18002"]))]
    Add {
        /// ID of the replica
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
        /// Address of its replication port
        #[arg(value_name = "HOST:PORT")]
        address: String,
        /// Keep it a learner, which serves streams and does not become a voter by itself
        #[arg(long)]
        learner: bool,
    },
    /// Make a learner a voter, after waiting until it has caught up
    #[command(after_help = examples(&["cluster promote 4"]))]
    Promote {
        /// ID of the replica
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
    },
    /// Remove a replica, unless the remaining members could no longer write
    #[command(after_help = examples(&["cluster remove 4"]))]
    Remove {
        /// ID of the replica
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
    },
    /// Transfer leadership to another voter
    #[command(after_help = examples(&["cluster transfer-leader", "cluster transfer-leader 2"]))]
    TransferLeader {
        /// ID of the next leader [default: the most up-to-date voter]
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: Option<u64>,
    },
    /// Take a snapshot on the contacted replica, so that its log can be purged
    Snapshot,
}

/// The arguments of `backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Write the backup to this file, or to standard output (-)
    ///
    /// The file is written atomically and synced. For standard output, only exit code 0 means that
    /// the backup is complete.
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// Read the data directory of a stopped replica instead of contacting a server
    ///
    /// Use this to save the remaining state of a cluster that has lost its majority.
    #[arg(long, value_name = "DIR", conflicts_with = "stale")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Accept the data directory of a replica that diverged from its cluster
    ///
    /// Its state may be wrong. Use this only if no other replica is left.
    #[arg(long, requires = "data_dir")]
    pub(crate) allow_diverged: bool,
    /// Save the replica's own state, without checking with the cluster that it is current
    #[arg(long)]
    pub(crate) stale: bool,
    /// Replace an existing regular file
    #[arg(long)]
    pub(crate) force: bool,
}

/// The arguments of `restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Backup to restore
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Create this directory; it must be empty or must not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Create the directory for the replica with this ID
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) replica_id: u64,
    /// Use revisions after this one
    ///
    /// If this backup was restored before, give the last revision of the cluster that was created
    /// then.
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    pub(crate) after_revision: u64,
    /// Record this author in the history [default: $USER, or none if that is unset]
    #[arg(long)]
    pub(crate) author: Option<String>,
    /// Record this reason in the history
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

/// The subcommands of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Check whether `serve` would accept the configuration
    Check {
        #[command(flatten)]
        config: ConfigFlags,
    },
    /// Print the configuration that `serve` would use, with an explanation of each key
    Print {
        #[command(flatten)]
        config: ConfigFlags,
    },
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("chancery").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wait_takes_a_time_or_none() {
        let wait = |line: &str| match parse(line).unwrap().command {
            Command::Apply(apply) => apply.write.wait(),
            other => panic!("{other:?}"),
        };
        assert_eq!(wait("apply -f x"), None);
        assert_eq!(wait("apply -f x --wait"), Some(Duration::from_secs(30)));
        assert_eq!(wait("apply --wait -f x"), Some(Duration::from_secs(30)));
        assert_eq!(wait("apply -f x --wait=250ms"), Some(Duration::from_millis(250)));
    }

    #[test]
    fn wrong_usage_is_rejected_with_its_kind_of_error() {
        for (line, kind) in [
            ("apply", ErrorKind::MissingRequiredArgument),
            ("delete cds", ErrorKind::MissingRequiredArgument),
            ("apply -f x --wait=soon", ErrorKind::ValueValidation),
            ("apply -f x --wait --dry-run", ErrorKind::ArgumentConflict),
            ("apply -f x --if-revision new", ErrorKind::ValueValidation),
            ("apply -f x --request-id 1", ErrorKind::ValueValidation),
            ("cluster grow 2", ErrorKind::InvalidSubcommand),
            ("cluster add 2", ErrorKind::MissingRequiredArgument),
            ("cluster add 0 a:1", ErrorKind::ValueValidation),
            ("cluster add 9223372036854775808 a:1", ErrorKind::ValueValidation),
            ("cluster remove", ErrorKind::MissingRequiredArgument),
            ("apply -f x --stale", ErrorKind::MissingRequiredArgument),
            ("serve --join a:1 --peers 1=a:1", ErrorKind::ArgumentConflict),
            ("get -o xml", ErrorKind::InvalidValue),
            ("serve --xds here", ErrorKind::ValueValidation),
            ("nodes --state bad", ErrorKind::InvalidValue),
            ("frobnicate", ErrorKind::InvalidSubcommand),
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{line}");
        }
    }

    #[test]
    fn an_address_to_listen_on_is_no_name() {
        for (line, rule) in [
            (
                "serve --raft localhost:1",
                "it must be IP:PORT, such as 127.0.0.1:18000 or [::1]:18000; put a host name",
            ),
            ("serve --raft 127.0.0.1", "put a host name into --advertise"),
            ("serve --xds localhost:1", "it must be IP:PORT, such as"),
            ("serve --admin 127.0.0.1:99999", "it must be IP:PORT, such as"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(rule), "{line}: {error}");
        }
    }

    #[test]
    fn global_flags_may_stand_anywhere() {
        let cli = parse("get cds --server h:1 -o json").unwrap();
        assert_eq!((cli.server.as_str(), cli.output), ("h:1", Output::Json));
        let cli = parse("--server h:1 -o yaml get cds web").unwrap();
        assert_eq!((cli.server.as_str(), cli.output), ("h:1", Output::Yaml));
    }
}
