//! The command line as it is typed.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use chancery_store::{REPLICA_ID_MAX, RequestId};
use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{NonEmptyStringValueParser, RangedU64ValueParser},
};
use clap_complete::Shell;

use crate::config::{LISTEN_RULE, Span};

/// An xDS control plane: `chancery serve` runs it, the other commands talk to it.
///
/// TYPE is an alias (cluster cds, endpoint eds, listener lds, route rds, scoped-route srds,
/// virtual-host vhds, secret sds, runtime rtds, extension ecds) or a full type URL.
///
/// Exit codes: 0 success, 1 refused or failed with a message on the standard error, 2 wrong usage. Commands with
/// --wait also have 3 and 4: see their help.
#[derive(Debug, Parser)]
#[command(name = "chancery", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Admin address of a replica; several, with commas, are tried in turn. One of several that takes the
    /// connection but does not answer within 5 seconds is passed over.
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "CHANCERY_SERVER",
        default_value = "127.0.0.1:18001",
        hide_env_values = true
    )]
    pub(crate) server: String,

    /// Output: text for people, or JSON; some commands also have YAML.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is written to the standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
    Yaml,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a replica in the foreground.
    ///
    /// It prints one line with its addresses when it is ready; the log goes to the standard error.
    /// SIGTERM drains it, a second one ends it at once. `chancery config print` shows all that can be
    /// set, in the file or by the environment: `CHANCERY_<SECTION>_<KEY>`.
    Serve(Serve),
    /// Publish manifests in one atomic transaction.
    #[command(after_help = write_help(&["apply -f web.yaml --dry-run", "apply -f web.yaml --wait=10s"]))]
    Apply(Apply),
    /// Delete resources in one atomic transaction.
    #[command(after_help = write_help(&["delete cluster web cart --wait=10s"]))]
    Delete(Delete),
    /// Show resources; `-o yaml` gives a manifest.
    Get(Get),
    /// Show all about one resource: its scopes, who sees it, who rejected it.
    Describe(Describe),
    /// List the nodes that are connected to the replica that is asked.
    Nodes(Nodes),
    /// Show one node that is connected to the replica that is asked: what it asked for, got, acknowledged and rejected.
    Node(Node),
    /// Say why a node does or does not get a resource.
    Explain(Explain),
    /// Publish the static resources of an Envoy bootstrap.
    #[command(after_help = write_help(&["import envoy.yaml --scope edge"]))]
    Import(Import),
    /// Show or delete the rules that say which node sees which scopes.
    #[command(subcommand)]
    Assignments(Assignments),
    /// Show the newest revisions.
    History(History),
    /// Show and change the cluster of replicas.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Save the state of the cluster in a file.
    Backup(Backup),
    /// Make a data directory from a backup: the first replica of a new cluster.
    Restore(Restore),
    /// Check or print the configuration of `serve`.
    #[command(subcommand)]
    Config(Config),
    /// Show the version of this program, and of the server if it can be reached.
    Version,
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Where to listen.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("it {LISTEN_RULE}"))
}

/// Where to listen for other replicas, which may reach it by a name.
fn raft_address(text: &str) -> Result<SocketAddr, String> {
    listen_address(text).map_err(|error| format!("{error}; a name goes into --advertise"))
}

/// Where the configuration of a replica is.
#[derive(Debug, Args, Default)]
pub(crate) struct ConfigFlags {
    /// The configuration file (TOML). Every key has a default.
    #[arg(long, value_name = "FILE", env = "CHANCERY_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Directory of the replica's data [default: ./chancery-data].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Address for xDS clients [default: 127.0.0.1:18000].
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub(crate) xds: Option<SocketAddr>,
    /// Address for the command line, the HTTP API and metrics [default: 127.0.0.1:18001].
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub(crate) admin: Option<SocketAddr>,
    /// Address for other replicas [default: 127.0.0.1:18002, if it is free].
    #[arg(long, value_name = "ADDR", value_parser = raft_address)]
    pub(crate) raft: Option<SocketAddr>,
    /// Number of this replica in its cluster [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) replica_id: Option<u64>,
    /// Where other replicas reach this one, if it is not the address for them.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Replication addresses of replicas whose cluster an empty directory joins.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) join: Vec<String>,
    /// All replicas of a new cluster, this one too: another way to form one.
    #[arg(long, value_name = "ID=HOST:PORT", value_delimiter = ',', conflicts_with = "join")]
    pub(crate) peers: Vec<String>,
    /// Join as a learner that serves streams and does not become a voter by itself.
    #[arg(long)]
    pub(crate) learner: bool,
    /// Allow addresses other than loopback although the ports are not encrypted.
    #[arg(long)]
    pub(crate) allow_plaintext: bool,
}

