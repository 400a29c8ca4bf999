//! Waiting until a change is live on the clients of all replicas.
//!
//! Each replica watches its own sessions ([`crate::wait_progress`]). The replica that a caller asks polls the others. It
//! reports success only if two successive rounds agree, because one round may miss a client that moves between replicas.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display, Formatter},
    str::FromStr,
    time::Duration,
};

use chancery_admin_proto::v1 as pb_admin;
use chancery_fanout::{Change, TouchedNames};
use chancery_model::{ResourceName, Revision, ScopeName, Target, TypeUrl, Verb};
use chancery_raft_proto::v1 as pb;
use tokio::time::Instant;

use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::{self, Elsewhere, FleetRequest},
    held_changes::{held_up_to, hide_held},
    resources::given,
    wait::LISTED_MAX,
    wait_progress::{SessionWait, WAITS_MAX, random_number},
    wait_reasons::name_missing,
    write_options::WAIT_MAX,
};

/// The first pause between two rounds. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The time for which a wait goes on only because a replica does not answer, or a node has not returned.
const UNANSWERED_MAX: Duration = Duration::from_secs(3);
/// The maximum length of the names in a question. A question about more names is about all sessions.
const NAME_BYTES_MAX: usize = 256 << 10;
/// The maximum number of nodes in a question whose sessions ended elsewhere.
const LEFT_MAX: usize = 1000;

/// The number of sessions that must acknowledge: `all`, a percentage such as `99%`, or a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Enough {
    /// All sessions.
    All,
    /// A percentage of the sessions, from 0 to 100.
    Percent(f64),
    /// A number of sessions.
    Count(u64),
}

impl FromStr for Enough {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_number = text.starts_with(|first: char| first.is_ascii_digit());
        let parsed = match text.strip_suffix('%') {
            _ if text == "all" => Some(Self::All),
            _ if !is_number => None,
            Some(percent) => {
                let percent = percent.parse().ok().filter(|n| (0.0..=100.0).contains(n));
                percent.map(Self::Percent)
            }
            None => text.parse().ok().map(Self::Count),
        };
        parsed.ok_or_else(|| {
            format!("{text:?} is not a number of sessions; it must be `all`, a percentage such as 99%, or a number")
        })
    }
}

impl Display for Enough {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Count(n) => write!(f, "{n}"),
        }
    }
}

impl Enough {
    /// Returns whether this number of the sessions is enough.
    #[expect(clippy::cast_precision_loss, reason = "the numbers of sessions are small")]
    pub(crate) fn is_reached(self, acknowledged: u64, asked: u64) -> bool {
        match self {
            Self::All => acknowledged >= asked,
            Self::Percent(percent) => acknowledged as f64 >= asked as f64 * percent / 100.0,
            Self::Count(n) => acknowledged >= n,
        }
    }
}

/// The known sessions of all replicas.
#[derive(Debug, Default)]
struct Sessions {
    /// The latest answer of each replica.
    answers: BTreeMap<u64, pb::WaitAnswer>,
    /// The nodes of sessions that may have ended with a replica that has restarted since.
    lost: BTreeSet<String>,
    /// The number of further sessions of such replicas.
    n_lost_more: u64,
    not_asked: Vec<pb_admin::ReplicaNotAsked>,
    /// The nodes whose sessions have ended, and about which the other replicas were asked.
    asked_about: BTreeSet<String>,
    /// The nodes among `asked_about` that have a session on another replica.
    returned: BTreeSet<String>,
}

impl Sessions {
    /// Takes the answers of one round, in which the other replicas were asked about nodes.
    fn update(
        &mut self,
        asked_about: BTreeSet<String>,
        own: (u64, pb::WaitAnswer),
        there: Elsewhere<pb::WaitAnswer>,
    ) {
        self.asked_about = asked_about;
        self.not_asked = there.not_asked;
        self.returned.clear();
        for (replica_id, answer) in there.replies.into_iter().chain([own]) {
            self.returned.extend(answer.here.iter().cloned());
            let before = self.answers.insert(replica_id, answer);
            let instance = self.answers[&replica_id].instance;
            if let Some(before) = before.filter(|before| before.instance != instance) {
                let open = before.unsettled.into_iter().map(|one| one.node);
                self.lost.extend(open.chain(before.left).filter(|node| !node.is_empty()));
                self.n_lost_more += before.unsettled_omitted + before.left_omitted;
            }
        }
        for node in &self.returned {
            self.lost.remove(node);
        }
    }

