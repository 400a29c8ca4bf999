//! The environment of a scenario: a cluster, a Prometheus, and the processes that cause faults.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::cluster::Cluster;
use crate::{
    paths::Paths,
    proc::{self, Guard},
};

/// The program of the clients with faults.
const CLIENT: &str = "crates/xtask/src/mixin/faults/client.py";

/// A cluster and the processes around it.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    root: PathBuf,
    python: PathBuf,
    running: BTreeMap<String, Running>,
    /// The directories on which this process has mounted a file system.
    mounted: Vec<PathBuf>,
    pub(super) notes: BTreeMap<&'static str, String>,
}

/// Something that runs until it is dropped.
enum Running {
    Process(Guard),
    Thread {
        #[expect(dead_code, reason = "the destructor ends the thread")]
        thread: Repeated,
    },
}

/// A thread that repeats a step. When this value is dropped, the last step ends first.
struct Repeated {
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A step that panicked has already reported it.
            drop(thread.join());
        }
    }
}

impl Stage {
    pub(super) fn new(paths: &Paths, cluster: Cluster) -> Self {
        Self {
            cluster,
            root: paths.root.clone(),
            python: paths.clients.join("bin/python"),
            running: BTreeMap::new(),
            mounted: Vec::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Starts a client with faults. It replaces one with the same name.
    pub(super) fn client(&mut self, name: &str, args: &[&str]) -> Result<()> {
        let script = self.root.join(CLIENT);
        self.python(name, &script, args)
    }

    /// Starts an author that sends `rate` writes per second to a replica.
    pub(super) fn author(&mut self, id: usize, rate: u32, scope: &str) -> Result<()> {
        let (address, rate) = (self.cluster.admin(id), rate.to_string());
        self.client("author", &["write", &address, "--rate", &rate, "--scope", scope])
    }

    /// Starts a client of the end-to-end tests.
    pub(super) fn test_client(&mut self, name: &str, file: &str, args: &[&str]) -> Result<()> {
        let script = self.root.join("crates/server/tests/clients").join(file);
        self.python(name, &script, args)
    }

    fn python(&mut self, name: &str, script: &Path, args: &[&str]) -> Result<()> {
        self.stop(name);
        let mut command = proc::leashed(&self.python);
        command.arg(script).args(args).stdin(Stdio::piped()).stdout(Stdio::null());
        self.process(name, &mut command)
    }

    /// Starts a process that runs until [`Stage::stop`]. Its standard error goes to a file.
    pub(super) fn process(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.cluster.dir.join(format!("{name}.log")))
            .context("open a log")?;
        let process = Guard::spawn(name, command.stderr(log))?;
        self.running.insert(name.to_owned(), Running::Process(process));
        Ok(())
    }

    /// Writes a line to the standard input of a client.
    pub(super) fn tell(&mut self, name: &str, line: &str) -> Result<()> {
        match self.running.get_mut(name) {
            Some(Running::Process(process)) => process.write_line(line),
            _ => anyhow::bail!("{name} does not run"),
        }
    }

    /// Repeats a step in a thread until [`Stage::stop`]. A step that fails is repeated too.
    pub(super) fn repeat(
        &mut self,
        name: &str,
        pause: Duration,
        mut step: impl FnMut() + Send + 'static,
    ) {
        self.stop(name);
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                step();
                thread::sleep(pause);
            }
        });
        let thread = Repeated { is_over, thread: Some(thread) };
        self.running.insert(name.to_owned(), Running::Thread { thread });
    }

    /// Stops a process or a repeated step, if it runs.
    pub(super) fn stop(&mut self, name: &str) {
        self.running.remove(name);
    }

    /// Makes system calls of a replica fail or wait: `fault` is an argument of `strace --inject`. The trace can be limited to a file.
    pub(super) fn inject(&mut self, id: usize, fault: &str, file: Option<&Path>) -> Result<()> {
        let name = format!("strace-{id}");
        let mut strace = proc::leashed(Path::new("strace"));
        let calls = fault.split(':').next().unwrap_or_default();
        strace.args(["-f", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        strace.args(["-e", &format!("inject={fault}")]);
        if let Some(file) = file {
            strace.arg("-P").arg(file);
        }
        strace.args(["-p", &self.cluster.pid(id)?.to_string()]).stdin(Stdio::null());
        self.process(&name, strace.stdout(Stdio::null()))
    }

    /// Ends the faults of [`Stage::inject`].
    pub(super) fn end_injection(&mut self, id: usize) {
        self.stop(&format!("strace-{id}"));
    }

    /// Mounts a file system of `bytes` at a directory of the cluster, and returns its path. An ext4 image takes space only
    /// for what is written; a small file system is in memory.
    pub(super) fn mount(&mut self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.cluster.dir.join(name);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        let mut mount = Command::new("mount");
        if bytes < 64 << 20 {
            mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "chancery-faults"]);
        } else {
            let image = self.cluster.dir.join(format!("{name}.img"));
            let file = fs::File::create(&image).context("create an image")?;
            file.set_len(bytes).context("set the size of an image")?;
            proc::output(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
            mount.args(["-o", "loop"]).arg(&image);
        }
        proc::output(mount.arg(&path)).context("mount a file system")?;
        self.mounted.push(path.clone());
        Ok(path)
    }

    /// Takes space of a file system: makes the file `name` in `dir` larger by `bytes`, without writing them.
    pub(super) fn fill(dir: &Path, name: &str, bytes: u64) -> Result<()> {
        let path = dir.join(name);
        let size = fs::metadata(&path).map_or(0, |metadata| metadata.len()) + bytes;
        proc::output(Command::new("fallocate").args(["-l", &size.to_string()]).arg(path)).map(drop)
    }

    /// Fails if a program that the faults need is missing.
    pub(super) fn expect_programs() -> Result<()> {
        for program in ["strace", "mkfs.ext4", "fallocate", "prlimit", "openssl"] {
            let mut search = Command::new("sh");
            search.args(["-c", "command -v \"$0\"", program]);
            ensure!(proc::succeeds(&mut search), "the faults need {program}; install it");
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.running.clear();
        for id in super::cluster::REPLICAS {
            self.cluster.kill(id);
        }
        for path in &self.mounted {
            proc::succeeds(Command::new("umount").arg(path));
        }
    }
}
