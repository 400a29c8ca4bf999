//! Resources that exclude each other at a client: renames that keep a key, and rejections because of a key.

use chancery_protocol::{
    Config,
    Protocol::{Delta, Sotw},
};

use crate::transcript::world::{check, check_with};

/// ADS-08, DELTA-53: a scope is renamed. The removal goes out with the addition, although the listener, which may
/// refer to scopes, changes in the same write.
#[test]
fn renamed_scope_is_replaced_in_one_response() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1 SRDS/one=1;key=a
        -> LDS
        <- LDS l=1
        -> SRDS
        <- SRDS one=1
        ack LDS
        ack SRDS
        wait 2000
        commit LDS/l=2 -SRDS/one SRDS/two=1;key=a
        <- LDS l=2
        <- SRDS two=1 -one
        ack SRDS
        ack LDS
        ",
    );
}

/// ADS-08: the same in the first second of a stream, in which removals wait.
#[test]
fn scope_is_renamed_in_the_first_second_of_a_stream() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1 SRDS/one=1;key=a SRDS/other=1;key=b
        -> LDS
        <- LDS l=1
        -> SRDS
        <- SRDS one=1 other=1
        ack LDS
        ack SRDS
        commit -SRDS/one SRDS/two=1;key=a -SRDS/other
        <- SRDS two=1 -one
        ack SRDS
        wait 1000
        <- SRDS -other
        ",
    );
}

/// DELTA-46: a scope is renamed while the client is away. The server does not know the key of the old name, so each
/// removal may belong to each addition.
#[test]
fn scope_is_renamed_while_the_client_is_away() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1 SRDS/two=1;key=a
        -> LDS irv=l@held
        <- LDS
        -> SRDS irv=one@1-00000000
        <- SRDS two=1 -one
        ",
    );
}

/// DELTA-46, ADS-08: without an addition, a removal comes last when a client resumes.
#[test]
fn scope_is_removed_last_for_a_returning_client() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1 SRDS/two=1;key=a
        -> LDS irv=l@held
        <- LDS
        -> SRDS irv=one@1-00000000,two@held
        <- SRDS
        ack LDS
        ack SRDS
        wait 1000
        <- SRDS -one
        ",
    );
}

/// ADS-09: a listener is rejected at the time of the rename. Other removals wait until its repair.
#[test]
fn scope_is_renamed_while_a_listener_is_rejected() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1 SRDS/one=1;key=a SRDS/other=1;key=b
        -> LDS
        <- LDS l=1
        -> SRDS
        <- SRDS one=1 other=1
        ack LDS
        ack SRDS
        wait 2000
        commit LDS/l=bad
        <- LDS l=bad
        nack LDS
        commit -SRDS/one SRDS/two=1;key=a -SRDS/other
        <- SRDS two=1 -one
        ack SRDS
        wait 60000
        commit LDS/l=2
        <- LDS l=2
        ack LDS
        <- SRDS -other
        ",
    );
}

/// SOTW-73, ADS-08, ADS-09: the same over SotW. A state with both names would be rejected as a whole.
#[test]
fn sotw_state_never_has_both_names_of_a_scope() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1 SRDS/one=1;key=a SRDS/other=1;key=b
        -> LDS
        <- LDS l=1
        -> SRDS
        <- SRDS one=1 other=1
        ack LDS
        ack SRDS
        wait 2000
        commit LDS/l=bad -SRDS/one SRDS/two=1;key=a -SRDS/other
        <- LDS l=bad
        <- SRDS two=1 other=1
        nack LDS
        ack SRDS
        commit -SRDS/two SRDS/three=1;key=a
        <- SRDS three=1 other=1
        ack SRDS
        commit LDS/l=2
        <- LDS l=2
        ack LDS
        <- SRDS three=1
        ",
    );
}

