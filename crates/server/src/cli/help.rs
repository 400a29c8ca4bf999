//! The parts that the help of several commands has in common.

use clap::{Arg, value_parser};

use super::{answer::Output, exit};

/// Returns the examples at the end of a command's help.
pub(crate) fn examples(examples: &[&str]) -> String {
    let examples: Vec<String> =
        examples.iter().map(|example| format!("  chancery {example}")).collect();
    format!("Examples:\n{}", examples.join("\n"))
}

/// Returns the end of the help of a command that writes resources: examples and exit codes.
pub(crate) fn write_help(lines: &[&str]) -> String {
    format!("{}\n\n{}", examples(lines), exit::table())
}

/// Returns the global flag `--server`, hidden, for commands that connect to no server.
pub(crate) fn no_server() -> Arg {
    Arg::new("server").long("server").global(true).hide(true)
}

/// Returns the global flag `--output`, hidden, for commands that have no formats.
pub(crate) fn no_output() -> Arg {
    let output = Arg::new("output").short('o').long("output").global(true).hide(true);
    output.value_parser(value_parser!(Output))
}
