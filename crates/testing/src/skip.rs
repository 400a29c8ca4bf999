//! Skipping of tests: skips are counted, and fail in CI unless they are on a list.
//!
//! For `cargo test`, a test that returns early has passed. [`skip`] makes the skip visible: it
//! appends the reason to the file that `CHANCERY_TEST_SKIPS` names. `cargo xtask test` prints this
//! file as a list at its end. In CI (`CI` is set), `skip` panics unless `ci_may_lack.txt` lists the
//! missing requirement.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write as _},
};

/// The requirements that a CI machine may lack: one per line, with the reason.
const CI_MAY_LACK: &str = include_str!("../ci_may_lack.txt");

/// A requirement of a test that this machine lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// Permission to mount a file system.
    Mount,
    /// Permission to create a network namespace.
    Network,
    /// A Go toolchain that is new enough for grpc-go.
    Go,
    /// The program of an older release.
    OldRelease,
}

impl Lack {
    /// Returns the name of the requirement in `ci_may_lack.txt`.
    const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Network => "network",
            Self::Go => "go",
            Self::OldRelease => "old-release",
        }
    }
}

/// Records that the calling test, or a part of it, is skipped. The caller must omit everything that needs the requirement.
///
/// # Panics
/// Panics in CI, unless `ci_may_lack.txt` lists the missing requirement.
pub fn skip(lack: Lack, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test}: lacks {}: {why}", lack.name());
    assert!(
        may_skip(lack, env::var_os("CI").is_some(), CI_MAY_LACK),
        "skipped in CI: {line}; provide it, or add it to crates/testing/ci_may_lack.txt with a reason"
    );
    // The test harness would capture the output of `eprintln!`.
    drop(writeln!(io::stderr(), "skipped: {line}"));
    if let Some(path) = env::var_os("CHANCERY_TEST_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .unwrap_or_else(|error| panic!("cannot record a skip in {}: {error}", path.display()));
    }
}

fn may_skip(lack: Lack, is_ci: bool, list: &str) -> bool {
    !is_ci || entries(list).any(|(name, reason)| name == lack.name() && !reason.is_empty())
}

/// Returns the names and reasons of a list.
fn entries(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(':')).map(|(name, reason)| (name, reason.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_fails_in_ci_unless_listed_with_a_reason() {
        let list = "# mount: a comment\ngo: too old\nnetwork:\n";
        assert!(may_skip(Lack::Mount, false, list));
        assert!(!may_skip(Lack::Mount, true, list));
        assert!(may_skip(Lack::Go, true, list));
        assert!(!may_skip(Lack::Network, true, list));
    }

    #[test]
    fn list_names_known_requirements_with_reasons() {
        let known = [Lack::Mount, Lack::Network, Lack::Go, Lack::OldRelease].map(Lack::name);
        for (name, reason) in entries(CI_MAY_LACK) {
            assert!(known.contains(&name) && !reason.is_empty(), "{name}: {reason}");
        }
    }
}
