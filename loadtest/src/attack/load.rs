//! The attacking clients, in a worker process.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use chancery_fleet_load::{
    scan::{self, End, Event, Scanner},
    stream::{self, Windows},
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use super::payload::Kind;

/// The maximum wait for the answer on a stream.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum number of characters of a reason that are kept.
const REASON_BYTES_MAX: usize = 60;

/// The request that attacks send.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(super) kind: Kind,
    pub(super) bytes: usize,
}

impl Request {
    pub(crate) fn message(self) -> Bytes {
        self.kind.message(self.bytes)
    }
}

/// Connections that send a request over and over again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(super) xds: SocketAddr,
    pub(super) connections: usize,
    /// Streams of a connection, opened in turn.
    pub(super) streams: usize,
    /// The time during which the clients reconnect.
    pub(super) seconds: f64,
    /// The time for which streams stay open after their answers.
    pub(super) hold_seconds: f64,
    /// Each connection first has a stream that acknowledges all clusters.
    pub(super) established: bool,
}

/// The number of streams by how they ended.
pub(crate) type Outcomes = BTreeMap<String, u32>;

impl Load {
    /// Attacks from all connections.
    pub(crate) async fn run(&self, request: Request, message: &Bytes) -> Result<Outcomes> {
        let deadline = Instant::now() + Duration::try_from_secs_f64(self.seconds)?;
        let hold = Duration::try_from_secs_f64(self.hold_seconds)?;
        let mut attackers = JoinSet::new();
        for _ in 0..self.connections {
            let (load, message) = (self.clone(), message.clone());
            attackers.spawn(async move {
                let mut outcomes = Outcomes::new();
                while Instant::now() < deadline {
                    let pass = load.connection(request, &message, hold, &mut outcomes);
                    match timeout_at(deadline, pass).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => note(&mut outcomes, &format!("{error:#}")),
                        Err(_) => note(&mut outcomes, "under way at the end"),
                    }
                }
                outcomes
            });
        }
        let mut all = Outcomes::new();
        while let Some(outcomes) = attackers.join_next().await {
            for (outcome, n) in outcomes? {
                *all.entry(outcome).or_default() += n;
            }
        }
        Ok(all)
    }

    /// One connection: the request on each stream, the answers, and some time with open streams.
    async fn connection(
        &self,
        request: Request,
        message: &Bytes,
        hold: Duration,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        let (mut sender, connection) = stream::connect(self.xds, Windows::ENVOY).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            drop(connection.await);
            "the connection ended".to_owned()
        });
        let mut open = Vec::new();
        if self.established {
            let node = "attacker".to_owned();
            let (next, requests, responses) = stream::open(sender, self.xds, node).await?;
            sender = next;
            let (ready, is_ready) = oneshot::channel();
            tasks.spawn(async move {
                let ended = subscribe(requests, responses, ready).await;
                ended.err().map_or_else(String::new, |error| format!("{error:#}"))
            });
            is_ready.await.context("the first stream ended")?;
        }
        for _ in 0..self.streams {
            let none: [chancery_proto::discovery::DeltaDiscoveryRequest; 0] = [];
            let method = request.kind.method();
            let opened = stream::open_with(sender, self.xds, method, &none).await;
            let (next, mut requests, responses) = opened.context("open a stream")?;
            sender = next;
            tasks.spawn(async move {
                // Its first bytes are enough.
                let read = responses.read(|_| bail!("answered"));
                read.await.err().map_or_else(String::new, |error| format!("{error:#}"))
            });
            // If the stream has ended meanwhile, its reader reports the reason.
            let _sent = requests.send_all(message.clone()).await;
            // Dropping `requests` would reset the stream.
            open.push(requests);
        }
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..self.streams {
            match timeout_at(deadline, tasks.join_next()).await {
                Ok(Some(outcome)) => note(outcomes, &outcome?),
                Ok(None) | Err(_) => note(outcomes, "no answer"),
            }
        }
        sleep(hold).await;
        Ok(())
    }
}

/// Acknowledges all responses. Sends on `ready` after the first one.
async fn subscribe(
    mut requests: stream::Requests,
    responses: stream::Responses,
    ready: oneshot::Sender<()>,
) -> Result<()> {
    let (mut scanner, mut nonces, mut ready) =
        (Scanner::new(scan::Responses::DeltaNames), Vec::new(), Some(ready));
    let read = responses.read(|chunk| {
        scanner.feed(chunk, &mut |event| {
            if let Event::End(End { nonce, .. }) = event {
                nonces.push(String::from_utf8_lossy(nonce).into_owned());
            }
        })?;
        for nonce in nonces.drain(..) {
            requests.ack(nonce)?;
            ready.take().map(|ready| ready.send(()));
        }
        Ok(())
    });
    read.await
}

/// Counts an outcome by the setting that it names, because its text contains varying numbers.
fn note(outcomes: &mut Outcomes, outcome: &str) {
    // A rejection names the setting in parentheses.
    let mut settings = outcome.split('(').filter_map(|it| it.split_once(')')).map(|(it, _)| it);
    let setting = settings.rfind(|it| it.contains('_') && !it.contains(' '));
    let mut reason = setting.unwrap_or(outcome);
    if let Some((at, _)) = reason.char_indices().nth(REASON_BYTES_MAX) {
        reason = &reason[..at];
    }
    *outcomes.entry(reason.to_owned()).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_the_limit_that_ended_them() {
        let mut outcomes = Outcomes::new();
        for n in [7, 8] {
            let text = format!(
                "stream ended: status Some(\"8\"), message Some(\"this stream would hold {n} bytes \
                 (subscriptions_bytes_max); subscribe to fewer names (see there)\")"
            );
            note(&mut outcomes, &text);
        }
        note(&mut outcomes, &"x".repeat(100));
        let all: Vec<_> = outcomes.into_iter().collect();
        assert_eq!(all, [("subscriptions_bytes_max".to_owned(), 2), ("x".repeat(60), 1)]);
    }
}
