//! Reads the input files of a command.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use chancery_admin_proto::v1::File;
use chancery_admission::{FileEncoding, manifest_of_file};
use chancery_config::{read_bytes, read_text};

use crate::failure::Failure;

/// The maximum depth of nested directories.
const DEPTH_MAX: usize = 64;

/// The maximum size of an input in bytes. It is more than a server accepts.
const BYTES_MAX: u64 = 256 << 20;

/// The readable files of the input, and a line for each problem of another one.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) files: Vec<File>,
    pub(crate) problems: Vec<String>,
}

/// Reads the given files and directories, and standard input for `-`, in the given order. Reads the
/// files of a directory and of its subdirectories in the order of their paths.
pub(crate) fn read_all(paths: &[PathBuf]) -> Input {
    let mut input = Input::default();
    for path in paths {
        let mut found = vec![path.clone()];
        if path.is_dir() {
            found.clear();
            let problems = input.problems.len();
            walk(path, DEPTH_MAX, &mut found, &mut input.problems);
            if found.is_empty() && input.problems.len() == problems {
                let path = path.display();
                let problem = format!(
                    "{path}: the directory has no *.yaml, *.yml, *.json, *.pb or *.pb_text file"
                );
                input.problems.push(problem);
            }
            found.sort();
        }
        for path in found {
            match manifest_of(&path) {
                Ok(file) => input.files.push(file),
                Err(problem) => input.problems.push(problem),
            }
        }
    }
    input
}

/// The files of a directory, each with its identity: device, inode, size, and time of change.
pub(crate) type Snapshot = Vec<(PathBuf, Option<[i128; 5]>)>;

/// Returns the files that [`read_all`] would read from a directory. Two equal snapshots have the same content.
pub(crate) fn snapshot(directory: &Path) -> Snapshot {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    walk(directory, DEPTH_MAX, &mut found, &mut problems);
    found.sort();
    let identity = |path: &PathBuf| {
        let file = fs::metadata(path).ok()?;
        let (seconds, nanos) = (file.mtime().into(), file.mtime_nsec().into());
        Some([file.dev().into(), file.ino().into(), file.size().into(), seconds, nanos])
    };
    let problems = problems.into_iter().map(|problem| (PathBuf::from(problem), None));
    let files = found.into_iter().map(|path| (identity(&path), path));
    files.map(|(identity, path)| (path, identity)).chain(problems).collect()
}

/// Reads one file, or standard input if the path is `-`.
pub(crate) fn read(path: &Path) -> Result<File, Failure> {
    text_of(path).map_err(Failure::new)
}

/// Reads a manifest, or a file with a `DiscoveryResponse` in any of its encodings (FS-02).
fn manifest_of(path: &Path) -> Result<File, String> {
    let encoding = encoding(path);
    let Some(encoding @ (FileEncoding::Binary | FileEncoding::Text)) = encoding else {
        return text_of(path);
    };
    let name = path.display().to_string();
    let content = fs::File::open(path).and_then(|file| read_bytes(file, BYTES_MAX));
    let content = content.map_err(|error| format!("{name}: {error}"))?;
    let manifest = manifest_of_file(&name, encoding, content);
    manifest.map(|it| File { name: it.file, content: it.content }).map_err(|it| it.to_string())
}

