//! The parts that the help of several commands has in common.

use std::path::PathBuf;

use clap::{
    Arg,
    builder::{PossibleValuesParser, TypedValueParser as _},
    value_parser,
};

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

/// Returns the global flag `--server`, hidden, for commands that connect to no admin port.
pub(crate) fn no_address() -> Arg {
    Arg::new("server").long("server").global(true).hide(true)
}

/// Returns the global flag `--context`, hidden, for commands that use no connection settings.
fn no_context() -> Arg {
    Arg::new("context").long("context").global(true).hide(true)
}

/// Returns the global flags for connections, hidden, for commands that connect to no server.
pub(crate) fn no_server() -> [Arg; 6] {
    let file = |id: &'static str, long: &'static str| {
        let file = Arg::new(id).long(long).global(true).hide(true);
        file.value_parser(value_parser!(PathBuf))
    };
    [
        no_address(),
        no_context(),
        file("token_file", "token-file"),
        file("ca_cert", "ca-cert"),
        file("cert", "cert"),
        file("cert_key", "cert-key"),
    ]
}

/// Returns the global flag `--output`, hidden, for commands that have no formats.
pub(crate) fn no_output() -> Arg {
    let output = Arg::new("output").short('o').long("output").global(true).hide(true);
    output.value_parser(value_parser!(Output))
}

/// Returns the global flag `--output` with SARIF, for commands that have findings.
pub(crate) fn output_with_sarif() -> Arg {
    let formats = PossibleValuesParser::new(["text", "json", "yaml", "sarif"]);
    let parser = formats.map(|name| match name.as_str() {
        "json" => Output::Json,
        "yaml" => Output::Yaml,
        "sarif" => Output::Sarif,
        _ => Output::Text,
    });
    let output = Arg::new("output").short('o').long("output").global(true).value_parser(parser);
    output.value_name("FORMAT").default_value("text").help(
        "Print text for people, JSON, YAML, or SARIF 2.1.0 for tools that show findings in code",
    )
}

/// Returns the global flag `--output` with wide text, for commands whose tables shorten values.
pub(crate) fn output_with_wide() -> Arg {
    let formats = PossibleValuesParser::new(["text", "wide", "json", "yaml"]);
    let parser = formats.map(|name| match name.as_str() {
        "json" => Output::Json,
        "yaml" => Output::Yaml,
        "wide" => Output::Wide,
        _ => Output::Text,
    });
    let output = Arg::new("output").short('o').long("output").global(true).value_parser(parser);
    output
        .value_name("FORMAT")
        .default_value("text")
        .help("Print text for people (wide: with long constraints in full), JSON, or YAML")
}
