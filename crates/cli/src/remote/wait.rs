//! The command `wait`.

use std::{
    convert::Infallible,
    io::{self, Write},
    time::Duration,
};

use chancery_admin::Enough;
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use chancery_config::Span;
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{client::refusal, connector::Channel, wait_result};
use crate::{
    answer::Answer,
    exit::Exit,
    failure::Failure,
    progress::{Progress, Stage},
    text::count,
};

/// The time between two counts of the sessions that have acknowledged.
const COUNT_FIRST: Duration = Duration::from_millis(500);
const COUNT_INTERVAL: Duration = Duration::from_secs(2);
/// The time after the end of the wait in which the server must answer. It asks the other replicas for up to 2 s.
const ANSWER_EXTRA: Duration = Duration::from_secs(5);

/// The arguments of `wait`.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Revision that the sessions have to acknowledge
    #[arg(value_name = "REVISION")]
    revision: u64,
    /// Wait for all sessions, a percentage such as 99%, or a number of sessions
    ///
    /// With a number, the command also waits for sessions that do not exist yet.
    #[arg(long = "for", value_name = "SESSIONS", default_value_t = Enough::All)]
    sessions: Enough,
    /// Wait only for the nodes that receive this scope [default: all nodes with an assignment]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Wait at most this time
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: Span,
}

/// Waits until sessions have acknowledged a revision.
pub(super) async fn run(
    wait: Wait,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::WaitRequest {
        revision: wait.revision,
        wait_ms: Some(wait.timeout.millis()),
        scope: wait.scope.unwrap_or_default(),
        r#for: wait.sessions.to_string(),
    };
    let mut progress = Progress::new()?;
    let stage = progress.stage();
    stage.begin("waiting for the sessions");
    let counts = count_sessions(client.clone(), &request, &stage);
    let limit = wait.timeout.duration().saturating_add(ANSWER_EXTRA);
    let waited = async {
        tokio::select! {
            result = client.wait(request.clone()) => result.map_err(|status| refusal(&status)),
            () = tokio::time::sleep(limit) => Err(Failure::of_server(format_args!(
                "has not answered within {limit:?}, although the connection is open; it may hang"
            ))),
            never = counts => match never {},
        }
    };
    let result = progress.run(waited).await.map_err(|stopped| {
        let revision = wait.revision;
        stopped.failure([format!(
            "interrupted: not all sessions are known to have acknowledged revision {revision}"
        )])
    })?;
    let result = result?.into_inner();
    if !result.held.is_empty() {
        answer.show(&result, |_| Ok(()))?;
        return Err(wait_result::held(&result.held));
    }
    answer.show(&result, |out| write_result(&result, out))?;
    verdict(wait.revision, wait.sessions, &result)
}

/// Counts the sessions now and then, for the progress.
async fn count_sessions(
    mut client: AdminClient<Channel>,
    request: &pb::WaitRequest,
    stage: &Stage,
) -> Infallible {
    let request = pb::WaitRequest { wait_ms: Some(0), ..request.clone() };
    let mut pauses = std::iter::once(COUNT_FIRST).chain(std::iter::repeat(COUNT_INTERVAL));
    loop {
        tokio::time::sleep(pauses.next().unwrap_or(COUNT_INTERVAL)).await;
        if let Ok(result) = client.wait(request.clone()).await {
            let result = result.into_inner();
            stage.set(result.acknowledged, result.asked, "sessions");
        }
    }
}

fn write_result(result: &pb::WaitResult, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", wait_result::in_words(result))
}

