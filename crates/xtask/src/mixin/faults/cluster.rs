//! A cluster of three replicas, whose processes can be killed and stopped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{ChildStderr, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::super::monitor::{eventually, get_with};
use crate::proc::{self, Guard};

/// The IDs of the replicas.
pub(super) const REPLICAS: [usize; 3] = [1, 2, 3];

/// The time until a started cluster is ready. A debug build on a busy machine needs seconds.
const START: Duration = Duration::from_secs(90);

/// The time within which a replica answers. A stopped one never does.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// Three replicas on one machine. Each one has its own loopback address.
pub(super) struct Cluster {
    pub(super) program: PathBuf,
    pub(super) dir: PathBuf,
    network: String,
    /// The environment of all replicas.
    pub(super) settings: Vec<(String, String)>,
    /// The path of a UNIX socket at which the commands reach the first replica, instead of its admin port.
    pub(super) socket: Option<PathBuf>,
    /// The header line with which metrics are read.
    pub(super) authorization: String,
    processes: [Option<Guard>; 3],
}

impl Cluster {
    /// Prepares a cluster with the addresses `NETWORK.1` to `NETWORK.3` and its files in `dir`.
    pub(super) fn new(program: &Path, dir: PathBuf, network: String) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(Self {
            program: program.to_owned(),
            dir,
            network,
            settings: Vec::new(),
            socket: None,
            authorization: String::new(),
            processes: [None, None, None],
        })
    }

    /// Adds a variable to the environment of the replicas that start after this call. `{dir}` and `{id}` in the value
    /// stand for the directory of the cluster and the ID of the replica.
    pub(super) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_owned(), value.into()));
    }

    /// Returns the IP address of a replica.
    pub(super) fn ip(&self, id: usize) -> String {
        format!("{}.{id}", self.network)
    }

    pub(super) fn xds(&self, id: usize) -> String {
        format!("{}:18000", self.ip(id))
    }

    pub(super) fn admin(&self, id: usize) -> String {
        format!("{}:18001", self.ip(id))
    }

    pub(super) fn raft(&self, id: usize) -> String {
        format!("{}:18002", self.ip(id))
    }

    /// Returns the data directory of a replica.
    pub(super) fn data(&self, id: usize) -> PathBuf {
        self.dir.join(format!("data-{id}"))
    }

    /// Starts a replica.
    pub(super) fn start(&mut self, id: usize) -> Result<()> {
        let program = self.program.clone();
        self.start_program(id, &program)
    }

    /// Starts a replica with another program.
    pub(super) fn start_program(&mut self, id: usize, program: &Path) -> Result<()> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("replica-{id}.log")))
            .context("open a log")?;
        self.start_with(id, program, log.into())
    }

    /// Starts a replica whose standard error is a pipe that nobody reads.
    pub(super) fn start_unread(&mut self, id: usize) -> Result<()> {
        let program = self.program.clone();
        self.start_with(id, &program, Stdio::piped())
    }

    /// Returns the standard error of a replica that was started with [`Self::start_unread`].
    pub(super) fn stderr(&mut self, id: usize) -> Result<ChildStderr> {
        let process = self.processes[id - 1].as_mut();
        process.with_context(|| format!("replica {id} does not run"))?.stderr()
    }

    fn start_with(&mut self, id: usize, program: &Path, stderr: Stdio) -> Result<()> {
        let peers = REPLICAS.map(|id| format!("{id}={}", self.raft(id))).join(",");
        let mut serve = proc::leashed(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CHANCERY_") {
                serve.env_remove(name);
            }
        }
        for (key, value) in &self.settings {
            let dir = self.dir.display().to_string();
            serve.env(key, value.replace("{dir}", &dir).replace("{id}", &id.to_string()));
        }
        serve
            .args(["serve", "--replica-id", &id.to_string(), "--peers", &peers])
            .args(["--xds", &self.xds(id), "--admin", &self.admin(id), "--raft", &self.raft(id)])
            .arg("--data-dir")
            .arg(self.data(id))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        self.processes[id - 1] = Some(Guard::spawn(&format!("replica {id}"), &mut serve)?);
        Ok(())
    }

    /// Starts all replicas, and waits until they have a leader.
    pub(super) fn start_all(&mut self) -> Result<()> {
        for id in REPLICAS {
            self.start(id)?;
        }
        self.expect_ready()
    }

    /// Waits until all replicas know a leader, and the leader hears three voters.
    pub(super) fn expect_ready(&mut self) -> Result<()> {
        proc::eventually(START, "the cluster is not ready", || {
            for process in self.processes.iter_mut().flatten() {
                process.expect_running()?;
            }
            let leads = |id| self.metric(id, "chancery_raft_has_leader") == Some(1.0);
            let has_leader = REPLICAS.into_iter().all(leads);
            let up = REPLICAS.map(|id| self.metric(id, "chancery_raft_voters_up"));
            Ok((has_leader && up.contains(&Some(3.0))).then_some(()))
        })
    }

    /// Kills a replica, also a stopped one.
    pub(super) fn kill(&mut self, id: usize) {
        self.processes[id - 1] = None;
    }

    /// Returns the process ID of a running replica.
    pub(super) fn pid(&self, id: usize) -> Result<u32> {
        let process = self.processes[id - 1].as_ref();
        Ok(process.with_context(|| format!("replica {id} does not run"))?.id())
    }

    /// Sends a signal to the process of a replica.
    pub(super) fn signal(&self, id: usize, signal: &str) -> Result<()> {
        let pid = self.pid(id)?.to_string();
        // `kill` is a shell builtin here, because a minimal system has no such program.
        proc::run(Command::new("sh").args(["-c", "kill -\"$0\" \"$1\"", signal, &pid]))
    }

    /// Returns the sum of a metric of a replica that answers.
    pub(super) fn metric(&self, id: usize, name: &str) -> Option<f64> {
        let text = get_with(&self.admin(id), "/metrics", &self.authorization, ANSWER).ok()?;
        let series = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        let values: Vec<f64> = series.collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Returns the ID of the leader.
    pub(super) fn leader(&self) -> Result<usize> {
        eventually("the cluster has no leader", || {
            let leads = |id: &usize| self.metric(*id, "chancery_raft_is_leader") == Some(1.0);
            Ok(REPLICAS.into_iter().find(leads))
        })
    }

    /// Returns a replica that does not lead.
    pub(super) fn follower(&self) -> Result<usize> {
        Ok(self.leader()? % 3 + 1)
    }

    /// Makes a replica the leader.
    pub(super) fn lead(&self, id: usize) -> Result<()> {
        eventually(&format!("replica {id} does not lead"), || {
            let leads = self.metric(id, "chancery_raft_is_leader") == Some(1.0);
            if !leads {
                // The transfer fails if the replica is not up to date yet.
                drop(self.run(&["cluster", "transfer-leader", &id.to_string()]));
            }
            Ok(leads.then_some(()))
        })
    }

    /// Runs a command of `chancery`, which connects to the first replica that answers, and returns its output.
    pub(super) fn run(&self, args: &[&str]) -> Result<String> {
        proc::output(self.command().args(args))
    }

    /// Returns a command of `chancery`.
    pub(super) fn command(&self) -> Command {
        self.connected(Command::new(&self.program))
    }

    /// Returns a `chancery` command that runs under `faketime`. `time` has the syntax of `date`.
    pub(super) fn command_at(&self, time: &str) -> Command {
        let mut command = Command::new("faketime");
        command.arg(time).arg(&self.program);
        self.connected(command)
    }

    fn connected(&self, mut command: Command) -> Command {
        let servers = match &self.socket {
            Some(socket) => format!("unix:{}", socket.display()),
            None => REPLICAS.map(|id| self.admin(id)).join(","),
        };
        command.current_dir(&self.dir).env("CHANCERY_SERVER", servers);
        command
    }

    /// Publishes a manifest.
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        self.apply_confirmed(manifest, &[])
    }

    /// Applies a manifest, and confirms that the guards in `confirm`, such as `--confirm view-change`, may be tripped.
    pub(super) fn apply_confirmed(&self, manifest: &str, confirm: &[&str]) -> Result<()> {
        let file = self.dir.join("manifest.yaml");
        fs::write(&file, manifest).context("write a manifest")?;
        // An election or a start can be in progress.
        let may_pass = |error: &anyhow::Error| {
            let text = error.to_string();
            text.contains("leader") || text.contains("retry later")
        };
        eventually("the manifest is not published", || {
            let applied = self.run(&[&["apply", "--file", "manifest.yaml"], confirm].concat());
            match applied {
                Ok(_) => Ok(Some(())),
                Err(error) if may_pass(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// Replaces the data directory of a replica that does not run by an empty one.
    pub(super) fn empty(&self, id: usize) -> Result<()> {
        ensure!(self.processes[id - 1].is_none(), "replica {id} runs");
        let data = self.data(id);
        fs::remove_dir_all(&data).with_context(|| format!("remove {}", data.display()))
    }
}
