//! Checks of the files and directories that a configuration names, except those of TLS, issuers and secrets.

use std::{env, fs, io::Read as _, path::Path};

use chancery_audit::SinkSettings;

use super::Config;

/// Whether the files that a configuration names are checked with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedFiles {
    /// Checks all of them, for a report. Problems with which a replica starts are warnings.
    Check,
    /// Checks those without which a replica does not start. Without its keys, a replica serves everything but secrets.
    CheckForStart,
    /// Checks none.
    Ignore,
}

/// The maximum size of a descriptor set in bytes. The whole Envoy API takes 4 MB.
const DESCRIPTOR_SET_BYTES_MAX: u64 = 64 << 20;

/// The directory that the unit of the packages creates (`RuntimeDirectory=` in deploy/systemd/chancery.service).
const RUNTIME_DIRECTORY: &str = "/run/chancery";

/// Reads a descriptor set (`xds.descriptor_sets`).
///
/// # Errors
/// Returns the reason why the file cannot be used.
pub fn read_descriptor_set(path: &str) -> Result<Vec<u8>, String> {
    let mut set = Vec::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut file = file.take(DESCRIPTOR_SET_BYTES_MAX + 1);
    file.read_to_end(&mut set).map_err(|error| error.to_string())?;
    if set.len() as u64 > DESCRIPTOR_SET_BYTES_MAX {
        Err(format!("it has more than {DESCRIPTOR_SET_BYTES_MAX} bytes"))
    } else {
        Ok(set)
    }
}

/// Returns the section, the key and the reason for each path without which a replica does not start.
pub(crate) fn unusable(
    config: &Config,
    files: NamedFiles,
) -> Vec<(&'static str, &'static str, String)> {
    let mut unusable = Vec::new();
    let data_dir = &config.store.data_dir;
    if data_dir.exists() && !data_dir.is_dir() {
        let text = "is a file; give the path of a directory";
        unusable.push(("store", "data_dir", text.to_owned()));
    }
    let error = descriptor_sets_error(&config.xds.descriptor_sets, files);
    unusable.extend(error.map(|error| ("xds", "descriptor_sets", error)));
    if let Some((parent, text)) = missing_parent(config.admin.socket())
        && (files == NamedFiles::CheckForStart || !is_created_at_start(parent))
    {
        unusable.push(("admin", "socket", text));
    }
    for sink in config.audit.sinks.iter().filter_map(|sink| sink.parse().ok()) {
        if let SinkSettings::File(path) = sink
            && let Some((_, text)) = missing_parent(Some(&path))
        {
            unusable.push(("audit", "sinks", text));
        }
    }
    unusable
}

/// Returns why descriptor sets cannot be used. A start decodes them anyway, so that only a check does it here.
fn descriptor_sets_error(paths: &[String], files: NamedFiles) -> Option<String> {
    let mut sets = Vec::with_capacity(paths.len());
    for path in paths {
        match read_descriptor_set(path) {
            Ok(set) => sets.push(set),
            Err(error) => return Some(format!("cannot read {path}: {error}; correct the path")),
        }
    }
    if files != NamedFiles::Check || sets.is_empty() {
        return None;
    }
    let (index, reason) = chancery_proto::with_descriptor_sets(&sets).err()?;
    Some(format!("cannot use {}: {reason}", paths.get(index)?))
}

/// Returns the section, the key and the finding for each path that does not exist yet, and that a service manager has to
/// create when it starts a replica. Omits `/run/chancery`, which the systemd unit of the packages creates.
pub(crate) fn created_at_start(config: &Config) -> Vec<(&'static str, &'static str, String)> {
    let parent = missing_parent(config.admin.socket()).map(|(parent, _)| parent);
    let parent = parent
        .filter(|parent| is_created_at_start(parent) && *parent != Path::new(RUNTIME_DIRECTORY));
    let text = |parent: &Path| {
        let parent = parent.display();
        format!(
            "{parent} does not exist; the unit of the replica has to create it (RuntimeDirectory=)"
        )
    };
    parent.map(|parent| ("admin", "socket", text(parent))).into_iter().collect()
}

/// Returns the directory of a file, and the problem, if the directory does not exist.
fn missing_parent(path: Option<&Path>) -> Option<(&Path, String)> {
    let parent = path?.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    (!parent.is_dir())
        .then(|| (parent, format!("{} is not a directory; create it", parent.display())))
}

/// Returns whether a directory does not exist while its service is stopped. systemd deletes it then
/// (`RuntimeDirectory=`).
fn is_created_at_start(directory: &Path) -> bool {
    directory.starts_with("/run") && !directory.exists()
}

/// Returns why the program of the external validator cannot be started.
pub(crate) fn missing_program(config: &Config) -> Option<String> {
    let program = config.validation.external_command.first().filter(|name| !name.is_empty())?;
    let is_found = if program.contains('/') {
        Path::new(program).is_file()
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).any(|directory| directory.join(program).is_file())
    };
    let text = "is not a file, nor a program in PATH; correct the path, or install the program";
    (!is_found).then(|| format!("{program:?} {text}"))
}
