//! The directories of the checkout and of the cache, and cargo calls that use them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow};

/// The directories that all commands use.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The workspace.
    pub(crate) root: PathBuf,
    /// The cache outside the checkout: the built RocksDB, the clients, the target directory.
    pub(crate) cache: PathBuf,
    /// Cargo's target directory: `CARGO_TARGET_DIR`, or a directory in the cache.
    pub(crate) target: PathBuf,
    /// The directory with `librocksdb.a`.
    pub(crate) rocksdb: PathBuf,
    /// The virtual environment with the real clients (Envoy, grpcio).
    pub(crate) clients: PathBuf,
}

impl Paths {
    /// Finds the directories from the environment and from `Cargo.lock`.
    pub(crate) fn find() -> Result<Self> {
        // Cargo sets the variable for `cargo xtask`. The compiled-in value serves direct calls of the
        // binary.
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest
            .ancestors()
            .nth(2)
            .ok_or_else(|| anyhow!("{} is not in crates/ of a workspace", manifest.display()))?
            .to_owned();
        let cache = cache_dir(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))?;
        let target = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| cache.join("target"), |dir| root.join(dir));
        let lock = root.join("Cargo.lock");
        let lock = fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?;
        let config = root.join(".cargo/config.toml");
        let config =
            fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
        let rocksdb = match env::var_os("ROCKSDB_LIB_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => cache.join(format!(
                "rocksdb-{}-{}",
                locked_version(&lock, "librocksdb-sys")?,
                target_cpu(&config)?
            )),
        };
        let clients =
            env::var_os("CHANCERY_CLIENTS").map_or_else(|| cache.join("clients"), PathBuf::from);
        Ok(Self { root, cache, target, rocksdb, clients })
    }

    /// Returns a cargo call in the workspace, with the prebuilt RocksDB and the target directory.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = self.plain_cargo();
        cargo
            .arg(subcommand)
            .env("ROCKSDB_LIB_DIR", &self.rocksdb)
            .env("ROCKSDB_STATIC", "1")
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CHANCERY_CLIENTS", &self.clients);
        cargo
    }

    /// Returns a cargo call in the workspace, without additional variables.
    pub(crate) fn plain_cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        cargo
    }

    /// Returns the path of a file relative to the workspace.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// Returns `$XDG_CACHE_HOME/chancery` or `~/.cache/chancery`. The XDG specification requires that a
/// relative `XDG_CACHE_HOME` is ignored.
fn cache_dir(xdg: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> Result<PathBuf> {
    xdg.map(PathBuf::from)
        .filter(|dir| dir.is_absolute())
        .or_else(|| home.map(|home| PathBuf::from(home).join(".cache")))
        .map(|cache| cache.join("chancery"))
        .ok_or_else(|| {
            anyhow!(
                "cannot locate the cache: neither XDG_CACHE_HOME nor HOME is set; set one of them"
            )
        })
}

/// Returns the version of `package` in a `Cargo.lock`.
pub(crate) fn locked_version<'a>(lock: &'a str, package: &str) -> Result<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines();
    lines.by_ref().find(|line| *line == name);
    lines
        .next()
        .and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .ok_or_else(|| anyhow!("Cargo.lock has no version of the package `{package}`"))
}

/// Returns the value of `-Ctarget-cpu` in a `.cargo/config.toml`.
pub(crate) fn target_cpu(config: &str) -> Result<&str> {
    config
        .split_once("-Ctarget-cpu=")
        .and_then(|(_, rest)| rest.split(['"', ' ', ',']).next())
        .filter(|cpu| !cpu.is_empty())
        .ok_or_else(|| anyhow!(".cargo/config.toml does not set `-Ctarget-cpu`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"rocksdb\"\nversion = \"0.25.0\"\n\n[[package]]\n\
        name = \"librocksdb-sys\"\nversion = \"0.19.0+11.8.1\"\n";

    #[test]
    fn locked_version_follows_package_name() {
        assert_eq!(locked_version(LOCK, "librocksdb-sys").unwrap(), "0.19.0+11.8.1");
        assert_eq!(locked_version(LOCK, "rocksdb").unwrap(), "0.25.0");
    }

    #[test]
    fn package_without_locked_version_is_an_error() {
        assert!(locked_version(LOCK, "sled").is_err());
    }

    #[test]
    fn target_cpu_is_read_from_rustflags() {
        let config = "[build]\nrustflags = [\"-Ctarget-cpu=x86-64-v2\", \"-g\"]\n";
        assert_eq!(target_cpu(config).unwrap(), "x86-64-v2");
        assert!(target_cpu("[build]\n").is_err());
    }

    #[test]
    fn cache_directory_follows_xdg_then_home() {
        let dir = |xdg: Option<&str>, home: Option<&str>| {
            cache_dir(xdg.map(Into::into), home.map(Into::into))
        };
        assert_eq!(dir(Some("/x"), Some("/h")).unwrap(), Path::new("/x/chancery"));
        assert_eq!(dir(Some("x"), Some("/h")).unwrap(), Path::new("/h/.cache/chancery"));
        assert_eq!(dir(None, Some("/h")).unwrap(), Path::new("/h/.cache/chancery"));
        assert!(dir(None, None).is_err());
    }
}
