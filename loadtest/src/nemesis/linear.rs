//! A check for linearizability: whether the operations on one register could have happened in
//! sequence, each at some time between its invocation and its return.
//!
//! The search (Wing and Gong, in the order of time as Lowe does it) processes invocations and
//! returns in order. It keeps all possible states of the register, each with the open operations
//! that have taken effect in it. When an operation returns, only the states in which it has taken
//! effect remain. If no state remains, there is no such order.
//!
//! Invariants:
//! - Every written value is unique, so a read value identifies its write.
//! - An operation with an unknown outcome may take effect at any time after its invocation, or
//!   never. If another operation has read its value, it took effect before that operation returned.
//! - Writes with unknown outcomes whose values no other operation mentions are interchangeable. So
//!   are such deletions, and such swaps that expect no value. The search counts these operations
//!   and does not distinguish them.
//! - Such swaps that expect the same value are interchangeable too. At most one of them happens,
//!   because that value never comes back. This keeps the search small for any number of unknown
//!   outcomes.

use std::collections::{BTreeSet, HashMap, HashSet};

/// Time in microseconds of one clock.
pub(crate) type Time = u64;

/// The return time of an operation with an unknown outcome.
pub(crate) const NEVER: Time = Time::MAX;

/// A value that no other operation mentions.
const ANONYMOUS: u64 = u64::MAX;

/// The effect of an operation, or its possible effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sets the value, whatever it was.
    Write(u64),
    /// Replaces the first value by the second.
    Swap(Option<u64>, u64),
    /// Found that the value was not this one.
    SwapRefused(Option<u64>),
    /// Deletes an existing value.
    Delete,
    /// Found no value to delete.
    DeleteRefused,
    /// Found this value.
    Read(Option<u64>),
    /// Has no effect and gives no information.
    Nothing,
}

/// An operation on a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) invoked: Time,
    /// [`NEVER`] if the outcome is unknown.
    pub(crate) returned: Time,
    pub(crate) action: Action,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Linearizable,
    /// Linearizable, if unobserved operations with unknown outcomes may have happened more than
    /// once. There were too many states to count them.
    Uncounted,
    /// There is no order that fits the operation of this index.
    Broken(usize),
    /// There were too many states to examine.
    Undecided,
}

/// A possible state of the register.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    value: Option<u64>,
    /// Open operations that have taken effect.
    done: BTreeSet<usize>,
    /// The number of anonymous writes that have taken effect.
    anonymous: u32,
    /// The number of anonymous swaps of nothing that have taken effect.
    filled: u32,
    /// The number of deletions with unknown outcomes that have taken effect.
    deleted: u32,
}

/// Whether the search counts the interchangeable operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    Exact,
    /// Each of them may happen any number of times after its first invocation. This finds fewer
    /// violations, in far fewer states.
    Free,
}

impl Counting {
    /// Returns the maximum number of states at a time. With more states, the search gives up.
    fn states_max(self) -> usize {
        match self {
            Self::Exact => 2_000,
            Self::Free => 100_000,
        }
    }
}

/// The last step. A counted step directly after another one is redundant, because the second alone
/// would have the same effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Last {
    Told,
    Counted,
}

struct Search<'a> {
    counting: Counting,
    operations: &'a [Operation],
    states: HashSet<State>,
    open: BTreeSet<usize>,
    /// The number of anonymous writes that have been invoked.
    anonymous: u32,
    /// The number of anonymous swaps of nothing that have been invoked.
    fillings: u32,
    /// The number of deletions with unknown outcomes that have been invoked.
    deletions: u32,
    /// The values that anonymous swaps expect.
    swapped: HashSet<u64>,
}

impl Action {
    /// Returns the value after the action. The outer `None` means that the action is impossible
    /// with this value.
    fn apply(self, value: Option<u64>) -> Option<Option<u64>> {
        let holds = match self {
            Self::Write(_) | Self::Nothing => true,
            Self::Swap(expected, _) | Self::Read(expected) => value == expected,
            Self::SwapRefused(expected) => value != expected,
            Self::Delete => value.is_some(),
            Self::DeleteRefused => value.is_none(),
        };
        let after = match self {
            Self::Write(new) | Self::Swap(_, new) => Some(new),
            Self::Delete => None,
            Self::SwapRefused(_) | Self::DeleteRefused | Self::Read(_) | Self::Nothing => value,
        };
        holds.then_some(after)
    }

