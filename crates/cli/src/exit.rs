//! The exit codes of all commands.

use clap::ValueEnum;

/// The outcome of a command, as its exit code shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    /// The command was rejected or failed. For a write that waits also: a session rejected it, did
    /// not answer in time, or no longer has an assignment.
    Failed = 1,
    Usage = 2,
    /// A write concerns no session of the cluster.
    NoSessionConcerned = 3,
    /// The answer is incomplete: a replica did not answer. For a write, it is unknown whether all sessions have it,
    /// also because sessions ended before they answered. For `explain`, the node is not connected, and its unknown values
    /// matter.
    NotAllAsked = 4,
    /// Clients would reject what `lint` has read, or `analyze` has found something wrong.
    Findings = 5,
    /// A freeze holds the write, or changes up to the revision, back from clients.
    Held = 6,
    /// A signal interrupted the command (SIGINT). The code is that of shells: 128 and the number of the signal.
    Interrupted = 130,
    /// `diff` and `--dry-run`: there are changes. The code is 2, as in `terraform plan -detailed-exitcode`, and that of
    /// [`Exit::Usage`].
    #[value(skip)]
    Changes,
}

impl Exit {
    /// Returns the exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Changes => Self::Usage as u8,
            other => other as u8,
        }
    }

    /// Returns the lines of the help.
    fn meaning(self) -> &'static [&'static str] {
        match self {
            Self::Success => &[
                "The command succeeded.",
                "With --wait: every session that the write concerns has acknowledged it.",
            ],
            Self::Failed => &[
                "The command was rejected or failed, or its outcome is unknown.",
                "For a command that checks something, such as `doctor` or `can-i`: the check failed.",
                "With --wait also: written, but a session rejected it, did not answer in time, or",
                "no longer has an assignment.",
            ],
            Self::Usage => &[USAGE, "For `diff` and --dry-run also: there are changes."],
            Self::Changes => &[],
            Self::NoSessionConcerned => &[
                "Only with --wait and `wait`: the write took effect or changed nothing, but it",
                "concerns no session of the cluster.",
            ],
            Self::NotAllAsked => &[
                "The answer is incomplete, because a replica did not answer.",
                "`explain` also: the node is not connected, and more than its ID decides about",
                "its scopes.",
                "With --wait: the write took effect or changed nothing, but it is unknown",
                "whether all sessions have it:",
                "- a session ended before it answered, and its node did not return, or",
                "- a replica did not answer.",
            ],
            Self::Findings => &["Only `lint` and `analyze`: there are findings."],
            Self::Held => &[
                "Only with --wait, `wait` and `nodes --behind`: a freeze holds the write, or",
                "changes up to the revision, back from clients. A write took effect or changed",
                "nothing.",
            ],
            Self::Interrupted => {
                &["Interrupted (SIGINT). The message says what is known about a write."]
            }
        }
    }
}

/// The meaning of [`Exit::Usage`].
const USAGE: &str =
    "Wrong usage: an unknown command or flag, or a value that a flag does not accept.";

/// Returns the table of all exit codes.
pub(crate) fn table() -> String {
    rows(Exit::value_variants().iter().map(|exit| (*exit, exit.meaning())))
}

/// Returns the table of the exit codes of `lint`.
pub(crate) fn table_of_lint() -> String {
    rows([
        (Exit::Success, &["No finding has the severity of --fail-on or a higher one."][..]),
        (Exit::Failed, &["A file cannot be read."]),
        (Exit::Usage, &[USAGE]),
        (Exit::Findings, &["The input has findings of this severity."]),
    ])
}

/// Returns the table of the exit codes of `analyze`.
pub(crate) fn table_of_analyze() -> String {
    rows([
        (Exit::Success, &["No finding is a warning."][..]),
        (Exit::Failed, &["The analysis failed, or the scope has no resources."]),
        (Exit::Usage, &[USAGE]),
        (Exit::NotAllAsked, &["No finding is a warning, but a replica did not answer."]),
        (Exit::Findings, &["At least one finding is a warning."]),
    ])
}

fn rows(exits: impl IntoIterator<Item = (Exit, &'static [&'static str])>) -> String {
    let exits: Vec<_> = exits.into_iter().collect();
    let width = exits.iter().map(|(exit, _)| exit.code().to_string().len()).max().unwrap_or(1);
    let mut table = "Exit codes:".to_owned();
    for (exit, meaning) in exits {
        for (index, line) in meaning.iter().enumerate() {
            let code = if index == 0 { exit.code().to_string() } else { String::new() };
            table.push_str(&format!("\n  {code:<width$}  {line}"));
        }
    }
    table
}
