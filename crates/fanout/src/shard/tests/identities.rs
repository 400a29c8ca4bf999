//! Two clients with one node ID: neither receives anything of the other.
//!
//! Most cases are random: identities, nodes, rules, assignments, resources, streams of all protocols and their ends.
//! Each body names its scope. Every byte that a client receives must come from a scope that its identity may read
//! at that time, and that the assignment of its node gives or gave. A resource that was deleted before the stream
//! began must have been sent to the same client before, or could have been sent by another replica.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{
    AccessOp, AccessRule, Glob, Identity, IdentityPattern, Principal, Revision, ScopeName,
    SecretsGrant, Template, Upsert, Variables,
    types::{LISTENER, ROUTE, SECRET},
};
use chancery_protocol::{McpRequest, Protocol, SotwRequest};

use super::{
    harness::{access_rule, key_of, scope},
    *,
};
use crate::AccessControl;

mod random;
mod replicas;
mod world;

use world::World;

/// Deletes the only cluster while its client is away, and returns the state for the next stream: the version that the
/// client has.
fn delete_while_away(world: &mut World, identity: &str) -> String {
    world.put("private", CLUSTER, "shop");
    let mut stream = world.open(Protocol::Sotw, identity, "n");
    world.request(&stream, CLUSTER, &[], "");
    assert_eq!(world.read(&mut stream), ["private/shop"]);
    let version = stream.versions[CLUSTER].clone();
    drop(stream);
    world.settle();
    world.delete("private", CLUSTER, "shop");
    version
}

fn reconnect(world: &mut World, identity: &str, version: &str) -> Vec<String> {
    let mut stream = world.open(Protocol::Sotw, identity, "n");
    world.request(&stream, CLUSTER, &[], version);
    world.read(&mut stream)
}

/// ADS-08, T3: the client itself gets its removed cluster again, until its routes have moved. A client with another
/// identity and the same node does not, even if it may read the same scope. The replica has no recent states here.
#[test]
fn resume_data_is_not_sent_to_another_identity_with_the_same_node() {
    let mut world = World::new(AccessControl::Enforced);
    world.harness.recent_states = None;
    world.assign("all", "*", &["private"]);
    for identity in ["token:a", "token:b", "anonymous"] {
        world.permit(identity, &["private"]);
    }
    let version = delete_while_away(&mut world, "token:a");
    assert_eq!(reconnect(&mut world, "token:b", &version), [""; 0]);
    assert_eq!(reconnect(&mut world, "anonymous", &version), [""; 0]);
    assert_eq!(reconnect(&mut world, "token:a", &version), ["private/shop"]);
}

/// T3: the reported attack. An unauthenticated client that may read only `public` opens a stream with the node of
/// another client, and guesses its version.
#[test]
fn anonymous_client_gets_no_resume_data_of_a_scope_that_it_may_not_read() {
    let mut world = World::new(AccessControl::Enforced);
    world.permit("token:a", &["private"]);
    world.permit("anonymous", &["public"]);
    world.assign("all", "*", &["private"]);
    let version = delete_while_away(&mut world, "token:a");
    world.assign("all", "*", &["public"]);
    assert_eq!(reconnect(&mut world, "anonymous", &version), [""; 0]);
}

/// T3: the rights of the new stream count, not those of the earlier one.
#[test]
fn narrowed_rights_withhold_own_resume_data() {
    let mut world = World::new(AccessControl::Enforced);
    world.permit("token:a", &["private", "public"]);
    world.assign("all", "*", &["private", "public"]);
    let version = delete_while_away(&mut world, "token:a");
    world.assign("all", "*", &["public"]);
    assert_eq!(reconnect(&mut world, "token:a", &version), ["private/shop"], "it has the right");
    world.permit("token:a", &["public"]);
    assert_eq!(reconnect(&mut world, "token:a", &version), [""; 0]);
}