/// DELTA-60, DELTA-64: a virtual host is renamed. Its domain and its alias stay.
#[test]
fn renamed_virtual_host_is_replaced_in_one_response() {
    check(
        Delta,
        "",
        "
        commit RDS/r=1 VHDS/r/one=1;key=a.test|r/a.test VHDS/s/one=1;key=a.test
        -> RDS +r
        <- RDS r=1
        -> VHDS
        <- VHDS r/one=1 s/one=1
        ack VHDS
        commit -VHDS/r/one VHDS/r/two=1;key=A.test|r/a.test -VHDS/s/one
        <- VHDS r/two=1 -r/one
        ack VHDS
        ack RDS
        wait 1000
        <- VHDS -s/one
        ",
    );
}

/// DELTA-47: the new host has the old name as an alias. Both cannot be in one response, so the removal precedes.
#[test]
fn removal_precedes_a_host_with_the_old_name_as_an_alias() {
    check(
        Delta,
        "",
        "
        commit VHDS/r/a=1;key=a VHDS/r/b=1;key=b
        -> VHDS
        <- VHDS r/a=1 r/b=1
        ack VHDS
        commit -VHDS/r/a VHDS/r/new=1;key=a|r/a VHDS/r/b=2;key=b
        <- VHDS r/b=2 -r/a
        <- VHDS r/new=1
        ",
    );
}

/// DELTA-53, OPS-12: changes of scopes may exchange keys, so that no response with a part of them is valid.
#[test]
fn exchange_of_keys_is_one_response() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        commit SRDS/one=1;key=a SRDS/two=1;key=b
        -> SRDS
        <- SRDS one=1
        <- SRDS two=1
        ack SRDS
        commit SRDS/one=2;key=b SRDS/two=2;key=a
        <- SRDS one=2 two=2
        ",
    );
}

/// DELTA-53: a large change of listeners is split. The removal of an address precedes the listener that takes it.
#[test]
fn listener_takes_an_address_after_its_removal() {
    let config = Config { response_bytes_target: 150, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        commit LDS/one=1;key=80 LDS/two=1;key=81
        -> LDS
        <- LDS one=1
        <- LDS two=1
        ack LDS
        commit -LDS/one LDS/three=1;key=82 LDS/four=1;key=80 -LDS/two
        <- LDS four=1 -one
        <- LDS three=1 -two
        ",
    );
}

/// DELTA-16, DELTA-44: the client rejects the new scope and keeps the old one. The removal is repeated with the
/// repaired scope, and not before.
#[test]
fn rejected_rename_keeps_the_old_scope() {
    check(
        Delta,
        "",
        "
        commit SRDS/one=1;key=a SRDS/other=1;key=b
        -> SRDS
        <- SRDS one=1 other=1
        ack SRDS
        wait 2000
        commit -SRDS/one SRDS/two=bad;key=a
        <- SRDS two=bad -one
        nack SRDS
        wait 60000
        commit SRDS/other=2;key=b
        <- SRDS other=2
        ack SRDS
        commit SRDS/two=good;key=a
        <- SRDS two=good -one
        ack SRDS
        status SRDS
        = SRDS synced sent=4-7 acked=4-7
        ",
    );
}

/// DELTA-16, DELTA-44: a removal that was rejected with something else is repeated with the next change.
#[test]
fn rejected_removal_is_repeated_with_the_next_change() {
    check(
        Delta,
        "",
        "
        commit SRDS/one=1;key=a
        -> SRDS
        <- SRDS one=1
        ack SRDS
        wait 2000
        commit -SRDS/one SRDS/two=bad;key=b
        <- SRDS two=bad -one
        nack SRDS
        wait 60000
        commit SRDS/three=1;key=a
        <- SRDS three=1 -one
        ack SRDS
        commit SRDS/two=good;key=b
        <- SRDS two=good
        ",
    );
}

/// DELTA-16: the rename is taken back while the client rejects it.
#[test]
fn rejected_rename_is_taken_back() {
    check(
        Delta,
        "",
        "
        commit SRDS/one=1;key=a
        -> SRDS
        <- SRDS one=1
        ack SRDS
        wait 2000
        commit -SRDS/one SRDS/two=bad;key=a
        <- SRDS two=bad -one
        nack SRDS
        commit -SRDS/two SRDS/one=1;key=a
        <- SRDS one=1 -two
        ack SRDS
        ",
    );
}

