//! Tests of questions to other replicas: answers in pages, and every reason why a replica does not answer.

use std::{
    convert::Infallible,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use chancery_model::Revision;
use chancery_store::{
    AnswerPage, Answerer, Answers, AskLimits, Asked, MemberChange, NoAnswer, Question, Replica,
};
use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, sync::Notify};

use crate::{
    cluster::{DEADLINE, eventually, member_config, three, voters},
    support::{commit, memory_dir, put, revision},
};

/// The limits of the tests. The timeout is longer than any answer takes on a slow machine.
const LIMITS: AskLimits =
    AskLimits { timeout: DEADLINE, page_bytes_max: 1000, answer_bytes_max: 10_000 };
/// The time after which a replica that never answers counts as silent.
const SOON: AskLimits = AskLimits { timeout: Duration::from_millis(500), ..LIMITS };

pub(crate) type Answer = Result<AnswerPage, NoAnswer>;

/// An answerer that a function implements.
struct By<F>(F);

impl<F: Fn(Asked) -> BoxFuture<'static, Answer> + Send + Sync> Answerer for By<F> {
    fn answer(&self, asked: Asked) -> BoxFuture<'static, Answer> {
        self.0(asked)
    }
}

/// Lets a replica answer until the returned value is dropped.
pub(crate) fn answer(
    replica: &Replica,
    by: impl Fn(Asked) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
) -> Arc<dyn Answerer> {
    let answerer: Arc<dyn Answerer> = Arc::new(By(by));
    replica.answer_with(Arc::downgrade(&answerer));
    answerer
}

/// Returns an answer with one page.
pub(crate) fn page(body: impl Into<Bytes>) -> BoxFuture<'static, Answer> {
    let page = AnswerPage { body: body.into(), next: Bytes::new() };
    async move { Ok(page) }.boxed()
}

fn question(revision: Revision) -> Question {
    Question { kind: "test", body: Bytes::from_static(b"who?"), revision }
}

async fn ask(replica: &Replica, limits: AskLimits) -> Answers {
    replica.ask_all(question(revision(replica)), limits).await
}

/// Returns why each replica does not answer.
fn reasons(answers: &Answers) -> Vec<(u64, NoAnswer)> {
    answers.unanswered.iter().map(|one| (one.replica_id, one.reason.clone())).collect()
}

/// Asks until all replicas have answered, or have been given up for a reason other than a connection that is not
/// there yet.
pub(crate) async fn ask_settled(replica: &Replica) -> Answers {
    let mut answers = Answers::default();
    eventually("the replicas are connected", async || {
        answers = ask(replica, LIMITS).await;
        !answers.unanswered.iter().any(|one| matches!(one.reason, NoAnswer::Down(_)))
    })
    .await;
    answers
}

async fn end(replicas: &[Replica]) {
    for replica in replicas {
        replica.shutdown().await.unwrap();
    }
}

