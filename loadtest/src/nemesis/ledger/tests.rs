//! Tests that violate each promise that the ledger checks, and expect it to find the violation.

use chancery_model::Revision;

use super::*;

fn version(revision: u64, tag: u32) -> Version {
    Version { revision: Revision(revision), tag }
}

/// Waits until the time of the ledger has advanced.
fn tick(ledger: &Ledger) {
    let now = ledger.now();
    while ledger.now() == now {
        std::hint::spin_loop();
    }
}

fn begin(ledger: &Ledger, make: impl FnOnce(u64) -> Action) -> Ticket {
    tick(ledger);
    let (ticket, _) = ledger.begin(0, 1, make);
    tick(ledger);
    ticket
}

/// Makes an acknowledged write. Returns its value.
fn write(ledger: &Ledger, revision: u64) -> u64 {
    let ticket = begin(ledger, Action::Write);
    ledger.acked(ticket, revision, Some(version(revision, 1)));
    ticket.number()
}

fn read(ledger: &Ledger, found: Option<(u64, u64)>, revision: u64) {
    tick(ledger);
    let invoked = ledger.now();
    tick(ledger);
    let found = found.map(|(value, revision)| (value, version(revision, 1)));
    ledger.read(0, 2, invoked, found, revision);
}

fn given(value: u64, version: Option<Version>, body: u64) -> Given {
    Given { name: name(0), value: value_text(value), version, body }
}

fn broken(ledger: &Ledger) -> Vec<Promise> {
    assert_eq!(ledger.check(), Doubts::default());
    ledger.violations().1.into_keys().collect()
}

#[test]
fn what_is_as_it_should_be_breaks_nothing() {
    let ledger = Ledger::new();
    let first = write(&ledger, 1);
    read(&ledger, Some((first, 1)), 1);
    let swap = begin(&ledger, |new| Action::Swap(Some(first), new));
    ledger.acked(swap, 2, None);
    let late = begin(&ledger, Action::Write);
    ledger.unknown(late, "no answer".to_owned());
    let refused = begin(&ledger, |new| Action::Swap(Some(first), new));
    ledger.refused(refused);
    // The write without an answer has taken effect.
    read(&ledger, Some((late.number(), 3)), 3);
    let delete = begin(&ledger, |_| Action::Delete);
    ledger.acked(delete, 4, None);
    let second_delete = begin(&ledger, |_| Action::Delete);
    ledger.refused(second_delete);
    assert_eq!(ledger.given("x", &given(first, Some(version(1, 1)), 7)), Some(first));
    assert_eq!(ledger.given("y", &given(first, None, 7)), Some(first));
    ledger.followed("y", first, late.number());
    assert_eq!(broken(&ledger), []);
    let counts = ledger.counts();
    assert_eq!((counts.acked_writes, counts.refused_writes, counts.unknown_writes), (3, 2, 1));
    assert_eq!((counts.reads, counts.deliveries), (2, 2));
}

#[test]
fn a_lost_write_is_a_violation_with_its_history() {
    let ledger = Ledger::new();
    let first = write(&ledger, 1);
    write(&ledger, 2);
    read(&ledger, Some((first, 1)), 2);
    assert_eq!(broken(&ledger), [Promise::Linearizable]);
    let (violations, _) = ledger.violations();
    let what = &violations[0].what;
    assert!(what.contains("> 2: Read(Some(0)) by replica 2"), "{what}");
    assert!(what.contains("1: Write(1) by replica 1"), "{what}");
}

#[test]
fn a_refusal_that_should_not_be_is_a_violation() {
    let ledger = Ledger::new();
    let first = write(&ledger, 1);
    let swap = begin(&ledger, |new| Action::Swap(Some(first), new));
    ledger.refused(swap);
    assert_eq!(broken(&ledger), [Promise::Linearizable]);
}

#[test]
fn revisions_that_do_not_grow_with_time_are_a_violation() {
    for (first, second) in [(5, 5), (5, 4)] {
        let ledger = Ledger::new();
        write(&ledger, first);
        write(&ledger, second);
        assert_eq!(broken(&ledger), [Promise::Order]);
    }
    // A read of an older state.
    let ledger = Ledger::new();
    let value = write(&ledger, 5);
    read(&ledger, Some((value, 5)), 4);
    assert_eq!(broken(&ledger), [Promise::Order]);
}

#[test]
fn what_nobody_wrote_is_a_violation() {
    let ledger = Ledger::new();
    let value = write(&ledger, 1);
    let other = Given { name: name(1), ..given(value, Some(version(1, 1)), 7) };
    assert_eq!(ledger.given("x", &other), None);
    assert_eq!(ledger.given("x", &given(99, Some(version(2, 1)), 7)), None);
    // A deletion has no value.
    let delete = begin(&ledger, |_| Action::Delete);
    assert_eq!(ledger.given("x", &given(delete.number(), None, 7)), None);
    assert_eq!(ledger.violations().1[&Promise::Phantom], 3);
}

#[test]
fn two_contents_of_a_version_and_two_versions_of_a_value_are_violations() {
    let twice = |one: Given, two: Given| {
        let ledger = Ledger::new();
        write(&ledger, 1);
        ledger.given("x", &one);
        ledger.given("y", &two);
        broken(&ledger)
    };
    let as_written = || given(0, Some(version(1, 1)), 7);
    assert_eq!(twice(as_written(), as_written()), []);
    let same = [Promise::SameBytes];
    assert_eq!(twice(as_written(), given(0, Some(version(1, 1)), 8)), same);
    assert_eq!(twice(as_written(), given(0, None, 8)), same);
    // A write that was applied twice, or a version that only one replica knows.
    assert_eq!(twice(as_written(), given(0, Some(version(2, 1)), 7)), same);
    assert_eq!(twice(as_written(), given(0, Some(version(1, 2)), 7)), same);
    let ledger = Ledger::new();
    let ticket = begin(&ledger, Action::Write);
    ledger.acked(ticket, 4, Some(version(5, 1)));
    assert_eq!(broken(&ledger), same);
}

#[test]
fn a_value_after_a_newer_one_is_a_violation_even_if_that_is_known_only_later() {
    let ledger = Ledger::new();
    let (old, new) = (write(&ledger, 1), write(&ledger, 2));
    ledger.followed("x", old, new);
    assert_eq!(broken(&ledger), []);
    ledger.followed("x", new, old);
    assert_eq!(broken(&ledger), [Promise::Backwards]);

    let ledger = Ledger::new();
    let tickets = [begin(&ledger, Action::Write), begin(&ledger, Action::Write)];
    ledger.followed("x", 1, 0);
    assert_eq!(ledger.violations().0, []);
    for (ticket, revision) in tickets.into_iter().zip([1, 2]) {
        ledger.acked(ticket, revision, Some(version(revision, 1)));
    }
    assert_eq!(broken(&ledger), [Promise::Backwards]);
}
