//! `cargo xtask bare`: the README's commands in a Debian root that has only the Rust toolchain.
//!
//! The build cache is outside the checkout. A machine on which setup ran once therefore hides missing
//! steps of setup. This command creates a root with debootstrap (variant `minbase`), copies the checkout
//! into it, and bind-mounts the toolchain read-only. It runs each command there with an empty cache.
//!
//! Invariant: all commands run in separate mount and process namespaces, which end with this command.
//! An aborted run leaves only the directory of the root.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{demo, paths::Paths, proc, say::say, setup};

/// Packages that resemble those that setup needs, but are incomplete. Setup must install the rest.
const HALF_THERE: &[&str] =
    &["gcc", "libc6-dev", "libclang-cpp14", "libclang1-14", "python3", "nodejs"];

/// The variables that commands in the root inherit, because they configure access to package
/// registries.
const NETWORK_VARIABLES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CARGO_HTTP_CAINFO",
    "PIP_CERT",
    "PIP_INDEX_URL",
    "NODE_EXTRA_CA_CERTS",
    "GOPROXY",
];

/// The files and directories that are copied into the root for the same reason.
const NETWORK_FILES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs",
    "/usr/local/share/ca-certificates",
    "/etc/pip.conf",
];

/// The configuration with which apt in the root accesses the mirror, its only source.
const APT_FILES: &[&str] = &["/etc/apt/auth.conf.d", "/etc/apt/apt.conf.d"];

/// The state of the root before the commands run, which also selects the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    /// Debian's `minbase` and the Rust toolchain, for the README's two commands.
    Bare,
    /// The same with a copy of this machine's RocksDB archive, which saves minutes of compilation.
    Quick,
    /// Some packages are incomplete, for `cargo xtask setup` and a compilation.
    HalfThere,
}

impl Machine {
    /// Returns the machine of the flags of the command.
    pub(crate) fn parse(flags: &[&str]) -> Result<Self> {
        match flags {
            [] => Ok(Self::Bare),
            ["--quick"] => Ok(Self::Quick),
            ["--half"] => Ok(Self::HalfThere),
            _ => bail!("unknown flags {:?} of bare: it takes --quick or --half", flags.join(" ")),
        }
    }
}

/// Runs the commands and prints the duration of each. Fails on the first failing command.
pub(crate) fn run(paths: &Paths, machine: Machine) -> Result<()> {
    setup::bare_needs()?;
    let commit = proc::output(git(paths).args(["describe", "--always", "--dirty"]))?;
    let dir = paths.cache.join(match machine {
        Machine::Bare | Machine::Quick => "bare",
        Machine::HalfThere => "bare-half",
    });
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    let root = Root { dir: dir.join("root") };
    let mut times = Times::default();
    say!("bare: creating a Debian root in {}", root.dir.display());
    times.measure("debootstrap", || root.make())?;
    root.copy_checkout(paths)?;
    match machine {
        Machine::Bare | Machine::Quick => {
            if machine == Machine::Quick {
                root.copy_rocksdb(paths)?;
            }
            times.measure("cargo xtask demo", || root.demo())?;
            times.measure("cargo xtask test", || root.run("cargo xtask test"))?;
        }
        Machine::HalfThere => {
            let install = format!(
                "apt-get -qq update && apt-get -qq install -y --no-install-recommends {} >/dev/null",
                HALF_THERE.join(" ")
            );
            times.measure("install incomplete packages", || root.run(&install))?;
            root.copy_rocksdb(paths)?;
            times.measure("cargo xtask setup", || root.run("cargo xtask setup"))?;
            times.measure("cargo xtask test -p chancery-store record", || {
                root.run("cargo xtask test -p chancery-store record")
            })?;
        }
    }
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    say!("bare: all commands passed at {}, {machine:?}:\n{}", commit.trim(), times.shown());
    Ok(())
}

/// The duration of each step.
#[derive(Debug, Default)]
struct Times(Vec<(String, Duration)>);

