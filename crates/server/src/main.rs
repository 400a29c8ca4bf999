//! The binary `chancery`. `serve` runs a replica; most other commands connect to one.
//!
//! Exit codes: 0 success, 1 rejected or failed with a message on standard error, 2 wrong usage. With
//! `--wait` also 3: written, but the write concerns no session of the replica; and 4: written, but it
//! is unknown whether all sessions have it.

mod cli;
mod config;
mod memory;
mod serve;

use std::{
    ffi::OsStr,
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

use chancery_model::{Printable, is_unprintable};
use clap::{CommandFactory, Parser, error::ErrorKind};

use cli::{
    Answer, Failure,
    args::{Cli, Command, Config, ConfigFlags, Output},
};
use config::{FlagValue, Flags, Loaded, NamedFiles, Refused};

/// The allocator. It returns memory to the system after a burst of streams, which the default
/// allocator does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut stderr = io::stderr().lock();
            for warning in &failure.warnings {
                drop(writeln!(stderr, "warning: {warning}"));
            }
            for line in &failure.lines {
                // A failure to write to standard error cannot be reported anywhere.
                drop(writeln!(stderr, "{}: {line}", failure.label()));
            }
            // Without lines, the reader of standard output has closed the pipe, which is not a
            // failure.
            if failure.lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(failure.code) }
        }
    }
}

/// Prints a message of clap and returns the exit code. Help and version go to standard output and
/// are not failures.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    match text.lines().any(|line| line.contains(is_unprintable)) {
        false => drop(error.print()),
        // The message quotes arguments, which may contain unprintable characters.
        true => {
            let mut stderr = io::stderr().lock();
            text.lines().for_each(|line| drop(writeln!(stderr, "{}", Printable(line))));
        }
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(2),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut answer = Answer { out: &mut out, output: cli.output };
    match cli.command {
        Command::Serve(serve) => {
            memory::settle();
            serve::run(load(serve.config, NamedFiles::Check)?, answer.out)?;
        }
        Command::Config(Config::Check { config }) => {
            check(&load(config, NamedFiles::Check)?, &mut answer)?;
        }
        Command::Config(Config::Print { config }) => {
            print(&load(config, NamedFiles::Ignore)?, &mut answer)?;
        }
        Command::Completions { shell } => {
            // `generate` panics if the writer fails. A writer in memory does not fail.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "chancery", &mut script);
            answer.out.write_all(&script)?;
        }
        command => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(
                    |error| Failure::new(format_args!("cannot start the async runtime: {error}")),
                )?;
            let result = runtime.block_on(cli::run(command, &cli.server, &mut answer));
            // A failed wait has shown the revision of the write before.
            answer.out.flush()?;
            result?;
        }
    }
    out.flush()?;
    Ok(())
}

fn load(flags: ConfigFlags, files: NamedFiles) -> Result<Loaded, Failure> {
    // Values that are not UTF-8 are rejected. Otherwise they would silently be ignored or changed.
    let not_text = |name: &str, value: &OsStr| {
        Failure::new(format_args!("{name} is {value:?}, which is not UTF-8 text"))
    };
    let mut environment = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => environment.push((name, value)),
            // This value is a path, which clap reads as such.
            Err(_) if name == "CHANCERY_CONFIG" => {}
            Err(value) if name.starts_with("CHANCERY_") => return Err(not_text(&name, &value)),
            Err(_) => {}
        }
    }
    let data_dir = match flags.data_dir.clone().map(PathBuf::into_os_string) {
        None => None,
        Some(path) => Some(path.into_string().map_err(|path| not_text("--data-dir", &path))?),
    };
    config::load(&config_flags(flags, data_dir), environment, files)
        .map_err(|Refused { errors, warnings }| Failure::lines(errors).with_warnings(warnings))
}

fn config_flags(flags: ConfigFlags, data_dir: Option<String>) -> Flags {
    let mut values = Vec::new();
    let mut set = |section, key, value: Option<toml::Value>, flag| {
        values.extend(value.map(|value| FlagValue { section, key, value, flag }));
    };
    let text = |value: Option<String>| value.map(toml::Value::String);
    let address = |address: Option<std::net::SocketAddr>| text(address.map(|a| a.to_string()));
    set("store", "data_dir", text(data_dir), "--data-dir");
    set("xds", "address", address(flags.xds), "--xds");
    set("admin", "address", address(flags.admin), "--admin");
    set("raft", "address", address(flags.raft), "--raft");
    // A number that TOML cannot represent becomes a text, so that the error shows it.
    let number = |n: u64| i64::try_from(n).map_or_else(|_| n.to_string().into(), toml::Value::from);
    set("raft", "replica_id", flags.replica_id.map(number), "--replica-id");
    set("raft", "advertise", text(flags.advertise), "--advertise");
    let items = |items: Vec<String>| {
        (!items.is_empty()).then(|| config::list(items.iter().map(String::as_str)))
    };
    set("raft", "join", items(flags.join), "--join");
    set("raft", "peers", items(flags.peers), "--peers");
    set("raft", "learner", flags.learner.then_some(toml::Value::Boolean(true)), "--learner");
    if flags.allow_plaintext {
        for section in ["xds", "admin", "raft"] {
            let yes = Some(toml::Value::Boolean(true));
            set(section, "allow_plaintext", yes, "--allow-plaintext");
        }
    }
    Flags { file: flags.config, values }
}

fn check(loaded: &Loaded, answer: &mut Answer<'_>) -> Result<(), Failure> {
    if answer.output == Output::Text {
        return answer.text(|out| {
            for warning in &loaded.warnings {
                writeln!(out, "warning: {}", Printable(warning))?;
            }
            writeln!(out, "the configuration is valid")
        });
    }
    answer.json(&serde_json::json!({"valid": true, "warnings": loaded.warnings}))
}

fn print(loaded: &Loaded, answer: &mut Answer<'_>) -> Result<(), Failure> {
    if answer.output == Output::Text {
        answer.out.write_all(loaded.render().as_bytes())?;
        return Ok(());
    }
    let json = serde_json::to_value(&loaded.config)
        .map_err(|error| Failure::new(format_args!("cannot write the configuration: {error}")))?;
    answer.json(&json)
}
