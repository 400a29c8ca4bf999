//! A revocation in a cluster of three replicas, each with its own streams.

use std::{
    future::poll_fn,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_fanout::{AccessControl, Delivery, EndCode, Fanout, ResponseSource, StreamInfo};
use chancery_model::{
    AccessOp, AccessRule, Identity, IdentityPattern, IdentityQuota, Node, NodeBinding, Outcome,
    Principal, SecretsGrant, Template, Transaction, Variables, types::CLUSTER,
};
use chancery_protocol::{DeltaRequest, Protocol, Request, StreamKind};
use chancery_store::{CaughtUp, Config, Replica};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    access::{Who, denied, done, rules, send, token},
    support::Server,
};

const DEADLINE: Duration = Duration::from_secs(30);

async fn open(dir: &Path, replica_id: u64, join: &[&str]) -> Replica {
    let config = Config {
        replica_id,
        data_dir: dir.join(replica_id.to_string()),
        free_bytes_min: 0,
        listen: Some(([127, 0, 0, 1], 0).into()),
        join: join.iter().map(|address| (*address).to_owned()).collect(),
        ..Config::default()
    };
    let replica = Replica::open(config).await.unwrap();
    assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    replica
}

fn rule(name: &str) -> AccessOp {
    let identities = vec![IdentityPattern::parse("token:edge").unwrap()];
    let variables = Variables { identities: &identities, node: false };
    AccessOp::PutRule(Box::new(AccessRule {
        name: name.into(),
        refuse: false,
        node: NodeBinding::default(),
        read: vec![Template::parse("default", variables).unwrap()],
        secrets: SecretsGrant::default(),
        allow: Vec::new(),
        deny: Vec::new(),
        quota: IdentityQuota::default(),
        identities,
    }))
}

async fn change(replica: &Replica, op: AccessOp) {
    let transaction = Transaction { access: vec![op], ..Transaction::default() };
    let outcome = replica.transact(transaction).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
}

async fn next(source: &mut ResponseSource) -> Delivery {
    let next = poll_fn(|cx| source.poll_next(cx));
    tokio::time::timeout(DEADLINE, next).await.expect("a response or an end in time")
}

/// Attack 36: a revocation that one replica commits ends the streams of the identity at all three replicas, and
/// removes nothing. The test prints the times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_ends_the_streams_at_every_replica() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), 1, &[]).await;
    let address = first.raft_address().to_owned();
    let replicas =
        [open(dir.path(), 2, &[&address]).await, open(dir.path(), 3, &[&address]).await, first];
    change(&replicas[0], rule("edge")).await;
    let revision = replicas[0].state().revision;
    let end = CancellationToken::new();
    let mut streams = Vec::new();
    for replica in &replicas {
        let mut watch = replica.watch();
        let follows = watch.wait_for(|state| state.revision >= revision);
        drop(tokio::time::timeout(DEADLINE, follows).await.expect("the replica follows").unwrap());
        let config = chancery_fanout::Config {
            access: AccessControl::Enforced,
            ..chancery_fanout::Config::default()
        };
        let fanout = Fanout::spawn(config, replica.watch(), &TaskTracker::new(), end.clone());
        let principal = Principal::token("edge").unwrap();
        let info = StreamInfo {
            kind: StreamKind { protocol: Protocol::Delta, type_url: None },
            peer: ([127, 0, 0, 1], 4242).into(),
            identity: Some(Arc::new(Identity { principal, token: None })),
        };
        let (mut sink, mut source) = fanout.open(info).unwrap();
        let node = Node { id: "edge/1".to_owned(), ..Node::default() };
        let request = DeltaRequest { type_url: CLUSTER.to_owned(), ..DeltaRequest::default() };
        sink.request(Request::Delta(request), Some(Arc::new(node)), None).await.unwrap();
        match next(&mut source).await {
            Delivery::Message(_) => {}
            Delivery::End(end) => panic!("{end:?}"),
        }
        streams.push((fanout, sink, source));
    }
    let start = Instant::now();
    change(&replicas[1], AccessOp::DeleteRule("edge".into())).await;
    for (at, (_, _, source)) in streams.iter_mut().enumerate() {
        match next(source).await {
            Delivery::End(end) => assert_eq!(end.code, EndCode::AccessChanged, "{end:?}"),
            Delivery::Message(_) => panic!("the stream at {at} has received a response"),
        }
        println!("the stream at replica {at} ended after {:?}", start.elapsed());
    }
    end.cancel();
    for replica in replicas {
        replica.shutdown().await.unwrap();
    }
}

/// Attack 45: nobody changes or deletes a rule or a token with rights that it does not have, so teams that may write
/// access rules keep each other's rights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn author_cannot_take_rights_of_another_team() {
    let server = Server::start_enforced().await;
    let team = |name: &str| {
        json!({"name": name, "identity": format!("token:{name}"), "allow": [
            {"verbs": ["access.write", "access.read", "tokens"]},
            {"verbs": ["get", "apply"], "scopes": [format!("team/{name}/**")]},
        ]})
    };
    let reader = |name: &str, of: &str| json!({"name": name, "identity": format!("token:{name}"), "read": [format!("team/{of}/a")]});
    // Only an administrator may set a quota for many identities.
    let limits = |identity: &str| json!({"name": "limits", "identity": identity, "quota": {"requests_per_second": 50}});
    let rights = [team("pay"), team("shop"), reader("pay-app", "pay"), reader("shop-app", "shop")];
    let all = rights.into_iter().chain([limits("jwt:corp/*")]).collect();
    rules(&server, all).await;
    let shop = token(&server, "shop").await;
    for name in ["pay-app", "shop-app"] {
        token(&server, name).await;
    }
    let who = Who::Token(&shop);
    let apply = |rule: Value| json!({ "access": [rule] }).to_string();
    let before = done(&server, Who::Admin, "GET", "/v1/access", "").await;
    // The caller may write each of these rules, but not the rule that each would replace.
    for rule in [
        json!({"name": "pay-app", "identity": "token:pay-app", "read": ["team/shop/b"]}),
        json!({"name": "pay-app", "identity": "token:shop", "read": ["team/shop/b"]}),
        json!({"name": "pay", "identity": "token:nobody", "allow": [{"verbs": ["tokens"]}]}),
        limits("token:nobody"),
    ] {
        let text = denied(&server, who, "POST", "/v1/apply", &apply(rule.clone())).await;
        let name = rule["name"].as_str().unwrap();
        assert!(text.contains(&format!("change the access rule \"{name}")), "{rule}: {text}");
    }
    for name in ["pay", "pay-app", "limits"] {
        denied(&server, who, "DELETE", &format!("/v1/access?name={name}"), "").await;
    }
    let text = denied(&server, who, "DELETE", "/v1/tokens?name=pay-app", "").await;
    let needed = "delete the token \"pay-app\", which has the right to get in \"team/pay/a\"";
    assert!(text.contains(needed), "{text}");
    assert_eq!(done(&server, Who::Admin, "GET", "/v1/access", "").await, before);
    // Its own team's rules and tokens, and its own token.
    done(&server, who, "POST", "/v1/apply", &apply(reader("shop-app", "shop/b"))).await;
    done(&server, who, "DELETE", "/v1/access?name=shop-app", "").await;
    done(&server, who, "DELETE", "/v1/tokens?name=shop-app", "").await;
    done(&server, who, "DELETE", "/v1/tokens?name=shop", "").await;
    assert_eq!(send(&server, who, "GET", "/v1/whoami", "").await.0, 401);
    server.stop().await;
}
