//! The content of earlier revisions in a snapshot: read from one database, and written to another.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use chancery_model::Revision;

use crate::{
    disk::{
        content_reader::{ContentReader, Scanned},
        database::{Batch, Database},
        image::Image,
        part::before_of,
    },
    format::{
        content::{CONTENT, Replaced, revision_key, split_record_key},
        keys::state_key,
        record::{Family, RecordError},
    },
};

/// The number of records that are read at once.
const READ_RECORDS: usize = 256;
/// The size of a batch in bytes.
const BATCH_BYTES: usize = 1 << 20;

// === reading ===

/// The records that the revisions of an image replaced: for each revision its size, then its records.
pub(crate) struct ContentRecords<'a> {
    reader: &'a ContentReader,
    revisions: VecDeque<Replaced>,
    newest: Revision,
    /// The revision that is being read, and the last key that was read.
    current: Option<(Revision, Option<Bytes>)>,
    records: VecDeque<(Bytes, Bytes)>,
    /// Whether a record could not be read. The content is then useless.
    has_failed: bool,
}

impl<'a> ContentRecords<'a> {
    /// Creates a reader of what an image keeps.
    pub(crate) fn new(reader: &'a ContentReader, image: &Image) -> Self {
        Self {
            reader,
            revisions: image.computed.kept.revisions().iter().copied().collect(),
            newest: image.state.revision,
            current: None,
            records: VecDeque::new(),
            has_failed: false,
        }
    }

    /// Returns the next key and record.
    pub(crate) fn next(&mut self) -> Option<(Bytes, Bytes)> {
        loop {
            if let Some(record) = self.records.pop_front() {
                return Some(record);
            }
            if let Some((revision, after)) = self.current.take() {
                match self.reader.records(revision, after.as_deref(), READ_RECORDS) {
                    Ok(Scanned { records, .. }) => {
                        self.current = records.last().map(|(key, _)| (revision, Some(key.clone())));
                        self.records = records.into();
                    }
                    Err(error) => {
                        tracing::warn!(
                            %error,
                            "cannot read the content of earlier revisions; a snapshot omits it"
                        );
                        self.has_failed = true;
                        return None;
                    }
                }
                continue;
            }
            let replaced = self.revisions.pop_front().filter(|_| !self.has_failed)?;
            self.current = Some((replaced.revision, None));
            let key = Bytes::copy_from_slice(&revision_key(replaced.revision));
            return Some((key, replaced.seal().into()));
        }
    }

    /// Returns the revision from which on the content is complete. Older revisions may have been deleted meanwhile.
    pub(crate) fn complete_from(&self) -> Revision {
        if self.has_failed { self.newest } else { self.reader.oldest().min(self.newest) }
    }
}

// === writing ===

/// Checks content that arrives, and writes it if there is a database.
#[derive(Debug, Default)]
pub(crate) struct EarlierContent {
    database: Option<Weak<Database>>,
    batch: Batch,
    bytes: usize,
    /// The revisions, each with the number of its records that arrived.
    replaced: Vec<(Replaced, u64)>,
}

/// The reason why content is refused.
#[derive(Debug)]
pub(crate) enum ContentError {
    Invalid(RecordError),
    Write(io::Error),
}

impl EarlierContent {
    /// Creates a value that writes to `database`.
    pub(crate) fn writing_to(database: Weak<Database>) -> Self {
        Self { database: Some(database), ..Self::default() }
    }

    /// Adds a record.
    pub(crate) fn add(&mut self, key: &[u8], record: Bytes) -> Result<(), ContentError> {
        self.check(key, &record).map_err(ContentError::Invalid)?;
        let Some(database) = &self.database else { return Ok(()) };
        self.bytes += key.len() + record.len();
        let open = open(database).map_err(ContentError::Write)?;
        open.put(&mut self.batch, Family::History, &state_key(CONTENT, key), &record);
        if self.bytes >= BATCH_BYTES {
            self.bytes = 0;
            open.write(std::mem::take(&mut self.batch)).map_err(ContentError::Write)?;
        }
        Ok(())
    }

    /// Checks a record, which follows the size of its revision.
    fn check(&mut self, key: &[u8], record: &Bytes) -> Result<(), RecordError> {
        let invalid = |text: &str| RecordError::Content(text.to_owned());
        if let Some((revision, _, _)) = split_record_key(key) {
            before_of(key, record)?;
            let current = self.replaced.last_mut();
            let current = current.filter(|(replaced, _)| replaced.revision == revision);
            let (_, n) = current.ok_or_else(|| invalid("its revision is not the current one"))?;
            *n += 1;
            return Ok(());
        }
        let replaced = Replaced::open(key, record.clone())?;
        if self.replaced.last().is_some_and(|(last, _)| last.revision >= replaced.revision) {
            return Err(invalid("its revision is not in order"));
        }
        self.replaced.push((replaced, 0));
        Ok(())
    }

    /// Writes the rest. Returns the revisions, each with the number of its records that arrived.
    pub(crate) fn finish(self) -> io::Result<Vec<(Replaced, u64)>> {
        if let Some(database) = &self.database {
            open(database)?.write(self.batch)?;
        }
        Ok(self.replaced)
    }
}

fn open(database: &Weak<Database>) -> io::Result<Arc<Database>> {
    database.upgrade().ok_or_else(|| io::Error::other("the database is closed"))
}
