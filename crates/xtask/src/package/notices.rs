//! The licenses of the packages that are linked into the program, with their texts.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::dependencies::Dependency;

/// The beginnings of the names of files with licenses.
const NAMES: &[&str] = &["license", "licence", "copying", "notice", "unlicense", "copyright"];
/// The number of directory levels that are searched. Bundled C libraries have their own license.
const LEVELS: usize = 3;
/// Directories without code of the program.
const OMITTED: &[&str] =
    &["tests", "test", "benches", "examples", "third-party", "third_party", "docs", "java"];

const SYSTEM: &str = "\
The program also contains parts of the GNU C Library (LGPL-2.1-or-later) and of libstdc++ and libgcc
(GPL-3.0-or-later with the GCC Runtime Library Exception 3.1), in the versions of the component list. The source code
of the program is available, so that it can be linked again with a modified version of these libraries.

The container image also contains the root certificates of Mozilla, from the package webpki-root-certs.
";

/// Returns the text.
pub(super) fn write(dependencies: &[Dependency]) -> Result<String> {
    let foreign = dependencies.iter().filter(|dependency| dependency.checksum.is_some());
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut notices = format!("Chancery contains the following packages.\n\n{SYSTEM}\n");
    for dependency in foreign {
        let name = format!("{} {}", dependency.name, dependency.version);
        // Writing to a string cannot fail.
        let _ = writeln!(notices, "{name}: {}", dependency.license);
        for file in licenses(&dependency.dir, LEVELS)? {
            let text = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            let text = String::from_utf8_lossy(&text).replace('\r', "");
            let names = texts.entry(text.trim_matches('\n').to_owned()).or_default();
            if !names.contains(&name) {
                names.push(name.clone());
            }
        }
    }
    ensure!(!texts.is_empty(), "no package has a license file; run `cargo fetch` first");
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(_, a), (_, b)| a.cmp(b));
    for (text, names) in texts {
        let _ = write!(notices, "\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
    }
    Ok(notices)
}

/// Returns the files with licenses in a directory, sorted.
fn licenses(dir: &Path, levels: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("list {}", dir.display()))?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let kind = entry.file_type().context("read the type of a file")?;
        if kind.is_dir() && levels > 1 && !OMITTED.contains(&name.as_str()) {
            found.extend(licenses(&entry.path(), levels - 1)?);
        }
        let is_source =
            [".rs", ".c", ".h", ".cc", ".go", ".py", ".html"].iter().any(|end| name.ends_with(end));
        if kind.is_file() && !is_source && NAMES.iter().any(|start| name.starts_with(start)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