    /// Returns the value that the action found.
    fn observes(self) -> Option<u64> {
        match self {
            Self::Read(found) | Self::Swap(found, _) => found,
            _ => None,
        }
    }

    fn mentions(self) -> Option<u64> {
        match self {
            Self::SwapRefused(expected) => expected,
            other => other.observes(),
        }
    }

    fn writes(self) -> Option<u64> {
        match self {
            Self::Write(new) | Self::Swap(_, new) => Some(new),
            _ => None,
        }
    }
}

/// Checks the operations on a register that has no value at first.
pub(crate) fn check(operations: &[Operation]) -> Verdict {
    let operations = bounded(operations);
    match search(&operations, Counting::Exact) {
        Verdict::Undecided => match search(&operations, Counting::Free) {
            Verdict::Linearizable => Verdict::Uncounted,
            other => other,
        },
        other => other,
    }
}

fn search(operations: &[Operation], counting: Counting) -> Verdict {
    let mentioned: HashSet<u64> =
        operations.iter().filter_map(|operation| operation.action.mentions()).collect();
    let mut events: BTreeSet<(Time, bool, usize)> = BTreeSet::new();
    for (at, operation) in operations.iter().enumerate() {
        events.insert((operation.invoked, false, at));
        if operation.returned != NEVER {
            events.insert((operation.returned, true, at));
        }
    }
    let start = State { value: None, done: BTreeSet::new(), anonymous: 0, filled: 0, deleted: 0 };
    let mut search = Search {
        counting,
        operations,
        states: HashSet::from([start]),
        open: BTreeSet::new(),
        anonymous: 0,
        fillings: 0,
        deletions: 0,
        swapped: HashSet::new(),
    };
    for (_, returns, at) in events {
        let Some(operation) = operations.get(at) else { continue };
        let is_unknown = operation.returned == NEVER;
        match (returns, operation.action) {
            (true, _) => match search.take_return(at) {
                Some(true) => {}
                Some(false) => return Verdict::Broken(at),
                None => return Verdict::Undecided,
            },
            (false, Action::Delete) if is_unknown => search.deletions += 1,
            (false, Action::Write(new)) if is_unknown && !mentioned.contains(&new) => {
                search.anonymous += 1;
            }
            (false, Action::Swap(expected, new)) if is_unknown && !mentioned.contains(&new) => {
                match expected {
                    None => search.fillings += 1,
                    Some(value) => drop(search.swapped.insert(value)),
                }
            }
            // Reads and refusals with unknown outcomes have no effect.
            (false, Action::Read(_) | Action::SwapRefused(_) | Action::DeleteRefused)
                if is_unknown => {}
            (false, _) => drop(search.open.insert(at)),
        }
    }
    Verdict::Linearizable
}

/// Sets a return time for operations with unknown outcomes whose value was observed: that of the
/// first observation.
fn bounded(operations: &[Operation]) -> Vec<Operation> {
    let mut seen: HashMap<u64, Time> = HashMap::new();
    for operation in operations.iter().filter(|operation| operation.returned != NEVER) {
        if let Some(value) = operation.action.observes() {
            let first = seen.entry(value).or_insert(NEVER);
            *first = (*first).min(operation.returned);
        }
    }
    let bounded = |operation: &Operation| {
        let first = operation.action.writes().and_then(|value| seen.get(&value)).copied();
        match first {
            // An operation that was observed before its invocation stays unchanged. Its observer
            // then has no order.
            Some(first) if operation.returned == NEVER && first > operation.invoked => {
                Operation { returned: first, ..*operation }
            }
            _ => *operation,
        }
    };
    operations.iter().map(bounded).collect()
}

