//! Compiles RocksDB once and stores the archive in the cache.
//!
//! Each of RocksDB's 340 source files includes its headers, whose parsing takes longer than compiling
//! the rest. The build therefore compiles a copy of `librocksdb-sys` with a few dozen source files, each
//! of which includes many original files. Flags and defines are those of the crate's own build script.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    paths::{Paths, locked_version},
    proc,
    progress::{self, Done},
    say::say,
};

/// The maximum size of a batch of several source files, in bytes.
///
/// Larger batches parse fewer headers. However, the compiler then needs more memory (about 1 GB for this
/// size), and the last batches use fewer cores.
const BATCH_BYTES: u64 = 400_000;
/// The crate's list of source files, relative to its directory `rocksdb`.
const SOURCES: &str = "rocksdb_lib_sources.txt";
/// The source file that the crate's build script replaces with a generated one outside the list.
const GENERATED: &str = "util/build_version.cc";

/// Builds the archive in a separate package and moves it into the cache.
///
/// The versions come from our `Cargo.lock` and the flags from our `.cargo/config.toml`.
pub(super) fn build(paths: &Paths) -> Result<()> {
    if env::var_os("ROCKSDB_LIB_DIR").is_some() {
        bail!(
            "cannot use ROCKSDB_LIB_DIR: {} contains no librocksdb.a; correct or unset the variable",
            paths.rocksdb.display()
        );
    }
    let lock = fs::read_to_string(paths.root.join("Cargo.lock")).context("read Cargo.lock")?;
    let package = Package { dir: paths.cache.join("rocksdb-build") };
    if package.dir.exists() {
        remove(&package.dir)?;
    }
    package.write(paths, &lock)?;
    let n_batches = package.batch_sources(paths)?;
    // The copy replaces the registry's package under the same name and version.
    let patch = "[patch.crates-io]\nlibrocksdb-sys = { path = \"librocksdb-sys\" }\n";
    let manifest = format!("{}\n{patch}", manifest(&lock)?);
    fs::write(package.dir.join("Cargo.toml"), manifest).context("write Cargo.toml")?;

    say!("compiling RocksDB once, into {}", paths.rocksdb.display());
    let target = package.dir.join("target");
    let mut cargo = package.cargo(paths);
    cargo
        .args(["build", "--quiet", "--release"])
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("ROCKSDB_STATIC");
    let start = Instant::now();
    let built = target.join("release/build");
    let done = || {
        let n_objects = objects(&built);
        Done {
            text: format!("{n_objects} of {n_batches} files"),
            work: n_objects,
            total: n_batches,
        }
    };
    progress::show("compiling RocksDB", done, || proc::run(&mut cargo))?;
    say!("compiled RocksDB in {}", progress::time(start.elapsed()));

    let archive = find_archive(&target.join("release/build"))?;
    let temporary = paths.cache.join(format!("rocksdb-incoming-{}", std::process::id()));
    fs::create_dir_all(&temporary)
        .and_then(|()| fs::copy(&archive, temporary.join("librocksdb.a")))
        .and_then(|_| fs::File::open(temporary.join("librocksdb.a"))?.sync_all())
        .and_then(|()| fs::rename(&temporary, &paths.rocksdb))
        .with_context(|| format!("put the archive into {}", paths.rocksdb.display()))?;
    remove(&package.dir)
}

/// The temporary package whose build produces the archive.
#[derive(Debug)]
struct Package {
    dir: PathBuf,
}

