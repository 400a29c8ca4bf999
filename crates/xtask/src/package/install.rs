//! `cargo xtask install`: the commands of `docs/install-systemd.md`, on three machines with the Debian package.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::machine::Machine;
use crate::{bare, http, paths::Paths, proc, say::say};

const PAGE: &str = "docs/install-systemd.md";
/// The addresses of the page, and those that take their place.
const ADDRESSES: (&str, &str) = ("10.0.0.", "127.0.77.");
const N_MACHINES: usize = 3;
/// The machines with an Envoy, by index.
const ENVOYS: &[usize] = &[1, 2];
/// The address at which both Envoys listen.
const LISTENER: &str = "127.0.0.1:10000";
/// Adds the socket of the documents, whose directory only the unit creates.
const ADD_SOCKET: &str =
    r#"sed -i 's|^\[admin\]$|&\nsocket = "/run/chancery/admin.sock"|' /etc/chancery/chancery.toml"#;
const STEP: Duration = Duration::from_secs(60);

/// Installs the package on three machines, as the page says, and checks the result.
pub(super) fn run(paths: &Paths, deb: &Path) -> Result<()> {
    let page = fs::read_to_string(paths.root.join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    let steps = steps(&page)?;
    let dir = super::scratch::fresh_dir(paths, "install")?;
    let mut machines = Machines::start(paths, &dir, deb)?;
    for step in &steps {
        machines.follow(step).with_context(|| format!("{PAGE}:{}", step.line))?;
    }
    machines.check()?;
    machines.check_restart_and_removal()?;
    drop(machines);
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    say!("install: {} steps of {PAGE} led to three replicas and two connected Envoys", steps.len());
    Ok(())
}

/// A block of commands of the page.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    line: usize,
    place: Place,
    script: String,
}

/// The machines on which a step runs.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Every,
    /// The machine with this index.
    One(usize),
    Envoys,
}

/// Returns the blocks that begin with a comment that names machines.
fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if line != "```sh" {
            continue;
        }
        let block: Vec<_> =
            lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```").collect();
        let Some(place) = block.first().and_then(|line| line.strip_prefix("# on ")) else {
            continue;
        };
        let place = match place {
            "every machine" => Place::Every,
            "the machines of the Envoys" => Place::Envoys,
            _ => match place.strip_prefix("machine ").and_then(|number| number.parse().ok()) {
                Some(number @ 1..=N_MACHINES) => Place::One(number - 1),
                _ => bail!("{PAGE}:{}: `# on {place}` names no known machine", number + 1),
            },
        };
        let script = block[1..].join("\n").replace(ADDRESSES.0, ADDRESSES.1);
        steps.push(Step { line: number, place, script });
    }
    ensure!(!steps.is_empty(), "{PAGE} has no commands that begin with `# on`");
    Ok(steps)
}

/// The machines of the page.
struct Machines(Vec<Machine>);

