//! The commands `config check`, `config print` and `config schema`.

use chancery_config::{self as config, ConfigError, Loaded, NamedFiles, Refused};
use chancery_model::Printable;
use chancery_serve::{check_open_files, highest_limit};
use clap::Subcommand;
use serde_json::{Value, json};

use super::config_flags::ConfigFlags;
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::{examples, no_output},
    text::count,
};

/// The subcommands of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Check whether `serve` would accept the configuration
    ///
    /// Reports all problems together, each with its file, line and key, also those of the files that the configuration
    /// names. Of more than 100 problems, it counts the others. `-o json` prints the problems as a list.
    ///
    /// Warnings do not change the exit code. They concern environment variables that set no key, and files without
    /// which `serve` starts: the keys of secrets, and the program of the external validator. They also concern what
    /// only systemd provides, which a command outside of the unit cannot check.
    Check {
        #[command(flatten)]
        config: ConfigFlags,
    },
    /// Print the configuration that `serve` would use, with an explanation of each key
    ///
    /// The output is a complete configuration file. It shows the range of each value.
    Print {
        #[command(flatten)]
        config: ConfigFlags,
    },
    /// Print the JSON Schema of the configuration file, for editors and checks
    ///
    /// The schema (draft 7) has every key with its type, default and description, and rejects all other keys. It does
    /// not check the ranges of sizes and times, or rules about several keys. `config check` checks all of them.
    #[command(arg = no_output(), after_help = examples(&["config schema > chancery.schema.json"]))]
    Schema,
}

impl Config {
    /// Runs the subcommand.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        match self {
            Self::Check { config } => match answer.output {
                Output::Text => {
                    check(&with_limit_of_files(config.load(NamedFiles::Check)?), answer)
                }
                _ => {
                    let loaded = config.try_load(NamedFiles::Check)?;
                    check_as_json(loaded.map(with_limit_of_files), answer)
                }
            },
            Self::Schema => answer.json(&config::schema()),
            Self::Print { config } => print(&config.load(NamedFiles::Ignore)?, answer),
        }
    }
}

/// Adds a warning if a replica with the limits of this process would not start.
fn with_limit_of_files(mut loaded: Loaded) -> Loaded {
    let checked = highest_limit().map(|limit| check_open_files(&loaded.config, limit));
    if let Some(Err(reason)) = checked {
        loaded.warnings.push(format!("a replica started from here would fail: {reason}"));
    }
    loaded
}

fn check(loaded: &Loaded, answer: &mut Answer<'_>) -> Result<(), Failure> {
    answer.text(|out| {
        for warning in &loaded.warnings {
            writeln!(out, "warning: {}", Printable(warning))?;
        }
        writeln!(out, "the configuration is valid")
    })
}

fn check_as_json(result: Result<Loaded, Refused>, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let found = match result {
        Ok(loaded) => Refused { warnings: loaded.warnings, ..Refused::default() },
        Err(refused) => refused,
    };
    let problems: Vec<Value> = found.errors.iter().map(problem).collect();
    answer.json(&json!({
        "valid": problems.is_empty(), "problems": problems, "more_problems": found.n_more,
        "warnings": found.warnings,
    }))?;
    answer.out.flush()?;
    match found.n_problems() {
        0 => Ok(()),
        n => Err(Failure::new(format_args!("the configuration has {}", count(n, "problem")))),
    }
}

fn problem(error: &ConfigError) -> Value {
    let (file, line) = error.place().map_or((None, None), |(path, line)| (Some(path), line));
    json!({
        "file": file.map(|path| path.display().to_string()), "line": line, "key": error.key(),
        "message": error.to_string(),
    })
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