/// T3: without access rules, or without a credential, a node is only a claim. Only scopes of its present assignment
/// count.
#[test]
fn unproven_client_gets_resume_data_of_present_scopes_only() {
    for access in [AccessControl::Off, AccessControl::Enforced] {
        let mut world = World::new(access);
        world.permit("anonymous", &["**"]);
        world.assign("all", "*", &["private", "public"]);
        let version = delete_while_away(&mut world, "anonymous");
        assert_eq!(reconnect(&mut world, "anonymous", &version), ["private/shop"]);
        world.assign("all", "*", &["public"]);
        assert_eq!(reconnect(&mut world, "anonymous", &version), [""; 0], "{access:?}");
    }
}

/// T3: the right that the stream needs for removed resources ends while it needs it: the stream ends, too.
#[test]
fn stream_ends_when_its_client_may_no_longer_read_an_earlier_scope() {
    for is_resumed in [false, true] {
        let mut world = World::new(AccessControl::Enforced);
        world.permit("token:a", &["private", "public"]);
        world.assign("all", "*", &["private"]);
        let mut stream = if is_resumed {
            let version = delete_while_away(&mut world, "token:a");
            world.assign("all", "*", &["public"]);
            let stream = world.open(Protocol::Sotw, "token:a", "n");
            world.request(&stream, CLUSTER, &[], &version);
            stream
        } else {
            world.put("private", CLUSTER, "shop");
            let mut stream = world.open(Protocol::Sotw, "token:a", "n");
            world.request(&stream, CLUSTER, &[], "");
            assert_eq!(world.read(&mut stream), ["private/shop"]);
            world.assign("all", "*", &["public"]);
            stream
        };
        world.settle();
        world.put("public", CLUSTER, "web");
        assert_eq!(world.read(&mut stream), ["private/shop", "public/web"], "ADS-08");
        world.permit("token:a", &["public"]);
        world.put("public", CLUSTER, "web");
        assert_eq!(world.read(&mut stream), [""; 0]);
        assert_eq!(stream.end.as_ref().unwrap().code, EndCode::AccessChanged);
    }
}

/// T3: one write moves the client and takes the right to its old scope.
#[test]
fn stream_ends_when_one_write_moves_it_and_takes_the_right_to_its_old_scope() {
    let mut world = World::new(AccessControl::Enforced);
    world.permit("token:a", &["private", "public"]);
    world.assign("all", "*", &["private"]);
    world.put("private", CLUSTER, "shop");
    let mut stream = world.open(Protocol::Sotw, "token:a", "n");
    world.request(&stream, CLUSTER, &[], "");
    assert_eq!(world.read(&mut stream), ["private/shop"]);
    let rule = world.rule("token:a", &["public"]);
    let transaction = Transaction {
        access: vec![AccessOp::PutRule(Box::new(rule))],
        ..world.assignment("all", "*", &["public"])
    };
    world.apply(&transaction);
    world.put("public", CLUSTER, "web");
    assert_eq!(world.read(&mut stream), [""; 0]);
    assert_eq!(stream.end.as_ref().unwrap().code, EndCode::AccessChanged);
}

/// T3: a response that waits for the transport is not sent after its client has lost the right.
#[test]
fn waiting_response_is_dropped_when_the_rights_change() {
    let mut world = World::new(AccessControl::Enforced);
    world.permit("token:a", &["private"]);
    world.assign("all", "*", &["private"]);
    world.put("private", CLUSTER, "shop");
    let mut stream = world.open(Protocol::Delta, "token:a", "n");
    world.request(&stream, CLUSTER, &[], "");
    world.settle();
    world.apply(&access_change_to_refuse(&world, "token:a"));
    assert_eq!(world.read(&mut stream), [""; 0]);
    assert_eq!(stream.end.as_ref().unwrap().code, EndCode::AccessChanged);
}

fn access_change_to_refuse(world: &World, identity: &str) -> Transaction {
    let rule = AccessRule { refuse: true, ..world.rule(identity, &[]) };
    Transaction { access: vec![AccessOp::PutRule(Box::new(rule))], ..Transaction::default() }
}
