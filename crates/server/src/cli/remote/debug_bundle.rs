//! The command `debug-bundle`: the data that others need to investigate a problem, in one archive.
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
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Value, json};

use self::{
    archive::Archive,
    part::{PART_BYTES_MAX, Part},
};
use super::{
    client::{VERSION, channel},
    doctor,
    settings::ConnectionFlags,
};
use crate::cli::{
    answer::{Answer, Output},
    failure::Failure,
    text::{count, plain},
    time::{now, timestamp},
};

/// The maximum number of servers whose parts are collected.
const SERVERS_MAX: usize = 16;

/// The arguments of `debug-bundle`.
#[derive(Debug, Args)]
pub(crate) struct DebugBundle {
    /// Write the archive to this file, which must not exist
    #[arg(value_name = "FILE.tar.gz")]
    file: PathBuf,
    /// Include this configuration file, and the limits and the disk of its replica on this machine
    #[arg(long, value_name = "FILE", env = "CHANCERY_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

/// Collects all parts and writes the archive.
pub(crate) fn run(
    command: &DebugBundle,
    flags: &ConnectionFlags,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let archive = Archive::create(&command.file).map_err(|error| failed(&command.file, &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format_args!("cannot start the async runtime: {error}")))?;
    let parts = runtime.block_on(collect(command, flags));
    let manifest = write(archive, parts).map_err(|error| failed(&command.file, &error))?;
    show(&command.file, &manifest, answer)
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot write {}: {error}", path.display()))
}

async fn collect(command: &DebugBundle, flags: &ConnectionFlags) -> Vec<Part> {
    let mut parts = local::parts(command.config.as_deref());
    parts.push(Part::json("doctor.json", Ok(doctor::report(flags).await)));
    let settings = match flags.resolve() {
        Ok(settings) => settings,
        Err(failure) => {
            let reason = failure.lines.join("; ");
            parts.extend(server::missing("server", &reason));
            return parts;
        }
    };
    let security = settings.security();
    for (index, server) in settings.server.split(',').map(str::trim).enumerate() {
        let directory = format!("server-{}", index + 1);
        if index == SERVERS_MAX {
            let reason = format!("only the first {SERVERS_MAX} servers are contacted");
            parts.push(Part::new(directory, Err(reason)));
            break;
        }
        match channel(server, &security).await {
            Ok(channel) => parts.extend(server::parts(&directory, server, channel).await),
            Err(failure) => {
                parts.extend(server::missing(&directory, &failure.lines.join("; ")));
            }
        }
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