impl Times {
    fn measure(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        work().with_context(|| format!("bare: {name}"))?;
        self.0.push((name.to_owned(), start.elapsed()));
        Ok(())
    }

    fn shown(&self) -> String {
        let lines = self.0.iter().map(|(name, time)| {
            let seconds = time.as_secs();
            format!("  {:>3} min {:02} s  {name}", seconds / 60, seconds % 60)
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A Debian root directory.
#[derive(Debug)]
struct Root {
    dir: PathBuf,
}

impl Root {
    /// Installs Debian, and gives the root access to the package registries.
    fn make(&self) -> Result<()> {
        make_root(&self.dir, &[])?;
        for path in APT_FILES.iter().chain(NETWORK_FILES) {
            copy_into(Path::new(path), &self.dir)?;
        }
        Ok(())
    }

    /// Copies the tracked and the untracked, not ignored files of the checkout.
    fn copy_checkout(&self, paths: &Paths) -> Result<()> {
        let listed = proc::output(git(paths).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        for name in listed.split_terminator('\0') {
            let (from, to) = (paths.root.join(name), self.dir.join("chancery").join(name));
            // The deletion of a file may not be committed yet.
            if !from.exists() {
                continue;
            }
            let parent = to.parent().context("a file has no directory")?;
            fs::create_dir_all(parent)
                .and_then(|()| fs::copy(&from, &to).map(drop))
                .with_context(|| format!("copy {name}"))?;
        }
        Ok(())
    }

    /// Copies this machine's RocksDB archive into the cache of the root.
    fn copy_rocksdb(&self, paths: &Paths) -> Result<()> {
        setup::build_needs(paths)?;
        let name = paths.rocksdb.file_name().context("the archive has no name")?;
        let to = self.dir.join("root/.cache/chancery").join(name);
        fs::create_dir_all(&to)
            .and_then(|()| {
                fs::copy(paths.rocksdb.join("librocksdb.a"), to.join("librocksdb.a")).map(drop)
            })
            .context("copy the RocksDB archive")
    }

    /// Returns a shell command that runs in the root's checkout, with only the toolchain mounted.
    fn command(&self, script: &str) -> Result<Command> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let toolchain = proc::output(Command::new(rustc).args(["--print", "sysroot"]))?;
        let mounts = format!(
            "set -e; cd {root}; mkdir -p opt/rust; mount --bind {toolchain} opt/rust; \
             mount -o remount,bind,ro opt/rust; mount --rbind /dev dev; mount --rbind /sys sys; \
             mount -t proc proc proc; mount -t tmpfs tmpfs tmp; \
             exec chroot . /bin/sh -c \"$1\"",
            root = quoted(&self.dir.to_string_lossy()),
            toolchain = quoted(toolchain.trim()),
        );
        let script = format!("cd /chancery && {script}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        command.args(["sh", "-c", &mounts, "sh", &script]);
        command.env_clear().stdin(Stdio::null());
        command.envs([("HOME", "/root"), ("LANG", "C.UTF-8"), ("USER", "root")]);
        command.env(
            "PATH",
            "/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        for name in NETWORK_VARIABLES {
            if let Some(value) = env::var_os(name) {
                command.env(name, value);
            }
        }
        Ok(command)
    }

    fn run(&self, script: &str) -> Result<()> {
        say!("bare: {script}");
        proc::run(&mut self.command(script)?)
    }

    /// Runs the demo until it prints its instructions, then stops it with SIGINT, like Ctrl-C.
    fn demo(&self) -> Result<()> {
        say!("bare: cargo xtask demo");
        let mut command = self.command("cargo xtask demo")?;
        let mut child = command.stderr(Stdio::piped()).spawn().context("start the demo")?;
        let stderr = child.stderr.take().context("the demo has no output")?;
        let mut is_ready = false;
        for line in BufReader::new(stderr).lines() {
            let line = line.context("read the demo's output")?;
            say!("  {line}");
            if !is_ready && line.contains(demo::READY) {
                is_ready = true;
                interrupt_demo(child.id())?;
            }
        }
        let status = child.wait().context("wait for the demo")?;
        ensure!(is_ready, "the demo never printed {:?}", demo::READY);
        ensure!(status.success(), "the demo failed after SIGINT: {status}");
        Ok(())
    }
}

/// Installs the `minbase` variant of this machine's Debian release, and more packages, from this machine's mirror.
pub(crate) fn make_root(dir: &Path, packages: &[&str]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release has no VERSION_CODENAME")?;
    let mut command = Command::new("debootstrap");
    command.arg("--variant=minbase");
    if !packages.is_empty() {
        command.arg(format!("--include={}", packages.join(",")));
    }
    command.arg(suite).arg(dir).stdout(Stdio::null());
    if let Some(mirror) = mirror(suite) {
        command.arg(mirror);
    }
    proc::run(&mut command)
}

/// Sends SIGINT to xtask, which is a descendant of `unshare`.
fn interrupt_demo(unshare: u32) -> Result<()> {
    let mut pids = vec![unshare];
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let mut at = 0;
        while at < pids.len() {
            let children = format!("/proc/{0}/task/{0}/children", pids[at]);
            let children = fs::read_to_string(children).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            at += 1;
        }
        let xtask = pids.iter().find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "xtask")
        });
        if let Some(pid) = xtask {
            return proc::run(Command::new("kill").args(["-INT", &pid.to_string()]));
        }
        pids.truncate(1);
        thread::sleep(Duration::from_millis(100));
    }
    bail!("no process `xtask` below process {unshare}")
}

/// Returns the mirror from which this machine installs a suite.
fn mirror(suite: &str) -> Option<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(fs::read_dir("/etc/apt/sources.list.d").ok()?.flatten().map(|entry| entry.path()));
    files.iter().find_map(|path| mirror_in(&fs::read_to_string(path).ok()?, suite))
}

