//! Installs what is missing, and nothing twice: a compiler and libclang from the system's package
//! manager, RocksDB compiled once, and the real clients that the tests drive.
//!
//! Invariant: what is in the cache is complete. RocksDB's archive arrives by rename; the clients'
//! directory gets its stamp last. One setup runs at a time, by a lock file.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

mod clients;

use crate::{
    paths::{Paths, locked_version},
    proc,
    say::say,
};

/// How often a long silent step says that it is still at work.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Everything.
pub(crate) fn all(paths: &Paths) -> Result<()> {
    build_needs(paths)?;
    real_clients(paths)
}

/// What it takes to compile the workspace.
pub(crate) fn build_needs(paths: &Paths) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    if !paths.rocksdb.join("librocksdb.a").is_file() {
        install(&missing(&[CPP, LIBCLANG]))?;
        rocksdb(paths)?;
    }
    // The bindings are generated in each build, so libclang is needed even with the archive there.
    install(&missing(&[CPP, LIBCLANG]))
}

/// Envoy, and gRPC in three languages; and etcd, with which a load test compares.
pub(crate) fn real_clients(paths: &Paths) -> Result<()> {
    let _one_at_a_time = lock(paths)?;
    install(&missing(&[ETCD]))?;
    clients::install_all(paths)
}

/// Checks that this machine has all that `cargo xtask bare` needs.
pub(crate) fn bare_needs() -> Result<()> {
    ensure!(is_root()?, "`cargo xtask bare` mounts and changes its root: run it as root");
    install(&missing(&[DEBOOTSTRAP, GIT]))
}

/// Something the system has to have.
#[derive(Debug, Clone, Copy)]
struct Need {
    what: &'static str,
    package: &'static str,
    is_there: fn() -> bool,
}

const CPP: Need = Need {
    what: "a C++ compiler",
    package: "g++",
    is_there: || {
        let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
        proc::succeeds(Command::new(compiler).arg("--version"))
    },
};
const LIBCLANG: Need =
    Need { what: "libclang with its headers", package: "libclang-dev", is_there: has_libclang };

/// The command of xtask that runs [`probe_libclang`].
pub(crate) const PROBE_LIBCLANG_COMMAND: &str = "probe-libclang";
/// The headers that `rocksdb/c.h` includes, for which bindgen generates bindings.
const PROBE_HEADER: &str = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n";

const ETCD: Need = Need {
    what: "etcd",
    package: "etcd-server",
    is_there: || proc::succeeds(Command::new("etcd").arg("--version")),
};

const DEBOOTSTRAP: Need = Need {
    what: "debootstrap",
    package: "debootstrap",
    is_there: || proc::succeeds(Command::new("debootstrap").arg("--version")),
};
const GIT: Need = Need {
    what: "git",
    package: "git",
    is_there: || proc::succeeds(Command::new("git").arg("--version")),
};

fn missing(needs: &[Need]) -> Vec<Need> {
    needs.iter().filter(|need| !(need.is_there)()).copied().collect()
}

/// Installs Debian packages, as root or through sudo.
fn install(missing: &[Need]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let what = missing.iter().map(|need| need.what).collect::<Vec<_>>().join(", ");
    let packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    let by_hand = format!("apt-get install {}", packages.join(" "));
    say!("the system lacks {what}: installing {} with apt-get", packages.join(" "));
    apt(&["update"])
        .and_then(|()| {
            apt(&[&["install", "-y", "--no-install-recommends"], packages.as_slice()].concat())
        })
        .with_context(|| format!("the system lacks {what}; on Debian this is: {by_hand}"))?;
    let still: Vec<_> =
        missing.iter().filter(|need| !(need.is_there)()).map(|need| need.what).collect();
    if !still.is_empty() {
        bail!("after {by_hand} the system still lacks {}", still.join(", "));
    }
    Ok(())
}

/// Runs Debian's package manager, as root or through sudo.
fn apt(args: &[&str]) -> Result<()> {
    if !proc::succeeds(Command::new("apt-get").arg("--version")) {
        bail!("there is no apt-get");
    }
    let is_root = is_root()?;
    if !is_root && !proc::succeeds(Command::new("sudo").arg("--version")) {
        bail!("apt-get needs root, or sudo");
    }
    let mut command = Command::new(if is_root { "env" } else { "sudo" });
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]).args(args);
    proc::run(&mut command)
}

fn is_root() -> Result<bool> {
    Ok(proc::output(Command::new("id").arg("-u"))?.trim() == "0")
}

/// Returns whether bindgen will find libclang. A process of its own looks: after one failure the
/// loader never looks again, and a broken library may crash whoever loads it.
fn has_libclang() -> bool {
    // This link holds even if the file of the program was replaced meanwhile.
    proc::succeeds(Command::new("/proc/self/exe").arg(PROBE_LIBCLANG_COMMAND))
}

/// Fails unless bindgen would succeed: the loader that bindgen uses finds libclang, and libclang
/// finds the headers that come with the compiler. `libclang-cpp.so` is another library, and
/// `libclang1` without its headers parses no file that includes `stddef.h`.
pub(crate) fn probe_libclang() -> Result<()> {
    let clang = clang::Clang::new().map_err(anyhow::Error::msg).context("load libclang")?;
    let index = clang::Index::new(&clang, false, false);
    let header = clang::Unsaved::new("probe.h", PROBE_HEADER);
    let unit = index.parser("probe.h").unsaved(&[header]).parse().context("parse a header")?;
    let errors = unit
        .get_diagnostics()
        .into_iter()
        .filter(|diagnostic| diagnostic.get_severity() >= clang::diagnostic::Severity::Error);
    match errors.map(|diagnostic| diagnostic.get_text()).next() {
        Some(error) => bail!("parse a header: {error}"),
        None => Ok(()),
    }
}