/// Each replica asks the two others, and gets their answers page by page.
#[tokio::test(flavor = "multi_thread")]
async fn each_replica_gets_the_pages_of_all_others() {
    let (_dir, replicas) = three().await;
    let mut answerers = Vec::new();
    for replica in &replicas {
        let id = replica.status().replica_id;
        answerers.push(answer(replica, move |asked| {
            assert_eq!((asked.kind.as_str(), &asked.body[..]), ("test", &b"who?"[..]));
            let n = asked.cursor.first().copied().unwrap_or_default();
            let next = if n < 2 { Bytes::from(vec![n + 1]) } else { Bytes::new() };
            let body = format!("replica {id} page {n} revision {}", asked.state.revision);
            async move { Ok(AnswerPage { body: body.into(), next }) }.boxed()
        }));
    }
    commit(&replicas[0], put("a", b"1")).await;
    for (asker, others) in [(0, [2, 3]), (1, [1, 3]), (2, [1, 2])] {
        // The answer is that of a replica that has applied the revision.
        let question = question(Revision(1));
        let answers = replicas[asker].ask_all(question, LIMITS).await;
        assert_eq!(reasons(&answers), []);
        let expected = others.map(|id| {
            let pages = (0..3).map(|n| Bytes::from(format!("replica {id} page {n} revision 1")));
            (id, pages.collect::<Vec<_>>())
        });
        assert_eq!(answers.answered, expected);
    }
    end(&replicas).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_that_is_down_or_hangs_is_named_and_delays_no_other_answer() {
    let (_dir, mut replicas) = three().await;
    let _second = answer(&replicas[1], |_| page("two"));
    let hangs = answer(&replicas[2], |_| std::future::pending().boxed());
    let answers = ask(&replicas[0], SOON).await;
    assert_eq!(answers.answered, [(2, vec![Bytes::from("two")])]);
    assert_eq!(reasons(&answers), [(3, NoAnswer::TimedOut(SOON.timeout))]);
    assert_eq!(answers.unanswered[0].address, replicas[2].raft_address());
    // The next question waits less for it.
    let answers = ask(&replicas[0], SOON).await;
    let [(3, NoAnswer::TimedOut(short))] = reasons(&answers)[..] else { panic!("{answers:?}") };
    assert!(short < SOON.timeout, "{short:?}");
    // Many questions at once are answered by the other one, too.
    let many = join_all((0..40).map(|_| ask(&replicas[0], LIMITS))).await;
    for answers in many {
        assert_eq!(answers.answered, [(2, vec![Bytes::from("two")])], "{answers:?}");
    }

    drop(hangs);
    let _third = answer(&replicas[2], |_| page("three"));
    eventually("the third replica answers again", async || {
        ask(&replicas[0], LIMITS).await.unanswered.is_empty()
    })
    .await;

    replicas.pop().unwrap().shutdown().await.unwrap();
    let answers = ask(&replicas[0], LIMITS).await;
    assert_eq!(answers.answered, [(2, vec![Bytes::from("two")])]);
    assert!(matches!(reasons(&answers)[..], [(3, NoAnswer::Down(_))]), "{answers:?}");
    end(&replicas).await;
}

/// A replica is not asked for what it cannot know: it starts, is behind, or its release has no such question.
#[tokio::test(flavor = "multi_thread")]
async fn replica_without_an_answer_says_why() {
    let (_dir, replicas) = three().await;
    let _third = answer(&replicas[2], |_| async { Err(NoAnswer::OldRelease) }.boxed());
    let expected = [(2, NoAnswer::Starting), (3, NoAnswer::OldRelease)];
    assert_eq!(reasons(&ask_settled(&replicas[0]).await), expected);
    let _second = answer(&replicas[1], |_| page("two"));
    let _third = answer(&replicas[2], |_| page("three"));
    let future = Revision(revision(&replicas[0]).0 + 1);
    let answers = replicas[0].ask_all(question(future), SOON).await;
    let behind = NoAnswer::Behind(revision(&replicas[0]));
    assert_eq!(reasons(&answers), [(2, behind.clone()), (3, behind)]);
    // A replica that is shut down asks nobody.
    replicas[0].shutdown().await.unwrap();
    assert!(ask(&replicas[0], SOON).await.answered.is_empty());
    end(&replicas[1..]).await;
}

/// Serves the calls of other replicas as a release without questions does, with UNIMPLEMENTED. Breaks the connection of
/// the first `n_broken` questions instead.
async fn earlier_release(listener: TcpListener, n_broken: usize) {
    let n_questions = Arc::new(AtomicUsize::new(0));
    while let Ok((stream, _)) = listener.accept().await {
        let (n_questions, broken) = (Arc::clone(&n_questions), Arc::new(Notify::new()));
        let breaks = Arc::clone(&broken);
        let answer = service_fn(move |request: Request<Incoming>| {
            let is_question = request.uri().path().ends_with("/Ask");
            if is_question && n_questions.fetch_add(1, Ordering::Relaxed) < n_broken {
                breaks.notify_one();
            }
            let response = Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "12");
            async move { Ok::<_, Infallible>(response.body(String::new()).unwrap()) }
        });
        let server = http2::Builder::new(TokioExecutor::new());
        let connection = server.serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = broken.notified() => {}
                _ = connection => {}
            }
        });
    }
}

/// A release without questions refuses the call. A connection that breaks says nothing about the replica, so the
/// question is asked again on the next one.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_release_counts_as_not_asked_after_a_broken_connection_too() {
    let dir = memory_dir();
    let replica = Replica::open(member_config(dir.path(), 1, &[])).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let earlier = tokio::spawn(earlier_release(listener, 1));
    let add = MemberChange::Add { replica_id: 2, address: address.clone(), learner: true };
    replica.change_members(add).await.unwrap();
    eventually("the learner is a member", async || replica.status().learners == [2]).await;
    let answers = ask(&replica, LIMITS).await;
    assert_eq!(reasons(&answers), [(2, NoAnswer::OldRelease)]);
    assert_eq!(answers.unanswered[0].address, address);
    earlier.abort();
    replica.shutdown().await.unwrap();
}