/// `serve`
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) config: ConfigFlags,
}

/// The end of the help of a command that writes: examples, and the exit codes.
fn write_help(examples: &[&str]) -> String {
    let examples: String =
        examples.iter().map(|example| format!("  chancery {example}\n")).collect();
    format!(
        "Examples:\n{examples}\n\
         Exit codes:\n  \
         0  Written. With --wait: every session that the write concerns has acknowledged it.\n  \
         1  Refused or failed. With --wait also: written, but a session rejected it or did not answer in time.\n  \
         2  Wrong usage.\n  \
         3  With --wait: written, but nobody was asked: the write concerns no session of this replica.\n  \
         4  With --wait: written, but it is unknown whether all sessions have it: a session left before answering, \
         or the cluster has other replicas, whose sessions were not asked."
    )
}

/// What all writing commands have in common.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Write {
    /// Show what would change, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Compute the dry run from the state of this replica, without asking the leader
    #[arg(long, requires = "dry_run")]
    pub(crate) stale: bool,
    /// Wait until the sessions that the write concerns have acknowledged it, at most TIME [default: 30s]
    ///
    /// TIME is a number with a unit: 250ms, 10s, 5m or 1h. A write concerns a session that subscribes to a changed
    /// resource, by name or by a wildcard, if its node sees the resource or saw it before. A write that changes
    /// assignments also concerns the sessions whose scopes it changes, and a write that changes nothing concerns
    /// the sessions that subscribe to what it names. Only sessions of the replica that takes the write are asked.
    /// Sessions that have not acknowledged are listed. See the exit codes below.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30s",
        conflicts_with = "dry_run"
    )]
    pub(crate) wait: Option<Span>,
    /// Append this text to the version that clients see, for example a git SHA
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) label: Option<String>,
    /// Refuse the write if a scope that it touches has changed after this revision
    #[arg(long, value_name = "REVISION")]
    pub(crate) if_revision: Option<u64>,
    /// Record this author in the history [default: $USER, or none if that is unset]
    #[arg(long)]
    pub(crate) author: Option<String>,
    /// Record this reason in the history
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Name the write by 32 hexadecimal digits [default: random]
    ///
    /// To retry safely when the outcome of the first attempt is unknown: a write takes effect once under one name.
    #[arg(long, value_name = "HEX", conflicts_with = "dry_run")]
    pub(crate) request_id: Option<RequestId>,
}

impl Write {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(Span::duration)
    }
}

/// What all commands that read the state have in common.
#[derive(Debug, Args, Clone, Copy, Default)]
pub(crate) struct Read {
    /// Show what the replica has, without asking the leader: it may be older than what was written.
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `apply`
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// A manifest (YAML or JSON), a directory of them (*.yaml, *.yml, *.json, also in
    /// subdirectories; no hidden ones, no links to directories), or - for the standard input. May be
    /// given several times.
    #[arg(short, long = "file", value_name = "FILE|DIR|-", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Scope of documents that name none.
    #[arg(long, default_value = "default")]
    pub(crate) scope: String,
    /// The scopes named in the input hold exactly what the input has, afterwards.
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// `import`
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// An Envoy bootstrap (YAML or JSON), or - for the standard input.
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// Scope to publish in.
    #[arg(long, default_value = "default")]
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// `delete`
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Alias or type URL.
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: String,
    /// Names of resources.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Scope to delete from.
    #[arg(long, default_value = "default")]
    pub(crate) scope: String,
    /// Refuse if the resource is not in this version, as `get` shows it. Only with one NAME.
    #[arg(long, value_name = "VERSION", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) if_version: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// `get`
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Alias or type URL.
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: Option<String>,
    /// Name of a resource.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Only this scope.
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Only what this connected node sees.
    #[arg(long, value_name = "ID")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// `describe`
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// Alias or type URL.
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: String,
    /// Name of a resource.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Only this scope.
    #[arg(long)]
    pub(crate) scope: Option<String>,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// `nodes`
#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// Only ids that match; `*` stands for any run of characters.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) id: Option<String>,
    /// Only nodes in this state.
    #[arg(long, value_parser = ["synced", "pending", "nacked", "unassigned"])]
    pub(crate) state: Option<String>,
}

