//! Skipping of tests: skips are counted, and fail in CI unless they are allowed.
//!
//! For `cargo test`, a test that returns early has passed. [`skip`] makes the skip visible: it
//! appends the reason to the file that `CHANCERY_TEST_SKIPS` names. `cargo xtask test` prints this
//! file as a list at its end. In CI (`CI` is set), `skip` panics unless `CHANCERY_TEST_MAY_LACK`
//! lists the missing requirement.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write as _},
};

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
    /// Loop devices, with which a test can detach a file system from its disk.
    LoopDevice,
}

impl Lack {
    /// Returns the name of the requirement in `CHANCERY_TEST_MAY_LACK`.
    const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Network => "network",
            Self::Go => "go",
            Self::LoopDevice => "loop-device",
        }
    }
}

/// Records that the calling test is skipped. The caller must return immediately afterwards.
///
/// # Panics
/// Panics in CI, unless `CHANCERY_TEST_MAY_LACK` lists the missing requirement. The variable is a
/// comma-separated list of names.
pub fn skip(lack: Lack, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test}: lacks {}: {why}", lack.name());
    let allowed = env::var("CHANCERY_TEST_MAY_LACK").unwrap_or_default();
    assert!(
        may_skip(lack, env::var_os("CI").is_some(), &allowed),
        "skipped in CI: {line}; CHANCERY_TEST_MAY_LACK={} allows it",
        lack.name()
    );
    // The test harness would capture the output of `eprintln!`.
    drop(writeln!(io::stderr(), "skipped: {line}"));
    if let Some(path) = env::var_os("CHANCERY_TEST_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .unwrap_or_else(|error| panic!("cannot record a skip in {}: {error}", path.display()));
    }
}

fn may_skip(lack: Lack, is_ci: bool, allowed: &str) -> bool {
    !is_ci || allowed.split(',').any(|name| name.trim() == lack.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_fails_in_ci_unless_allowed() {
        assert!(may_skip(Lack::Go, false, ""));
        assert!(!may_skip(Lack::Go, true, ""));
        assert!(!may_skip(Lack::Go, true, "mount,network"));
        assert!(may_skip(Lack::Go, true, "mount, go"));
    }
}
