//! The layout of tests (`docs/CONTRIBUTING.md`, "Tests").

use std::collections::BTreeMap;

use crate::source::Source;

/// The directories of integration tests that are test programs of their own beside another of their crate, with the
/// reason. Each program links the whole crate, and they run one after the other.
const OWN_PROGRAMS: &[(&str, &str)] = &[
    ("crates/proto/tests/descriptors", "the pool of descriptors of a process can be extended once"),
    ("crates/server/tests/real_clients", "needs installed clients, and runs beside no other load"),
];

/// The files with an ignored test that is not one of its own, with the reason.
const IGNORED: &[(&str, &str)] = &[(
    "crates/admin/src/external/run/tests.rs",
    "the ignored test is the process that another test starts and kills",
)];

/// Reports integration tests that are not in a directory of their own, files of unit tests beside the code, and
/// ignored tests.
pub(super) fn complaints(files: &[Source]) -> Vec<String> {
    let beside = files.iter().filter_map(|file| file.path.strip_suffix("_tests.rs"));
    let beside = beside.filter(|path| path.contains("/src/"));
    let beside = beside.map(|path| format!("{path}_tests.rs: move these tests to {path}/tests.rs"));
    let is_outside = |path: &&str| {
        let name = path.rsplit_once("/tests/").map(|(_, name)| name);
        !path.contains("/src/") && name.is_some_and(|name| !name.contains('/'))
    };
    let tests = files.iter().filter_map(|file| file.path.strip_suffix(".rs"));
    let outside = tests.filter(is_outside);
    let outside = outside.map(|path| format!("{path}.rs: move this test to {path}/main.rs"));
    outside.chain(beside).chain(ignored(files)).chain(programs(files)).collect()
}

/// Reports the integration tests of crates with several test programs.
fn programs(files: &[Source]) -> impl Iterator<Item = String> {
    let mut programs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        let dir = file.path.strip_suffix("/main.rs");
        let Some((root, name)) = dir.and_then(|dir| dir.rsplit_once("/tests/")) else { continue };
        let is_listed = OWN_PROGRAMS.iter().any(|(listed, _)| Some(*listed) == dir);
        if !root.contains("/src/") && !is_listed {
            programs.entry(root).or_default().push(name);
        }
    }
    programs.into_iter().filter(|(_, names)| names.len() > 1).map(|(root, names)| {
        let names = names.join(", ");
        format!("{root}/tests: make {names} modules of one test program")
    })
}

/// Reports ignored tests, which nobody would run.
fn ignored(files: &[Source]) -> impl Iterator<Item = String> {
    let is_listed = |file: &&Source| IGNORED.iter().any(|(path, _)| *path == file.path);
    let has_ignored =
        |file: &&Source| file.text.lines().any(|line| line.trim_start().starts_with("#[ignore"));
    let found = files.iter().filter(has_ignored).filter(move |file| !is_listed(file));
    found.map(|file| format!("{}: run the ignored test, or delete it", file.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_test_is_reported() {
        let found =
            |path: &str| complaints(&[Source { path: path.to_owned(), text: String::new() }]);
        assert_eq!(
            found("crates/a/tests/wire.rs"),
            ["crates/a/tests/wire.rs: move this test to crates/a/tests/wire/main.rs"]
        );
        assert_eq!(
            found("crates/a/src/disk/log_tests.rs"),
            ["crates/a/src/disk/log_tests.rs: move these tests to crates/a/src/disk/log/tests.rs"]
        );
        for path in ["crates/a/tests/wire/main.rs", "crates/a/src/x/tests/y.rs", "a/tests/x.txt"] {
            assert_eq!(found(path), [""; 0], "{path}");
        }
    }

    #[test]
    fn second_test_program_of_a_crate_is_reported() {
        let found = |paths: &[&str]| {
            let files =
                paths.iter().map(|path| Source { path: (*path).to_owned(), text: String::new() });
            complaints(&files.collect::<Vec<_>>())
        };
        let [a, b] = ["crates/a/tests/it/main.rs", "crates/a/tests/wire/main.rs"];
        assert_eq!(found(&[a, b]), ["crates/a/tests: make it, wire modules of one test program"]);
        assert_eq!(found(&[a, "crates/b/tests/it/main.rs"]), [""; 0]);
        let listed = format!("{}/main.rs", OWN_PROGRAMS[0].0);
        assert_eq!(found(&["crates/proto/tests/wire/main.rs", &listed]), [""; 0]);
    }

    #[test]
    fn ignored_test_is_reported() {
        let file = |path: &str| Source {
            path: path.to_owned(),
            text: "#[test]\n    #[ignore = \"slow\"]\nfn a() {}\n".to_owned(),
        };
        assert_eq!(
            complaints(&[file("a/src/b.rs")]),
            ["a/src/b.rs: run the ignored test, or delete it"]
        );
        assert_eq!(complaints(&[file(IGNORED[0].0)]), [""; 0]);
    }
}