/// `node`
#[derive(Debug, Args)]
pub(crate) struct Node {
    /// The node's id.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `explain`
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The node's id.
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Alias or type URL.
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: Option<String>,
    /// Name of a resource.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// `assignments`
#[derive(Debug, Subcommand)]
pub(crate) enum Assignments {
    /// Show them in the order in which they are tried.
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

/// `history`
#[derive(Debug, Args)]
pub(crate) struct History {
    /// How many, the newest first.
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) read: Read,
}

/// A number that a replica can have.
fn replica_id() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=REPLICA_ID_MAX)
}

/// `cluster`
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Show the members, who leads, what is wrong, and the replica that answers.
    ///
    /// Exit code 0 says that a replica answered, whatever it said; `-o json` has `leader`, which is null if there
    /// is none.
    Status {
        /// End with exit code 1, after the answer, if the replica hears no leader.
        #[arg(long)]
        check: bool,
    },
    /// Make a replica a member: a learner, which becomes a voter once it has caught up.
    ///
    /// A replica that is started with `--join` or `--peers` does this by itself.
    Add {
        /// Its number.
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
        /// Where its replication port is.
        #[arg(value_name = "HOST:PORT")]
        address: String,
        /// It stays a learner: it serves streams, and does not become a voter by itself.
        #[arg(long)]
        learner: bool,
    },
    /// Make a learner a voter; waits until it has caught up.
    Promote {
        /// Its number.
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
    },
    /// Remove a replica. Refused if the rest could write no more.
    Remove {
        /// Its number.
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
    },
    /// Let another voter lead; without ID, the one that has the most.
    TransferLeader {
        /// Its number.
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: Option<u64>,
    },
    /// Let the replica that is asked take a snapshot, up to which its log can be purged.
    Snapshot,
}

/// `backup`
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file, or - for the standard output. A file has its name only when all of it is there and on
    /// the disk; of the standard output the exit code says whether all of it came.
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// Read the data directory of a stopped replica instead of asking a server: the way to save what a
    /// cluster has left that has lost its majority.
    #[arg(long, value_name = "DIR", conflicts_with = "stale")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Take what the replica has, without asking the cluster whether that is current.
    #[arg(long)]
    pub(crate) stale: bool,
    /// Take the place of a regular file that is there.
    #[arg(long)]
    pub(crate) force: bool,
}

/// `restore`
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The directory to make: empty, or not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Number of the replica that it is for.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) replica_id: u64,
    /// If this backup was restored before: the last revision of the cluster that came of that.
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    pub(crate) after_revision: u64,
    /// Who does it, for the history [default: $USER, nobody if that is not set].
    #[arg(long)]
    pub(crate) author: Option<String>,
    /// Why, for the history.
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

/// `config`
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Say whether `serve` would take the configuration.
    Check {
        #[command(flatten)]
        config: ConfigFlags,
    },
    /// Print the configuration that `serve` would run with, each key with what it means.
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
    fn wrong_usage_is_told_apart() {
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
                "it has to be IP:PORT, such as 127.0.0.1:18000 or [::1]:18000; a name",
            ),
            ("serve --raft 127.0.0.1", "a name goes into --advertise"),
            ("serve --xds localhost:1", "it has to be IP:PORT, such as"),
            ("serve --admin 127.0.0.1:99999", "it has to be IP:PORT, such as"),
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
