//! The command `debug-bundle`: diagnostic data of each server and of this machine in one archive.
//!
//! Invariants:
//! - Each part is in the archive, or the manifest says why it is missing.
//! - No part has a secret: neither tokens, keys and certificates, nor the content of resources. Nodes are counted.
//! - Each part has a maximum size. The command truncates a part that exceeds it.

mod archive;
mod local;
mod part;
mod server;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use clap::Args;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::{
    archive::Archive,
    part::{PART_BYTES_MAX, Part},
};
use super::{
    client::{VERSION, channel},
    doctor,
    settings::ConnectionFlags,
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    text::{count, plain},
    time::{now, timestamp},
};

/// The time after which the command says what it waits for.
const QUIET: Duration = Duration::from_secs(2);
/// The argument that selects standard output.
const STANDARD_OUTPUT: &str = "-";
/// The maximum number of servers whose parts are collected.
const SERVERS_MAX: usize = 16;

/// The arguments of `debug-bundle`.
#[derive(Debug, Args)]
pub(crate) struct DebugBundle {
    /// Write the archive to this file, which must not exist; `-` is the standard output
    #[arg(value_name = "FILE.tar.gz")]
    file: PathBuf,
    /// Also include this configuration file, and the limits and disk space of the local replica that uses it
    #[arg(long, value_name = "FILE", env = "CHANCERY_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

/// Collects all parts and writes the archive.
pub(crate) fn run(
    command: &DebugBundle,
    flags: &ConnectionFlags,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let is_standard_output = command.file == Path::new(STANDARD_OUTPUT);
    if is_standard_output && io::stdout().is_terminal() {
        return Err(Failure::new(
            "cannot write the archive to a terminal; redirect the output, or name a file",
        ));
    }
    let target = (!is_standard_output).then_some(command.file.as_path());
    let archive = Archive::create(target).map_err(|error| failed(&command.file, &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format_args!("cannot start the async runtime: {error}")))?;
    let parts = runtime.block_on(collect(command, flags));
    let manifest = write(archive, parts).map_err(|error| failed(&command.file, &error))?;
    if is_standard_output {
        // The manifest is in the archive.
        Ok(())
    } else {
        show(&command.file, &manifest, answer)
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot write {}: {error}", path.display()))
}

/// Collects the parts of this machine, of the doctor and of all servers. Says on standard error which servers it waits
/// for.
async fn collect(command: &DebugBundle, flags: &ConnectionFlags) -> Vec<Part> {
    let mut parts = local::parts(command.config.as_deref());
    let waits_for = RefCell::new(BTreeSet::new());
    let collected = async { tokio::join!(doctor::report(flags), of_servers(flags, &waits_for)) };
    let mut collected = pin!(collected);
    let (report, of_servers) = match timeout(QUIET, &mut collected).await {
        Ok(collected) => collected,
        Err(_) => {
            let names: Vec<String> = waits_for.borrow().iter().map(|name| plain(name)).collect();
            let whom = if names.is_empty() { "doctor".to_owned() } else { names.join(", ") };
            // A failure to write to standard error cannot be reported anywhere.
            drop(writeln!(
                io::stderr(),
                "note: waiting for {whom}; each answer may take {:?}",
                server::TIMEOUT
            ));
            collected.await
        }
    };
    parts.push(Part::json("doctor.json", Ok(report)));
    parts.extend(of_servers);
    parts
}

/// Collects the parts of all servers at the same time. `waits_for` has the servers that have not answered everything.
async fn of_servers(flags: &ConnectionFlags, waits_for: &RefCell<BTreeSet<String>>) -> Vec<Part> {
    let settings = match flags.resolve() {
        Ok(settings) => settings,
        Err(failure) => return server::missing("server", &failure.lines.join("; ")),
    };
    let security = &settings.security();
    let servers: Vec<&str> = settings.server.split(',').map(str::trim).collect();
    let contacted = servers.iter().take(SERVERS_MAX).enumerate();
    let mut parts = join_all(contacted.map(|(index, &server)| async move {
        let directory = format!("server-{}", index + 1);
        waits_for.borrow_mut().insert(server.to_owned());
        let parts = match channel(server, security).await {
            Ok(channel) => Box::pin(server::parts(&directory, server, channel)).await,
            Err(failure) => server::missing(&directory, &failure.lines.join("; ")),
        };
        waits_for.borrow_mut().remove(server);
        parts
    }))
    .await
    .concat();
    if servers.len() > SERVERS_MAX {
        let reason = format!("only the first {SERVERS_MAX} servers are contacted");
        parts.push(Part::new(format!("server-{}", SERVERS_MAX + 1), Err(reason)));
    }
    parts
}

/// Writes the parts and the manifest. Returns the manifest.
fn write(mut archive: Archive, parts: Vec<Part>) -> io::Result<Value> {
    let mut rows = Vec::new();
    for Part { name, content } in parts {
        let row = match content {
            Ok(mut content) => {
                let bytes = content.len();
                content.truncate(PART_BYTES_MAX);
                archive.add(&name, &content)?;
                let is_cut = bytes > content.len();
                json!({"part": name, "included": true, "bytes": content.len(), "cut": is_cut})
            }
            Err(reason) => json!({"part": name, "included": false, "reason": plain(&reason)}),
        };
        rows.push(row);
    }
    let is_whole = |row: &Value| row["included"] == true && row["cut"] == false;
    let manifest = json!({
        "created": timestamp(now()), "version": VERSION, "complete": rows.iter().all(is_whole),
        "parts": rows,
    });
    archive.add("manifest.json", format!("{manifest:#}\n").as_bytes())?;
    archive.finish()?;
    Ok(manifest)
}

fn show(path: &Path, manifest: &Value, answer: &mut Answer<'_>) -> Result<(), Failure> {
    match answer.output {
        Output::Json | Output::Sarif => return answer.json(manifest),
        Output::Yaml => return answer.yaml(manifest),
        Output::Text | Output::Wide => {}
    }
    let rows = manifest["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let included = rows.iter().filter(|row| row["included"] == true).count() as u64;
    answer.text(|out| {
        let total = count(rows.len() as u64, "part");
        writeln!(out, "wrote {}: it has {included} of {total}", path.display())?;
        for row in rows {
            let name = row["part"].as_str().unwrap_or_default();
            match row["reason"].as_str() {
                Some(reason) => writeln!(out, "{name} is missing: {reason}")?,
                None if row["cut"] == true => writeln!(out, "{name} is truncated to 8 MiB")?,
                None => {}
            }
        }
        writeln!(
            out,
            "it has no secrets, but names of hosts, scopes and authors; read it before you give it to others"
        )
    })
}
