//! The commands `audit`: the check and the display of the files of an audit log.

use std::{path::PathBuf, thread, time::Duration};

use chancery_audit::{Follow, Head, Problem, Range, Report, TailRecord, last_records, verify};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::examples,
    text::{count, plain, printable_json},
};

/// The interval at which `tail --follow` reads.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);

/// The subcommands of `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Check that no record of an audit log was changed, removed, or inserted
    ///
    /// Checks the chain of hashes over the files and their rotated files (FILE.SEQ), also while a server
    /// writes them. Reports the first bad record. Exit code 1 means that there is one.
    ///
    /// The chain does not show that records were removed from its end. The server logs the last record as
    /// SEQ:HASH when it ends; --expect-head requires that this record exists.
    #[command(after_help = examples(&[
        "audit verify /var/log/chancery/audit.jsonl",
        "audit verify audit.jsonl --from 1 --to 5000 -o json",
    ]))]
    Verify(Verify),
    /// Show the last records of an audit log
    ///
    /// JSON output has the records as they are in the file, one per line.
    #[command(after_help = examples(&["audit tail /var/log/chancery/audit.jsonl -f"]))]
    Tail(Tail),
}

/// The arguments of `audit verify`.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Check these files and their rotated files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Check from this record on; it must exist
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
    from: Option<u64>,
    /// Check up to this record; it must exist
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
    to: Option<u64>,
    /// Require that this record exists and has this hash
    #[arg(long, value_name = "SEQ:HASH")]
    expect_head: Option<Head>,
}

/// The arguments of `audit tail`.
#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// Show the records of this file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show the last N records
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Continue with new records, also after a rotation, until the command is interrupted
    #[arg(short, long)]
    follow: bool,
}

impl Audit {
    /// Runs the subcommand.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        match self {
            Self::Verify(command) => command.run(answer),
            Self::Tail(command) => command.run(answer),
        }
    }
}

impl Verify {
    fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let range = Range { from: self.from, to: self.to, expected: self.expect_head };
        let report = verify(&self.files, &range).map_err(Failure::new)?;
        match answer.output {
            Output::Text | Output::Wide => answer.text(|out| show(out, &report))?,
            Output::Json | Output::Sarif => answer.json(&to_json(&report))?,
            Output::Yaml => answer.yaml(&to_json(&report))?,
        }
        match report.problem {
            None => Ok(()),
            Some(problem) => Err(Failure::new(problem.line())),
        }
    }
}

fn show(out: &mut dyn std::io::Write, report: &Report) -> std::io::Result<()> {
    let Some((first, head)) = report.first.zip(report.last) else {
        return writeln!(out, "no valid records");
    };
    let (records, files) =
        (count(report.records, "valid record"), count(report.files.len() as u64, "file"));
    writeln!(out, "{records} in {files}: {first} to {}", head.seq)?;
    writeln!(out, "head {head}")
}

fn to_json(report: &Report) -> serde_json::Value {
    let problem = report.problem.as_ref().map(|problem: &Problem| {
        let place = problem.place.as_ref();
        json!({
            "kind": problem.kind,
            "file": place.map(|(path, _)| path.display().to_string()),
            "line": place.map(|(_, line)| line),
            "seq": problem.seq,
            "message": problem.text,
        })
    });
    json!({
        "valid": report.problem.is_none(),
        "records": report.records,
        "first": report.first,
        "head": report.last.map(|head| json!({"seq": head.seq, "hash": head.hash.to_string()})),
        "files": report.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "problem": problem,
    })
}

impl Tail {
    fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let unreadable =
            |error| Failure::new(format_args!("cannot read {}: {error}", self.file.display()));
        let (records, mut follow): (_, Follow) =
            last_records(&self.file, self.lines).map_err(unreadable)?;
        print(&records, answer)?;
        if !self.follow {
            return Ok(());
        }
        loop {
            answer.out.flush()?;
            thread::sleep(FOLLOW_INTERVAL);
            print(&follow.next_records().map_err(unreadable)?, answer)?;
        }
    }
}

fn print(records: &[TailRecord], answer: &mut Answer<'_>) -> Result<(), Failure> {
    for record in records {
        match answer.output {
            Output::Text | Output::Wide => writeln!(answer.out, "{}", plain(&line(record)))?,
            Output::Json | Output::Sarif => {
                writeln!(answer.out, "{}", printable_json(&record.line))?;
            }
            Output::Yaml => answer.yaml(&record.json)?,
        }
    }
    Ok(())
}

/// Returns a record as a line for people.
fn line(record: &TailRecord) -> String {
    if record.json.is_null() {
        return format!("(not a record) {}", record.line);
    }
    let decision = match record.text("reason") {
        "" => record.text("decision").to_owned(),
        reason => format!("{} ({reason})", record.text("decision")),
    };
    let mut line = format!(
        "{} {} {} {decision} by {}",
        record.text("time"),
        record.text("port"),
        record.text("verb"),
        record.text("principal"),
    );
    for (before, key) in
        [(" from ", "source"), (" scope=", "scope"), (" type=", "type"), (" name=", "name")]
    {
        if !record.text(key).is_empty() {
            line.push_str(&format!("{before}{}", record.text(key)));
        }
    }
    if let Some(details) = record.json.get("details") {
        line.push_str(&format!(" {details}"));
    }
    line
}
