//! The build of the program `chancery`, with a line of progress.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    paths::Paths,
    proc,
    progress::{self, Done},
    say::say,
};

const PACKAGE: &str = "chancery-server";

/// The flags with which cargo reports what it has compiled.
const MESSAGES: [&str; 2] = ["--quiet", "--message-format=json-render-diagnostics"];

/// The build profile of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For the demo: without optimization, which shortens the first build.
    Quickstart,
    /// For production and for load tests.
    Release,
    /// The profile of the tests, whose build can be reused.
    Dev,
}

impl Profile {
    /// Returns cargo's name of the profile, and the name of its directory.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Quickstart => ("quickstart", "quickstart"),
            Self::Release => ("release", "release"),
            Self::Dev => ("dev", "debug"),
        }
    }
}

/// Builds the program and returns its path.
pub(crate) fn build(paths: &Paths, profile: Profile) -> Result<PathBuf> {
    let (name, dir) = profile.names();
    let mut cargo = paths.cargo("build");
    cargo.args(["--package", PACKAGE, "--profile", name]);
    cargo.args(MESSAGES);
    set_revision(paths, profile, &mut cargo);
    compile(paths, &format!("chancery, profile `{name}`"), cargo)?;
    Ok(paths.target.join(dir).join("chancery"))
}

/// Returns the program that `cargo test --workspace` has built.
///
/// [`build`] selects one package. Other features of dependencies are then enabled, so it would compile most packages
/// again.
pub(crate) fn of_tests(paths: &Paths) -> Result<PathBuf> {
    let program = paths.target.join(Profile::Dev.names().1).join("chancery");
    ensure!(program.is_file(), "the tests have not built {}", program.display());
    Ok(program)
}

/// Builds the program without shared libraries and symbols, and returns its path.
///
/// Only the last step, the linking, differs from [`build`]: the packages below it are the same. The program runs
/// on a system without libraries. It finds host names in `/etc/hosts` and DNS, and uses no other module of NSS.
pub(crate) fn build_static(paths: &Paths, profile: Profile) -> Result<PathBuf> {
    let (name, dir) = profile.names();
    let libraries = paths.target.join("static-libraries");
    find_static_cpp(&libraries)?;
    let mut cargo = paths.cargo("rustc");
    cargo.args(["--package", PACKAGE, "--bin", "chancery", "--profile", name]);
    cargo.args(MESSAGES);
    cargo.args(["--", "-Ctarget-feature=+crt-static", "-L"]).arg(&libraries);
    set_revision(paths, profile, &mut cargo);
    compile(paths, &format!("chancery as a static program, profile `{name}`"), cargo)?;
    // Cargo uses one name for both forms of the program, so the static one gets a name of its own.
    let program = paths.target.join(dir).join("chancery");
    let stripped = paths.target.join(dir).join("chancery-static");
    proc::run(Command::new("strip").arg("--strip-all").arg("-o").arg(&stripped).arg(&program))?;
    fs::remove_file(&program).with_context(|| format!("remove {}", program.display()))?;
    check_static(&stripped)?;
    Ok(stripped)
}

/// Gives the optimized program the revision of its source, which it shows in `chancery_build_info`.
///
/// Other programs have no revision, so that a commit alone compiles nothing again. The variable has precedence, for builds of
/// sources without git.
fn set_revision(paths: &Paths, profile: Profile, cargo: &mut Command) {
    const VARIABLE: &str = "CHANCERY_REVISION";
    if profile != Profile::Release || env::var_os(VARIABLE).is_some() {
        return;
    }
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&paths.root).args(["-c", "safe.directory=*"]).args(args);
        Some(proc::output(&mut git).ok()?.trim().to_owned())
    };
    if let Some(revision) = git(&["rev-parse", "HEAD"]) {
        let is_clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
        cargo.env(VARIABLE, revision + if is_clean { "" } else { "-dirty" });
    }
}

/// Fills a directory with the static C++ library, and nothing else.
///
/// The build script of RocksDB asks for a shared library. The linker searches one directory after the other, and finds
/// this one first.
fn find_static_cpp(dir: &Path) -> Result<()> {
    const NAME: &str = "libstdc++.a";
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let library = proc::output(Command::new(compiler).arg(format!("-print-file-name={NAME}")))?;
    let library = Path::new(library.trim());
    ensure!(library.is_absolute(), "the C++ compiler has no {NAME}; install libstdc++-dev");
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let link = dir.join(NAME);
    if !link.exists() {
        symlink(library, &link).with_context(|| format!("create {}", link.display()))?;
    }
    Ok(())
}

/// Fails if the program needs a dynamic linker.
fn check_static(program: &Path) -> Result<()> {
    let headers = proc::output(Command::new("readelf").arg("-lW").arg(program))?;
    ensure!(!headers.contains("INTERP"), "{} is not a static program", program.display());
    Ok(())
}