    /// Returns the nodes whose sessions have ended without an answer, and that have none elsewhere.
    fn left(&self) -> BTreeSet<String> {
        let left = self.answers.values().flat_map(|answer| &answer.left).chain(&self.lost);
        left.filter(|node| !self.returned.contains(*node)).cloned().collect()
    }

    /// Returns the nodes whose sessions have ended, with or without an answer.
    fn ended(&self) -> BTreeSet<String> {
        let gone = self.answers.values().flat_map(|answer| &answer.gone).cloned();
        self.left().into_iter().chain(gone).take(LEFT_MAX).collect()
    }

    /// Returns the number of sessions that acknowledged and ended, and whose nodes have, or may have, a session on another
    /// replica. Only that session counts.
    fn n_elsewhere(&self) -> u64 {
        if self.answers.len() == 1 && self.not_asked.is_empty() {
            return 0;
        }
        let is_elsewhere =
            |node: &&String| !self.asked_about.contains(*node) || self.returned.contains(*node);
        let of_replica = |answer: &pb::WaitAnswer| {
            answer.gone.iter().filter(is_elsewhere).count() as u64 + answer.gone_omitted
        };
        self.answers.values().map(of_replica).sum()
    }

    fn n_left(&self) -> u64 {
        let omitted: u64 = self.answers.values().map(|answer| answer.left_omitted).sum();
        self.left().len() as u64 + omitted + self.n_lost_more
    }

