//! The mirror, and a client that reads its files.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use chancery_admission::{FileEncoding, manifest_of_file};

use super::content::{Held, TYPES, admitted, followed, is_bad, is_named, short};
use crate::support::{KillOnDrop, chancery};

/// The encodings, with their names on the command line, which are the extensions.
pub(super) const ENCODINGS: [(&str, FileEncoding); 4] = [
    ("json", FileEncoding::Json),
    ("yaml", FileEncoding::Yaml),
    ("pb", FileEncoding::Binary),
    ("pb_text", FileEncoding::Text),
];

/// A running mirror, and a client that reads its directory. The client keeps the old content of a resource whose new
/// content it rejects.
pub(super) struct Files {
    address: String,
    dir: PathBuf,
    child: KillOnDrop,
    encoding: usize,
    included: BTreeSet<String>,
    /// The accepted resources.
    held: Held,
    /// The paths of the last reading, without their extension.
    pub(super) paths: BTreeSet<String>,
    pub(super) n_started: usize,
}

fn mirror(address: &str, dir: &Path, encoding: &str, included: &BTreeSet<String>) -> KillOnDrop {
    let mut command = chancery();
    command.args(["mirror", "--node", "n", "--pause", "1ms", "--xds", address, "--dir"]).arg(dir);
    command.args(["--encoding", encoding]);
    for name in included {
        command.arg(format!("--include=rtds/{name}"));
    }
    let log = fs::File::options().create(true).append(true).open(dir.with_extension("log"));
    let log = log.unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(Stdio::from(log));
    KillOnDrop(command.spawn().unwrap())
}

impl Files {
    pub(super) fn start(address: &str, dir: &Path) -> Self {
        let included = BTreeSet::new();
        Self {
            address: address.to_owned(),
            dir: dir.to_owned(),
            child: mirror(address, dir, ENCODINGS[0].0, &included),
            encoding: 0,
            included,
            held: Held::new(),
            paths: BTreeSet::new(),
            n_started: 1,
        }
    }

    /// Kills the mirror, and starts it again on the same directory.
    pub(super) fn restart(&mut self, encoding: usize, included: &BTreeSet<String>) {
        drop(self.child.kill());
        drop(self.child.wait());
        (self.encoding, self.included) = (encoding, included.clone());
        self.child = mirror(&self.address, &self.dir, ENCODINGS[encoding].0, included);
        self.n_started += 1;
    }

    /// Lets the client of the files forget everything that it has read.
    pub(super) fn forget(&mut self) {
        self.held.clear();
    }

    /// Reads all files of the directory, and returns the resources that the client has accepted.
    pub(super) fn read(&mut self) -> Result<&Held, String> {
        if let Some(status) = self.child.try_wait().unwrap() {
            return Err(format!("the mirror has ended: {status}"));
        }
        let (extension, encoding) = ENCODINGS[self.encoding];
        self.paths.clear();
        for type_url in TYPES {
            let short = short(type_url);
            let found: Vec<PathBuf> = if is_named(type_url) {
                let entries = fs::read_dir(self.dir.join(short)).into_iter().flatten();
                entries.map(|entry| entry.unwrap().path()).collect()
            } else {
                vec![self.dir.join(format!("{short}.{extension}"))]
            };
            let mut received = Held::new();
            let visible =
                |path: &Path| !path.file_name().unwrap().to_string_lossy().starts_with('.');
            for path in found.iter().filter(|path| visible(path)) {
                // The mirror may remove a file meanwhile.
                let Ok(content) = fs::read(path) else { continue };
                self.paths.insert(self.shown(path));
                if path.extension().is_none_or(|it| it != extension) {
                    continue;
                }
                let file = path.display().to_string();
                let manifest = manifest_of_file(&file, encoding, content);
                let manifest = manifest.map_err(|problem| format!("{file}: {problem:?}"))?;
                received.extend(admitted(&manifest).map_err(|it| format!("{file}: {it}"))?);
            }
            if !is_named(type_url) {
                self.held.retain(|key, _| key.0 != type_url || received.contains_key(key));
            }
            self.held.extend(received.into_iter().filter(|(_, body)| !is_bad(body)));
        }
        self.held = followed(&self.held, &self.included);
        Ok(&self.held)
    }

    fn shown(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.dir).unwrap().display().to_string();
        let extension = format!(".{}", ENCODINGS[self.encoding].0);
        path.strip_suffix(&extension).unwrap_or(&path).to_owned()
    }

    /// Returns the end of the mirror's output.
    pub(super) fn output(&self) -> String {
        let text = fs::read_to_string(self.dir.with_extension("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}
