//! Digests of the replicated state, by position in the log.
//!
//! Replicas that have applied the same entries have the same state. Each replica keeps the digests
//! of its newest positions, so that two replicas find a position that both have applied
//! ([`crate::replication::digests`]).
//!
//! Invariants:
//! - A digest depends on the log alone. Its input is the term of the entry, the incarnation, the
//!   revision, and the [`Tally`] of all records (resources with bytes and
//!   versions, scopes, assignments, history). It does not depend on the membership, on snapshots,
//!   or on restarts.
//! - A change of the input of a digest, or of the bytes of any record of the state, raises
//!   [`ALGORITHM`]. Replicas compare digests of the same algorithm only.

use std::collections::VecDeque;

use chancery_model::{Incarnation, Revision, State};
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    disk::{image::Image, tally::Tally},
    format::raft::{LogId, term_of},
    status::StateDigest,
};

/// The number of the algorithm that [`digest_at`] implements.
pub(crate) const ALGORITHM: u32 = 1;
/// The number of newest positions that are kept.
const NEWEST_MAX: usize = 256;
/// Positions whose index is a multiple of this number are kept for longer.
const STEP: u64 = 64;
/// The number of positions that are kept for longer. A replica that lags by 65,536 entries can
/// still be compared.
const STEPS_MAX: usize = 1024;

/// The digests of the newest applied positions. They take 20 KiB at most.
#[derive(Debug, Default)]
pub(crate) struct Digests(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Ordered by index.
    newest: VecDeque<StateDigest>,
    /// The digests at multiples of [`STEP`], ordered by index.
    steps: VecDeque<StateDigest>,
}

/// Returns the digest of a state, or `None` before the first entry.
pub(crate) fn digest_of(image: &Image) -> Option<StateDigest> {
    let State { incarnation, revision, .. } = image.state;
    Some(digest_at(image.applied.as_ref()?, incarnation, revision, image.computed.tally))
}

/// Returns the digest of the state after an entry.
pub(crate) fn digest_at(
    applied: &LogId,
    incarnation: Incarnation,
    revision: Revision,
    tally: Tally,
) -> StateDigest {
    let mut digest = Xxh3::new();
    let incarnation = incarnation.0.into();
    let numbers =
        [term_of(applied), applied.index, incarnation, revision.0, tally.records, tally.sum];
    for number in numbers {
        digest.update(&number.to_le_bytes());
    }
    StateDigest { index: applied.index, digest: digest.digest() }
}

impl Digests {
    /// Keeps the digest of a state, which must be newer than the previous one.
    pub(crate) fn note(&self, image: &Image) {
        if let Some(digest) = digest_of(image) {
            self.note_digest(digest);
        }
    }

    /// Keeps a digest, which must be of a newer state than the previous one.
    pub(crate) fn note_digest(&self, digest: StateDigest) {
        let mut kept = self.0.lock();
        if kept.newest.back().is_some_and(|last| last.index >= digest.index) {
            return;
        }
        if digest.index.is_multiple_of(STEP) {
            push(&mut kept.steps, digest, STEPS_MAX);
        }
        push(&mut kept.newest, digest, NEWEST_MAX);
    }

    /// Returns the newest digests, ordered by index: at most `newest` of the newest positions, and
    /// at most `steps` of the positions that are kept for longer.
    pub(crate) fn recent(&self, newest: usize, steps: usize) -> Vec<StateDigest> {
        fn last(kept: &VecDeque<StateDigest>, n: usize) -> impl Iterator<Item = &StateDigest> {
            kept.iter().skip(kept.len().saturating_sub(n))
        }
        let kept = self.0.lock();
        let mut digests: Vec<StateDigest> =
            last(&kept.steps, steps).chain(last(&kept.newest, newest)).copied().collect();
        digests.sort_unstable();
        digests.dedup();
        digests
    }

    /// Returns the digest at an index, if it is kept.
    pub(crate) fn at(&self, index: u64) -> Option<StateDigest> {
        let kept = self.0.lock();
        [&kept.newest, &kept.steps].into_iter().find_map(|kept| {
            let at = kept.binary_search_by_key(&index, |digest| digest.index).ok()?;
            kept.get(at).copied()
        })
    }
}

fn push(kept: &mut VecDeque<StateDigest>, digest: StateDigest, max: usize) {
    kept.push_back(digest);
    if kept.len() > max {
        kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::raft::log_id;

    fn image(term: u64, index: u64) -> Image {
        Image { applied: Some(log_id(term, index)), ..Image::new() }
    }

    /// L13: a digest covers every part in which two states can differ.
    #[test]
    fn digest_differs_when_any_part_of_the_state_differs() {
        let state = image(2, 10);
        let digest = digest_of(&state).unwrap();
        assert_eq!(digest_of(&image(2, 10)), Some(digest), "the same state");
        let mut others = vec![image(2, 10); 5];
        others[0] = image(3, 10);
        others[1].computed.tally = Tally { records: 1, sum: 0 };
        others[2].computed.tally = Tally { records: 0, sum: 1 };
        others[3] = image(2, 10);
        others[3].state.revision = Revision(1);
        others[4] = image(2, 10);
        others[4].state.incarnation = Incarnation(1);
        for (at, other) in others.iter().enumerate() {
            let other = digest_of(other).unwrap();
            assert_eq!(other.index, 10);
            assert_ne!(other.digest, digest.digest, "{at}");
        }
        assert_eq!(digest_of(&Image::new()), None);
    }

    /// Replicas of different releases compare digests. A change that alters the digest of a state
    /// raises `ALGORITHM`.
    #[test]
    fn digest_of_first_release_is_unchanged() {
        let digest = digest_of(&image(2, 10)).unwrap();
        assert_eq!((ALGORITHM, digest.digest), (1, 0x3844_b219_e2b4_9bd7));
    }

    /// L13: two replicas find a position that both have applied, even if one of them lags.
    #[test]
    fn lagging_replica_shares_a_digest_position_with_others() {
        let (ahead, behind) = (Digests::default(), Digests::default());
        for index in 1..=70_000 {
            ahead.note(&image(1, index));
            if index <= 10_000 {
                behind.note(&image(1, index));
            }
        }
        let common = |one: &Digests, other: &Digests| {
            one.recent(64, 64).iter().filter(|own| other.at(own.index) == Some(**own)).count()
        };
        assert!(common(&behind, &ahead) > 10, "positions in common when the lagging replica asks");
        let kept = ahead.recent(usize::MAX, usize::MAX);
        assert_eq!(kept.len(), NEWEST_MAX + STEPS_MAX - NEWEST_MAX / 64);
        assert!(kept.is_sorted() && kept.last().is_some_and(|last| last.index == 70_000));
        // A snapshot leaves a gap.
        behind.note(&image(1, 69_999));
        assert_eq!(behind.at(20_000), None);
        assert_eq!(behind.at(69_999), ahead.at(69_999));
    }
}