    fn is_final(&self) -> bool {
        self.answers.values().all(|answer| answer.r#final)
    }

    fn n_queries(&self) -> u64 {
        self.answers.values().map(|answer| answer.queries).min().unwrap_or_default()
    }

    fn n_acknowledged(&self) -> u64 {
        let acknowledged: u64 = self.answers.values().map(|answer| answer.acknowledged).sum();
        acknowledged.saturating_sub(self.n_elsewhere())
    }

    /// Returns the number of sessions that were asked. One that returned to another replica counts there.
    fn n_asked(&self) -> u64 {
        let listed: u64 = self.answers.values().map(|answer| answer.left.len() as u64).sum();
        let omitted: u64 = self.answers.values().map(|answer| answer.left_omitted).sum();
        let asked: u64 = self.answers.values().map(|answer| answer.asked).sum();
        asked.saturating_sub(listed + omitted + self.n_elsewhere()) + self.n_left()
    }
}

/// Waits until enough of the sessions that a change concerns have acknowledged it, on all replicas. Also ends at the
/// timeout, or when no further answer is expected.
pub(crate) async fn wait_for(
    ctx: &Ctx,
    change: Change,
    timeout: Duration,
    enough: Enough,
) -> pb_admin::WaitResult {
    let (start, own_id) = (Instant::now(), ctx.deps.replica.id());
    let mut question = question(&change, timeout);
    let own = SessionWait::start(&ctx.deps.waits, &ctx.deps.fanout, change, timeout);
    let (mut sessions, mut pause, mut first_final) = (Sessions::default(), PAUSE_MIN, None);
    // The time since which no further answer is expected.
    let mut unanswered_since = None;
    loop {
        let ended = sessions.ended();
        question.left = ended.iter().cloned().collect();
        let (here, there) = tokio::join!(own.progress(&ended), fleet::ask(ctx, &question));
        sessions.update(ended, (own_id, here), there);
        let passed = start.elapsed();
        let n_queries = sessions.n_queries();
        let is_reached = enough.is_reached(sessions.n_acknowledged(), sessions.n_asked());
        let is_done = match enough {
            Enough::All => sessions.is_final(),
            Enough::Percent(_) => sessions.is_final() || is_reached,
            // Further sessions may still begin.
            Enough::Count(_) => is_reached,
        };
        first_final = if is_done { first_final.or(Some(n_queries)) } else { None };
        unanswered_since = unanswered_since.filter(|_| is_done).or(is_done.then_some(passed));
        let is_alone = sessions.answers.len() == 1 && sessions.not_asked.is_empty();
        let is_confirmed = first_final.is_some_and(|first| is_alone || n_queries > first);
        // A client that has lost its replica soon connects to another one.
        let is_known = sessions.not_asked.is_empty()
            && sessions.n_left() == 0
            && sessions.ended().is_subset(&sessions.asked_about);
        let is_given_up = unanswered_since.is_some_and(|since| passed - since >= UNANSWERED_MAX);
        let is_over = passed >= timeout || ctx.deps.drain.is_cancelled();
        if is_confirmed && (is_known || is_given_up) || is_over {
            return result(ctx, sessions, passed, enough).await;
        }
        let left = timeout.saturating_sub(passed).max(PAUSE_MIN);
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the question about a change.
fn question(change: &Change, timeout: Duration) -> pb::WaitQuestion {
    let names = |names: &[ResourceName]| names.iter().map(ToString::to_string).collect();
    let n_bytes: usize = change.names().map(|name| name.as_str().len()).sum();
    let is_anything = change.is_anything() || n_bytes > NAME_BYTES_MAX;
    let touched = change.touched().filter(|_| !is_anything);
    let touched = touched.map(|(scope, type_url, of_type)| pb::TouchedNames {
        scope: scope.to_string(),
        type_url: type_url.to_string(),
        names: names(of_type),
    });
    pb::WaitQuestion {
        wait_id: random_number(),
        revision: change.revision.0,
        touched: touched.collect(),
        assignments: change.has_assignments(),
        anything: is_anything,
        scope: change.scope().map(ToString::to_string).unwrap_or_default(),
        timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        left: Vec::new(),
        includes_earlier: change.includes_earlier(),
    }
}

/// Returns the change of a question.
fn change(question: &pb::WaitQuestion) -> Result<Change, AdminError> {
    let revision = Revision(question.revision);
    let mut touched = TouchedNames::new();
    for one in &question.touched {
        let type_url = TypeUrl::new(&one.type_url)
            .map_err(|error| AdminError::Parameter(error.to_string()))?;
        let names = one.names.iter().map(|name| ResourceName::new(name));
        let names = names.collect::<Result<BTreeSet<_>, _>>()?;
        touched.insert((ScopeName::new(&one.scope)?, type_url), names);
    }
    let change = if question.includes_earlier {
        Change::everything(revision)
    } else if question.anything {
        Change::anything(revision)
    } else {
        Change::new(revision, touched, question.assignments)
    };
    Ok(match question.scope.as_str() {
        "" => change,
        scope => change.of_scope(ScopeName::new(scope)?),
    })
}

impl Needs for pb::WaitQuestion {
    // The asking replica has checked the caller's right to write, and lists nodes only for callers with the right `nodes`.
    const NEEDS: Access = Access::Open;
}

impl FleetRequest for pb::WaitQuestion {
    const NAME: &'static str = "chancery.raft.v1.WaitQuestion";
    type Reply = pb::WaitAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::WaitAnswer, AdminError> {
        let change = change(&self)?;
        let timeout = Duration::from_millis(self.timeout_ms.into());
        let deps = &ctx.deps;
        let start = || SessionWait::start(&deps.waits, &deps.fanout, change, timeout);
        let wait = deps.foreign_waits.of(self.wait_id, start).ok_or_else(|| {
            AdminError::Unavailable(format!(
                "cannot wait: this replica runs the maximum of {WAITS_MAX} waits for other replicas; try again later"
            ))
        })?;
        Ok(wait.progress(&self.left.into_iter().collect()).await)
    }
}

async fn result(
    ctx: &Ctx,
    sessions: Sessions,
    time: Duration,
    enough: Enough,
) -> pb_admin::WaitResult {
    let (asked, acknowledged) = (sessions.n_asked(), sessions.n_acknowledged());
    let (left, n_not_asked) = (sessions.n_left(), sessions.not_asked.len() as u64);
    let of_replica = |(replica_id, answer): (&u64, &pb::WaitAnswer)| {
        let replica_id = *replica_id;
        answer.unsettled.clone().into_iter().map(move |one| pb_admin::Unsettled {
            node: one.node,
            type_url: one.type_url,
            state: one.state,
            message: one.message,
            replica_id,
        })
    };
    let all: Vec<pb_admin::Unsettled> = sessions.answers.iter().flat_map(of_replica).collect();
    let omitted: u64 = sessions.answers.values().map(|answer| answer.unsettled_omitted).sum();
    let n_unsettled = all.len() as u64 + omitted;
    let n_listed = if ctx.may(Verb::Nodes, Target::Cluster) { LISTED_MAX } else { 0 };
    let mut listed: Vec<pb_admin::Unsettled> = all.into_iter().take(n_listed).collect();
    name_missing(ctx, &mut listed).await;
    let is_all = n_unsettled == 0 && acknowledged == asked;
    pb_admin::WaitResult {
        settled: n_unsettled == 0,
        waited_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        unsettled_omitted: n_unsettled - listed.len() as u64,
        unsettled: listed,
        other_replicas: ctx.deps.replica.n_members().saturating_sub(1) as u64,
        asked,
        acknowledged,
        left,
        replicas: sessions.answers.len() as u64 - n_unanswered_before(&sessions),
        replicas_not_asked: n_not_asked,
        complete: asked > 0 && is_all && n_not_asked == 0,
        // Sessions of a missing replica cannot make a number of sessions smaller.
        enough: (n_not_asked == 0 || matches!(enough, Enough::Count(_)))
            && enough.is_reached(acknowledged, asked),
        not_asked: sessions.not_asked,
        held: Vec::new(),
    }
}

/// Returns the number of replicas that have answered once, and no longer do.
fn n_unanswered_before(sessions: &Sessions) -> u64 {
    let has_answered =
        |one: &&pb_admin::ReplicaNotAsked| sessions.answers.contains_key(&one.replica_id);
    sessions.not_asked.iter().filter(has_answered).count() as u64
}

/// Waits until sessions of all replicas have acknowledged a revision.
pub(crate) async fn wait(
    ctx: &Ctx,
    request: pb_admin::WaitRequest,
) -> Result<pb_admin::WaitResult, AdminError> {
    const DEFAULT: Duration = Duration::from_secs(30);
    let change = Change::everything(Revision(request.revision));
    let scope = given(&request.scope).map(ScopeName::new).transpose()?;
    let change = match &scope {
        None => change,
        Some(scope) => change.of_scope(scope.clone()),
    };
    let enough = given(&request.r#for).map(str::parse).transpose();
    let enough =
        enough.map_err(|error| AdminError::Parameter(format!("invalid `for`: {error}")))?;
    let enough = enough.unwrap_or(Enough::All);
    let held = || {
        let state = ctx.deps.replica.state();
        let mut held = held_up_to(&state, Revision(request.revision), scope.as_ref());
        hide_held(ctx, &state, &mut held);
        (!held.is_empty()).then(|| pb_admin::WaitResult { held, ..Default::default() })
    };
    if let Some(held) = held() {
        return Ok(held);
    }
    let timeout = request.wait_ms.map_or(DEFAULT, Duration::from_millis).min(WAIT_MAX);
    ctx.deps.check_exists(Revision(request.revision), timeout).await?;
    let waited = wait_for(ctx, change, timeout, enough).await;
    // A freeze may have begun meanwhile, or this replica was behind.
    Ok(held().unwrap_or(waited))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(instance: u64, acknowledged: u64, open: &[&str], left: &[&str]) -> pb::WaitAnswer {
        let unsettled = open.iter().map(|node| pb::UnsettledSession {
            node: (*node).to_owned(),
            state: "pending".to_owned(),
            ..Default::default()
        });
        let n_open = open.len() + left.len();
        pb::WaitAnswer {
            instance,
            queries: 1,
            asked: acknowledged + n_open as u64,
            acknowledged,
            unsettled: unsettled.collect(),
            r#final: open.is_empty(),
            left: left.iter().map(|node| (*node).to_owned()).collect(),
            ..Default::default()
        }
    }

    fn round(sessions: &mut Sessions, own: pb::WaitAnswer, other: Option<pb::WaitAnswer>) {
        let replies: Vec<(u64, pb::WaitAnswer)> = other.into_iter().map(|one| (2, one)).collect();
        let answered = replies.iter().map(|(id, _)| *id).collect();
        let there = Elsewhere { replies, answered, not_asked: Vec::new(), n_not_asked: 0 };
        let asked_about = sessions.ended();
        sessions.update(asked_about, (1, own), there);
    }

    /// A client that acknowledges on one replica, and then on another, counts once.
    #[test]
    fn node_that_moves_after_its_acknowledgment_counts_once() {
        let gone = |answer: pb::WaitAnswer| pb::WaitAnswer { gone: vec!["a".to_owned()], ..answer };
        let mut sessions = Sessions::default();
        round(&mut sessions, answer(7, 1, &["b"], &[]), Some(answer(8, 1, &[], &[])));
        assert_eq!((sessions.n_acknowledged(), sessions.n_asked()), (2, 3));
        // Replica 2 has not been asked about the node yet, so it may have the node.
        round(&mut sessions, gone(answer(7, 1, &["b"], &[])), Some(answer(8, 1, &[], &[])));
        assert_eq!((sessions.n_acknowledged(), sessions.n_asked()), (1, 2));
        let here = pb::WaitAnswer { here: vec!["a".to_owned()], ..answer(8, 1, &[], &[]) };
        round(&mut sessions, gone(answer(7, 1, &["b"], &[])), Some(here));
        assert_eq!((sessions.n_acknowledged(), sessions.n_asked()), (1, 2));
        // Without a session elsewhere, its acknowledgment counts.
        round(&mut sessions, gone(answer(7, 1, &["b"], &[])), Some(answer(8, 0, &[], &[])));
        assert_eq!((sessions.n_acknowledged(), sessions.n_asked()), (1, 2));
    }

    /// A session that ends on one replica and begins on another counts once.
    #[test]
    fn node_that_moves_to_another_replica_counts_there() {
        let mut sessions = Sessions::default();
        round(&mut sessions, answer(7, 1, &[], &[]), Some(answer(8, 0, &["a"], &[])));
        assert_eq!((sessions.n_acknowledged(), sessions.n_asked()), (1, 2));
        assert!(!sessions.is_final());
        round(&mut sessions, answer(7, 1, &[], &[]), Some(answer(8, 0, &[], &["a"])));
        assert_eq!((sessions.n_left(), sessions.n_asked()), (1, 2));
        let here = pb::WaitAnswer { here: vec!["a".to_owned()], ..answer(7, 2, &[], &[]) };
        round(&mut sessions, here, Some(answer(8, 0, &[], &["a"])));
        assert_eq!((sessions.n_left(), sessions.n_acknowledged(), sessions.n_asked()), (0, 2, 2));
    }

    /// A replica that restarts forgets its sessions. Those that had not acknowledged are not taken for done.
    #[test]
    fn sessions_of_restarted_replica_are_not_forgotten() {
        let mut sessions = Sessions::default();
        round(&mut sessions, answer(7, 0, &[], &[]), Some(answer(8, 0, &["a", "b"], &[])));
        round(&mut sessions, answer(7, 0, &[], &[]), Some(answer(9, 0, &[], &[])));
        assert!(sessions.is_final());
        assert_eq!((sessions.n_left(), sessions.n_acknowledged(), sessions.n_asked()), (2, 0, 2));
        let here = pb::WaitAnswer { here: vec!["a".to_owned()], ..answer(7, 1, &[], &[]) };
        round(&mut sessions, here, Some(answer(9, 0, &[], &[])));
        assert_eq!((sessions.n_left(), sessions.n_acknowledged(), sessions.n_asked()), (1, 1, 2));
    }

    #[test]
    fn enough_is_all_a_percentage_or_a_number() {
        let reached = |text: &str, n| text.parse::<Enough>().unwrap().is_reached(n, 200);
        assert_eq!(
            [("all", 199), ("all", 200), ("99%", 197), ("99%", 198), ("5", 4), ("5", 5)]
                .map(|(text, n)| reached(text, n)),
            [false, true, false, true, false, true]
        );
        for text in ["101%", "-1", "most", "%", "NaN%", "", "+1", "+1%"] {
            text.parse::<Enough>().unwrap_err();
        }
        for text in ["all", "99.5%", "5"] {
            assert_eq!(text.parse::<Enough>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn change_survives_the_way_to_another_replica() {
        let name = |name: &str| ResourceName::new(name).unwrap();
        let key = (ScopeName::new("edge").unwrap(), TypeUrl::new("a.b/C").unwrap());
        let touched = TouchedNames::from([(key.clone(), BTreeSet::from([name("x"), name("y")]))]);
        for sent in [
            Change::new(Revision(3), touched, true),
            Change::anything(Revision(4)),
            Change::everything(Revision(4)),
            Change::anything(Revision(4)).of_scope(ScopeName::new("edge").unwrap()),
        ] {
            assert_eq!(change(&question(&sent, Duration::from_secs(1))).unwrap(), sent);
        }
        // A question about very many names is about all sessions.
        let many = (0..3000).map(|n| name(&format!("{}{n}", "long".repeat(30)))).collect();
        let many = Change::new(Revision(5), TouchedNames::from([(key, many)]), false);
        let received = change(&question(&many, Duration::from_secs(1))).unwrap();
        assert_eq!(received, Change::anything(Revision(5)));
    }
}