/// Names and paths in a directory; none if it can not be read.
fn entries(dir: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect()
}

fn lock(paths: &Paths) -> Result<fs::File> {
    fs::create_dir_all(&paths.cache)
        .with_context(|| format!("create {}", paths.cache.display()))?;
    let path = paths.cache.join("setup.lock");
    let file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    if file.try_lock().is_err() {
        say!("another setup is at work in {}; waiting for it", paths.cache.display());
        file.lock().with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(file)
}

/// Compiles RocksDB in a package of its own and keeps the archive.
///
/// The versions come from our `Cargo.lock` and the flags from our `.cargo/config.toml`, so that the
/// archive is what the workspace itself would have built.
fn rocksdb(paths: &Paths) -> Result<()> {
    if env::var_os("ROCKSDB_LIB_DIR").is_some() {
        bail!("ROCKSDB_LIB_DIR is {}, and librocksdb.a is not in it", paths.rocksdb.display());
    }
    let lock = fs::read_to_string(paths.root.join("Cargo.lock")).context("read Cargo.lock")?;
    let package = paths.cache.join("rocksdb-build");
    let manifest = package.join("Cargo.toml");
    for dir in ["src", ".cargo"] {
        let dir = package.join(dir);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    }
    fs::write(&manifest, rocksdb_manifest(&lock)?)
        .and_then(|()| fs::write(package.join("src/lib.rs"), ""))
        .and_then(|()| fs::write(package.join("Cargo.lock"), &lock))
        .and_then(|()| {
            [".cargo/config.toml", ".cargo/linker.sh"]
                .into_iter()
                .try_for_each(|name| fs::copy(paths.root.join(name), package.join(name)).map(drop))
        })
        .with_context(|| format!("write the package {}", package.display()))?;
    say!(
        "compiling RocksDB once, into {} (10 to 20 minutes on two cores)",
        paths.rocksdb.display()
    );
    let target = package.join("target");
    let mut cargo = paths.plain_cargo();
    cargo
        .current_dir(&package)
        .args(["build", "--release"])
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("ROCKSDB_STATIC");
    with_heartbeat(&target.join("release/build"), || proc::run(&mut cargo))?;

    let archive = find_archive(&target.join("release/build"))?;
    let temporary = paths.cache.join(format!("rocksdb-incoming-{}", std::process::id()));
    fs::create_dir_all(&temporary)
        .and_then(|()| fs::copy(&archive, temporary.join("librocksdb.a")))
        .and_then(|_| fs::File::open(temporary.join("librocksdb.a"))?.sync_all())
        .and_then(|()| fs::rename(&temporary, &paths.rocksdb))
        .with_context(|| format!("put the archive into {}", paths.rocksdb.display()))?;
    // Half a gigabyte that nothing needs any more.
    fs::remove_dir_all(&package).with_context(|| format!("remove {}", package.display()))
}

fn rocksdb_manifest(lock: &str) -> Result<String> {
    let version = locked_version(lock, "rocksdb")?;
    Ok(format!(
        "[package]\nname = \"rocksdb-build\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [workspace]\n\n\
         [dependencies]\n\
         rocksdb = {{ version = \"={version}\", default-features = false, \
         features = [\"bindgen-runtime\", \"lz4\"] }}\n\n\
         [profile.release.package.librocksdb-sys]\nopt-level = 3\ndebug = false\n"
    ))
}

/// The newest archive that the build left.
fn find_archive(build: &Path) -> Result<PathBuf> {
    entries(build)
        .into_iter()
        .map(|(_, dir)| dir.join("out/librocksdb.a"))
        .filter_map(|archive| Some((fs::metadata(&archive).ok()?.modified().ok()?, archive)))
        .max()
        .map(|(_, archive)| archive)
        .with_context(|| format!("no librocksdb.a below {}", build.display()))
}

/// Runs `work` and says from time to time how many object files there are below `build`.
fn with_heartbeat<T>(build: &Path, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reporter = scope.spawn(|| {
            let start = Instant::now();
            while !done.load(Ordering::Relaxed) {
                thread::park_timeout(HEARTBEAT);
                if !done.load(Ordering::Relaxed) {
                    let minutes = start.elapsed().as_secs() / 60;
                    say!(
                        "still compiling RocksDB: {} of about 340 files, {minutes} min",
                        objects(build)
                    );
                }
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        reporter.thread().unpark();
        result
    })
}

/// Object files in the output directories of RocksDB's build.
fn objects(build: &Path) -> usize {
    let mut dirs: Vec<PathBuf> = entries(build)
        .into_iter()
        .filter(|(name, _)| name.starts_with("librocksdb-sys-"))
        .map(|(_, path)| path.join("out"))
        .collect();
    let mut n_objects = 0;
    while let Some(dir) = dirs.pop() {
        for (name, path) in entries(&dir) {
            if name.ends_with(".o") {
                n_objects += 1;
            } else if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    n_objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rocksdb_package_takes_the_locked_version() {
        let lock = "name = \"rocksdb\"\nversion = \"0.25.0\"\n";
        let manifest = rocksdb_manifest(lock).unwrap();
        assert!(manifest.contains("version = \"=0.25.0\""), "{manifest}");
        assert!(rocksdb_manifest("").is_err());
    }
}
