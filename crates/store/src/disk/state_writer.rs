//! Writes the records of the state to the database.
//!
//! A change takes effect with one batch, which includes the applied position. A batch of many megabytes would delay
//! the log, which uses the same database: log writes would wait for the batch, and log syncs would include its bytes.
//! The records of a large change are therefore first written to the *staging area*, in pieces that are synced one by
//! one. A small batch then makes the staged records effective. Finally, the writer copies them to their final keys,
//! again in pieces.
//!
//! Invariants:
//! - While [`pb::AppliedRecord::staged`] is set, a staged record replaces the record at its final key, and an empty
//!   staged record deletes it. Otherwise, staged records have no effect.
//! - Effective staged records are copied to their final keys before the next change is written. The batch that clears
//!   `staged` also empties the staging area. Only a snapshot skips the copy, because it replaces the whole state.
//! - The first batch of a staged change deletes what an interrupted attempt left in the staging area.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use chancery_model::{Incarnation, Revision};
use chancery_raft_proto::v1 as pb;
use parking_lot::Mutex;

use crate::{
    disk::{
        database::{Batch, Database, Deleted},
        digest::{Digests, digest_at},
        effect::{Edit, Effect, Place},
        image::Image,
        kept::KeptContent,
        progress::Progress,
        records::Record,
    },
    format::{
        content::{CONTENT, records_key, revision_key, tables},
        keys::{APPLIED_KEY, purged_record, put_state_key, state_key},
        raft::LogId,
        record::{self, Family},
    },
};

/// The size above which a batch is written, in bytes. One entry may exceed it.
pub(crate) const BATCH_BYTES: usize = 4 << 20;
/// The size of a piece of a large change, in bytes.
const PIECE_BYTES: usize = 1 << 20;
/// The number of dropped revisions, and the size of their records in bytes, from which their content is deleted.
const DELETED_REVISIONS: u64 = 256;
const DELETED_BYTES: u64 = 16 << 20;
/// The generation of staged records. The records of a state have neither this generation nor [`CONTENT`].
const STAGING: u32 = u32::MAX;
/// The families of the records of the state.
const FAMILIES: [Family; 3] = [Family::Resources, Family::Index, Family::History];

/// One applied entry.
pub(crate) struct Step {
    pub(crate) applied: LogId,
    pub(crate) incarnation: Incarnation,
    pub(crate) revision: Revision,
    pub(crate) effect: Effect,
}

/// How a change is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// In one batch.
    One,
    /// In pieces, through the staging area.
    Several,
}

/// The writer of the records of the state.
pub(crate) struct StateWriter {
    database: Arc<Database>,
    /// The generation: the key prefix of the records of the current state.
    generation: AtomicU32,
    /// Whether it is known that no staged records have to be copied. `false` after a start.
    is_settled: AtomicBool,
    /// The dropped content that was deleted.
    deleted: Mutex<DeletedContent>,
}

/// The content that was deleted since the start: up to a revision, and its size in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct DeletedContent {
    upto: Revision,
    bytes: u64,
}

/// The staged records, by family and key.
pub(crate) type Staged = BTreeMap<(Family, Bytes), Bytes>;

/// Returns the staged records, with their final keys. An empty record stands for a deletion.
pub(crate) fn staged(
    database: &Database,
) -> impl Iterator<Item = io::Result<(Family, Bytes, Bytes)>> {
    const PREFIX: [u8; 4] = STAGING.to_be_bytes();
    FAMILIES.into_iter().flat_map(|family| {
        database
            .scan(family, &PREFIX, None, Deleted::Skip)
            .map(move |item| item.map(|(key, record)| (family, key.slice(PREFIX.len()..), record)))
    })
}

