//! The layout of tests (`docs/CONTRIBUTING.md`, "Tests").

use crate::source::Source;

/// Reports integration tests that are not in a directory of their own.
pub(super) fn complaints(files: &[Source]) -> Vec<String> {
    let is_outside = |path: &&str| {
        let name = path.rsplit_once("/tests/").map(|(_, name)| name);
        !path.contains("/src/") && name.is_some_and(|name| !name.contains('/'))
    };
    let tests = files.iter().filter_map(|file| file.path.strip_suffix(".rs"));
    let outside = tests.filter(is_outside);
    outside.map(|path| format!("{path}.rs: move this test to {path}/main.rs")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_test_outside_of_a_directory_is_reported() {
        let found =
            |path: &str| complaints(&[Source { path: path.to_owned(), text: String::new() }]);
        assert_eq!(
            found("crates/a/tests/wire.rs"),
            ["crates/a/tests/wire.rs: move this test to crates/a/tests/wire/main.rs"]
        );
        for path in ["crates/a/tests/wire/main.rs", "crates/a/src/x/tests/y.rs", "a/tests/x.txt"] {
            assert_eq!(found(path), [""; 0], "{path}");
        }
    }
}
