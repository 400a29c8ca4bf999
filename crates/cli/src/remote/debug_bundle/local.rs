//! The parts from this machine.

use std::{fs, path::Path};

use chancery_config::{ConfigError, Flags, Loaded, NamedFiles, Refused, load};
use rustix::{fs::statvfs, system::uname};
use serde_json::{Value, json};

use super::part::Part;
use crate::remote::{client::VERSION, local_replica::LocalReplica};

/// The maximum depth of directories whose sizes are added up.
const DEPTH_MAX: u32 = 8;

/// Returns the parts. Without a configuration file, the replica on this machine is unknown.
pub(super) fn parts(config: Option<&Path>) -> Vec<Part> {
    let system = uname();
    let client = json!({
        "version": VERSION,
        "system": system.sysname().to_string_lossy(),
        "kernel": system.release().to_string_lossy(),
        "architecture": system.machine().to_string_lossy(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first_lines("/proc/meminfo", 3),
        "load": first_lines("/proc/loadavg", 1),
    });
    let mut parts = vec![Part::json("client.json", Ok(client))];
    let names = ["config.toml", "limits.json", "disk.json"];
    let Some(path) = config else {
        let reason = "--config FILE was not given";
        parts.extend(names.map(|name| Part::new(name, Err(reason.to_owned()))));
        return parts;
    };
    let flags = Flags { file: Some(path.to_owned()), values: Vec::new() };
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match load(&flags, variables, NamedFiles::Ignore) {
        Ok(loaded) => {
            parts.push(Part::new(names[0], Ok(loaded.render_redacted().into_bytes())));
            parts.push(Part::json(names[1], limits(&loaded)));
            parts.push(Part::json(names[2], disk(&loaded)));
        }
        Err(Refused { errors, .. }) => {
            let reason = invalid(path, &errors);
            parts.extend(names.map(|name| Part::new(name, Err(reason.clone()))));
        }
    }
    parts
}

/// Describes an invalid configuration by the places and the keys of its problems. The rules quote values, which may be
/// secret.
fn invalid(path: &Path, errors: &[ConfigError]) -> String {
    let problems: Vec<String> = errors
        .iter()
        .map(|error| {
            let place = match error.place() {
                Some((path, Some(line))) => format!("{}:{line}", path.display()),
                Some((path, None)) => path.display().to_string(),
                None => "a variable".to_owned(),
            };
            error.key().map_or_else(|| place.clone(), |key| format!("{place} ({key})"))
        })
        .collect();
    format!(
        "the configuration has problems in {}; `chancery config check --config {}` shows them",
        problems.join(", "),
        path.display()
    )
}

/// Returns the first lines of a file of the kernel.
fn first_lines(path: &str, n: usize) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().take(n).map(str::to_owned).collect()
}

/// Returns the limits of the process that uses the data directory.
fn limits(loaded: &Loaded) -> Result<Value, String> {
    let replica = LocalReplica::find(&loaded.config.store.data_dir)?;
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let wanted = ["VmRSS", "VmHWM", "VmSwap", "Threads", "FDSize"];
    let is_wanted = |line: &String| wanted.iter().any(|name| line.starts_with(name));
    let status: Vec<String> =
        lines(replica.read("status")?).into_iter().filter(is_wanted).collect();
    let open = fs::read_dir(format!("/proc/{}/fd", replica.pid)).map_or(0, Iterator::count);
    Ok(json!({
        "pid": replica.pid, "limits": lines(replica.read("limits")?), "status": status,
        "open_files": open,
    }))
}

/// Returns the space of the disk with the data directory, and the sizes of its files.
fn disk(loaded: &Loaded) -> Result<Value, String> {
    let path = &loaded.config.store.data_dir;
    let error = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let space = statvfs(path).map_err(|errno| error(&errno))?;
    let entries = fs::read_dir(path).map_err(|failed| error(&failed))?;
    let mut files: Vec<Value> = entries
        .flatten()
        .map(|entry| {
            let bytes = size(&entry.path(), DEPTH_MAX);
            json!({"name": entry.file_name().to_string_lossy(), "bytes": bytes})
        })
        .collect();
    files.sort_by_key(|file| file["name"].to_string());
    files.truncate(1000);
    Ok(json!({
        "data_dir": path.display().to_string(),
        "bytes": space.f_blocks.saturating_mul(space.f_frsize),
        "bytes_available": space.f_bavail.saturating_mul(space.f_frsize),
        "inodes_available": space.f_favail, "files": files,
    }))
}

/// Returns the size of a file, or of all files in a directory and its subdirectories.
fn size(path: &Path, depth: u32) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    if !metadata.is_dir() || depth == 0 {
        return metadata.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size(&entry.path(), depth - 1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_of_a_directory_is_that_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("db")).unwrap();
        fs::write(dir.path().join("db/a"), [0; 5000]).unwrap();
        fs::write(dir.path().join("b"), [0; 3]).unwrap();
        assert_eq!(size(dir.path(), DEPTH_MAX), 5003);
    }

    #[test]
    fn invalid_configuration_is_described_without_its_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chancery.toml");
        let broken = |text: &str| {
            fs::write(&path, text).unwrap();
            let flags = Flags { file: Some(path.clone()), values: Vec::new() };
            let refused = load(&flags, [], NamedFiles::Ignore).unwrap_err();
            invalid(&path, &refused.errors)
        };
        let file = path.display();
        for (text, problems) in [
            (
                "[validation]\nexternal_command = 'validator --token=SECRET'\n[raft]\nadvertise = 'u:SECRET@h:1'\n",
                format!("{file}:2 (validation.external_command), {file}:4 (raft.advertise)"),
            ),
            ("[auth]\nissuers = SECRET\n", format!("{file}:2")),
        ] {
            let expected = format!(
                "the configuration has problems in {problems}; `chancery config check --config {file}` shows them"
            );
            assert_eq!(broken(text), expected);
        }
    }
}
