//! The adapter for any other server: a program that reads states from its standard input.

use std::{process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    sync::Mutex,
};

use super::{Adapter, Publishing};
use crate::state::State;

/// The maximum time for the program to publish a state.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Publishes through a program. The kit writes each state as one line of JSON to its standard input. The program answers
/// each line with one line: `{}` after the server serves the state, or `{"error": "reason"}`.
#[derive(Debug)]
pub struct Command {
    pipes: Mutex<Pipes>,
}

#[derive(Debug)]
struct Pipes {
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    /// Kills the program when the adapter is dropped.
    _child: Child,
}

/// The program's answer.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
}

impl Command {
    /// Starts the program, as a command line of the shell.
    ///
    /// # Errors
    /// Fails if the shell cannot be started.
    pub fn start(line: &str) -> Result<Self, String> {
        let mut command = tokio::process::Command::new("sh");
        // `exec` lets the program itself receive the signal at the end.
        command.arg("-c").arg(format!("exec {line}")).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let start = |error| format!("cannot start the adapter command {line:?}: {error}");
        let mut child = command.spawn().map_err(start)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("the adapter command {line:?} has no standard input or output"));
        };
        let stdout = BufReader::new(stdout).lines();
        Ok(Self { pipes: Mutex::new(Pipes { stdin, stdout, _child: child }) })
    }
}

impl Pipes {
    async fn publish(&mut self, line: &str) -> Result<(), String> {
        let written = async {
            self.stdin.write_all(line.as_bytes()).await?;
            self.stdin.flush().await?;
            self.stdout.next_line().await
        };
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, written).await {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return Err("the adapter command has ended".to_owned()),
            Ok(Err(error)) => return Err(format!("cannot talk to the adapter command: {error}")),
            Err(_) => {
                return Err(format!(
                    "the adapter command has not answered within {ANSWER_TIMEOUT:?}"
                ));
            }
        };
        match serde_json::from_str::<Answer>(&answer) {
            Ok(Answer { error: None }) => Ok(()),
            Ok(Answer { error: Some(error) }) => Err(error),
            Err(_) => Err(format!(
                "the adapter command answered {answer:?}; expected {{}} or {{\"error\": \"reason\"}}"
            )),
        }
    }
}

impl Adapter for Command {
    fn publish<'a>(&'a self, state: &'a State) -> Publishing<'a> {
        Box::pin(async move {
            let line = state.to_line() + "\n";
            self.pipes.lock().await.publish(&line).await
        })
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
        let error = answer_of("true").await.unwrap_err();
        assert!(error.contains("adapter command"), "{error}");
    }
}