impl Search<'_> {
    /// Keeps the states in which the operation has taken effect. Returns whether there are any, or
    /// `None` if there are too many.
    fn take_return(&mut self, returned: usize) -> Option<bool> {
        let mut kept: HashSet<State> = HashSet::new();
        let mut seen: HashSet<(State, Last)> = HashSet::new();
        let mut stack: Vec<_> = self.states.drain().map(|state| (state, Last::Told)).collect();
        while let Some((mut state, last)) = stack.pop() {
            if state.done.remove(&returned) {
                kept.insert(state);
                continue;
            }
            if !seen.insert((state.clone(), last)) {
                continue;
            }
            if seen.len() > self.counting.states_max() {
                return None;
            }
            self.successors(&state, last, &mut stack);
        }
        self.open.remove(&returned);
        self.states = leanest(kept);
        Some(!self.states.is_empty())
    }

    /// Pushes the states that can follow.
    fn successors(&self, state: &State, last: Last, stack: &mut Vec<(State, Last)>) {
        for at in self.open.difference(&state.done) {
            let Some(operation) = self.operations.get(*at) else { continue };
            if let Some(value) = operation.action.apply(state.value) {
                let mut next = State { value, ..state.clone() };
                next.done.insert(*at);
                stack.push((next, Last::Told));
            }
        }
        if last == Last::Counted {
            return;
        }
        let is_left = |used: u32, invoked: u32| match self.counting {
            Counting::Exact => used < invoked,
            Counting::Free => invoked > 0,
        };
        let used = |before: u32| before + u32::from(self.counting == Counting::Exact);
        let mut push = |next: State| stack.push((next, Last::Counted));
        let of_value = |value: Option<u64>| State { value, ..state.clone() };
        if is_left(state.anonymous, self.anonymous) && state.value != Some(ANONYMOUS) {
            push(State { anonymous: used(state.anonymous), ..of_value(Some(ANONYMOUS)) });
        }
        match state.value {
            None if is_left(state.filled, self.fillings) => {
                push(State { filled: used(state.filled), ..of_value(Some(ANONYMOUS)) });
            }
            Some(value) => {
                if self.swapped.contains(&value) {
                    push(of_value(Some(ANONYMOUS)));
                }
                if is_left(state.deleted, self.deletions) {
                    push(State { deleted: used(state.deleted), ..of_value(None) });
                }
            }
            None => {}
        }
    }
}

/// Removes each state that has used more counted operations than an otherwise equal state.
fn leanest(states: HashSet<State>) -> HashSet<State> {
    let mut alike: HashMap<State, Vec<State>> = HashMap::new();
    for state in states {
        let kind = State { anonymous: 0, filled: 0, deleted: 0, ..state.clone() };
        alike.entry(kind).or_default().push(state);
    }
    let mut lean = HashSet::new();
    for states in alike.into_values() {
        for state in &states {
            let is_leaner = |other: &State| {
                other != state
                    && other.anonymous <= state.anonymous
                    && other.filled <= state.filled
                    && other.deleted <= state.deleted
            };
            if !states.iter().any(is_leaner) {
                lean.insert(state.clone());
            }
        }
    }
    lean
}

#[cfg(test)]
mod tests {
    use super::{Action::*, *};
    use crate::random::Random;

    fn operation((invoked, returned, action): (Time, Time, Action)) -> Operation {
        Operation { invoked, returned, action }
    }

    fn verdict(operations: &[(Time, Time, Action)]) -> Verdict {
        check(&operations.iter().copied().map(operation).collect::<Vec<_>>())
    }

    fn holds(operations: &[(Time, Time, Action)]) {
        assert_eq!(verdict(operations), Verdict::Linearizable, "{operations:?}");
    }

    fn breaks(operations: &[(Time, Time, Action)]) {
        assert!(matches!(verdict(operations), Verdict::Broken(_)), "{operations:?}");
    }

    #[test]
    fn sequential_history_is_linearizable() {
        holds(&[]);
        holds(&[
            (0, 1, Read(None)),
            (2, 3, Write(1)),
            (4, 5, Read(Some(1))),
            (6, 7, Swap(Some(1), 2)),
            (8, 9, SwapRefused(Some(1))),
            (10, 11, Delete),
            (12, 13, DeleteRefused),
            (14, 15, Swap(None, 3)),
            (16, 17, Read(Some(3))),
        ]);
        // Concurrent operations, in either order.
        holds(&[(0, 9, Write(1)), (0, 9, Write(2)), (1, 3, Read(Some(2))), (4, 9, Read(Some(1)))]);
    }

    #[test]
    fn a_stale_read_is_found() {
        breaks(&[(0, 1, Write(1)), (2, 3, Write(2)), (4, 5, Read(Some(1)))]);
        breaks(&[(0, 1, Write(1)), (2, 3, Read(None))]);
        // Two readers, of which the later one reads an older value.
        breaks(&[(0, 9, Write(1)), (1, 2, Read(Some(1))), (3, 4, Read(None))]);
    }

    #[test]
    fn a_lost_write_is_found() {
        breaks(&[(0, 1, Write(1)), (2, 3, Write(2)), (9, 10, Read(Some(1)))]);
        breaks(&[(0, 1, Write(1)), (2, 3, DeleteRefused)]);
        breaks(&[(0, 1, Write(1)), (2, 3, Swap(None, 2))]);
        breaks(&[(0, 1, Write(1)), (2, 3, SwapRefused(Some(1)))]);
    }

