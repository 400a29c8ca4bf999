//! The adapter for any other server: a program that reads states from its standard input.

use std::{
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::{
    io::{self, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout},
    sync::Mutex,
};

use super::{Adapter, Publishing};
use crate::state::State;

/// The maximum time for the program to publish a state.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum size of an answer, with the end of its line.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Publishes through a program. The kit writes each state as one line of JSON to its standard input. The program answers
/// each line with one line: `{}` after the server serves the state, or `{"error": "reason"}`.
///
/// A program that ends, that does not answer in time or whose answer is too long is not used again.
#[derive(Debug)]
pub struct Command {
    /// The shell. It leads a process group of its own, and is not waited for before the group is killed.
    shell: Child,
    pipes: Arc<Mutex<Pipes>>,
    failure: Arc<OnceLock<String>>,
}

#[derive(Debug)]
struct Pipes {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The reason why the program is no longer used.
    failure: Arc<OnceLock<String>>,
}

/// The program's answer.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
}

impl Command {
    /// Starts a command line of the shell.
    ///
    /// # Errors
    /// Fails if the shell cannot be started.
    pub fn start(line: &str) -> Result<Self, String> {
        let mut command = tokio::process::Command::new("sh");
        command.arg("-c").arg(line).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let start = |error| format!("cannot start the adapter command {line:?}: {error}");
        let mut shell = command.spawn().map_err(start)?;
        let (Some(stdin), Some(stdout)) = (shell.stdin.take(), shell.stdout.take()) else {
            return Err(format!("the adapter command {line:?} has no standard input or output"));
        };
        let failure = Arc::new(OnceLock::new());
        let pipes = Pipes { stdin, stdout: BufReader::new(stdout), failure: failure.clone() };
        Ok(Self { shell, pipes: Arc::new(Mutex::new(pipes)), failure })
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let id = self.shell.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            // An error means that no process of the group is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Pipes {
    async fn publish(&mut self, line: &str) -> Result<(), String> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(line)).await {
            Ok(answered) => answered,
            Err(_) => {
                Err(format!("the adapter command has not answered within {ANSWER_TIMEOUT:?}"))
            }
        };
        let answer = answer.map_err(|failure| self.failure.get_or_init(|| failure).clone())?;
        match serde_json::from_slice::<Answer>(&answer) {
            Ok(Answer { error: None }) => Ok(()),
            Ok(Answer { error: Some(error) }) => Err(error),
            Err(_) => {
                let answer = String::from_utf8_lossy(answer.trim_ascii_end());
                let start: String = answer.chars().take(300).collect();
                Err(format!(
                    "the adapter command answered {start:?}; expected {{}} or {{\"error\": \"reason\"}}"
                ))
            }
        }
    }

    /// Writes a line and reads a line.
    async fn exchange(&mut self, line: &str) -> Result<Vec<u8>, String> {
        let mut answer = Vec::new();
        let exchanged = async {
            self.stdin.write_all(line.as_bytes()).await?;
            self.stdin.flush().await?;
            (&mut self.stdout).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer).await
        };
        match exchanged.await {
            Ok(_) if answer.ends_with(b"\n") => Ok(answer),
            Ok(n_bytes) if n_bytes as u64 == ANSWER_BYTES_MAX => Err(format!(
                "the adapter command answered with a line of more than {ANSWER_BYTES_MAX} bytes"
            )),
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(format!("cannot talk to the adapter command: {error}"))
            }
            _ => Err("the adapter command has ended".to_owned()),
        }
    }
}

impl Adapter for Command {
    fn publish<'a>(&'a self, state: &'a State) -> Publishing<'a> {
        let (line, pipes) = (state.to_line() + "\n", self.pipes.clone());
        Box::pin(async move {
            // A case may end during the exchange. The task still reads the answer, so that no later state receives it.
            let exchange = tokio::spawn(async move { pipes.lock().await.publish(&line).await });
            exchange.await.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer_of(line: &str) -> Result<(), String> {
        let state = State::new("n".into(), "p-".into());
        Command::start(line).unwrap().publish(&state).await
    }

    #[tokio::test]
    async fn program_answers_each_state_with_a_line() {
        assert_eq!(answer_of("sh -c 'read line; echo {}'").await, Ok(()));
        let error = answer_of(r#"sh -c 'read line; echo "{\"error\": \"no\"}"'"#).await;
        assert_eq!(error, Err("no".to_owned()));
        let error = answer_of("sh -c 'read line; echo ok'").await.unwrap_err();
        assert!(error.contains("\"ok\"") && error.contains("expected {}"), "{error}");
    }

    /// The command line may be any shell code.
    #[tokio::test]
    async fn shell_loop_is_an_adapter() {
        let line = "answer={}; while read line; do echo $answer; done";
        let adapter = Command::start(line).unwrap();
        let state = State::new("n".into(), "p-".into());
        for _ in 0..3 {
            assert_eq!(adapter.publish(&state).await, Ok(()));
        }
        assert_eq!(adapter.failure(), None);
    }

    #[tokio::test]
    async fn ended_program_is_a_failure() {
        for line in ["false", "read line", "/missing/program 2> /dev/null"] {
            let adapter = Command::start(line).unwrap();
            let state = State::new("n".into(), "p-".into());
            let error = adapter.publish(&state).await.unwrap_err();
            assert_eq!(error, "the adapter command has ended", "{line}");
            assert_eq!(adapter.failure(), Some(error), "{line}");
        }
    }

    #[tokio::test]
    async fn endless_answer_is_a_failure() {
        let error = answer_of("cat /dev/zero").await.unwrap_err();
        assert!(error.ends_with("a line of more than 65536 bytes"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_program_is_a_failure() {
        let adapter = Command::start("sleep 100").unwrap();
        let state = State::new("n".into(), "p-".into());
        let error = adapter.publish(&state).await.unwrap_err();
        assert_eq!(error, "the adapter command has not answered within 30s");
        assert_eq!(adapter.failure(), Some(error));
    }

    /// The end of the adapter also ends what the shell has started.
    #[tokio::test]
    async fn dropped_adapter_kills_the_whole_process_group() {
        let line = r#"read line; sleep 100 & echo "{\"error\": \"$!\"}"; wait"#;
        let child: u32 = answer_of(line).await.unwrap_err().parse().unwrap();
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        for _ in 0..500 {
            if !is_running() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("process {child} is still running");
    }
}
