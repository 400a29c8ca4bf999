//! One run of the external validator.

use std::{
    io::{self, BufWriter, Seek, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Resource as Limited, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit,
    waitid,
};
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

use super::{
    files, input,
    settings::{ExternalValidator, Resource},
    stderr_tail::{LOOK, StderrTail},
};

/// The maximum time for which the end of the standard error is awaited after the end of the process.
const STDERR_WAIT: Duration = Duration::from_millis(500);
/// The variables of the server's environment that the command gets. The others may hold secrets.
const VARIABLES: [&str; 4] = ["PATH", "HOME", "TMPDIR", "LANG"];

/// Runs the command. Returns `None` if it accepts the resources, or what it says. Fails if it cannot check
/// them, or if it is stopped.
pub(super) fn run(
    settings: &ExternalValidator,
    resources: &[Resource],
    stop: &CancellationToken,
) -> Result<Option<String>, String> {
    let cannot_write = |error: io::Error| format!("cannot write its input: {error}");
    // The file is deleted at the end of this function.
    let mut file = files::create(&std::env::temp_dir()).map_err(cannot_write)?;
    let mut out = BufWriter::new(file.as_file_mut());
    let written = input::write(settings.input, resources, &mut out).and_then(|()| out.flush());
    drop(out);
    written.and_then(|()| file.rewind()).map_err(cannot_write)?;
    let mut process = Process::start(settings, &file)?;
    process.limit_memory(settings.memory_max);
    let mut stderr = StderrTail::new(process.child.stderr.take());
    let wait = process.wait_until(Instant::now() + settings.timeout, stop, &mut stderr)?;
    let status = process.end();
    match (wait, status) {
        (Wait::Late, _) => Err(format!("it did not end within {:?}", settings.timeout)),
        (Wait::Stopped, _) => Err("the replica is shutting down".to_owned()),
        (Wait::Ended, Ok(status)) if status.success() => Ok(None),
        (Wait::Ended, Ok(status)) if status.code().is_some() => {
            stderr.read_until(Instant::now() + STDERR_WAIT);
            let text = stderr.shown(resources);
            Ok(Some(if text.is_empty() { format!("({status})") } else { text }))
        }
        (Wait::Ended, Ok(status)) => Err(format!("it ended with {status}")),
        (Wait::Ended, Err(error)) => Err(format!("its exit status is unknown: {error}")),
    }
}

/// The end of a wait for a process.
#[derive(Clone, Copy)]
enum Wait {
    Ended,
    /// The process did not end before the deadline.
    Late,
    /// Nobody needs the verdict.
    Stopped,
}

/// The process of a run, in a process group of its own. Dropping it kills the group.
struct Process {
    child: Child,
    /// The leader of the group. `None` if there is no shell: the process itself is the leader.
    guard: Option<Child>,
}

impl Process {
    fn start(settings: &ExternalValidator, input: &NamedTempFile) -> Result<Self, String> {
        let path = input.path().to_string_lossy();
        let words = settings.command.iter().map(|word| word.replace("{file}", &path));
        let words: Vec<String> = words.collect();
        let (program, arguments) = words.split_first().ok_or("the command is empty")?;
        let cannot_start = |error: io::Error| format!("cannot start {program:?}: {error}");
        let variables = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        // The guard starts first, so that a crash of the server never leaves a process without a guard.
        let guard = start_guard(input.path()).inspect_err(|error| {
            tracing::debug!(%error, "the external validator may survive a crash of the server");
        });
        let mut guard = guard.ok();
        let group = guard.as_ref().and_then(|guard| i32::try_from(guard.id()).ok());
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(variables)
            .stdin(input.reopen().map_err(cannot_start)?)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(group.unwrap_or(0))
            .spawn();
        match child {
            Ok(child) => Ok(Self { child, guard }),
            Err(error) => {
                if let Some(guard) = &mut guard {
                    drop(guard.kill().and_then(|()| guard.wait()));
                }
                Err(cannot_start(error))
            }
        }
    }

    fn limit_memory(&self, bytes: u64) {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // A process that has ended needs no limit.
        let _ = prlimit(pid_of(&self.child), Limited::Data, limit);
    }

    /// Waits until the process has ended, and reads what it says. Its ID stays in use.
    fn wait_until(
        &self,
        deadline: Instant,
        stop: &CancellationToken,
        stderr: &mut StderrTail,
    ) -> Result<Wait, String> {
        let pid = pid_of(&self.child).ok_or("it has no process ID")?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            stderr.read();
            match waitid(WaitId::Pid(pid), options) {
                Ok(Some(_)) => return Ok(Wait::Ended),
                Ok(None) if stop.is_cancelled() => return Ok(Wait::Stopped),
                Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
                Ok(None) => return Ok(Wait::Late),
                Err(error) => return Err(format!("cannot wait for it: {error}")),
            }
        }
    }

    /// Kills the process group, and returns how the process ended.
    fn end(&mut self) -> io::Result<ExitStatus> {
        // The ID of the group cannot belong to another one before its leader is waited for.
        let leader = self.guard.as_ref().unwrap_or(&self.child);
        if let Some(group) = pid_of(leader) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(mut guard) = self.guard.take() {
            drop(guard.wait());
        }
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After `end`, this does nothing: the standard library remembers the status.
        if let Ok(None) = self.child.try_wait() {
            drop(self.end());
        }
    }
}

fn pid_of(process: &Child) -> Option<Pid> {
    i32::try_from(process.id()).ok().and_then(Pid::from_raw)
}

/// Starts the leader of a new process group. It deletes the input and kills the group when the server ends, even by
/// a signal: its standard input then ends.
fn start_guard(input: &Path) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", "read -r _; rm -f -- \"$0\"; kill -KILL 0"])
        .arg(input)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

#[cfg(test)]
mod tests;