    #[test]
    fn a_write_that_is_applied_twice_is_found() {
        breaks(&[
            (0, 1, Write(1)),
            (2, 3, Write(2)),
            (4, 5, Read(Some(2))),
            (6, 7, Read(Some(1))),
            (8, 9, Swap(Some(1), 3)),
        ]);
        // With an unknown outcome, and with others in between.
        breaks(&[
            (0, NEVER, Write(1)),
            (2, 3, Read(Some(1))),
            (4, 5, Write(2)),
            (6, 7, Read(Some(1))),
        ]);
    }

    #[test]
    fn writes_in_the_wrong_order_are_found() {
        breaks(&[
            (0, 1, Write(1)),
            (2, 3, Write(2)),
            (4, 9, Read(Some(2))),
            (10, 11, Read(Some(1))),
        ]);
        breaks(&[(0, 5, Write(1)), (0, 5, Write(2)), (6, 7, Read(Some(1))), (8, 9, Read(Some(2)))]);
    }

    #[test]
    fn two_swaps_of_the_same_value_are_found() {
        breaks(&[(0, 1, Write(1)), (2, 5, Swap(Some(1), 2)), (2, 5, Swap(Some(1), 3))]);
        breaks(&[(0, 1, Write(1)), (2, 3, Delete), (4, 5, Delete)]);
    }

    #[test]
    fn unwritten_value_and_value_from_the_future_are_found() {
        breaks(&[(0, 1, Read(Some(7)))]);
        breaks(&[(0, 1, Read(Some(7))), (2, 3, Write(7))]);
        breaks(&[(0, 1, Read(Some(7))), (2, NEVER, Write(7))]);
    }

    #[test]
    fn unknown_outcome_may_take_effect_at_most_once() {
        holds(&[(0, NEVER, Write(1)), (1, 2, Write(2)), (3, 4, Read(Some(2)))]);
        holds(&[(0, NEVER, Write(1)), (1, 2, Write(2)), (3, 4, Read(Some(1)))]);
        holds(&[(0, NEVER, Delete), (1, 2, Write(2)), (3, 4, Read(None))]);
        breaks(&[
            (0, NEVER, Delete),
            (1, 2, Write(2)),
            (3, 4, Read(None)),
            (5, 6, Write(3)),
            (7, 8, Read(None)),
        ]);
        // No operation observed the write that prevented the swap.
        holds(&[(0, NEVER, Write(1)), (1, 2, Write(2)), (3, 4, SwapRefused(Some(2)))]);
        holds(&[(0, 1, Write(2)), (2, NEVER, Swap(Some(2), 3)), (4, 5, SwapRefused(Some(2)))]);
        breaks(&[(0, NEVER, Swap(Some(9), 3)), (1, 2, Write(2)), (3, 4, SwapRefused(Some(2)))]);
    }

    #[test]
    fn many_unknown_outcomes_are_still_decided() {
        let mut operations = vec![];
        for n in 0..400 {
            operations.push((n * 10, NEVER, if n % 2 == 0 { Write(1000 + n) } else { Delete }));
            operations.push((n * 10 + 1, n * 10 + 5, Write(n)));
            operations.push((n * 10 + 6, n * 10 + 8, Read(Some(n))));
        }
        holds(&operations);
        operations.push((5000, 5001, Read(Some(3))));
        breaks(&operations);
    }

    #[test]
    fn many_unknown_swaps_are_still_decided() {
        let mut operations = vec![];
        for n in 1..400 {
            let at = n * 20;
            operations.push((at, NEVER, Swap(Some(n - 1).filter(|value| *value > 0), 1000 + n)));
            operations.push((at, NEVER, Swap(None, 2000 + n)));
            operations.push((at + 1, at + 9, Write(n)));
            operations.push((at + 2, at + 8, Read(Some(n))));
            operations.push((at + 10, at + 12, Read(Some(n))));
            operations.push((at + 13, at + 14, Delete));
            operations.push((at + 15, at + 16, DeleteRefused));
        }
        holds(&operations);
        operations.push((9000, 9001, Read(Some(3))));
        breaks(&operations);
    }

