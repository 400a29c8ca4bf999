//! Machines: Debian roots in which systemd runs as the first process.
//!
//! Each machine has namespaces of its own for mounts, processes, host name and control groups. It shares the network and
//! the kernel with this machine.
//!
//! Invariant: all processes of a machine end when it is dropped, or when this process ends. An aborted run leaves only
//! the directory of the root and empty control groups.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::proc::Guard;

/// The time limit of the start of systemd, and of a script.
const STEP: Duration = Duration::from_secs(120);
/// The hierarchies of control groups that systemd needs, in version 1 (with a part in version 2) or in version 2.
const HIERARCHIES: &[&str] = &["systemd", "unified", "."];

/// Prepares the root `$1` and replaces itself with systemd. `$2` is `v1` or `v2`.
const START: &str = r#"
set -e
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    : > dev/$name
    mount --bind /dev/$name dev/$name
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
if [ "$2" = v1 ]; then
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
else
    mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
mkdir -p run/old
pivot_root . run/old
umount -l /run/old
export container=chancery-check
exec /lib/systemd/systemd --system --unit=multi-user.target
"#;

/// A running machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) root: PathBuf,
    /// The ID of systemd's process, as this machine sees it.
    systemd: u32,
    /// The exported variables of earlier scripts.
    exports: String,
    /// Dropped before the control groups, which must be empty.
    _processes: Guard,
    _groups: Groups,
}

impl Machine {
    /// Starts systemd in the root, and waits until it has started all units.
    pub(super) fn start(name: &str, root: &Path) -> Result<Self> {
        let groups = Groups::create(&format!("chancery-{name}-{}", std::process::id()))?;
        let log = root.with_extension("log");
        let log = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = log.try_clone().context("open a log twice")?;
        let join =
            "for group in $GROUPS_OF_MACHINE; do echo $$ > $group/cgroup.procs; done; exec \"$@\"";
        let mut command = Command::new("sh");
        command
            .args(["-ec", join, "sh", "unshare", "--mount", "--pid", "--cgroup", "--uts", "--ipc"]);
        command.args([
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            "sh",
            "-c",
            START,
            "sh",
        ]);
        command.arg(root).arg(groups.version);
        command.env_clear().env("PATH", PATH).env("GROUPS_OF_MACHINE", groups.shown());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let mut processes = Guard::spawn(&format!("machine {name}"), &mut command)?;
        let systemd = find_systemd(&mut processes)?;
        let machine = Self {
            root: root.to_owned(),
            systemd,
            exports: String::new(),
            _processes: processes,
            _groups: groups,
        };
        machine.wait_for_start()?;
        Ok(machine)
    }

    fn wait_for_start(&self) -> Result<()> {
        let deadline = Instant::now() + STEP;
        loop {
            let mut state = self.command("systemctl is-system-running");
            let output = state.output().context("start nsenter")?;
            let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if state == "running" || state == "degraded" {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "systemd does not finish its start: {state:?}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs a script of a shell in the home directory of root, and returns its output. A script sees the variables that
    /// earlier ones exported.
    pub(super) fn run(&mut self, script: &str) -> Result<String> {
        let mut command = self.command(&format!("{}{script}", self.exports));
        let ran = command.output().context("start nsenter")?;
        let output = String::from_utf8_lossy(&ran.stdout).into_owned();
        ensure!(ran.status.success(), "a script failed: {}\n{script}\n{output}", ran.status);
        let exports = script.lines().filter(|line| line.starts_with("export "));
        self.exports.extend(exports.map(|line| format!("{line}\n")));
        Ok(output)
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--target"]);
        command.arg(self.systemd.to_string());
        // The output contains errors too, in the order in which a reader would see them.
        command.args(["timeout", &STEP.as_secs().to_string(), "sh", "-ec"]);
        command.arg(format!("exec 2>&1; cd /root; {script}"));
        command.env_clear().envs([("PATH", PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")]);
        command
    }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Waits until the child of `unshare` is systemd, and returns its process ID.
fn find_systemd(processes: &mut Guard) -> Result<u32> {
    let deadline = Instant::now() + STEP;
    let children = format!("/proc/{0}/task/{0}/children", processes.id());
    loop {
        processes.expect_running()?;
        let pid = fs::read_to_string(&children).unwrap_or_default();
        let pid = pid.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        let name = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        if let (Some(pid), Some("systemd")) = (pid, name.as_deref().map(str::trim)) {
            return Ok(pid);
        }
        ensure!(Instant::now() < deadline, "systemd did not start");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The control groups of a machine, below the root of each hierarchy.
#[derive(Debug)]
struct Groups {
    dirs: Vec<PathBuf>,
    version: &'static str,
}

impl Groups {
    fn create(name: &str) -> Result<Self> {
        let base = Path::new("/sys/fs/cgroup");
        let is_hierarchy = |dir: &&&str| base.join(dir).join("cgroup.procs").is_file();
        let hierarchies: Vec<_> = HIERARCHIES.iter().filter(is_hierarchy).copied().collect();
        let version = match hierarchies.as_slice() {
            ["systemd", "unified"] => "v1",
            ["."] => "v2",
            _ => bail!(
                "systemd needs control groups in {}, and finds {hierarchies:?}",
                base.display()
            ),
        };
        let dirs: Vec<_> = hierarchies.iter().map(|dir| base.join(dir).join(name)).collect();
        for dir in &dirs {
            fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(Self { dirs, version })
    }

    fn shown(&self) -> String {
        self.dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // The kernel ends the last processes of a machine shortly after its first one.
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.dirs.iter().all(|dir| remove_groups(dir)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Removes a control group with the groups below it, and returns whether it no longer exists.
fn remove_groups(dir: &Path) -> bool {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    fs::remove_dir(dir).is_ok() || !dir.exists()
}