/// Runs cargo, and shows how much is compiled.
fn compile(paths: &Paths, what: &str, mut cargo: Command) -> Result<()> {
    say!("building {what}; the first build takes minutes");
    let tree = ["--package", PACKAGE, "--edges=normal,build", "--prefix=none", "--format={p}"];
    let tree = proc::output(paths.cargo("tree").args(tree))?;
    let built = Mutex::new(Built::new(&tree));
    let lock = || built.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    progress::show(
        "compiling chancery",
        || lock().done(),
        || {
            let mut child = cargo.stdout(Stdio::piped()).spawn().context("start cargo")?;
            let messages = child.stdout.take().context("cargo has no output")?;
            for message in BufReader::new(messages).lines() {
                lock().on_message(&message.context("read cargo's messages")?);
            }
            let status = child.wait().context("wait for cargo")?;
            ensure!(status.success(), "{} failed: {status}", proc::shown(&cargo));
            Ok(())
        },
    )?;
    say!("built chancery in {}", progress::time(start.elapsed()));
    Ok(())
}

/// The packages that take much longer to compile than others, in the time of an average package.
const SLOW: &[(&str, u32)] = &[
    ("chancery_admin", 16),
    ("chancery_cli", 12),
    ("chancery_config", 2),
    ("chancery_fanout", 4),
    ("chancery_proto", 8),
    ("chancery_serve", 4),
    ("chancery_store", 16),
    ("clap_builder", 4),
    ("openraft", 12),
    ("tokio", 4),
];

fn work_of(package: &str) -> u32 {
    let slow = SLOW.iter().find(|(name, _)| *name == package);
    slow.map_or(1, |(_, work)| *work)
}

/// The packages that cargo compiles. Packages from an earlier build do not count.
#[derive(Debug, PartialEq, Eq)]
struct Built {
    n_packages: u32,
    n_compiled: u32,
    /// The work for all packages, and for the compiled ones.
    work: u32,
    compiled_work: u32,
    seen: BTreeSet<String>,
}

impl Built {
    /// Reads the packages from the output of `cargo tree`, which may list a package several times.
    fn new(tree: &str) -> Self {
        let name_and_version = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.replace('-', "_"), words.next()?.to_owned()))
        };
        let packages: BTreeSet<_> = tree.lines().filter_map(name_and_version).collect();
        let n_packages = u32::try_from(packages.len()).unwrap_or(u32::MAX);
        let work = packages.iter().map(|(name, _)| work_of(name)).sum();
        Self { n_packages, n_compiled: 0, work, compiled_work: 0, seen: BTreeSet::new() }
    }

    /// Counts the package of an artifact. Cargo reports several artifacts of some packages.
    fn on_message(&mut self, message: &str) {
        let message: Value = serde_json::from_str(message).unwrap_or_default();
        let is_script = message["target"]["kind"][0] == "custom-build";
        if message["reason"] != "compiler-artifact" || is_script {
            return;
        }
        let Some(id) = message["package_id"].as_str() else { return };
        if !self.seen.insert(id.to_owned()) {
            return;
        }
        // `<source>#<name>@<version>`
        let name = id.rsplit('#').next().and_then(|end| end.split('@').next());
        let work = name.map_or(1, |name| work_of(&name.replace('-', "_")));
        if message["fresh"] == true {
            self.n_packages = self.n_packages.saturating_sub(1);
            self.work = self.work.saturating_sub(work);
        } else {
            self.n_compiled += 1;
            self.compiled_work += work;
        }
    }

    fn done(&self) -> Done {
        let text = format!("{} of {} packages", self.n_compiled, self.n_packages);
        Done { text, work: self.compiled_work, total: self.work }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_counts_once_and_an_earlier_build_does_not_count() {
        let tree =
            "chancery-server v0.1.0 (/x)\nsyn v2.0.1\nsyn v3.0.1\nserde v1.0.0\nsyn v2.0.1 (*)\n";
        let mut built = Built::new(tree);
        let all = work_of("chancery_server") + 3;
        let artifact = |id: &str, kind: &str, fresh: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "package_id": id, "fresh": fresh,
                "target": {"kind": [kind]},
            })
            .to_string()
        };
        let mut after = |message: &str| {
            built.on_message(message);
            let done = built.done();
            (done.text, done.work, done.total)
        };
        assert_eq!(after("{}"), ("0 of 4 packages".to_owned(), 0, all));
        let (serde, syn) = ("registry+https://x#serde@1.0.0", "registry+https://x#syn@2.0.1");
        assert_eq!(after(&artifact(serde, "custom-build", false)).1, 0);
        assert_eq!(after(&artifact(serde, "lib", false)), ("1 of 4 packages".to_owned(), 1, all));
        assert_eq!(after(&artifact(serde, "lib", false)).1, 1);
        assert_eq!(after(&artifact(syn, "lib", true)), ("1 of 3 packages".to_owned(), 1, all - 1));
        let server =
            after(&artifact("path+file:///x/crates/server#chancery-server@0.1.0", "bin", false));
        assert_eq!(server, ("2 of 3 packages".to_owned(), all - 2, all - 1));
    }
}
