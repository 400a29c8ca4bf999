//! Tests that violate each guarantee that the history checks, and expect it to find the violation.

use chancery_model::Revision;

use super::*;

fn version(revision: u64, tag: u32) -> Version {
    Version { revision: Revision(revision), tag }
}

/// Waits until the time of the history has advanced.
fn tick(history: &History) {
    let now = history.now();
    while history.now() == now {
        std::hint::spin_loop();
    }
}

fn begin(history: &History, make: impl FnOnce(u64) -> Action) -> OperationId {
    tick(history);
    let (operation, _) = history.begin(0, 1, make);
    tick(history);
    operation
}

/// Makes an acknowledged write. Returns its value.
fn write(history: &History, revision: u64) -> u64 {
    let operation = begin(history, Action::Write);
    history.acked(operation, revision, Some(version(revision, 1)));
    operation.number()
}

fn read(history: &History, found: Option<(u64, u64)>, revision: u64) {
    tick(history);
    let invoked = history.now();
    tick(history);
    let found = found.map(|(value, revision)| (value, version(revision, 1)));
    history.read(0, 2, invoked, found, revision);
}

fn received(value: u64, version: Option<Version>, body: u64) -> ReceivedCluster {
    ReceivedCluster { name: name(0), value: value_text(value), version, body }
}

fn broken(history: &History) -> Vec<Guarantee> {
    assert_eq!(history.check(), Indefinite::default());
    history.violations().1.into_keys().collect()
}

#[test]
fn valid_history_has_no_violation() {
    let history = History::new();
    let first = write(&history, 1);
    read(&history, Some((first, 1)), 1);
    let swap = begin(&history, |new| Action::Swap(Some(first), new));
    history.acked(swap, 2, None);
    let late = begin(&history, Action::Write);
    history.unknown(late, "no answer".to_owned());
    let refused = begin(&history, |new| Action::Swap(Some(first), new));
    history.refused(refused);
    // The write without an answer has taken effect.
    read(&history, Some((late.number(), 3)), 3);
    let delete = begin(&history, |_| Action::Delete);
    history.acked(delete, 4, None);
    let second_delete = begin(&history, |_| Action::Delete);
    history.refused(second_delete);
    assert_eq!(history.received("x", &received(first, Some(version(1, 1)), 7)), Some(first));
    assert_eq!(history.received("y", &received(first, None, 7)), Some(first));
    history.followed("y", first, late.number());
    assert_eq!(broken(&history), []);
    let counts = history.counts();
    assert_eq!((counts.acked_writes, counts.refused_writes, counts.unknown_writes), (3, 2, 1));
    assert_eq!((counts.reads, counts.deliveries), (2, 2));
}

#[test]
fn a_lost_write_is_a_violation_with_its_history() {
    let history = History::new();
    let first = write(&history, 1);
    write(&history, 2);
    read(&history, Some((first, 1)), 2);
    assert_eq!(broken(&history), [Guarantee::Linearizable]);
    let (violations, _) = history.violations();
    let what = &violations[0].what;
    assert!(what.contains("> 2: Read(Some(0)) by replica 2"), "{what}");
    assert!(what.contains("1: Write(1) by replica 1"), "{what}");
}

#[test]
fn unjustified_refusal_is_a_violation() {
    let history = History::new();
    let first = write(&history, 1);
    let swap = begin(&history, |new| Action::Swap(Some(first), new));
    history.refused(swap);
    assert_eq!(broken(&history), [Guarantee::Linearizable]);
}

#[test]
fn non_increasing_revisions_are_a_violation() {
    for (first, second) in [(5, 5), (5, 4)] {
        let history = History::new();
        write(&history, first);
        write(&history, second);
        assert_eq!(broken(&history), [Guarantee::Order]);
    }
    // A read of an older state.
    let history = History::new();
    let value = write(&history, 5);
    read(&history, Some((value, 5)), 4);
    assert_eq!(broken(&history), [Guarantee::Order]);
}

#[test]
fn unwritten_value_is_a_violation() {
    let history = History::new();
    let value = write(&history, 1);
    let other = ReceivedCluster { name: name(1), ..received(value, Some(version(1, 1)), 7) };
    assert_eq!(history.received("x", &other), None);
    assert_eq!(history.received("x", &received(99, Some(version(2, 1)), 7)), None);
    // A deletion has no value.
    let delete = begin(&history, |_| Action::Delete);
    assert_eq!(history.received("x", &received(delete.number(), None, 7)), None);
    assert_eq!(history.violations().1[&Guarantee::Phantom], 3);
}

#[test]
fn two_contents_of_a_version_and_two_versions_of_a_value_are_violations() {
    let twice = |one: ReceivedCluster, two: ReceivedCluster| {
        let history = History::new();
        write(&history, 1);
        history.received("x", &one);
        history.received("y", &two);
        broken(&history)
    };
    let as_written = || received(0, Some(version(1, 1)), 7);
    assert_eq!(twice(as_written(), as_written()), []);
    let same = [Guarantee::SameBytes];
    assert_eq!(twice(as_written(), received(0, Some(version(1, 1)), 8)), same);
    assert_eq!(twice(as_written(), received(0, None, 8)), same);
    // A write that was applied twice, or a version that only one replica knows.
    assert_eq!(twice(as_written(), received(0, Some(version(2, 1)), 7)), same);
    assert_eq!(twice(as_written(), received(0, Some(version(1, 2)), 7)), same);
    let history = History::new();
    let operation = begin(&history, Action::Write);
    history.acked(operation, 4, Some(version(5, 1)));
    assert_eq!(broken(&history), same);
}

#[test]
fn older_value_after_newer_one_is_a_violation_once_order_is_known() {
    let history = History::new();
    let (old, new) = (write(&history, 1), write(&history, 2));
    history.followed("x", old, new);
    assert_eq!(broken(&history), []);
    history.followed("x", new, old);
    assert_eq!(broken(&history), [Guarantee::Backwards]);

    let history = History::new();
    let tickets = [begin(&history, Action::Write), begin(&history, Action::Write)];
    history.followed("x", 1, 0);
    assert_eq!(history.violations().0, []);
    for (operation, revision) in tickets.into_iter().zip([1, 2]) {
        history.acked(operation, revision, Some(version(revision, 1)));
    }
    assert_eq!(broken(&history), [Guarantee::Backwards]);
}
