//! A first state of many resources that is rejected: too many to remember one by one.

use chancery_protocol::{
    Config,
    Protocol::{self, Delta, Sotw},
};

use crate::world::check_with;

/// More than are remembered one by one.
const MANY: usize = 1_200;

/// `LDS/n0100=body LDS/n0101=body`, or without the type.
fn list(prefix: &str, numbers: std::ops::Range<usize>, body: &str) -> String {
    let one = |n| format!("{prefix}n{n:04}={body}");
    numbers.map(one).collect::<Vec<_>>().join(" ")
}

fn rejected(protocol: Protocol, then: &str) {
    let (put, shown) = (list("LDS/", 0..MANY, "1"), list("", 0..MANY, "1"));
    let script = format!(
        "
        commit {put}
        -> LDS
        <- LDS {shown} v=X
        nack LDS
        status LDS
        = LDS nacked sent=X nack=13 rejected
        {then}
        "
    );
    check_with(protocol, "", Config::DEFAULTS, &script);
}

/// Another state of all but the last resource, and then of the last one, all acknowledged.
fn replaced_but_for_the_last(other: &str) -> String {
    let (put, shown) = (list("LDS/", 1..MANY - 1, "2"), list("", 1..MANY - 1, "2"));
    let last = MANY - 1;
    format!(
        "
        commit LDS/n0000=2
        <- LDS n0000=2 v=Y
        ack LDS
        status LDS
        = LDS nacked sent=Y acked=Y nack=13 rejected
        commit {put}
        <- LDS {shown} v=Z
        status LDS
        = LDS pending sent=Z acked=Y nack=13 rejected
        ack LDS
        status LDS
        = LDS nacked sent=Z acked=Z nack=13 rejected
        {other}
        commit LDS/n{last:04}=2
        <- LDS n{last:04}=2 v=W
        ack LDS
        status LDS
        = LDS synced sent=W acked=W
        "
    )
}

/// SOTW-28, DELTA-19: the rejection of a large first state stands until all of it was replaced, and the client
/// has acknowledged what replaces it.
#[test]
fn it_stands_until_all_of_it_was_replaced() {
    rejected(Delta, &replaced_but_for_the_last(""));
}

/// SOTW-27, SOTW-28: what is new since then does not count as rejected when it is taken, and does when it is not.
#[test]
fn what_is_new_since_then_counts_for_itself() {
    rejected(
        Delta,
        &replaced_but_for_the_last(
            "
            commit LDS/a=bad
            <- LDS a=bad
            nack LDS
            commit LDS/a=good LDS/b=good
            <- LDS a=good b=good
            ack LDS
            ",
        ),
    );
}

/// SOTW-27: one that is deleted is as good as replaced.
#[test]
fn what_is_deleted_stands_no_longer() {
    let all_but_one = (1..MANY).map(|n| format!("-LDS/n{n:04}")).collect::<Vec<_>>().join(" ");
    let gone = (1..MANY).map(|n| format!("-n{n:04}")).collect::<Vec<_>>().join(" ");
    rejected(
        Delta,
        &format!(
            "
            commit {all_but_one}
            <- LDS {gone} v=Y
            ack LDS
            status LDS
            = LDS nacked sent=Y acked=Y nack=13 rejected
            commit -LDS/n0000
            <- LDS -n0000 v=Z
            ack LDS
            status LDS
            = LDS synced sent=Z acked=Z
            "
        ),
    );
}

/// DELTA-36, SOTW-27: of a client that asks for a few names from then on only those count. What it asks for once
/// more and takes is not what it rejected.
#[test]
fn of_a_few_names_only_those_count() {
    rejected(
        Delta,
        "
        commit LDS/n0000=2
        <- LDS n0000=2
        ack LDS
        -> LDS +n0007,n0008
        <- LDS n0007=1 n0008=1
        ack LDS
        -> LDS +n0009
        <- LDS n0009=1 v=Y
        nack LDS
        -> LDS -*
        status LDS
        = LDS nacked sent=Y acked=Y nack=13 rejected
        commit LDS/n0009=2
        <- LDS n0009=2 v=Z
        ack LDS
        status LDS
        = LDS synced sent=Z acked=Z
        ",
    );
}

/// SOTW-27, SOTW-70: a full state replaces all of the one before.
#[test]
fn a_full_state_replaces_it_whole() {
    let shown = list("", 1..MANY, "1");
    rejected(
        Sotw,
        &format!(
            "
            commit LDS/n0000=2
            <- LDS n0000=2 {shown} v=Y
            ack LDS
            status LDS
            = LDS synced sent=Y acked=Y
            "
        ),
    );
}

/// SOTW-27, SOTW-64: when a wildcard ends, only what stays of a full state that it rejected counts; found by the
/// model.
#[test]
fn a_wildcard_that_ends_leaves_what_it_names() {
    rejected(
        Sotw,
        "
        -> LDS n0007,other @1
        <- LDS n0007=1 v=X
        ack LDS
        status LDS
        = LDS synced sent=X acked=X
        ",
    );
}

/// DELTA-19, SOTW-28: of a first state in parts one rejected part counts for all, whatever becomes of the others.
#[test]
fn one_part_counts_for_all() {
    let (put, shown) = (list("LDS/", 0..MANY, "1"), list("", 0..MANY, "1"));
    let large = "x".repeat(100_000);
    let config = Config { response_bytes_target: large.len(), ..Config::DEFAULTS };
    let put_again = list("LDS/", 0..MANY, "2");
    let shown_again = list("", 0..MANY, "2");
    let script = format!(
        "
        commit {put} LDS/z={large}
        -> LDS
        <- LDS {shown} v=X @A
        <- LDS z={large} v=X @B
        -> LDS @A nack
        -> LDS @B
        status LDS
        = LDS nacked sent=X acked=X nack=13 rejected
        commit {put_again}
        <- LDS {shown_again} v=Y
        ack LDS
        status LDS
        = LDS nacked sent=Y acked=Y nack=13 rejected
        commit -LDS/z
        <- LDS -z v=Z
        ack LDS
        status LDS
        = LDS synced sent=Z acked=Z
        "
    );
    check_with(Delta, "", config, &script);
}
