//! One run of the external validator.

use std::{
    io::{self, BufWriter, Read, Seek, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use chancery_model::has_private_key;
use rustix::process::{
    Pid, Resource as Limited, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit,
    waitid,
};
use tempfile::NamedTempFile;

use super::{
    input,
    settings::{ExternalValidator, Resource},
};

/// The maximum length of what the command says that is kept: the end of its standard error.
const SAID_BYTES_MAX: usize = 2048;
/// The interval of looks at the process.
const LOOK: Duration = Duration::from_millis(5);
/// The maximum time for which the end of the standard error is awaited after the end of the process.
const SAID_WAIT: Duration = Duration::from_millis(500);
/// The variables of the server's environment that the command gets. The others may hold secrets.
const VARIABLES: [&str; 4] = ["PATH", "HOME", "TMPDIR", "LANG"];

/// Runs the command. Returns `None` if it accepts the resources, or what it says. Fails if it cannot check
/// them.
pub(super) fn run(
    settings: &ExternalValidator,
    resources: &[Resource],
) -> Result<Option<String>, String> {
    let cannot_write = |error: io::Error| format!("cannot write its input: {error}");
    // Only the user of the server can read the file. It is deleted at the end of this function.
    let mut file = input_file().map_err(cannot_write)?;
    let mut out = BufWriter::new(file.as_file_mut());
    let written = input::write(settings.input, resources, &mut out).and_then(|()| out.flush());
    drop(out);
    written.and_then(|()| file.rewind()).map_err(cannot_write)?;
    let path = file.path().to_string_lossy().into_owned();
    let words = settings.command.iter().map(|word| word.replace("{file}", &path));
    let words: Vec<String> = words.collect();
    let (program, arguments) = words.split_first().ok_or("the command is empty")?;
    let variables = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(variables)
        .stdin(file.reopen().map_err(cannot_write)?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start {program:?}: {error}"))?;
    let mut process = Process(child);
    process.limit_memory(settings.memory_max);
    let said = process.0.stderr.take().map(tail_of);
    let ended = process.wait_until(Instant::now() + settings.timeout)?;
    let status = process.end();
    let said = said.and_then(|said| said.recv_timeout(SAID_WAIT).ok()).unwrap_or_default();
    match status {
        _ if !ended => Err(format!("it did not end within {:?}", settings.timeout)),
        Ok(status) if status.success() => Ok(None),
        Ok(status) if status.code().is_some() => Ok(Some(shown(&said, status))),
        Ok(status) => Err(format!("it ended with {status}")),
        Err(error) => Err(format!("its exit status is unknown: {error}")),
    }
}

/// Creates the file of the input. Some programs choose its format by its extension.
fn input_file() -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix("chancery-").suffix(".json").tempfile()
}

/// The process of a run, which leads a process group. Dropping it kills the group.
struct Process(Child);

impl Process {
    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }

    fn limit_memory(&self, bytes: u64) {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // A process that has ended needs no limit.
        let _ = prlimit(self.pid(), Limited::Data, limit);
    }

    /// Waits until the process has ended. Returns whether it did before the deadline. Its ID stays in use.
    fn wait_until(&self, deadline: Instant) -> Result<bool, String> {
        let pid = self.pid().ok_or("it has no process ID")?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(pid), options) {
                Ok(Some(_)) => return Ok(true),
                Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
                Ok(None) => return Ok(false),
                Err(error) => return Err(format!("cannot wait for it: {error}")),
            }
        }
    }

    /// Kills the process group, and returns how the process ended.
    fn end(&mut self) -> io::Result<ExitStatus> {
        // The ID of the group cannot belong to another one before the process is waited for.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.0.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After `end`, this does nothing: the standard library remembers the status.
        if let Ok(None) = self.0.try_wait() {
            drop(self.end());
        }
    }
}

/// Reads the standard error to its end, and sends its last bytes.
fn tail_of(mut stderr: ChildStderr) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        let (mut tail, mut buffer) = (Vec::new(), [0; SAID_BYTES_MAX]);
        while let Ok(n @ 1..) = stderr.read(&mut buffer) {
            tail.extend_from_slice(&buffer[..n]);
            tail.drain(..tail.len().saturating_sub(SAID_BYTES_MAX));
        }
        // Nobody waits for the rest after the deadline.
        drop(sender.send(tail));
    };
    // Without a thread, nothing is known of what the command says.
    drop(thread::Builder::new().name("external".to_owned()).spawn(read));
    receiver
}

/// Returns what the command says as one line without private keys.
fn shown(said: &[u8], status: ExitStatus) -> String {
    if has_private_key(said) {
        return format!(
            "the external validator rejects the resources ({status}); it shows a private key"
        );
    }
    let text = String::from_utf8_lossy(said);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = lines.collect::<Vec<_>>().join("; ").chars().map(printable).collect();
    match line.as_str() {
        "" => format!("the external validator rejects the resources ({status})"),
        line => format!("the external validator rejects the resources: {line}"),
    }
}

#[cfg(test)]
mod tests;
