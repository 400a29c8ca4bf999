//! The command `conformance`: the conformance kit, run against a server.

mod xds;

use std::{fs, future::Future, io, path::PathBuf, sync::Arc};

use chancery_config::Span;
use chancery_conformance::{self as kit, Adapter, Basis, Case, Target};
use chancery_store::RequestId;
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use self::xds::XdsFlags;
use super::{client::Servers, mirror::address};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    table::Table,
};

/// The arguments of `conformance`.
#[derive(Debug, Args)]
pub(crate) struct Conformance {
    /// Check the server with its xDS port at ADDR
    ///
    /// ADDR is HOST:PORT, or https://HOST:PORT if the port uses TLS. The flags for TLS and the token apply to this
    /// port, too, unless a flag that begins with --xds replaces them.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18000", value_parser = address::parse)]
    xds: String,
    /// Send REST polls to HOST:PORT, with the TLS settings of --xds [default: the address of --xds]
    #[arg(long, value_name = "ADDR")]
    rest: Option<String>,
    #[command(flatten)]
    flags: XdsFlags,
    /// Publish through a program instead of Chancery's admin port
    ///
    /// COMMAND is a command line of the shell. The program reads one line of JSON for each state of a node from its standard
    /// input. It answers `{}` when the server serves the state, or `{"error": "reason"}`. The run ends if
    /// the program ends, or does not answer within 30s.
    #[arg(long, value_name = "COMMAND")]
    adapter_command: Option<String>,
    /// Run only cases whose name contains TEXT; repeatable
    #[arg(long = "case", value_name = "TEXT")]
    cases: Vec<String>,
    /// Do not run cases whose name contains TEXT; repeatable
    #[arg(long, value_name = "TEXT")]
    except: Vec<String>,
    /// Run only cases whose rule has this origin; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    basis: Vec<Origin>,
    /// Run up to N cases at the same time; 1 for a server whose nodes all see the same resources
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Fail a case if an expected message takes longer than TIME
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: Span,
    /// Expect no further message after TIME of silence
    ///
    /// Set it above the time by which the server delays its responses.
    #[arg(long, value_name = "TIME", default_value = "300ms")]
    quiet: Span,
    /// Also write the report as JUnit XML to FILE
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// List the selected cases with their requirements, and run none
    #[arg(long)]
    list: bool,
}

/// The origin of the rule that a case checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Origin {
    /// A specification states the rule
    Protocol,
    /// Deployed clients need the rule
    Practice,
    /// Chancery decided the rule, where specifications are silent
    Decision,
}

impl From<Origin> for Basis {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Protocol => Self::Protocol,
            Origin::Practice => Self::Practice,
            Origin::Decision => Self::Decision,
        }
    }
}

/// Runs the selected cases, or lists them.
pub(super) async fn run(
    args: Conformance,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let cases = args.selected();
    if cases.is_empty() {
        return Err(Failure::new(
            "no case is selected; `chancery conformance --list` shows the names of all cases",
        ));
    }
    if args.list {
        return list(&cases, answer);
    }
    let random = RequestId::random()
        .map_err(|error| Failure::new(format_args!("cannot choose a name for the run: {error}")))?;
    let run = format!("conformance-{:.8}", random.to_string());
    let interrupted = interruption()
        .map_err(|error| Failure::new(format_args!("cannot install signal handlers: {error}")))?;
    let transport = args.flags.transport(&args.xds, servers.security())?;
    let adapter: Box<dyn Adapter> = match &args.adapter_command {
        Some(command) => Box::new(kit::Command::start(command).map_err(Failure::new)?),
        None => Box::new(kit::Chancery::new(servers.any_channel().await?, &run)),
    };
    let (_, xds) = address::split(&args.xds);
    let target = Arc::new(Target {
        rest: args.rest.clone().unwrap_or_else(|| xds.to_owned()),
        xds: xds.to_owned(),
        transport: Box::new(transport),
        adapter,
        run,
        timeout: args.timeout.duration(),
        quiet: args.quiet.duration(),
    });
    if let Err(error) = kit::prepare(&target, &cases).await {
        let server = &args.xds;
        return Err(Failure::new(format_args!("cannot check the server at {server}: {error}")));
    }
    let report = kit::run(target, cases, usize::from(args.jobs), interrupted).await;
    if let Some(failure) = &report.adapter_failure {
        return Err(Failure::new(failure));
    }
    if let Some(file) = &args.junit {
        fs::write(file, report.to_junit()).map_err(|error| {
            Failure::new(format_args!("cannot write {}: {error}", file.display()))
        })?;
    }
    match answer.output {
        Output::Text | Output::Wide => answer.text(|out| report.write_text(out))?,
        Output::Json | Output::Sarif => answer.json(&report.to_json())?,
        Output::Yaml => answer.yaml(&report.to_json())?,
    }
    if report.is_success() {
        return Ok(());
    }
    let (server, summary) = (format!("the server at {}", args.xds), report.summary());
    Err(Failure::new(match (report.n_failed(), report.n_undecided()) {
        (0, 0) => format!("{server} was not checked completely: {summary}"),
        (0, _) => format!("whether {server} conforms could not be decided: {summary}"),
        _ => format!("{server} does not conform: {summary}"),
    }))
}

/// Installs handlers for the signals that end the run. The future completes at the first signal.
fn interruption() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

impl Conformance {
    fn selected(&self) -> Vec<Case> {
        let is_in = |list: &[String], name: &str| list.iter().any(|text| name.contains(text));
        let mut cases = kit::all();
        cases.retain(|case| {
            (self.cases.is_empty() || is_in(&self.cases, &case.name))
                && !is_in(&self.except, &case.name)
                && (self.basis.is_empty()
                    || self.basis.iter().any(|origin| Basis::from(*origin) == case.basis))
        });
        cases
    }
}

fn list(cases: &[Case], answer: &mut Answer<'_>) -> Result<(), Failure> {
    let json = || {
        cases.iter().map(|case| json!({
            "name": case.name, "requirements": case.requirements, "basis": case.basis.name(), "shows": case.shows,
        })).collect::<Vec<_>>().into()
    };
    match answer.output {
        Output::Json | Output::Sarif => answer.json(&json()),
        Output::Yaml => answer.yaml(&json()),
        Output::Text | Output::Wide => {
            let mut table = Table::new(["NAME", "BASIS", "REQUIREMENTS", "SHOWS"]);
            for case in cases {
                let requirements = case.requirements.join(" ");
                table.row([
                    case.name.clone(),
                    case.basis.name().into(),
                    requirements,
                    case.shows.into(),
                ]);
            }
            answer.text(|out| table.write(out, ""))
        }
    }
}
