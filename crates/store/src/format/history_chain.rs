//! The hash chain of the history.
//!
//! The hash of a revision covers everything that the admin API shows of it, and the hash of the revision before. It is
//! computed from the records, so the records of all releases stay the same. It is equal on all replicas. A replica
//! stores two hashes with its applied position. The hash of the newest revision shows at the next start whether somebody
//! changed a record. The other one belongs to the newest revision that the history no longer has.
//!
//! The chain begins with the first revision. A history that had already lost revisions when an older release was
//! upgraded has no hash for them. Its chain begins at the first revision that [`START_STEP`] divides. Replicas with
//! different histories therefore begin at the same one.

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{Context, SHA256};
use chancery_model::{Revision, Summary, TransactionMeta};

/// The revisions at which a chain without a beginning may begin.
///
/// A full history contains exactly one or two of them, so that replicas that drop revisions during an upgrade most
/// probably begin at the same one.
const START_STEP: u64 = 8192;
/// The first bytes of the hashed text: its format.
const FORMAT: &[u8] = b"chancery history 1\n";

/// The SHA-256 hash of a revision and of all revisions before it.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryHash([u8; 32]);

impl HistoryHash {
    /// The hash before the first revision of a chain.
    pub const ZERO: Self = Self([0; 32]);

    /// Returns the hash of a revision that follows a revision with this hash.
    #[must_use]
    pub fn next(
        self,
        revision: Revision,
        restored_from: Option<Revision>,
        meta: &TransactionMeta,
        summary: &Summary,
    ) -> Self {
        let TransactionMeta {
            label,
            author,
            reason,
            time_ms,
            validation,
            confirmed,
            source,
            labels,
        } = meta;
        let Summary { revision: _, changed, removed, unchanged, assignments, access } = *summary;
        let mut hash = Context::new(&SHA256);
        hash.update(FORMAT);
        hash.update(&self.0);
        let numbers = [revision.0, *time_ms, changed, removed, unchanged, assignments, access];
        numbers.iter().for_each(|number| hash.update(&number.to_be_bytes()));
        hash.update(&[u8::from(restored_from.is_some())]);
        hash.update(&restored_from.unwrap_or_default().0.to_be_bytes());
        // Each text follows its length, so that no text can look like another list of texts.
        let mut text = |text: &str| {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        };
        for one in [author.as_str(), reason, label.as_deref().unwrap_or_default(), validation] {
            text(one);
        }
        confirmed.iter().for_each(|guard| text(guard));
        if !source.is_empty() {
            // No length begins with this byte, so a source cannot look like a guard.
            hash.update(&[1]);
            hash.update(source.as_bytes());
        }
        // A source does not contain this byte either.
        for (key, value) in labels {
            hash.update(&[2]);
            [key, value].iter().for_each(|text| {
                hash.update(&(text.len() as u64).to_be_bytes());
                hash.update(text.as_bytes());
            });
        }
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hash.finish().as_ref());
        Self(bytes)
    }

    /// Returns the bytes, to be stored; none for no hash.
    pub(crate) fn to_bytes(hash: Option<Self>) -> Vec<u8> {
        hash.map(|hash| hash.0.to_vec()).unwrap_or_default()
    }

    /// Reads stored bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the hash after which a revision is hashed. `before` is the hash of `previous`, the revision before it;
    /// `None` if it has none.
    pub(crate) fn begin(
        before: Option<Self>,
        previous: Revision,
        revision: Revision,
    ) -> Option<Self> {
        let may_begin = previous == Revision(0) || revision.0.is_multiple_of(START_STEP);
        before.or_else(|| may_begin.then_some(Self::ZERO))
    }
}

impl fmt::Display for HistoryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for HistoryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for HistoryHash {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hash = Self::default();
        hex::decode_to_slice(text, &mut hash.0)?;
        Ok(hash)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn meta() -> TransactionMeta {
        TransactionMeta {
            label: Some("v1".into()),
            author: "anna".into(),
            reason: "because".into(),
            time_ms: 5,
            validation: "warn".into(),
            confirmed: vec!["mass-deletion".into()],
            source: String::new(),
            labels: BTreeMap::new(),
        }
    }

    fn hash(meta: &TransactionMeta, summary: &Summary) -> HistoryHash {
        HistoryHash::ZERO.next(Revision(7), None, meta, summary)
    }

    /// Hashes that somebody noted stay valid in all later releases.
    #[test]
    fn hash_of_first_release_is_unchanged() {
        let summary = Summary { revision: Revision(7), changed: 1, ..Summary::default() };
        assert_eq!(
            hash(&meta(), &summary).to_string(),
            "cc022b2bc8a7da9d7b008da065e3ac7ad29c50af55c4c8a34b727bafce8c1970"
        );
    }

    #[test]
    fn hash_covers_every_field() {
        let summary = Summary { revision: Revision(7), ..Summary::default() };
        let original = hash(&meta(), &summary);
        let label = None;
        let changed = [
            TransactionMeta { label, ..meta() },
            TransactionMeta { author: "ann".into(), reason: "abecause".into(), ..meta() },
            TransactionMeta { reason: String::new(), ..meta() },
            TransactionMeta { time_ms: 6, ..meta() },
            TransactionMeta { validation: "off".into(), ..meta() },
            TransactionMeta { confirmed: vec![], ..meta() },
            TransactionMeta { confirmed: vec!["mass-".into(), "deletion".into()], ..meta() },
            TransactionMeta { source: "10.0.0.1:7".into(), ..meta() },
            TransactionMeta { labels: BTreeMap::from([("git".into(), "4f".into())]), ..meta() },
            TransactionMeta { labels: BTreeMap::from([("git4".into(), "f".into())]), ..meta() },
        ];
        for meta in &changed {
            assert_ne!(hash(meta, &summary), original, "{meta:?}");
        }
        for summary in [
            Summary { changed: 1, ..summary },
            Summary { removed: 1, ..summary },
            Summary { unchanged: 1, ..summary },
            Summary { assignments: 1, ..summary },
            Summary { access: 1, ..summary },
        ] {
            assert_ne!(hash(&meta(), &summary), original, "{summary:?}");
        }
        let next = |prev: HistoryHash, revision, restored_from| {
            prev.next(Revision(revision), restored_from, &meta(), &summary)
        };
        assert_ne!(next(HistoryHash::ZERO, 8, None), original);
        assert_ne!(next(HistoryHash::ZERO, 7, Some(Revision(0))), original);
        assert_ne!(next(original, 7, None), original);
        assert_eq!(original.to_string().parse(), Ok(original));
    }

    /// Replicas that have lost different numbers of revisions begin their chains at the same one.
    #[test]
    fn chain_without_beginning_begins_at_a_round_revision() {
        let begin = |before, previous, revision| {
            HistoryHash::begin(before, Revision(previous), Revision(revision))
        };
        assert_eq!(begin(None, 0, 1), Some(HistoryHash::ZERO));
        assert_eq!(begin(None, 0, 1 << 32), Some(HistoryHash::ZERO), "restored before any write");
        assert_eq!(begin(None, 4, 5), None);
        assert_eq!(begin(None, 8191, 8192), Some(HistoryHash::ZERO));
        let known = hash(&meta(), &Summary::default());
        assert_eq!(begin(Some(known), 8191, 8192), Some(known), "a chain goes on");
    }
}
