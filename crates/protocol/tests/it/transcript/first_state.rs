//! Rejections of a first state with too many resources to list, and the time for which a rejection
//! applies.

use chancery_protocol::{
    Config,
    Protocol::{self, Delta, Sotw},
};

use crate::transcript::world::check_with;

/// More resources than `first_state_listed_max`.
const MANY: usize = 1_200;

/// Returns a list like `LDS/n0100=body LDS/n0101=body`, or without the type.
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

/// Returns a script that replaces all resources but the last, and then the last one, with ACKs.
fn replaced_but_for_the_last(other: &str) -> String {
    let (put, shown) = (list("LDS/", 1..MANY - 1, "2"), list("", 1..MANY - 1, "2"));
    let (last, rest) = (MANY - 1, list("", 1..MANY, "1"));
    format!(
        "
        commit LDS/n0000=2
        <- LDS n0000=2 v=Y
        ack LDS
        <- LDS {rest}
        nack LDS
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

/// SOTW-28, DELTA-19: the rejection of a large first state applies until all of it was replaced,
/// and the client has acknowledged the replacement.
#[test]
fn rejection_of_first_state_lasts_until_all_is_replaced() {
    rejected(Delta, &replaced_but_for_the_last(""));
}

/// SOTW-27, SOTW-28: a newer resource does not count as rejected if the client accepts it, and does
/// if the client rejects it.
#[test]
fn newer_resource_has_its_own_verdict() {
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

/// SOTW-27: a deleted resource counts as replaced.
#[test]
fn deleted_resource_counts_as_replaced() {
    let all_but_one = (1..MANY).map(|n| format!("-LDS/n{n:04}")).collect::<Vec<_>>().join(" ");
    let gone = (1..MANY).map(|n| format!("-n{n:04}")).collect::<Vec<_>>().join(" ");
    rejected(
        Delta,
        &format!(
            "
            commit {all_but_one}
            <- LDS {gone} v=Y
            ack LDS
            <- LDS n0000=1
            nack LDS
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

/// DELTA-36, SOTW-27: after the wildcard ends, only the subscribed names count. A resource that the
/// client requested again and accepted is not rejected.
#[test]
fn only_subscribed_names_count_after_wildcard_ends() {
    let rest = list("", 1..MANY, "1");
    let script = format!(
        "
        commit LDS/n0000=2
        <- LDS n0000=2
        ack LDS
        <- LDS {rest}
        nack LDS
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
        "
    );
    rejected(Delta, &script);
}

/// SOTW-27, SOTW-70: a full state replaces all of the previous one.
#[test]
fn full_state_replaces_rejected_state_completely() {
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

/// SOTW-27, SOTW-64: when a wildcard ends, only the remaining resources of a rejected full state
/// count. Found by the model.
#[test]
fn only_remaining_names_of_rejected_state_count_after_wildcard_ends() {
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

/// DELTA-19, SOTW-28: if one part of a first state is rejected, all of it counts as rejected,
/// whatever happens to the other parts.
#[test]
fn rejected_part_rejects_the_whole_first_state() {
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
        <- LDS z={large}
        nack LDS
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

/// ADS-09, SOTW-28: a change that is sent before the ACK of the first state keeps its own rejection, also if
/// an older removal is still unsent. Before the fix, the next ACK ended the rejection. The endpoints of the
/// cluster that the client kept were removed.
#[test]
fn change_before_ack_of_first_state_keeps_its_own_rejection() {
    check_with(
        Delta,
        "",
        Config { first_state_listed_max: 0, ..Config::DEFAULTS },
        "
        commit CDS/a=1 CDS/b=1>EDS/b EDS/b=1
        -> CDS
        <- CDS a=1 b=1 @A
        -> EDS +b
        <- EDS b=1
        ack EDS
        commit -CDS/a CDS/b=2>EDS/c -EDS/b
        -> LDS
        <- CDS b=2 @B
        <- LDS
        ack LDS
        -> CDS @A
        wait 6000
        <- CDS -a
        -> CDS @B nack
        ack CDS
        commit CDS/b=3>EDS/c
        <- CDS b=3
        ack CDS
        <- EDS -b
        ",
    );
}

/// ADS-09: a rejection applies while the removal of the rejected resource is held back, because the
/// client still has the previous version. Before the fix, the rejection ended when the removal was
/// detected.
#[test]
fn rejection_lasts_while_removal_is_pending() {
    check_with(
        Delta,
        "",
        Config::DEFAULTS,
        "
        scopes default,a
        commit a:CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        -> CDS
        <- CDS b=1
        -> EDS +b
        <- EDS b=1
        ack CDS
        ack EDS
        -> RDS +r
        <- RDS r=b
        ack RDS
        wait 2000
        commit a:CDS/b=2>EDS/c -EDS/b
        <- CDS b=2
        nack CDS
        commit RDS/r=1
        <- RDS r=1
        scopes default
        scopes default,a
        ack RDS
        wait 20000
        scopes default
        <- CDS -b
        <- EDS -b
        ",
    );
}

/// ADS-09: the same for a full state by names.
#[test]
fn rejection_of_a_name_lasts_while_removal_is_pending() {
    check_with(
        Sotw,
        "",
        Config::DEFAULTS,
        "
        commit CDS/a=1 LDS/l=1 SRDS/s=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> LDS
        <- LDS l=1
        ack LDS
        -> SRDS s
        <- SRDS s=a
        ack SRDS
        wait 2000
        commit SRDS/s=1 -CDS/a
        <- SRDS s=1
        nack SRDS
        commit LDS/l=2
        <- LDS l=2
        commit -SRDS/s
        ack LDS
        wait 5000
        <- SRDS
        <- CDS
        ",
    );
}

/// ADS-09, SOTW-28: the same for one resource of a large first state, after all others were
/// replaced.
#[test]
fn rejection_of_first_state_lasts_while_removal_is_pending() {
    check_with(
        Delta,
        "",
        Config { first_state_listed_max: 0, ..Config::DEFAULTS },
        "
        commit CDS/a=1 CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        -> CDS
        <- CDS a=1 b=1
        -> EDS +b
        <- EDS b=1
        nack CDS
        ack EDS
        -> RDS +r
        <- RDS r=b
        ack RDS
        wait 2000
        commit RDS/r=1
        <- RDS r=1
        commit -CDS/b -EDS/b CDS/a=2
        <- CDS a=2 v=Y
        ack CDS
        status CDS
        = CDS nacked sent=Y acked=Y nack=13 rejected
        ack RDS
        <- CDS -b
        ack CDS
        <- EDS -b
        ",
    );
}

/// SOTW-27: a rejection ends with the name, even if the removal was held back. Found by the model.
#[test]
fn rejection_of_removed_resource_ends_when_name_is_unsubscribed() {
    check_with(
        Sotw,
        "",
        Config::DEFAULTS,
        "
        commit LDS/l=1 SRDS/s=1
        -> LDS
        <- LDS l=1
        ack LDS
        -> SRDS s,t
        <- SRDS s=1 v=X
        ack SRDS
        wait 2000
        commit SRDS/s=2
        <- SRDS s=2 v=Y @B
        nack SRDS
        commit LDS/l=2
        <- LDS l=2
        commit -SRDS/s
        -> SRDS t @B
        status SRDS
        = SRDS synced sent=Y acked=X
        ",
    );
}

/// DELTA-17, ADS-09: when one of many resources is repaired, the others of a rejected first state are sent again once. If
/// the client accepts them, no rejection remains, and no removal waits for one.
#[test]
fn rejected_first_state_is_accepted_after_a_repair() {
    let rest = list("", 1..MANY, "1");
    let script = format!(
        "
        commit LDS/n0000=2
        <- LDS n0000=2 v=Y
        ack LDS
        <- LDS {rest} v=Y
        ack LDS
        status LDS
        = LDS synced sent=Y acked=Y
        commit LDS/n0000=3
        <- LDS n0000=3
        ack LDS
        "
    );
    rejected(Delta, &script);
}
