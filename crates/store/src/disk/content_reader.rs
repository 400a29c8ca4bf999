//! Reads the records that revisions replaced from the database.

use std::{
    collections::BTreeMap,
    io,
    ops::Bound::{Excluded, Included},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use chancery_model::Revision;

use crate::{
    disk::{
        database::{Database, Deleted},
        published::Published,
    },
    format::{
        content::{CONTENT, records_key},
        keys::state_key,
        record::Family,
    },
};

/// The approximate size of the records that one scan reads, in bytes.
const SCAN_BYTES: usize = 8 << 20;

/// Reads the records that revisions replaced. Does not keep the database open. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ContentReader {
    database: Weak<Database>,
    published: Published,
    /// The records that revisions replaced which are not in the database, by key.
    unstored: Arc<BTreeMap<Bytes, Bytes>>,
}

impl ContentReader {
    /// Creates a reader of the content of a database.
    pub(crate) fn new(database: &Arc<Database>, published: Published) -> Self {
        Self { database: Arc::downgrade(database), published, unstored: Arc::default() }
    }

    /// Adds the records that revisions replaced whose change is not stored, by key.
    pub(crate) fn with_unstored(self, unstored: BTreeMap<Bytes, Bytes>) -> Self {
        Self { unstored: Arc::new(unstored), ..self }
    }

    /// Returns the record at a key, if there is one.
    pub(crate) fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        self.open()?.get(Family::History, &state_key(CONTENT, key))
    }

    fn open(&self) -> io::Result<Arc<Database>> {
        self.database.upgrade().ok_or_else(|| io::Error::other("the replica has stopped"))
    }

    /// Returns the oldest revision whose content can be found now.
    pub(crate) fn oldest(&self) -> Revision {
        self.published.stored().computed.kept.from()
    }

    /// Returns at most `limit` of the records that a revision replaced, with their keys, after the key `after`.
    pub(crate) fn records(
        &self,
        revision: Revision,
        after: Option<&[u8]>,
        limit: usize,
    ) -> io::Result<Scanned> {
        let begin = records_key(revision);
        let from = match after {
            Some(after) => [after, &[0]].concat(),
            None => begin.to_vec(),
        };
        let end = records_key(Revision(revision.0 + 1));
        self.scan(&from, &end, limit)
    }

    /// Returns the first records of a range: at most `limit`, and about [`SCAN_BYTES`].
    pub(crate) fn scan(&self, from: &[u8], end: &[u8], limit: usize) -> io::Result<Scanned> {
        let mut scanned = Scanned::default();
        let mut bytes = 0;
        // A revision is either stored as a whole, or not.
        let unstored = self.unstored.range::<[u8], _>((Included(from), Excluded(end)));
        for (key, record) in unstored {
            if !scanned.add(key.clone(), record.clone(), limit, &mut bytes) {
                break;
            }
        }
        if !scanned.records.is_empty() {
            return Ok(scanned);
        }
        let database = self.open()?;
        let (from, end) = (state_key(CONTENT, from), state_key(CONTENT, end));
        for item in database.scan(Family::History, &from, Some(&end), Deleted::Skip) {
            let (key, record) = item?;
            let key = key.slice(size_of_val(&CONTENT)..);
            if !scanned.add(key, record, limit, &mut bytes) {
                break;
            }
        }
        Ok(scanned)
    }
}

/// The first records of a range.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// The records with their keys.
    pub(crate) records: Vec<(Bytes, Bytes)>,
    /// Whether the range has more.
    pub(crate) has_more: bool,
}

impl Scanned {
    /// Adds a record, unless there are enough. Returns whether it was added.
    fn add(&mut self, key: Bytes, record: Bytes, limit: usize, bytes: &mut usize) -> bool {
        self.has_more = self.records.len() >= limit || *bytes >= SCAN_BYTES;
        if !self.has_more {
            *bytes += key.len() + record.len();
            self.records.push((key, record));
        }
        !self.has_more
    }
}

impl std::fmt::Debug for ContentReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentReader").finish_non_exhaustive()
    }
}