/// DELTA-16, DELTA-18: an author deletes one of two scopes with one key. The client has rejected the other one, and
/// all that came with it. They are sent again once.
#[test]
fn end_of_a_conflict_sends_the_rejected_scopes_again() {
    check(
        Delta,
        "",
        "
        commit SRDS/one=1;key=a
        -> SRDS
        <- SRDS one=1
        ack SRDS
        wait 2000
        commit SRDS/two=1;key=a SRDS/three=1;key=c
        <- SRDS three=1 two=1
        nack SRDS
        commit SRDS/four=1;key=d
        <- SRDS four=1
        ack SRDS
        commit -SRDS/one
        <- SRDS three=1 two=1 -one
        nack SRDS
        wait 60000
        commit SRDS/five=1;key=e
        <- SRDS five=1
        ack SRDS
        ",
    );
}

/// DELTA-16, SOTW-73: the client rejects a whole first state because of two scopes. The end of the conflict sends it
/// again, also if it is too large for a list.
#[test]
fn end_of_a_conflict_sends_a_first_state_again() {
    for first_state_listed_max in [1, 100] {
        let config = Config { first_state_listed_max, ..Config::DEFAULTS };
        check_with(
            Delta,
            "",
            config,
            "
            commit SRDS/one=1;key=a SRDS/two=1;key=a SRDS/three=1;key=c
            -> SRDS
            <- SRDS one=1 three=1 two=1
            nack SRDS
            commit SRDS/two=2;key=b
            <- SRDS three=1 two=2 one=1
            ack SRDS
            commit SRDS/three=2;key=c
            <- SRDS three=2
            ",
        );
    }
}

/// DELTA-16: a listener is rejected because another one has its address. The removal of the other one sends it again.
/// Envoy applies the valid listeners of a response, so they are not sent again (DELTA-17).
#[test]
fn removal_of_an_address_sends_the_rejected_listener_again() {
    check(
        Delta,
        "",
        "
        commit LDS/one=1;key=80
        -> LDS
        <- LDS one=1
        ack LDS
        commit LDS/two=1;key=80 LDS/three=1;key=81
        <- LDS three=1 two=1
        nack LDS
        commit LDS/four=1;key=84
        <- LDS four=1
        ack LDS
        commit -LDS/one
        <- LDS two=1 -one
        ack LDS
        ",
    );
}

/// ADS-01, DELTA-16: a virtual host moves into its route configuration, which the client rejects while it has the
/// host. The removal of the host does not wait for the route configuration, and sends it again once.
#[test]
fn route_is_sent_again_after_the_removal_of_a_host() {
    check(
        Delta,
        "",
        "
        commit RDS/r=1 VHDS/r/one=1;key=a
        -> RDS +r
        <- RDS r=1
        -> VHDS
        <- VHDS r/one=1
        ack RDS
        ack VHDS
        wait 2000
        commit RDS/r=one -VHDS/r/one
        <- RDS r=one
        nack RDS
        <- VHDS -r/one
        ack VHDS
        <- RDS r=one
        nack RDS
        wait 60000
        ",
    );
}

/// SOTW-23: a rejected full state is sent again once after an accepted change of the listeners.
#[test]
fn sotw_scopes_are_sent_again_once_after_a_listener() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1 SRDS/one=1;key=a
        -> LDS
        <- LDS l=1
        -> SRDS
        <- SRDS one=1
        ack LDS
        ack SRDS
        commit SRDS/two=1;key=a
        <- SRDS one=1 two=1
        nack SRDS
        commit LDS/l=2
        <- LDS l=2
        ack LDS
        <- SRDS one=1 two=1
        nack SRDS
        wait 60000
        commit -SRDS/one
        <- SRDS two=1
        ",
    );
}

/// DELTA-16, ADS-09: a client such as Envoy applies the routes before the one that it cannot use, and none after it. When
/// that one is repaired, all are sent again once.
#[test]
fn neighbours_of_a_repaired_resource_are_sent_again() {
    for (protocol, names) in [(Delta, "+a,b,c"), (Sotw, "a,b,c")] {
        let script = format!(
            "
            commit RDS/a=1 RDS/b=1 RDS/c=1
            -> RDS {names}
            <- RDS a=1 b=1 c=1
            ack RDS
            commit RDS/a=2 RDS/b=bad RDS/c=2
            <- RDS a=2 b=bad c=2
            nack RDS
            commit RDS/b=3
            <- RDS b=3
            ack RDS
            <- RDS a=2 c=2
            ack RDS
            commit RDS/b=4
            <- RDS b=4
            ack RDS
            "
        );
        check(protocol, "", &script);
    }
}