impl Package {
    /// Writes an empty library that depends on `rocksdb`.
    fn write(&self, paths: &Paths, lock: &str) -> Result<()> {
        for dir in ["src", ".cargo"] {
            let dir = self.dir.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        fs::write(self.dir.join("Cargo.toml"), manifest(lock)?)
            .and_then(|()| fs::write(self.dir.join("src/lib.rs"), ""))
            .and_then(|()| fs::write(self.dir.join("Cargo.lock"), lock))
            .and_then(|()| {
                [".cargo/config.toml", ".cargo/linker.sh"].into_iter().try_for_each(|name| {
                    fs::copy(paths.root.join(name), self.dir.join(name)).map(drop)
                })
            })
            .with_context(|| format!("write the package {}", self.dir.display()))
    }

    /// Copies the crate `librocksdb-sys` into the package and replaces its source files with batches.
    /// Returns the number of object files that the build makes from them.
    fn batch_sources(&self, paths: &Paths) -> Result<u32> {
        let metadata = proc::output(self.cargo(paths).args(["metadata", "--format-version", "1"]))?;
        let metadata: serde_json::Value =
            serde_json::from_str(&metadata).context("read cargo's metadata")?;
        let manifest = metadata["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|package| package["name"] == "librocksdb-sys")
            .and_then(|package| package["manifest_path"].as_str())
            .context("cargo's metadata has no package librocksdb-sys")?;
        let original = Path::new(manifest).parent().context("a manifest has no directory")?;
        let copy = self.dir.join("librocksdb-sys");
        proc::run(Command::new("cp").arg("-r").args([original, &copy]))?;

        let list = copy.join(SOURCES);
        let listed =
            fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
        let sources = listed.lines().map(str::trim).filter(|name| !name.is_empty());
        let sources: Vec<_> = sources
            .filter(|name| *name != GENERATED)
            .map(|name| {
                let path = copy.join("rocksdb").join(name);
                let metadata = fs::metadata(&path)
                    .with_context(|| format!("read the size of {}", path.display()))?;
                Ok((name, metadata.len()))
            })
            .collect::<Result<_>>()?;
        let batches = batches(&sources);
        let mut names = String::new();
        for (i, batch) in batches.iter().enumerate() {
            let name = format!("batch_{i:02}.cc");
            let includes: String =
                batch.iter().map(|source| format!("#include \"{source}\"\n")).collect();
            fs::write(copy.join("rocksdb").join(&name), includes)
                .with_context(|| format!("write {name}"))?;
            names += &name;
            names.push('\n');
        }
        fs::write(&list, names).with_context(|| format!("write {}", list.display()))?;
        // The generated file is compiled by itself.
        u32::try_from(batches.len() + 1).context("too many batches")
    }

    fn cargo(&self, paths: &Paths) -> Command {
        let mut cargo = paths.plain_cargo();
        cargo.current_dir(&self.dir);
        cargo
    }
}

/// Divides the sources into batches of neighbors, which share most of their headers.
fn batches<'a>(sources: &[(&'a str, u64)]) -> Vec<Vec<&'a str>> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for (name, size) in sources {
        if bytes + size > BATCH_BYTES && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        batch.push(*name);
        bytes += size;
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// Returns the manifest of the package. Like RocksDB's own makefile, it compiles with `-O2`.
fn manifest(lock: &str) -> Result<String> {
    let version = locked_version(lock, "rocksdb")?;
    Ok(format!(
        "[package]\nname = \"rocksdb-build\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [workspace]\n\n\
         [dependencies]\n\
         rocksdb = {{ version = \"={version}\", default-features = false, \
         features = [\"bindgen-runtime\", \"lz4\"] }}\n\n\
         [profile.release.package.librocksdb-sys]\nopt-level = 2\ndebug = false\n"
    ))
}

/// Returns the path of the archive in the build directory.
fn find_archive(build: &Path) -> Result<PathBuf> {
    let mut archives: Vec<_> =
        outputs(build).map(|dir| dir.join("librocksdb.a")).filter(|path| path.is_file()).collect();
    ensure!(archives.len() < 2, "several archives below {}", build.display());
    archives.pop().with_context(|| format!("no librocksdb.a below {}", build.display()))
}

/// Returns the output directories of the crate's build script.
fn outputs(build: &Path) -> impl Iterator<Item = PathBuf> {
    entries(build)
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("librocksdb-sys-"))
        })
        .map(|path| path.join("out"))
}

/// Returns the paths in a directory, or no paths if it cannot be read.
fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns the number of object files in the output directories of RocksDB's build.
fn objects(build: &Path) -> u32 {
    let objects = outputs(build)
        .flat_map(|dir| entries(&dir).collect::<Vec<_>>())
        .filter(|path| path.extension().is_some_and(|extension| extension == "o"));
    u32::try_from(objects.count()).unwrap_or(u32::MAX)
}

fn remove(dir: &Path) -> Result<()> {
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_requires_the_locked_version() {
        let lock = "name = \"rocksdb\"\nversion = \"0.25.0\"\n";
        let manifest = manifest(lock).unwrap();
        assert!(manifest.contains("version = \"=0.25.0\""), "{manifest}");
        assert!(super::manifest("").is_err());
    }

    #[test]
    fn batches_contain_every_source_once_in_order() {
        let sources = [("a", BATCH_BYTES / 2), ("b", BATCH_BYTES / 2), ("c", 1), ("d", 2)];
        assert_eq!(batches(&sources), [vec!["a", "b"], vec!["c", "d"]]);
        assert_eq!(batches(&[("huge", 2 * BATCH_BYTES), ("d", 1)]), [vec!["huge"], vec!["d"]]);
        assert!(batches(&[]).is_empty());
    }
}