impl Machines {
    /// Creates one Debian root with systemd, copies it, and starts all machines.
    fn start(paths: &Paths, dir: &Path, deb: &Path) -> Result<Self> {
        say!("install: creating Debian roots with systemd in {}", dir.display());
        let base = dir.join("base");
        bare::make_root(&base, &["systemd", "systemd-sysv"])?;
        let roots: Vec<_> = (1..=N_MACHINES).map(|number| dir.join(number.to_string())).collect();
        for root in &roots {
            proc::run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&base).arg(root))?;
            let to = root.join("root").join(deb.file_name().context("the package has no name")?);
            fs::copy(deb, &to).with_context(|| format!("write {}", to.display()))?;
        }
        for index in ENVOYS {
            let to = roots[*index].join("usr/local/bin/envoy");
            fs::copy(envoy(paths)?, &to).with_context(|| format!("write {}", to.display()))?;
        }
        let start = |(root, number): (&PathBuf, usize)| Machine::start(&number.to_string(), root);
        roots.iter().zip(1..).map(start).collect::<Result<_>>().map(Self)
    }

    /// Runs a step, at the same time on all of its machines.
    fn follow(&mut self, step: &Step) -> Result<()> {
        let is_concerned = |index: &usize| match step.place {
            Place::Every => true,
            Place::One(one) => *index == one,
            Place::Envoys => ENVOYS.contains(index),
        };
        let concerned = self.0.iter_mut().enumerate().filter(|(index, _)| is_concerned(index));
        let outputs = thread::scope(|scope| {
            let running: Vec<_> = concerned
                .map(|(index, machine)| {
                    let script = numbered(&step.script, index + 1);
                    scope.spawn(move || {
                        let output = machine.run(&script);
                        output.with_context(|| format!("on machine {}", index + 1))
                    })
                })
                .collect();
            let join = running
                .into_iter()
                .map(|run| run.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))));
            join.collect::<Result<Vec<_>>>()
        })?;
        let first = step.script.lines().next().unwrap_or_default();
        say!("install: {first}\n{}", outputs[0].trim_end());
        if step.script.contains("chancery dev certs") {
            self.copy_certificates()?;
        }
        Ok(())
    }

    /// Copies the directory of certificates to the other machines, as the page asks the reader to do.
    fn copy_certificates(&self) -> Result<()> {
        let certificates = |machine: &Machine| machine.root.join("root/certs");
        let from = certificates(&self.0[0]);
        for machine in &self.0[1..] {
            proc::run(Command::new("cp").arg("-a").arg(&from).arg(certificates(machine)))?;
        }
        Ok(())
    }

    /// Checks the cluster, the Envoys, the notifications of systemd, and the backup.
    fn check(&mut self) -> Result<()> {
        let nodes = self.wait_for("both Envoys are synced", |first| {
            let nodes = first.run("chancery nodes")?;
            let n_synced = nodes.lines().filter(|line| line.contains("  synced ")).count();
            Ok((n_synced == ENVOYS.len()).then_some(nodes))
        })?;
        say!("install: {}", nodes.trim_end());
        let answer = http::get(LISTENER, "/")?;
        ensure!(answer.body.contains("hello from Chancery"), "Envoy answers {answer:?}");
        let checked = self.0[0]
            .run("chancery doctor --config /etc/chancery/chancery.toml || test $? -eq 1")?;
        ensure!(checked.contains("the replica may open "), "the doctor prints:\n{checked}");
        for machine in &mut self.0 {
            let state = machine
                .run("systemctl show chancery --property=ActiveState,StatusText,WatchdogUSec")?;
            for expected in ["ActiveState=active", "StatusText=ready", "WatchdogUSec=30s"] {
                ensure!(state.contains(expected), "the unit lacks {expected}:\n{state}");
            }
        }
        // A backup replaces the one of the same day of the week before.
        self.0[0].run("systemctl start chancery-backup")?;
        let backups = self.0[0].run("stat --format %s /var/backups/chancery/*.bak")?;
        let sizes: Vec<_> = backups.lines().collect();
        ensure!(matches!(sizes.as_slice(), [size] if *size != "0"), "the backups are {sizes:?}");
        Ok(())
    }

    /// Restarts a replica, and removes the package from another machine.
    fn check_restart_and_removal(&mut self) -> Result<()> {
        self.0[1].run(ADD_SOCKET)?;
        self.0[1].run("systemctl restart chancery")?;
        self.0[1].run("chancery --server unix:/run/chancery/admin.sock health")?;
        self.wait_for("all voters answer after a restart", |first| {
            let status = first.run("chancery cluster status --check")?;
            Ok(status.contains("3 of 3 voters answer").then_some(()))
        })?;
        let last = &mut self.0[2];
        let changed = last.run("dpkg --verify chancery")?;
        ensure!(changed.is_empty(), "dpkg --verify reports changed files:\n{changed}");
        last.run("systemctl enable chancery-backup.timer")?;
        last.run("dpkg --remove chancery")?;
        let left = "test -e /etc/default/chancery && test -d /var/lib/chancery";
        last.run(&format!("{left} && ! test -e /usr/bin/chancery"))?;
        last.run("! systemctl is-active chancery")?;
        let purged = last.run("dpkg --purge chancery")?;
        ensure!(purged.contains("/var/lib/chancery is kept"), "dpkg --purge printed:\n{purged}");
        last.run("! test -e /etc/default/chancery && test -d /var/lib/chancery")?;
        let units = last.run("ls -R /etc/systemd/system")?;
        ensure!(!units.contains("chancery"), "the removed package left units:\n{units}");
        Ok(())
    }

    /// Calls `poll` with the first machine until it returns a value.
    fn wait_for<T>(
        &mut self,
        what: &str,
        poll: impl Fn(&mut Machine) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + STEP;
        loop {
            let is_late = Instant::now() > deadline;
            match poll(&mut self.0[0]) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) if is_late => bail!("timed out while waiting until {what}"),
                Err(error) if is_late => return Err(error.context(format!("wait until {what}"))),
                Ok(None) | Err(_) => {}
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Replaces the number in a line `id=1`, or in a line `id=envoy-1`.
fn numbered(script: &str, number: usize) -> String {
    let lines = script.lines().map(|line| match line.strip_suffix('1') {
        Some(start) if line.starts_with("id=") => format!("{start}{number}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Returns the path of the Envoy among the real clients.
fn envoy(paths: &Paths) -> Result<PathBuf> {
    const FIND: &str = "import envoy; print(list(envoy.__path__)[0])";
    let mut python = Command::new(paths.clients.join("bin/python"));
    let package = proc::output(python.args(["-c", FIND]).stdin(Stdio::null()))?;
    Ok(Path::new(package.trim()).join("_bin/envoy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_that_name_machines_are_steps() {
        let page = "```sh\nls\n```\n```sh\n# on machine 2\nping 10.0.0.1\n```\n```toml\n# on machine 3\n```\n\
                    ```sh\n# on the machines of the Envoys\nid=envoy-1\n```\n";
        let step = |line, place, script: &str| Step { line, place, script: script.to_owned() };
        let expected =
            [step(4, Place::One(1), "ping 127.0.77.1"), step(11, Place::Envoys, "id=envoy-1")];
        assert_eq!(steps(page).unwrap(), expected);
        assert!(steps("```sh\n# on machine 4\nls\n```\n").is_err());
        assert_eq!(numbered("id=envoy-1\nx=1", 3), "id=envoy-3\nx=1\n");
    }
}
