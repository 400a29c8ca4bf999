//! The program: its arguments, and the choice of the command.

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use chancery_model::{Printable, is_unprintable};
use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};

use super::{
    answer::{Answer, Output},
    exit::{self, Exit},
    failure::Failure,
    help::{examples, no_output, no_server, output_with_sarif},
    local, remote,
};

/// Run and operate Chancery, an xDS control plane
///
/// `chancery serve` runs a replica. The other commands connect to the admin port of a replica,
/// unless they work on files.
///
/// TYPE is a full type URL or an alias: cluster or cds, endpoint or eds, listener or lds, route or
/// rds, filter-chain or fcds, scoped-route or srds, virtual-host or vhds, secret or sds, runtime or
/// rtds, extension or ecds.
///
/// Results go to standard output, errors and warnings to standard error.
#[derive(Debug, Parser)]
#[command(name = "chancery", version, max_term_width = 100, after_help = exit::table())]
pub(crate) struct Cli {
    #[command(flatten)]
    connection: remote::ConnectionFlags,

    /// Print text for people, JSON, or YAML
    ///
    /// All commands except `serve`, `mirror`, `completions` and `config schema` support this flag. `backup`,
    /// `restore` and `config` print JSON instead of YAML.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,

    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a replica in the foreground
    ///
    /// When the replica is ready, it prints one line with its addresses. The log goes to standard
    /// error. On SIGTERM or SIGINT, the replica drains its streams and exits. A second signal ends it
    /// immediately. SIGHUP only writes a log line: the replica detects changed certificates, keys and
    /// audit policies, and other settings need a restart.
    ///
    /// `chancery config print` shows all configuration keys. Set a key in the file, or in the
    /// environment variable `CHANCERY_<SECTION>_<KEY>`. Flags override variables, and variables
    /// override the file.
    #[command(args = no_server(), arg = no_output(), after_help = examples(&[
        "serve --data-dir /var/lib/chancery",
        "serve --config chancery.toml --replica-id 2",
    ]))]
    Serve(local::Serve),
    #[command(flatten)]
    Remote(remote::Command),
    /// Check files, connection, certificates, clocks and cluster, and say what to do
    ///
    /// The result of each check is ok, warning, failed, or unknown if the check could not run. The exit code is 0 if
    /// no check failed, and 1 otherwise. Unlike most commands, this command contacts each server in the list of
    /// --server. The first server that answers reports on the cluster. With --config, the command also checks the
    /// configuration file, and the limits of the local replica that uses it.
    #[command(after_help = examples(&[
        "doctor",
        "doctor --context prod -o json",
        "doctor --config /etc/chancery/chancery.toml",
    ]))]
    Doctor(remote::Doctor),
    /// Collect diagnostic data of each server and of this machine in one archive
    ///
    /// For each server in the list of --server, the archive contains the version, health, metrics, cluster status,
    /// node counts, newest revisions and log filter. It also contains the result of `doctor`. `manifest.json` says
    /// which parts are missing, and why. The archive contains no tokens, keys, resource contents or node names. It
    /// contains the names of hosts, scopes and authors, so read it before you give it to others.
    #[command(after_help = examples(&[
        "debug-bundle problem.tar.gz",
        "debug-bundle problem.tar.gz --config /etc/chancery/chancery.toml --server 10.0.0.1:18001,10.0.0.2:18001",
    ]))]
    DebugBundle(remote::DebugBundle),
    /// List and change contexts: named sets of connection settings
    ///
    /// The file is $CHANCERY_CONTEXTS, otherwise $XDG_CONFIG_HOME/chancery/contexts.toml, otherwise
    /// ~/.config/chancery/contexts.toml.
    #[command(subcommand, args = no_server())]
    Context(local::ContextCommand),
    /// Write the bootstrap of an xDS client
    #[command(subcommand, args = no_server())]
    Bootstrap(local::Bootstrap),
    /// Create the data directory of the first replica of a new cluster from a backup
    #[command(args = no_server(), after_help = examples(&["restore chancery.bak --data-dir /var/lib/chancery"]))]
    Restore(local::Restore),
    /// Find resources that clients would reject, without a server
    ///
    /// Reads the same files as `apply`, and checks them as a server does, for the clients of --profile. Text
    /// output shows the first 20 findings with file, line, column, rule and fix; the other formats show all.
    #[command(
        args = no_server(),
        arg = output_with_sarif(),
        after_help = format!("{}\n\n{}", examples(&[
            "lint -f web.yaml",
            "lint -f mesh --profile envoy,grpc-go@1.70 --fail-on warning",
            "lint -f mesh -o sarif > findings.sarif",
        ]), exit::table_of_lint())
    )]
    Lint(local::Lint),
    /// Check or show the files of an audit log, without a server
    #[command(subcommand, args = no_server())]
    Audit(local::Audit),
    /// Check or print the configuration of `serve`
    #[command(subcommand, args = no_server())]
    Config(local::Config),
    /// Create files for tests and demonstrations
    #[command(subcommand, args = no_server())]
    Dev(local::Dev),
    /// Print a completion script for a shell
    #[command(args = no_server(), arg = no_output(), after_help = examples(&[
        "completions bash > /etc/bash_completion.d/chancery",
    ]))]
    Completions(local::Completions),
    /// Write the manual pages of all commands and of the configuration file
    ///
    /// Creates DIR if it does not exist, and replaces pages of the same name. `man ./DIR/chancery.1` shows a page.
    #[command(args = no_server(), after_help = examples(&["man ./pages"]))]
    Man(local::Man),
}