/// DELTA-16, ADS-09: another resource that the client still rejects is not sent again with them, because the client might
/// again apply nothing after it.
#[test]
fn neighbours_are_sent_again_without_what_was_rejected_alone() {
    for (protocol, names) in [(Delta, "+a,b,c,odd"), (Sotw, "a,b,c,odd")] {
        let script = format!(
            "
            commit RDS/a=1 RDS/b=1 RDS/c=1 RDS/odd=1
            -> RDS {names}
            <- RDS a=1 b=1 c=1 odd=1
            ack RDS
            commit RDS/odd=bad
            <- RDS odd=bad
            nack RDS
            commit RDS/a=2 RDS/b=bad RDS/c=2
            <- RDS a=2 b=bad c=2
            nack RDS
            commit RDS/b=3
            <- RDS b=3
            ack RDS
            <- RDS a=2 c=2
            ack RDS
            wait 60000
            commit RDS/odd=4
            <- RDS odd=4
            ack RDS
            "
        );
        check(protocol, "", &script);
    }
}

/// DELTA-16, ADS-09: the same for a resource that is deleted. Later removals no longer wait.
#[test]
fn neighbours_of_a_deleted_resource_are_sent_again() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1 CDS/c=1
        -> CDS
        <- CDS c=1
        -> LDS
        <- LDS l=1
        ack CDS
        ack LDS
        wait 2000
        commit LDS/l=2 LDS/odd=bad
        <- LDS l=2 odd=bad
        nack LDS
        commit -LDS/odd
        <- LDS -odd
        ack LDS
        <- LDS l=2
        ack LDS
        commit -CDS/c
        <- CDS -c
        ",
    );
}

/// DELTA-16: a client that still rejects receives the rejected resources rarely, whatever changes.
#[test]
fn retries_of_rejected_neighbours_become_rare() {
    check(
        Delta,
        "",
        "
        commit RDS/a=1 RDS/b=bad RDS/c=1
        -> RDS +a,b,c
        <- RDS a=1 b=bad c=1
        nack RDS
        commit RDS/a=2
        <- RDS a=2
        ack RDS
        <- RDS b=bad c=1
        nack RDS
        commit RDS/c=2
        <- RDS c=2
        ack RDS
        wait 1000
        <- RDS b=bad
        nack RDS
        ",
    );
}

/// DELTA-53, SOTW-73: Envoy forgets a key that a scope takes before the scope that gives it up. A scope that gives up its
/// key comes first.
#[test]
fn scope_that_gives_up_its_key_precedes_the_one_that_takes_it() {
    for protocol in [Delta, Sotw] {
        check(
            protocol,
            "",
            "
            commit SRDS/b=1;key=k1 SRDS/c=1;key=k2 SRDS/x=1;key=k9
            -> SRDS
            <- SRDS b=1 c=1 x=1
            ack SRDS
            commit SRDS/a=1;key=k1 SRDS/b=1;key=k2 SRDS/c=1;key=k3 SRDS/x=2;key=k9
            <- SRDS x=2 c=1 b=1 a=1
            ack SRDS
            ",
        );
    }
}

/// DELTA-53, SOTW-73: the same for listeners and their addresses. Envoy rejects a listener whose address is in use.
#[test]
fn listener_that_gives_up_its_address_precedes_the_one_that_takes_it() {
    for protocol in [Delta, Sotw] {
        check(
            protocol,
            "",
            "
            commit LDS/b=1;key=k1 LDS/c=1;key=k2
            -> LDS
            <- LDS b=1 c=1
            ack LDS
            commit LDS/a=1;key=k1 LDS/b=1;key=k2 LDS/c=1;key=k3
            <- LDS c=1 b=1 a=1
            ack LDS
            ",
        );
    }
}
