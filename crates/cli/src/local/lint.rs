//! The command `lint`.

mod sarif;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use chancery_admission::{
    ClientProfile, Manifest, Options, Problem, Profiles, Severity, Validation, ValidationMode,
};
use chancery_model::ScopeName;
use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};

use crate::{
    answer::{Answer, Output},
    exit::Exit,
    failure::Failure,
    remote::input::{Input, read_all},
    text::{count, plain},
};

/// The number of findings that text output shows.
const SHOWN_MAX: usize = 20;

/// The arguments of `lint`.
#[derive(Debug, Args)]
pub(crate) struct Lint {
    /// Read manifests (YAML or JSON) from a file, a directory, or standard input (-); repeatable
    ///
    /// The files are those that `chancery apply -f` reads.
    #[arg(short, long = "file", value_name = "FILE|DIR|-", required = true)]
    files: Vec<PathBuf>,
    /// Check for these clients, such as envoy,grpc-go@1.70 [default: envoy]
    ///
    /// A client is envoy, grpc-cpp, grpc-go, grpc-java or grpc-node, with an optional version. grpc-cpp stands
    /// for C++, Python, Ruby and PHP. Without a version, the rules are those of the newest known version.
    /// Without this flag, the rules of gRPC clients apply only to listeners with api_listener, as warnings.
    #[arg(long, value_name = "PROFILE[,PROFILE]", value_delimiter = ',')]
    profile: Vec<ClientProfile>,
    /// Exit with 5 if there is a finding of this severity or a higher one
    #[arg(long, value_enum, value_name = "SEVERITY", default_value = "error")]
    fail_on: FailOn,
    /// Use this scope for documents that do not name one
    #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
}

/// The lowest severity that fails the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// Findings for which a server refuses a write, and effects
    Error,
    /// All findings
    Warning,
}

/// The findings of a run.
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    n_files: usize,
    /// All input was readable.
    is_complete: bool,
    profiles: Vec<String>,
}

impl Lint {
    /// Prints the findings about the input.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let scope = ScopeName::new(&self.scope)
            .map_err(|error| Failure::with_exit(Exit::Usage, format_args!("--scope: {error}")))?;
        let Input { files, problems: unreadable } = read_all(&self.files);
        let manifests: Vec<Manifest> = files
            .into_iter()
            .map(|file| Manifest { file: file.name, content: file.content })
            .collect();
        let profiles = if self.profile.is_empty() {
            Profiles::default()
        } else {
            Profiles { call: Some(self.profile.into()), ..Profiles::default() }
        };
        let names = profiles.of_scope(&scope).1.iter().map(ToString::to_string).collect();
        let validation = Validation { profiles, ..Validation::of(ValidationMode::Enforce) };
        let options = Options { validation, ..Options::new(scope) };
        let problems = if manifests.is_empty() {
            Vec::new()
        } else {
            chancery_admission::lint(&manifests, &options)
        };
        let (n_files, is_complete) = (manifests.len(), unreadable.is_empty());
        let findings = Findings { problems, n_files, is_complete, profiles: names };
        findings.show(answer)?;
        answer.out.flush()?;
        if !unreadable.is_empty() {
            return Err(Failure::lines(unreadable));
        }
        let fails = match self.fail_on {
            FailOn::Error => findings.problems.iter().any(|one| one.severity < Severity::Warning),
            FailOn::Warning => !findings.problems.is_empty(),
        };
        if fails { Err(Failure::with_exit(Exit::Findings, findings.summary())) } else { Ok(()) }
    }
}

impl Findings {
    /// Returns the numbers of errors, effects and warnings.
    fn counts(&self) -> [usize; 3] {
        [Severity::Error, Severity::Effect, Severity::Warning]
            .map(|severity| self.problems.iter().filter(|one| one.severity == severity).count())
    }

    /// Returns the numbers of findings as one line.
    fn summary(&self) -> String {
        let [errors, effects, warnings] = self.counts();
        let n = |n: usize, what| count(n as u64, what);
        let effects = match effects {
            0 => String::new(),
            effects => format!(", {}", n(effects, "effect")),
        };
        format!(
            "{}{effects}, {} in {}; checked for {}",
            n(errors, "error"),
            n(warnings, "warning"),
            n(self.n_files, "file"),
            self.profiles.join(", ")
        )
    }

    fn show(&self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        match answer.output {
            Output::Text | Output::Wide => answer.text(|out| self.text(out)),
            Output::Json => answer.json(&self.json()),
            Output::Yaml => answer.yaml(&self.json()),
            Output::Sarif => answer.json(&sarif::log(&self.problems)),
        }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for problem in self.problems.iter().take(SHOWN_MAX) {
            writeln!(out, "{}: {}", word(problem.severity), plain(&problem.to_string()))?;
        }
        match self.problems.len().saturating_sub(SHOWN_MAX) {
            0 => {}
            n => writeln!(out, "and {n} more; -o json prints all of them")?,
        }
        if self.problems.is_empty() && self.is_complete {
            writeln!(out, "{}", self.summary())
        } else {
            Ok(())
        }
    }

    fn json(&self) -> Value {
        let finding = |problem: &Problem| {
            let (line, column) = problem.position.unwrap_or_default();
            json!({
                "severity": word(problem.severity),
                "file": problem.file,
                "document": problem.document.unwrap_or(0),
                "line": line,
                "column": column,
                "resource": problem.resource.as_deref().unwrap_or_default(),
                "field_path": problem.field_path.as_deref().unwrap_or_default(),
                "message": problem.rule,
                "rule_id": problem.id,
                "fix": problem.fix,
            })
        };
        let [errors, effects, warnings] = self.counts();
        json!({
            "findings": self.problems.iter().map(finding).collect::<Vec<Value>>(),
            "errors": errors,
            "effects": effects,
            "warnings": warnings,
            "files": self.n_files,
            "profiles": self.profiles,
        })
    }
}

/// Returns the word for a severity, in text and in SARIF.
pub(super) fn word(severity: Severity) -> &'static str {
    severity.word()
}
