//! Skipped tests are counted, and fail where nothing may be skipped.
//!
//! A test that returns early passes in the eyes of `cargo test`. [`skip`] makes the difference visible: it appends
//! the reason to the file that `CHANCERY_TEST_SKIPS` names, from which `cargo xtask test` prints a list at its end,
//! and it panics in CI (`CI` is set) unless `CHANCERY_TEST_MAY_LACK` lists what is lacking.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write as _},
};

/// A requirement of a test that this machine lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// The right to mount a file system.
    Mount,
    /// A network namespace of the test's own.
    Network,
    /// A Go toolchain that is new enough for grpc-go.
    Go,
    /// Loop devices, on which a file system can be cut off from its disk.
    LoopDevice,
}

impl Lack {
    /// Its name in `CHANCERY_TEST_MAY_LACK`.
    const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Network => "network",
            Self::Go => "go",
            Self::LoopDevice => "loop-device",
        }
    }
}

/// Records that the calling test is skipped. The caller returns right after it.
///
/// # Panics
/// In CI, unless `CHANCERY_TEST_MAY_LACK` (names with commas between them) lists what is lacking.
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
    // Not `eprintln!`: the harness would hide it.
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
    fn skip_is_refused_in_ci_unless_it_is_listed() {
        assert!(may_skip(Lack::Go, false, ""));
        assert!(!may_skip(Lack::Go, true, ""));
        assert!(!may_skip(Lack::Go, true, "mount,network"));
        assert!(may_skip(Lack::Go, true, "mount, go"));
    }
}
