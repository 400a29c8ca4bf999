//! A separate process for storms and attacks.
//!
//! The clients whose latency is measured share a process with the author. A storm in the same
//! process would compete with them for its one thread and for locks: those of the allocator, and
//! the kernel's lock for the memory of the process.
//!
//! This program therefore starts itself again, with the hidden command `worker`. The worker reads
//! orders from its standard input, one line of JSON each, and answers each with a line. It ends
//! when its input ends. Dropping its handle kills it.

use std::{
    io::Write as _,
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{attack::load, held_clients, process::Process, report::say, storm::clients};

/// The arguments of the worker process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The `nice` value of the process.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    nice: i32,
}

/// Work for a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Disconnects the clients of the last storm and connects new ones. Answered when all are
    /// current.
    Storm(clients::Load),
    /// Disconnects the clients of a frozen scope and connects new ones. Answered when each has its first response.
    ConnectHeld(held_clients::Load),
    /// Answered with the number of resources that they have received.
    CountHeld,
    /// Answered when all of them have all resources.
    AwaitHeld,
    /// Builds the request that attacks send.
    Prepare(load::Request),
    /// Sends the request for some time. Answered with the numbers of streams by outcome.
    Attack(load::Load),
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    _child: Child,
    process: Process,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts the process with a `nice` value. Call this on the main thread: its end kills the
    /// process.
    pub(crate) fn start(nice: i32) -> Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(["worker", "--nice", &nice.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start a worker")?;
        let process = Process::new(child.id().context("the worker has ended already")?);
        let orders = child.stdin.take().context("the worker has no input")?;
        let answers = child.stdout.take().context("the worker has no output")?;
        Ok(Self { _child: child, process, orders, answers: BufReader::new(answers).lines() })
    }

    /// Returns the process, as the kernel identifies it.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Sends an order and waits for the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, order: &Order) -> Result<T> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.write_all(&line).await.context("the worker has ended")?;
        let answer = self.answers.next_line().await?.context("the worker has ended")?;
        let answer: Result<T, String> =
            serde_json::from_str(&answer).context("parse an answer of the worker")?;
        answer.map_err(|error| anyhow!(error))
    }
}

impl Args {
    /// Executes orders until the input ends.
    pub(crate) fn work(&self) -> ExitCode {
        match self.orders() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say!("error: a worker: {error:#}");
                ExitCode::FAILURE
            }
        }
    }

    fn orders(&self) -> Result<()> {
        rustix::process::setpriority_process(None, self.nice).context("set the priority")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut orders = BufReader::new(tokio::io::stdin()).lines();
            let mut kept = Kept::default();
            while let Some(order) = orders.next_line().await? {
                let answer = kept.carry_out(&order).await;
                let answer = answer.map_err(|error| format!("{error:#}"));
                writeln!(std::io::stdout(), "{}", serde_json::to_string(&answer)?)?;
            }
            Ok(())
        })
    }
}

/// The clients and the message that a worker keeps between orders.
#[derive(Debug, Default)]
struct Kept {
    storm: clients::StormClients,
    held: held_clients::HeldClients,
    message: Option<(load::Request, Bytes)>,
}

impl Kept {
    async fn carry_out(&mut self, order: &str) -> Result<serde_json::Value> {
        match serde_json::from_str(order)? {
            Order::Storm(load) => Ok(serde_json::to_value(self.storm.storm(load).await?)?),
            Order::ConnectHeld(load) => {
                self.held.connect(load).await?;
                Ok(serde_json::Value::Null)
            }
            Order::CountHeld => Ok(self.held.received()?.into()),
            Order::AwaitHeld => {
                self.held.synced().await?;
                Ok(serde_json::Value::Null)
            }
            Order::Prepare(request) => {
                self.message = Some((request, request.message()));
                Ok(serde_json::Value::Null)
            }
            Order::Attack(load) => match &self.message {
                Some((request, message)) => {
                    Ok(serde_json::to_value(load.run(*request, message).await?)?)
                }
                None => bail!("an attack needs a request; send `Prepare` first"),
            },
        }
    }
}
