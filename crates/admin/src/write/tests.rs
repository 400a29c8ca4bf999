use chancery_audit::Audit;
use chancery_fanout::{AccessControl, Fanout};
use chancery_mcp::Sources;
use chancery_model::{AccessOp, AccessRule, Identity, Principal, ResourceDraft, TypeUrl, types};
use chancery_store::{Config, OpenProgress, Replica};
use chancery_trace::Tracer;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;
use crate::{
    AdminAccess, AdminDeps, GuardSettings, Readiness, ReferenceSettings,
    caller::{Caller, Rights},
    ctx::{Access, Call},
    record::Record,
};

mod stalled_shard;

/// A write that was not sent has surely no effect, so another replica may take it. A write that
/// was in flight may still take effect.
#[test]
fn failed_replica_says_whether_a_write_may_have_taken_effect() {
    let reason = || "its state differs".to_owned();
    let refused = not_committed(&TransactError::NotSent(reason()));
    assert!(matches!(&refused, AdminError::Unavailable(_)), "{refused:?}");
    assert!(refused.to_string().starts_with("nothing has been written: "), "{refused}");
    let unknown = not_committed(&TransactError::Failed(reason()));
    assert!(matches!(&unknown, AdminError::OutcomeUnknown(_)), "{unknown:?}");
}

/// Returns a call to a replica by a caller whose rights come from rules.
fn call(replica: &Replica, caller: &str, end: &CancellationToken) -> Call {
    let config = chancery_fanout::Config::default();
    let fanout = Fanout::spawn(config, replica.watch(), &TaskTracker::new(), end.clone());
    let identity = Identity { principal: Principal::new(caller).unwrap(), token: None };
    let caller = Caller { identity, rights: Rights::Rules, ends_at: None };
    call_of(replica, fanout, caller, end)
}

fn call_of(replica: &Replica, fanout: Fanout, caller: Caller, end: &CancellationToken) -> Call {
    let started = CancellationToken::new();
    started.cancel();
    let readiness = Readiness::new(OpenProgress::default(), started, end.clone());
    readiness.on_shards(fanout.clone());
    readiness.on_open(replica.clone());
    let deps = AdminDeps {
        replica: replica.clone(),
        fanout,
        metrics: Arc::new(String::new),
        liveness: Arc::new(|| Ok(())),
        readiness,
        drain: end.clone(),
        request_bytes_max: 1 << 20,
        hosts: Vec::new(),
        console: None,
        version: "0.0.0-test",
        load_reports: None,
        sources: Sources::default(),
        guards: GuardSettings::default(),
        validation: Validation::default(),
        references: ReferenceSettings::default(),
        access: AdminAccess { control: AccessControl::Enforced, ..AdminAccess::default() },
        external: None,
        audit: Audit::off(),
        log: None,
        tracer: Tracer::default(),
        recent_nodes: crate::RecentNodesSettings::default(),
    };
    Call::new(Deps::new(&deps, crate::fleet_answers::answerer), caller)
}

/// Returns a rule that lets an identity apply resources of a scope.
fn rule(name: &str, identity: &str, scope: &str) -> Box<AccessRule> {
    let content = format!(
        "access: [{{name: {name}, identity: '{identity}', allow: [{{verbs: [apply], scopes: [{scope}]}}]}}]"
    );
    let manifest = Manifest { file: "access.yaml".to_owned(), content };
    let options = Options {
        validation: Validation::default(),
        ..Options::new(ScopeName::new(DEFAULT_SCOPE).unwrap())
    };
    let transaction = chancery_admission::admit(&[manifest], &options).unwrap();
    match transaction.access.as_slice() {
        [AccessOp::PutRule(rule)] => rule.clone(),
        other => panic!("{other:?}"),
    }
}

async fn write_access(replica: &Replica, op: AccessOp) {
    let transaction = Transaction { access: vec![op], ..Transaction::default() };
    let outcome = replica.transact(transaction).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
}

/// Attack 46: a change of the access rules commits after the rights of an author were checked, and before its write
/// does. The write is not applied. The replica checks the rights again: the author needs them at the commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_is_checked_again_if_access_changes_before_it_commits() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let config = Config { data_dir, free_bytes_min: 0, ..Config::default() };
    let replica = Replica::open(config).await.unwrap();
    let end = CancellationToken::new();
    let call = call(&replica, "token:shop", &end);
    let ctx = &Record::new(&call, None).permit(Access::Open).unwrap();
    write_access(&replica, AccessOp::PutRule(rule("shop", "token:shop", "mine"))).await;
    let scope = ScopeName::new("mine").unwrap();
    let key = |name: &str| ResourceKey {
        type_url: TypeUrl::from_static(types::CLUSTER),
        name: ResourceName::new(name).unwrap(),
    };
    let checked = check(None, String::new()).unwrap();
    let permitted = |name: &str| {
        let draft = ResourceDraft::new(key(name), bytes::Bytes::new());
        let upserts = vec![Upsert { scope: scope.clone(), draft }];
        let mut transaction = Transaction { upserts, ..Transaction::default() };
        write_access::authorize_write(ctx, &mut transaction, &checked).unwrap();
        transaction
    };
    let size = Size::of(true);

    // A change that does not concern the author: apply refuses the write, and the check permits it again.
    let write = permitted("first");
    write_access(&replica, AccessOp::PutRule(rule("other", "token:other", "theirs"))).await;
    let outcome = replica.transact(write.clone()).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(Refusal::AccessChanged { .. })), "{outcome:?}");
    assert!(replica.state().get(&scope, &key("first")).is_none());
    assert_eq!(propose(ctx, &checked, write, size).await.unwrap().changed, 1);

    // The author has lost its right.
    let checked = check(None, String::new()).unwrap();
    let write = permitted("second");
    write_access(&replica, AccessOp::DeleteRule("shop".into())).await;
    let error = propose(ctx, &checked, write, size).await.unwrap_err();
    assert!(matches!(error, AdminError::Forbidden(_)), "{error:?}");
    let text = "token:shop has no right to apply Cluster \"second\" in scope \"mine\"";
    assert!(error.to_string().starts_with(text), "{error}");
    assert!(replica.state().get(&scope, &key("second")).is_none());
    end.cancel();
    replica.shutdown().await.unwrap();
}