/// Succeeds only if enough sessions are known to have acknowledged. A session that has not acknowledged decides a wait
/// for all sessions, even if a replica did not answer. A replica that lacks the revision knows of no such session.
fn verdict(revision: u64, enough: Enough, result: &pb::WaitResult) -> Result<(), Failure> {
    if result.enough && result.asked > 0 {
        return Ok(());
    }
    let lacks_revision = result.unsettled_omitted == 0
        && !result.unsettled.is_empty()
        && result.unsettled.iter().all(|one| one.state == "behind");
    if enough == Enough::All
        && !result.settled
        && !(lacks_revision && result.replicas_not_asked > 0)
    {
        return Err(Failure::lines(wait_result::unsettled_lines(result)));
    }
    let not_all_asked =
        || wait_result::not_all_asked(&format!("the wait for revision {revision} ended"), result);
    if result.replicas_not_asked > 0 {
        let failure = not_all_asked();
        if !lacks_revision {
            return Err(failure);
        }
        let lines = failure.lines.into_iter().chain(wait_result::session_lines(result));
        return Err(Failure::lines_with_exit(Exit::NotAllAsked, lines));
    }
    if result.asked == 0 {
        let line = format!("no session of the cluster has to acknowledge revision {revision}");
        return Err(Failure::with_exit(Exit::NoSessionConcerned, line));
    }
    if let (Enough::Count(n), 0) = (enough, result.left)
        && result.settled
    {
        let (needed, words) = (count(n, "session"), wait_result::in_words(result));
        return Err(Failure::new(format!(
            "`--for {n}` needs {needed} that acknowledged revision {revision}: {words}"
        )));
    }
    if result.settled {
        return Err(not_all_asked());
    }
    Err(Failure::lines(wait_result::unsettled_lines(result)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// The wait said that the outcome was unknown, and did not name the session.
    #[test]
    fn session_that_has_not_acknowledged_decides_although_a_replica_is_missing() {
        let unsettled = pb::Unsettled {
            node: "edge-1".into(),
            state: "nacked".into(),
            message: "bad port".into(),
            ..Default::default()
        };
        let result = pb::WaitResult {
            asked: 2,
            acknowledged: 1,
            unsettled: vec![unsettled],
            replicas_not_asked: 1,
            not_asked: vec![pb::ReplicaNotAsked { replica_id: 3, ..Default::default() }],
            ..Default::default()
        };
        let failure = verdict(7, Enough::All, &result).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed, "{failure:?}");
        assert!(failure.lines[0].contains("edge-1"), "{failure:?}");
        assert!(failure.lines[1].contains("replica 3"), "{failure:?}");
        // A replica that lacks the revision, and reaches no other one, knows nothing.
        let behind = pb::Unsettled {
            state: "behind".into(),
            message: "a shard of the replica is still at revision 6".into(),
            ..Default::default()
        };
        let alone = pb::WaitResult { unsettled: vec![behind], ..result.clone() };
        let failure = verdict(7, Enough::All, &alone).unwrap_err();
        assert_eq!(failure.exit, Exit::NotAllAsked, "{failure:?}");
        assert!(failure.lines[1].contains("still at revision 6"), "{failure:?}");
        let complete = pb::WaitResult { replicas_not_asked: 0, not_asked: vec![], ..alone };
        assert_eq!(verdict(7, Enough::All, &complete).unwrap_err().exit, Exit::Failed);
        // The sessions of the missing replica may be enough for a percentage.
        assert_eq!(verdict(7, Enough::Percent(50.0), &result).unwrap_err().exit, Exit::NotAllAsked);
    }

    /// The wait said that it is unknown whether all sessions have the revision, although all were known.
    #[test]
    fn too_few_sessions_fail_the_wait_with_both_numbers() {
        let result = pb::WaitResult {
            asked: 1,
            acknowledged: 1,
            settled: true,
            complete: true,
            replicas: 3,
            waited_ms: 200,
            ..Default::default()
        };
        let failure = verdict(7, Enough::Count(2), &result).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed, "{failure:?}");
        assert_eq!(
            failure.lines,
            [
                "`--for 2` needs 2 sessions that acknowledged revision 7: 1 of 1 session on 3 replicas \
                 acknowledged after 200 ms"
            ]
        );
        // The session that left may have the revision.
        let left = pb::WaitResult { asked: 2, left: 1, complete: false, ..result };
        let failure = verdict(7, Enough::Count(2), &left).unwrap_err();
        assert_eq!(failure.exit, Exit::NotAllAsked, "{failure:?}");
    }
}