fn text_of(path: &Path) -> Result<File, String> {
    let name = path.display().to_string();
    let text = match name.as_str() {
        "-" => read_text(io::stdin().lock(), BYTES_MAX),
        _ => fs::File::open(path).and_then(|file| read_text(file, BYTES_MAX)),
    };
    match text {
        Ok(content) => Ok(File { name, content }),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// Finds the manifests in a directory. Skips hidden names and links to directories. Links can form
/// a cycle, and a mounted ConfigMap contains each file a second time, in the directory that
/// `..data` links to. Anything else that is not a regular file is a problem: to read from a named
/// pipe would wait until another process writes to it.
fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>, problems: &mut Vec<String>) {
    let problem = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    if depth == 0 {
        let directory = directory.display();
        problems
            .push(format!("{directory}: directories are nested more than {DEPTH_MAX} levels deep"));
        return;
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return problems.push(problem(directory, error)),
    };
    for entry in entries {
        let (entry, kind) = match entry.and_then(|entry| Ok((entry.file_type()?, entry))) {
            Ok((kind, entry)) => (entry, kind),
            Err(error) => {
                problems.push(problem(directory, error));
                continue;
            }
        };
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() {
            walk(&path, depth - 1, found, problems);
        } else if encoding(&path).is_some() {
            match fs::metadata(&path) {
                Ok(target) if target.is_dir() => {}
                Ok(target) if target.is_file() => found.push(path),
                Ok(_) => problems.push(format!(
                    "{}: it is not a regular file; remove it from the directory, or name it with -f to read from it",
                    path.display()
                )),
                Err(error) => problems.push(problem(&path, error)),
            }
        }
    }
}

fn encoding(path: &Path) -> Option<FileEncoding> {
    FileEncoding::of_extension(path.extension()?.to_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the files of an input without problems.
    fn all(paths: &[PathBuf]) -> Vec<File> {
        let input = read_all(paths);
        assert_eq!(input.problems, Vec::<String>::new());
        input.files
    }

    #[test]
    fn directory_is_read_recursively_in_path_order() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("b/inner")).unwrap();
        for name in ["c.json", "a.yaml", "b/inner/x.yml", "b/y.yaml", "README.md"] {
            fs::write(root.join(name), name).unwrap();
        }
        let files = all(&[root.to_owned()]);
        let contents: Vec<&str> = files.iter().map(|file| file.content.as_str()).collect();
        assert_eq!(contents, ["a.yaml", "b/inner/x.yml", "b/y.yaml", "c.json"]);
        assert!(files[0].name.ends_with("/a.yaml"), "{}", files[0].name);
    }

    #[test]
    fn mounted_config_map_is_read_once_and_symlink_cycles_are_skipped() {
        use std::os::unix::fs::symlink;

        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir(root.join("..2024_01_01")).unwrap();
        fs::write(root.join("..2024_01_01/a.yaml"), "a").unwrap();
        symlink("..2024_01_01", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
        fs::write(root.join(".hidden.yaml"), "hidden").unwrap();
        for name in ["one", "two", "three.yaml"] {
            symlink(".", root.join(name)).unwrap();
        }
        let files = all(&[root.to_owned()]);
        let contents: Vec<&str> = files.iter().map(|file| file.content.as_str()).collect();
        assert_eq!(contents, ["a"]);
        // A path that is given explicitly is read even if it is hidden or a link.
        assert_eq!(all(&[root.join("..data")]).len(), 1);
        assert_eq!(all(&[root.join(".hidden.yaml")]).len(), 1);
        symlink("nowhere.yaml", root.join("gone.yaml")).unwrap();
        let problems = read_all(&[root.to_owned()]).problems;
        assert!(problems[0].contains("gone.yaml: No such file"), "{problems:?}");
    }

    #[test]
    fn all_unreadable_paths_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let (empty, path) = (directory.path().join("empty"), directory.path().join("none.yaml"));
        let binary = directory.path().join("binary.yaml");
        fs::create_dir(&empty).unwrap();
        fs::write(&binary, b"ab\xff").unwrap();
        fs::write(directory.path().join("good.yaml"), "a").unwrap();
        let input = read_all(&[empty, path, binary, directory.path().join("good.yaml")]);
        assert_eq!(input.files.len(), 1);
        let ends = [
            "has no *.yaml, *.yml, *.json, *.pb or *.pb_text file",
            "none.yaml: No such file or directory (os error 2)",
            "binary.yaml: byte 2 is not UTF-8 text",
        ];
        assert_eq!(input.problems.len(), ends.len(), "{:?}", input.problems);
        for (problem, end) in input.problems.iter().zip(ends) {
            assert!(problem.ends_with(end), "{problem}");
        }
    }

    /// To open a pipe waits until another process writes to it.
    #[test]
    fn named_pipe_in_a_directory_is_refused_and_one_that_is_named_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe.yaml");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        std::os::unix::fs::symlink("pipe.yaml", directory.path().join("link.yaml")).unwrap();
        fs::write(directory.path().join("a.yaml"), "a").unwrap();
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        walk(directory.path(), DEPTH_MAX, &mut found, &mut problems);
        assert_eq!(found, [directory.path().join("a.yaml")]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        for problem in &problems {
            assert!(problem.contains(".yaml: it is not a regular file; remove it"), "{problem}");
        }
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::write(pipe, "from a pipe").unwrap()
        });
        let files = all(&[pipe]);
        writer.join().unwrap();
        assert_eq!(files[0].content, "from a pipe");
    }
}