/// Neither side takes more bytes than the limits allow, and no answer has endless pages.
#[tokio::test(flavor = "multi_thread")]
async fn questions_and_answers_beyond_the_limits_are_refused() {
    let (_dir, replicas) = three().await;
    let endless = |body: &'static str| {
        move |asked: Asked| {
            let next = Bytes::from(vec![asked.cursor.first().map_or(0, |n| n ^ 1)]);
            async move { Ok(AnswerPage { body: body.into(), next }) }.boxed()
        }
    };
    let _second = answer(&replicas[1], |_| page(vec![7; LIMITS.page_bytes_max]));
    let _third = answer(&replicas[2], |_| page(vec![7; LIMITS.page_bytes_max + 1]));
    let answers = ask_settled(&replicas[0]).await;
    assert_eq!(answers.answered, [(2, vec![Bytes::from(vec![7; LIMITS.page_bytes_max])])]);
    assert_eq!(reasons(&answers), [(3, NoAnswer::TooLarge(LIMITS.page_bytes_max))]);

    let _second =
        answer(&replicas[1], endless("more bytes than the limit has for a thousand pages"));
    let _third = answer(&replicas[2], endless(""));
    let reasons = reasons(&ask(&replicas[0], LIMITS).await);
    assert_eq!(reasons[0], (2, NoAnswer::TooLarge(LIMITS.answer_bytes_max)));
    assert!(matches!(&reasons[1], (3, NoAnswer::Failed(text)) if text.contains("1000 pages")));

    let long = Question { body: vec![7; (8 << 20) + 1].into(), ..question(Revision(0)) };
    let answers = replicas[0].ask_all(long, LIMITS).await;
    assert!(
        answers.unanswered.iter().all(|one| one.reason == NoAnswer::TooLarge(8 << 20)),
        "{answers:?}"
    );
    end(&replicas).await;
}

/// A runtime that an answer blocks delays neither entries nor heartbeats.
#[tokio::test(flavor = "multi_thread")]
async fn answer_that_blocks_its_runtime_delays_no_write() {
    let (_dir, replicas) = three().await;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let (open_gate, gate) = mpsc::sync_channel::<()>(1);
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let (started, mut has_started) = tokio::sync::mpsc::channel(2);
    let blocks: Arc<dyn Answerer> = Arc::new(By(move |_: Asked| {
        let (gate, started) = (Arc::clone(&gate), started.clone());
        async move {
            started.send(()).await.unwrap();
            assert!(gate.lock().unwrap().recv().is_err(), "the gate ends");
            Ok(AnswerPage::default())
        }
        .boxed()
    }));
    for replica in &replicas {
        let _on_runtime = runtime.enter();
        replica.answer_with(Arc::downgrade(&blocks));
    }
    let asking = replicas[0].clone();
    let asked = tokio::spawn(async move { ask(&asking, LIMITS).await });
    has_started.recv().await.unwrap();
    for n in 0..20 {
        commit(&replicas[n % 3], put("a", &[u8::try_from(n).unwrap()])).await;
    }
    assert_eq!(voters(&replicas[0]).await, [1, 2, 3]);
    drop(open_gate);
    assert_eq!(reasons(&asked.await.unwrap()), []);
    end(&replicas).await;
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
}

/// The number of concurrent answers is limited, also if nobody waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_start_no_more_answers_than_the_limit() {
    let (_dir, replicas) = three().await;
    let n_started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_started);
    let counts = move |_: Asked| {
        let counted = Arc::clone(&counted);
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
        .boxed()
    };
    let _third = answer(&replicas[2], counts);
    let _second = answer(&replicas[1], |_| page("two"));
    let _first = answer(&replicas[0], |_| page("one"));
    let asks = (0..40).map(|n| ask(&replicas[n % 2], SOON));
    let answers = futures::future::join_all(asks).await;
    assert!(answers.iter().all(|answers| !answers.unanswered.is_empty()));
    assert_eq!(n_started.load(Ordering::SeqCst), 4);
    end(&replicas).await;
}

/// A cluster of one asks nobody, and an answerer that is gone answers nothing.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_of_one_asks_nobody() {
    let dir = memory_dir();
    let replica = Replica::open(member_config(dir.path(), 1, &[])).await.unwrap();
    replica.answer_with(Weak::<By<fn(Asked) -> BoxFuture<'static, Answer>>>::new());
    let answers = ask(&replica, LIMITS).await;
    assert!(answers.answered.is_empty() && answers.unanswered.is_empty());
    replica.shutdown().await.unwrap();
}