impl StateWriter {
    /// Creates a writer for a database whose records of the state are those of `generation`.
    pub(crate) fn new(database: Arc<Database>, generation: u32) -> Self {
        let (generation, is_settled) = (generation.into(), AtomicBool::new(false));
        Self { database, generation, is_settled, deleted: Mutex::default() }
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Writes the effects of entries, and the applied position. `image` is the image after the entries, except that
    /// its computed values are still those of the stored image. This function updates them.
    pub(crate) fn write(
        &self,
        image: &mut Image,
        steps: &[Step],
        pieces: Pieces,
        digests: &Digests,
    ) -> io::Result<()> {
        self.settle()?;
        let generation = match pieces {
            Pieces::One => self.generation(),
            Pieces::Several => STAGING,
        };
        let mut output = Output::new(&self.database, generation, pieces);
        if pieces == Pieces::Several {
            // An interrupted attempt may have left records.
            clear(&self.database, &mut output.batch, STAGING);
        }
        self.delete_dropped(&mut output.batch, &image.computed.kept);
        for Step { applied, incarnation, revision, effect } in steps {
            image.compute(effect, &mut |edit| output.add(edit));
            digests.note_digest(digest_at(applied, *incarnation, *revision, image.computed.tally));
        }
        let mut batch = output.finish()?;
        let staged = pieces == Pieces::Several;
        self.put_applied(
            &mut batch,
            pb::AppliedRecord { staged, ..image.applied_to_proto(self.generation()) },
        );
        self.is_settled.store(!staged, Ordering::Release);
        self.database.write(batch)
    }

    /// Deletes the content that the stored image has dropped. A range deletion makes later reads slower, so that it
    /// deletes much at once. A reader that finds its revision in the stored image afterwards has missed nothing.
    fn delete_dropped(&self, batch: &mut Batch, stored: &KeptContent) {
        let mut deleted = self.deleted.lock();
        let now = DeletedContent { upto: stored.from(), bytes: stored.dropped_bytes() };
        let revisions = now.upto.0.saturating_sub(deleted.upto.0);
        if revisions >= DELETED_REVISIONS
            || now.bytes.saturating_sub(deleted.bytes) >= DELETED_BYTES
        {
            delete_content(&self.database, batch, now.upto);
            *deleted = now;
        }
    }

    fn put_applied(&self, batch: &mut Batch, applied: pb::AppliedRecord) {
        let record = record::seal(Family::Meta, APPLIED_KEY, &applied);
        self.database.put(batch, Family::Meta, APPLIED_KEY, &record);
    }

    /// If `staged` is set, copies the staged records to their final keys. Then clears `staged` and the staging area.
    pub(crate) fn settle(&self) -> io::Result<()> {
        if self.is_settled.load(Ordering::Acquire) {
            return Ok(());
        }
        let applied = self.database.get(Family::Meta, APPLIED_KEY)?;
        let applied = applied.map(|record| record::open(Family::Meta, APPLIED_KEY, record));
        let applied: Option<pb::AppliedRecord> =
            applied.transpose().map_err(|error| io::Error::other(error.to_string()))?;
        if let Some(applied) = applied.filter(|applied| applied.staged) {
            let mut output = Output::new(&self.database, self.generation(), Pieces::Several);
            for item in staged(&self.database) {
                let (family, key, record) = item?;
                let record = (!record.is_empty()).then_some(&record[..]);
                output.add(Edit { place: Place::State, family, key: &key, record });
            }
            let mut batch = output.finish()?;
            clear(&self.database, &mut batch, STAGING);
            self.put_applied(&mut batch, pb::AppliedRecord { staged: false, ..applied });
            self.database.write(batch)?;
        }
        self.is_settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes the records of another image under a new generation. The last batch makes it the current generation,
    /// and deletes the previous one.
    pub(crate) fn install(&self, image: &Image, progress: &Progress) -> io::Result<()> {
        let old = self.generation();
        let new = if old + 1 < CONTENT { old + 1 } else { 0 };
        let database = &self.database;
        let mut batch = Batch::default();
        let mut bytes = 0;
        // An interrupted attempt may have left records of the new generation.
        clear(database, &mut batch, new);
        for Record { family, key, record } in image.records() {
            bytes += key.len() + record.len();
            database.put(&mut batch, family, &state_key(new, &key), &record);
            if bytes > BATCH_BYTES {
                database.write(std::mem::take(&mut batch))?;
                progress.add(std::mem::take(&mut bytes));
            }
        }
        self.put_applied(&mut batch, image.applied_to_proto(new));
        let _purging = database.purging.lock();
        if let Some(id) = &image.applied {
            // Raft purges the log up to this position later. A replica that restarts before must not
            // require these entries.
            let (key, record) = purged_record(id);
            database.put(&mut batch, Family::Meta, key, &record);
        }
        clear(database, &mut batch, old);
        clear(database, &mut batch, STAGING);
        database.write(batch)?;
        progress.add(bytes);
        database.sync()?;
        self.generation.store(new, Ordering::Release);
        self.is_settled.store(true, Ordering::Release);
        *self.deleted.lock() = DeletedContent::default();
        Ok(())
    }
}

/// Deletes the records of a generation.
fn clear(database: &Database, batch: &mut Batch, generation: u32) {
    let from = generation.to_be_bytes().to_vec();
    // The last generation has no successor, so the range ends after its keys.
    let to = match generation.checked_add(1) {
        Some(next) => next.to_be_bytes().to_vec(),
        None => vec![u8::MAX; 5],
    };
    for family in FAMILIES {
        database.delete_range(batch, family, &from, &to);
    }
}

/// Deletes the records that revisions up to `upto` replaced.
fn delete_content(database: &Database, batch: &mut Batch, upto: Revision) {
    let next = Revision(upto.0.saturating_add(1));
    for (from, to) in tables().into_iter().zip([revision_key(next), records_key(next)]) {
        let (from, to) = (state_key(CONTENT, &from), state_key(CONTENT, &to));
        database.delete_range(batch, Family::History, &from, &to);
    }
}

/// A batch under construction. Writes full pieces by itself.
struct Output<'a> {
    database: &'a Database,
    generation: u32,
    pieces: Pieces,
    batch: Batch,
    /// The size of the batch.
    bytes: usize,
    key: Vec<u8>,
    /// The first error, after which nothing is written.
    error: Option<io::Error>,
}

impl<'a> Output<'a> {
    fn new(database: &'a Database, generation: u32, pieces: Pieces) -> Self {
        Self {
            database,
            generation,
            pieces,
            batch: Batch::default(),
            bytes: 0,
            key: Vec::new(),
            error: None,
        }
    }

    /// Content is never staged: writing it again, after a crash, changes nothing.
    fn add(&mut self, Edit { place, family, key, record }: Edit<'_>) {
        let generation = match place {
            Place::State => self.generation,
            Place::Content => CONTENT,
        };
        put_state_key(&mut self.key, generation, key);
        let batch = &mut self.batch;
        match record {
            Some(record) => self.database.put(batch, family, &self.key, record),
            None if generation == STAGING => self.database.put(batch, family, &self.key, &[]),
            None => self.database.delete(batch, family, &self.key),
        }
        self.bytes += self.key.len() + record.map_or(0, <[u8]>::len);
        if self.pieces == Pieces::Several && self.bytes >= PIECE_BYTES {
            self.bytes = 0;
            let piece = std::mem::take(&mut self.batch);
            if self.error.is_none() {
                let written = self.database.write(piece).and_then(|()| self.database.sync());
                self.error = written.err();
            }
        }
    }

    /// Returns the batch of the records that are not written yet.
    fn finish(self) -> io::Result<Batch> {
        match self.error {
            None => Ok(self.batch),
            Some(error) => Err(error),
        }
    }
}
