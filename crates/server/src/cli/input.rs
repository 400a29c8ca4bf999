//! Reads the input files of a command.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use chancery_proto::admin::v1::File;

use super::failure::Failure;

/// The suffixes of the files that are read from a directory.
const SUFFIXES: [&str; 3] = ["yaml", "yml", "json"];
/// The maximum depth of nested directories.
const DEPTH_MAX: usize = 64;

/// Reads the given files and directories, and standard input for `-`, in the given order. The files
/// of a directory and its subdirectories are sorted by path.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut found = Vec::new();
            walk(path, DEPTH_MAX, &mut found)?;
            if found.is_empty() {
                return Err(Failure::new(format_args!(
                    "{}: the directory has no *.yaml, *.yml or *.json file",
                    path.display()
                )));
            }
            found.sort();
            for path in found {
                files.push(read(&path)?);
            }
        } else {
            files.push(read(path)?);
        }
    }
    Ok(files)
}

/// Reads one file, or standard input if the path is `-`.
pub(crate) fn read(path: &Path) -> Result<File, Failure> {
    let name = path.display().to_string();
    let bytes = if name == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let bytes = bytes.map_err(|error| Failure::new(format_args!("{name}: {error}")))?;
    match String::from_utf8(bytes) {
        Ok(content) => Ok(File { name, content }),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Failure::new(format_args!("{name}: byte {at} is not UTF-8 text")))
        }
    }
}

/// Finds the manifests in a directory. Skips hidden names and links to directories. Links can form
/// a cycle, and a mounted ConfigMap contains each file a second time, in the directory that
/// `..data` links to.
fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let fail = |path: &Path, error: std::io::Error| {
        Failure::new(format_args!("{}: {error}", path.display()))
    };
    if depth == 0 {
        return Err(Failure::new(format_args!(
            "{}: directories are nested more than {DEPTH_MAX} levels deep",
            directory.display()
        )));
    }
    for entry in fs::read_dir(directory).map_err(|error| fail(directory, error))? {
        let entry = entry.map_err(|error| fail(directory, error))?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = entry.file_type().map_err(|error| fail(&path, error))?;
        if kind.is_dir() {
            walk(&path, depth - 1, found)?;
        } else if is_manifest(&path) && !(kind.is_symlink() && path.is_dir()) {
            found.push(path);
        }
    }
    Ok(())
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| SUFFIXES.iter().any(|known| suffix == *known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_in_the_order_of_its_paths_with_all_below() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("b/inner")).unwrap();
        for name in ["c.json", "a.yaml", "b/inner/x.yml", "b/y.yaml", "README.md"] {
            fs::write(root.join(name), name).unwrap();
        }
        let files = read_all(&[root.to_owned()]).unwrap();
        let contents: Vec<&str> = files.iter().map(|file| file.content.as_str()).collect();
        assert_eq!(contents, ["a.yaml", "b/inner/x.yml", "b/y.yaml", "c.json"]);
        assert!(files[0].name.ends_with("/a.yaml"), "{}", files[0].name);
    }

    #[test]
    fn a_mounted_config_map_is_read_once_and_links_that_lead_back_are_not_followed() {
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
        let files = read_all(&[root.to_owned()]).unwrap();
        let contents: Vec<&str> = files.iter().map(|file| file.content.as_str()).collect();
        assert_eq!(contents, ["a"]);
        // A path that is given explicitly is read even if it is hidden or a link.
        assert_eq!(read_all(&[root.join("..data")]).unwrap().len(), 1);
        assert_eq!(read_all(&[root.join(".hidden.yaml")]).unwrap().len(), 1);
        symlink("nowhere.yaml", root.join("gone.yaml")).unwrap();
        let error = read_all(&[root.to_owned()]).unwrap_err();
        assert!(error.lines[0].contains("gone.yaml: No such file"), "{error:?}");
    }

    #[test]
    fn unreadable_path_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = read_all(&[directory.path().to_owned()]).unwrap_err();
        assert!(error.lines[0].ends_with("has no *.yaml, *.yml or *.json file"), "{error:?}");
        let path = directory.path().join("none.yaml");
        let error = read_all(std::slice::from_ref(&path)).unwrap_err();
        assert!(error.lines[0].contains("none.yaml: No such file"), "{error:?}");
        fs::write(&path, b"ab\xff").unwrap();
        let error = read_all(&[path]).unwrap_err();
        assert!(error.lines[0].ends_with("none.yaml: byte 2 is not UTF-8 text"), "{error:?}");
    }
}