/// Returns the mirror of a suite in one source list, in either of apt's two formats.
fn mirror_in(sources: &str, suite: &str) -> Option<String> {
    let one_line = sources.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.contains("://"))?;
        let is_match = words[0] == "deb" && words.get(at + 1) == Some(&suite);
        is_match.then(|| words[at].to_owned())
    });
    one_line.or_else(|| {
        let field = |stanza: &str, name: &str| {
            let value = stanza.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        sources.split("\n\n").find_map(|stanza| {
            let has_suite = field(stanza, "Suites:")?.iter().any(|name| name == suite);
            field(stanza, "URIs:")?.into_iter().next().filter(|_| has_suite)
        })
    })
}

/// Copies a file or a directory to the same path below another root, if it exists.
fn copy_into(path: &Path, root: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let to = root.join(path.strip_prefix("/").unwrap_or(path));
    let parent = to.parent().context("a path has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    proc::run(Command::new("cp").args(["-rLT", "--remove-destination"]).arg(path).arg(&to))
}

fn git(paths: &Paths) -> Command {
    let mut git = Command::new("git");
    git.current_dir(&paths.root);
    git
}

/// Quotes a text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_of_suite_is_found_in_both_apt_formats() {
        let new = "Types: deb\nURIs: http://x.example/debian\nSuites: nodistro\n\n\
                   Types: deb\n# old\nURIs: http://a.example/debian\nSuites: sid bookworm\n";
        assert_eq!(mirror_in(new, "bookworm").unwrap(), "http://a.example/debian");
        let old = "# a comment\ndeb [signed-by=/k] https://b.example/debian bookworm main\n";
        assert_eq!(mirror_in(old, "bookworm").unwrap(), "https://b.example/debian");
        assert_eq!(mirror_in(old, "trixie"), None);
        assert_eq!(mirror_in("# deb http://c.example bookworm x\n", "bookworm"), None);
    }

    #[test]
    fn quoted_word_passes_through_shell_unchanged() {
        let word = "a b'c\"$d";
        let printed =
            proc::output(Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]));
        assert_eq!(printed.unwrap(), word);
    }
}