/// Runs the command of the process's arguments.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints a message of clap and returns the exit code. Help and version go to standard output and
/// are not failures.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if text.lines().any(|line| line.contains(is_unprintable)) {
        // The message quotes arguments, which may contain unprintable characters.

        let mut stderr = io::stderr().lock();
        text.lines().for_each(|line| drop(writeln!(stderr, "{}", Printable(line))));
    } else {
        drop(error.print())
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(Exit::Usage.code()),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    // Not locked: the audit log of `serve` may write to the standard output, too.
    let mut out = BufWriter::new(io::stdout());
    let mut answer = Answer::new(&mut out, cli.output);
    let result = run_command(cli.command, &cli.connection, &mut answer);
    if let Err(failure) = &result {
        // The output may be what has failed.
        drop(answer.show_failure(failure).and_then(|()| Ok(out.flush()?)));
        return result;
    }
    out.flush()?;
    result
}

fn run_command(
    command: Command,
    connection: &remote::ConnectionFlags,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    match command {
        Command::Serve(serve) => serve.run(answer),
        Command::Remote(command) => command.run(&connection.resolve()?, answer),
        Command::Doctor(doctor) => remote::doctor(&doctor, connection, answer),
        Command::DebugBundle(bundle) => remote::debug_bundle(&bundle, connection, answer),
        Command::Context(command) => command.run(connection, answer),
        Command::Bootstrap(bootstrap) => bootstrap.run(answer),
        Command::Restore(restore) => restore.run(answer),
        Command::Lint(lint) => lint.run(answer),
        Command::Audit(audit) => audit.run(answer),
        Command::Config(config) => config.run(answer),
        Command::Dev(dev) => dev.run(answer),
        Command::Man(man) => man.run(Cli::command()),
        Command::Completions(shell) => shell.run(Cli::command(), answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("chancery").chain(line.split_whitespace()))
    }

    #[test]
    fn command_definition_is_consistent() {
        Cli::command().debug_assert();
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
    fn listen_address_with_host_name_is_rejected() {
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
    fn global_flags_are_accepted_at_any_position() {
        let server = |cli: &Cli| cli.connection.resolve().unwrap().server;
        let cli = parse("get cds --server h:1 -o json").unwrap();
        assert_eq!((server(&cli).as_str(), cli.output), ("h:1", Output::Json));
        let cli = parse("--server h:1 -o yaml get cds web").unwrap();
        assert_eq!((server(&cli).as_str(), cli.output), ("h:1", Output::Yaml));
    }

    /// `chancery --help` and the manual list the first lines side by side.
    #[test]
    fn first_line_of_every_help_is_short_and_has_no_full_stop() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!((1..=80).contains(&about.chars().count()), "{name}: {about}");
            assert!(!about.ends_with('.'), "{name}: {about}");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(
                    !help.is_empty() && !help.ends_with('.'),
                    "{name} {}: {help}",
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn local_command_accepts_global_flags_and_does_not_show_those_without_effect() {
        let mut command = Cli::command();
        command.build();
        let help = |names: &[&str]| {
            let mut found = &mut command.clone();
            for name in names {
                found = found.find_subcommand_mut(name).unwrap();
            }
            found.render_long_help().to_string()
        };
        for (names, server, output) in [
            (["serve"].as_slice(), false, false),
            (&["completions"], false, false),
            (&["config", "check"], false, true),
            (&["restore"], false, true),
            (&["get"], true, true),
        ] {
            let help = help(names);
            assert_eq!(help.contains("--server"), server, "{help}");
            assert_eq!(help.contains("--output"), output, "{help}");
        }
        for line in [
            "serve --server h:1 -o json",
            "--server h:1 -o json serve",
            "config check --server h:1",
        ] {
            parse(line).unwrap();
        }
    }
}