    /// Generates a history like that of a run: a few concurrent operations, and sometimes a fault
    /// after which outcomes are unknown.
    fn history_of_a_run(random: &mut Random, n: u64) -> Vec<Operation> {
        // Each operation: when it takes effect, if it does, when it is invoked, when it returns,
        // and its number.
        let mut all: Vec<(Time, Time, Time, u64)> = Vec::new();
        for at in 0..n {
            let invoked = at * 10 + random.below(30);
            let happens = invoked + 1 + random.below(30);
            let is_lost = (at / 40) % 4 == 3 && random.one_in(2);
            all.push(match is_lost {
                true if random.one_in(2) => (NEVER, invoked, NEVER, at),
                true => (happens + random.below(200), invoked, NEVER, at),
                false => (happens, invoked, happens + 1 + random.below(30), at),
            });
        }
        all.sort_unstable();
        let mut value = None;
        let mut operations = Vec::new();
        for (happens, invoked, returned, at) in all {
            let guess = value.filter(|_| !random.one_in(4));
            let (new, kind) = (at + 1, random.below(10));
            let action = match kind {
                0..4 => Write(new),
                4..6 => Swap(guess, new),
                6 => Delete,
                _ => Read(value),
            };
            let changes = !matches!(action, Read(_));
            if returned == NEVER {
                if happens != NEVER
                    && let Some(after) = action.apply(value)
                {
                    value = after;
                }
                if changes {
                    operations.push(Operation { invoked, returned, action });
                }
                continue;
            }
            let action = match (action.apply(value), action) {
                (Some(after), action) => {
                    value = after;
                    action
                }
                (None, Swap(expected, _)) => SwapRefused(expected),
                (None, _) => DeleteRefused,
            };
            operations.push(Operation { invoked, returned, action });
        }
        operations
    }

    #[test]
    fn long_histories_with_many_unknown_outcomes_are_decided() {
        let mut random = Random::new(11);
        let mut broken = 0;
        for _ in 0..10 {
            let mut operations = history_of_a_run(&mut random, 1_000);
            let verdict = check(&operations);
            assert!(matches!(verdict, Verdict::Linearizable | Verdict::Uncounted), "{verdict:?}");
            // A read of a much older value.
            let reads = |operation: &Operation| matches!(operation.action, Read(Some(_)));
            let old = operations.iter().position(reads).expect("something was read");
            let last = operations.iter().rposition(reads).expect("something was read");
            operations[last].action = operations[old].action;
            let verdict = check(&operations);
            assert_ne!(verdict, Verdict::Undecided);
            broken += u32::from(matches!(verdict, Verdict::Broken(_)));
        }
        assert!(broken >= 9, "{broken} of 10 found");
    }

    /// Tries all orders, and returns whether one fits. It may omit writes with unknown outcomes.
    fn by_force(operations: &[Operation], left: &[usize], value: Option<u64>) -> bool {
        let is_known = |at: &&usize| operations[**at].returned != NEVER;
        if !left.iter().any(|at| is_known(&at)) {
            return true;
        }
        left.iter().any(|at| {
            let operation = operations[*at];
            let may_be_next =
                left.iter().all(|other| operation.invoked <= operations[*other].returned);
            let rest: Vec<usize> = left.iter().copied().filter(|other| other != at).collect();
            let after = operation.action.apply(value);
            may_be_next && after.is_some_and(|after| by_force(operations, &rest, after))
        })
    }

    #[test]
    fn random_histories_match_brute_force_verdict() {
        let mut random = Random::new(7);
        let mut found = [0_u32; 2];
        for _ in 0..20_000 {
            let n = 3 + random.below(5);
            let operations: Vec<Operation> = (0..n)
                .map(|at| {
                    let invoked = random.below(12);
                    let some = Some(random.below(n)).filter(|value| *value > 0);
                    let action = match random.below(7) {
                        0 | 1 => Write(at),
                        2 => Swap(some, at),
                        3 => SwapRefused(some),
                        4 => [Delete, DeleteRefused][usize::try_from(at % 2).unwrap()],
                        _ => Read(some),
                    };
                    let changes = action.writes().is_some() || action == Delete;
                    let returned = if changes && random.one_in(4) {
                        NEVER
                    } else {
                        invoked + 1 + random.below(6)
                    };
                    Operation { invoked, returned, action }
                })
                .collect();
            let all: Vec<usize> = (0..operations.len()).collect();
            let expected = by_force(&operations, &all, None);
            let judged = check(&operations) == Verdict::Linearizable;
            assert_eq!(judged, expected, "{operations:?}");
            found[usize::from(judged)] += 1;
        }
        assert!(found.iter().all(|n| *n > 1000), "{found:?}");
    }
}
