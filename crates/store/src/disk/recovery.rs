//! Reads a database when a replica starts, and checks that it is complete.
//!
//! RocksDB checks blocks and WAL records. However, it ends the replay of the WAL at the first
//! damage, and does not know what was acknowledged. So this module reads all of the log and the
//! state before anything is changed. It compares them with each other and with the high-water mark:
//! - every record: its own checksum, which covers its key;
//! - the log: no gap between the purge position and the last entry, and terms that never decrease;
//! - the log and the vote: not behind the high-water mark;
//! - the state: number and sum of its records, history without gaps, applied position within the
//!   log;
//! - all of it: the cluster is the one in `IDENTITY`.
//!
//! Entries beyond the high-water mark were never acknowledged. A power cut may lose them.

use std::{collections::BTreeMap, io, path::Path};

use bytes::Bytes;
use chancery_model::Revision;
use chancery_raft_proto::v1 as pb;
use prost::Message;

use crate::{
    OpenError, OpenProgress,
    disk::{
        database::{Access, Database, Deleted},
        directory::{Directory, damaged},
        effect::{Edit, Place},
        high_water::Mark,
        image::Image,
        loader::Loader,
        log::Ends,
        log_size::LogSize,
        state_writer::{Staged, staged},
        tally::Tally,
        wal::{self, WrongType},
    },
    format::{
        content::{CONTENT, Replaced, revision_key},
        identity::Identity,
        keys::{APPLIED_KEY, PURGED_KEY, VOTE_KEY, state_key},
        raft::{LogId, Vote, term_of},
        raft_codec::{
            entry_from_stored, entry_record_len, log_id_from_proto, log_key, vote_from_proto,
            vote_to_proto,
        },
        record::{self, Family},
    },
};

/// The content of a complete database.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) ends: Ends,
    pub(crate) size: LogSize,
    pub(crate) image: Image,
    pub(crate) generation: u32,
}

/// Reads and checks a database without changing it, then opens it for writing.
pub(crate) fn recover(
    directory: &Directory,
    identity: Identity,
    mark: Mark,
    progress: &OpenProgress,
) -> Result<(Database, Recovered), OpenError> {
    let (database, recovered) = read_reporting(directory, identity, mark, progress)?;
    let root = directory.path();
    let seen = Reader { root, database: &database, progress }.fingerprint()?;
    drop(database);
    let database = open(root, &directory.database(), Access::ReadWrite)?;
    if (Reader { root, database: &database, progress }).fingerprint()? != seen {
        let detail = "it had another log or state when opened for writing than when read";
        return Err(damaged(root, "the database", detail));
    }
    Ok((database, recovered))
}

/// Reads and checks a database without changing it.
pub(crate) fn read(
    directory: &Directory,
    identity: Identity,
    mark: Mark,
) -> Result<(Database, Recovered), OpenError> {
    read_reporting(directory, identity, mark, &OpenProgress::default())
}

/// Reads and checks a database as [`read`] does, and reports the progress.
pub(crate) fn read_reporting(
    directory: &Directory,
    identity: Identity,
    mark: Mark,
    progress: &OpenProgress,
) -> Result<(Database, Recovered), OpenError> {
    let path = directory.database();
    let root = directory.path();
    let wrong = wal::check(&path).map_err(|source| OpenError::Io {
        what: "read the log files in",
        path: path.clone(),
        source,
    })?;
    if let Some(WrongType { path, offset, found }) = wrong {
        let what = format!("the log file {}", path.display());
        let detail = format!(
            "the record at byte {offset} has type {found}, of a recycled file, but files are never recycled"
        );
        return Err(damaged(root, &what, detail));
    }
    let database = open(root, &path, Access::ReadOnly)?;
    let recovered = Reader { root, database: &database, progress }.read_all(identity, mark)?;
    Ok((database, recovered))
}

/// Applies the log entries beyond the applied position to an image, only in memory. Returns the records that their
/// revisions replaced, by key.
pub(crate) fn apply_rest(
    root: &Path,
    database: &Database,
    image: &mut Image,
) -> Result<BTreeMap<Bytes, Bytes>, OpenError> {
    let wrong = |index: u64, error: &dyn std::fmt::Display| {
        damaged(root, "the log", format!("entry {index}: {error}"))
    };
    let mut replaced = BTreeMap::new();
    let first = image.applied.map_or(0, |id| id.index + 1);
    // The log has no gaps: it was checked before.
    let from = log_key(first);
    let entries = database.scan(Family::Log, &from, None, Deleted::Skip);
    for (index, item) in (first..).zip(entries) {
        let (_, record) = item.map_err(|error| wrong(index, &error))?;
        let entry = entry_from_stored(index, record).map_err(|error| wrong(index, &error))?;
        let mut keep = |edit: Edit<'_>| {
            if let (Place::Content, Some(record)) = (edit.place, edit.record) {
                let [key, record] = [edit.key, record].map(Bytes::copy_from_slice);
                replaced.insert(key, record);
            }
        };
        image.apply_entry(entry, &mut keep).map_err(|error| wrong(index, &error))?;
    }
    Ok(replaced)
}

fn open(root: &Path, path: &Path, access: Access) -> Result<Database, OpenError> {
    Database::open(path, access).map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::Other => {
            OpenError::Io { what: "open the database in", path: path.to_owned(), source }
        }
        _ => damaged(root, "the database", source),
    })
}

/// Reads a database, and reports damage with its place.
struct Reader<'a> {
    root: &'a Path,
    database: &'a Database,
    progress: &'a OpenProgress,
}

impl Reader<'_> {
    fn damaged(&self, what: &str, detail: impl ToString) -> OpenError {
        damaged(self.root, what, detail)
    }

    fn meta<M: Message + Default>(&self, key: &[u8]) -> Result<Option<M>, OpenError> {
        let what = || format!("the record {:?}", String::from_utf8_lossy(key));
        let found = self.database.get(Family::Meta, key);
        let Some(record) = found.map_err(|error| self.damaged(&what(), error))? else {
            return Ok(None);
        };
        let message = record::open(Family::Meta, key, record);
        message.map(Some).map_err(|error| self.damaged(&what(), error))
    }

    /// Returns the last key of the log, and the records of the vote, the purge position and the
    /// applied position.
    fn fingerprint(&self) -> Result<Vec<Option<Bytes>>, OpenError> {
        let wrong = |error: io::Error| self.damaged("the database", error);
        let last = self.database.last_key(Family::Log).map_err(wrong)?;
        let mut fingerprint = vec![last];
        for key in [VOTE_KEY, PURGED_KEY, APPLIED_KEY] {
            fingerprint.push(self.database.get(Family::Meta, key).map_err(wrong)?);
        }
        Ok(fingerprint)
    }

    fn read_all(&self, identity: Identity, mark: Mark) -> Result<Recovered, OpenError> {
        // The start itself writes a vote, which may cause a compaction. Damage that only a
        // compaction would show must be found before that.
        self.check_dead(Family::Meta, &[], None)?;
        let vote: Option<pb::Vote> = self.meta(VOTE_KEY)?;
        let vote = vote.as_ref().map(vote_from_proto);
        self.check_vote(vote, mark.vote)?;
        let purged: Option<pb::PurgedRecord> = self.meta(PURGED_KEY)?;
        let purged = purged.and_then(|record| record.id).as_ref().map(log_id_from_proto);
        let applied: pb::AppliedRecord = match self.meta(APPLIED_KEY)? {
            Some(applied) => applied,
            // A replica that has joined may end before the first entry or snapshot arrives. If the
            // record was lost together with a state, the loader finds more state records than
            // expected.
            None if purged.is_none() => Image::new().applied_to_proto(0),
            None => {
                let detail = "it is missing, and with it the description of the state";
                return Err(self.damaged("the record \"applied\"", detail));
            }
        };
        let applied_id = applied.id.as_ref().map(log_id_from_proto);
        self.progress.on_reading(self.records(purged, &applied)?);
        let (ends, size) = self.read_log(
            Ends { purged, last: None, vote },
            &[
                ("was acknowledged, according to the high-water mark", mark.last),
                ("was applied, according to the state", applied_id),
            ],
        )?;
        if applied_id.map(|id| id.index) < purged.map(|id| id.index) {
            return Err(self.damaged(
                "the state",
                format!(
                    "it is applied up to {}, but the log is purged up to {}",
                    show(applied_id),
                    show(purged)
                ),
            ));
        }
        let generation = applied.generation;
        let image = self.read_state(applied)?;
        // The first entries of a log precede the entry that names the cluster. They leave no
        // records.
        let is_unnamed = image.cluster_id.is_none() && image.computed.tally == Tally::default();
        if !is_unnamed
            && (image.cluster_id != Some(identity.cluster_id)
                || image.state.incarnation != identity.incarnation)
        {
            let found = image.cluster_id.map_or("none".to_owned(), hex::encode);
            return Err(self.damaged(
                "the state",
                format!(
                    "it belongs to cluster {found}, incarnation {}, not to {}, incarnation {}",
                    image.state.incarnation.0,
                    hex::encode(identity.cluster_id),
                    identity.incarnation.0
                ),
            ));
        }
        Ok(Recovered { ends, size, image, generation })
    }

    /// Returns the number of records of the log and the state.
    fn records(
        &self,
        purged: Option<LogId>,
        applied: &pb::AppliedRecord,
    ) -> Result<u64, OpenError> {
        let last = self.database.last_key(Family::Log);
        let last = last.map_err(|error| self.damaged("the log", error))?;
        // The check of the log reports an invalid key.
        let last = last.and_then(|key| key.as_ref().try_into().ok()).map(u64::from_be_bytes);
        let next = purged.map_or(0, |id| id.index + 1);
        let entries = last.map_or(0, |last| last.saturating_add(1).saturating_sub(next));
        Ok(entries.saturating_add(applied.records))
    }

    fn check_vote(&self, found: Option<Vote>, mark: Option<Vote>) -> Result<(), OpenError> {
        let Some(mark) = mark else { return Ok(()) };
        let what = "the vote";
        let (mark, found) = (vote_to_proto(&mark), found.as_ref().map(vote_to_proto));
        match found {
            None => Err(self.damaged(
                what,
                format!("it is missing, but a vote of term {} was acknowledged", mark.term),
            )),
            Some(found) if found.term < mark.term => Err(self.damaged(
                what,
                format!(
                    "it is of term {}, but a vote of term {} was acknowledged",
                    found.term, mark.term
                ),
            )),
            Some(found)
                if found.term == mark.term
                    && (found.replica_id != mark.replica_id
                        || (mark.committed && !found.committed)) =>
            {
                Err(self.damaged(
                    what,
                    format!(
                        "in term {} it is for replica {}, but a vote for replica {} was acknowledged",
                        found.term, found.replica_id, mark.replica_id
                    ),
                ))
            }
            Some(_) => Ok(()),
        }
    }

    /// Reads the log. Each entry of `known` must be in the log, or purged.
    fn read_log(
        &self,
        mut ends: Ends,
        known: &[(&str, Option<LogId>)],
    ) -> Result<(Ends, LogSize), OpenError> {
        let what = "the log";
        let mut size = LogSize::default();
        let mut next = ends.purged.map_or(0, |id| id.index + 1);
        let mut term = ends.purged.map_or(0, |id| term_of(&id));
        let check = |id: LogId| match known
            .iter()
            .find(|(_, known)| known.is_some_and(|known| known.index == id.index && known != id))
        {
            None => Ok(()),
            Some((why, known)) => Err(self
                .damaged(what, format!("it has {}, but {} {why}", show(Some(id)), show(*known)))),
        };
        if let Some(purged) = ends.purged {
            check(purged)?;
        }
        self.check_dead(Family::Log, &[], Some(&log_key(next)))?;
        for item in self.database.scan(Family::Log, &log_key(next), None, Deleted::Skip) {
            let (key, record) = item.map_err(|error| {
                self.damaged(what, format!("cannot read entry {next}: {error}"))
            })?;
            let index = <[u8; 8]>::try_from(&key[..]).map(u64::from_be_bytes).map_err(|_| {
                self.damaged(what, format!("it contains the invalid key {}", hex::encode(key)))
            })?;
            if index != next {
                let detail = format!("entries {next} to {} are missing", index - 1);
                return Err(self.damaged(what, detail));
            }
            self.progress.on_read();
            let entry = entry_from_stored(index, record)
                .map_err(|error| self.damaged(what, format!("entry {index}: {error}")))?;
            size.append(index, entry_record_len(&entry));
            let id = entry.log_id;
            if term_of(&id) < term {
                let detail = format!(
                    "entry {index} has term {}, less than the term {term} before it",
                    term_of(&id)
                );
                return Err(self.damaged(what, detail));
            }
            check(id)?;
            (term, next) = (term_of(&id), index + 1);
            ends.last = Some(id);
        }
        for (why, known) in known {
            if known.is_some_and(|known| known.index >= next) {
                let detail = format!(
                    "it ends at {}, but {} {why}",
                    show(ends.last_or_purged()),
                    show(*known)
                );
                return Err(self.damaged(what, detail));
            }
        }
        Ok((ends, size))
    }

    /// Reads records that the state does not need: deleted ones, and what revisions replaced. An unreadable block would
    /// stop the replica at a later compaction.
    fn check_dead(&self, family: Family, from: &[u8], to: Option<&[u8]>) -> Result<(), OpenError> {
        for item in self.database.scan(family, from, to, Deleted::Read) {
            item.map_err(|error| {
                self.damaged(
                    "the database",
                    format!("the records of {} beside the state: {error}", family.name()),
                )
            })?;
        }
        Ok(())
    }

    /// Reads the staged records, which replace the records at their final keys.
    fn read_staged(&self) -> Result<Staged, OpenError> {
        let records = staged(self.database).map(|item| {
            item.map(|(family, key, record)| ((family, key), record))
                .map_err(|error| self.damaged("the staged state", error))
        });
        records.collect()
    }

    fn read_state(&self, applied: pb::AppliedRecord) -> Result<Image, OpenError> {
        let what = "the state";
        let generation = applied.generation;
        let from = state_key(generation, &[]);
        let to = generation.checked_add(1).map(|next| state_key(next, &[]));
        for family in [Family::Index, Family::Resources, Family::History] {
            self.check_dead(family, &[], Some(&from))?;
            if let Some(to) = &to {
                self.check_dead(family, to, None)?;
            }
        }
        let staged = if applied.staged { self.read_staged()? } else { Staged::default() };
        let mut loader = Loader::default();
        for family in [Family::Index, Family::Resources, Family::History] {
            let placed = self.database.scan(family, &from, to.as_deref(), Deleted::Skip);
            let placed =
                placed.map(|item| item.map(|(key, record)| (key.slice(from.len()..), record)));
            let of_family =
                staged.iter().filter(|((of, _), record)| *of == family && !record.is_empty());
            let moved = of_family.map(|((_, key), record)| Ok((key.clone(), record.clone())));
            let is_replaced = |key: &Bytes| staged.contains_key(&(family, key.clone()));
            let placed =
                placed.filter(|item| !item.as_ref().is_ok_and(|(key, _)| is_replaced(key)));
            for item in placed.chain(moved) {
                let (key, record) = item
                    .map_err(|error| self.damaged(what, format!("{}: {error}", family.name())))?;
                loader.add(family, &key, record).map_err(|error| self.damaged(what, error))?;
                self.progress.on_read();
            }
        }
        self.read_replaced(&mut loader, Revision(applied.content_from))?;
        loader.finish(applied).map_err(|error| self.damaged(what, error))
    }

    /// Reads the sizes of what revisions after `from` replaced. The checksums of the records themselves are verified when
    /// the records are needed.
    fn read_replaced(&self, loader: &mut Loader, from: Revision) -> Result<(), OpenError> {
        let what = "the content of earlier revisions";
        let [from, end] =
            [Revision(from.0.saturating_add(1)), Revision(u64::MAX)].map(revision_key);
        let (from, end) = (state_key(CONTENT, &from), state_key(CONTENT, &end));
        for item in self.database.scan(Family::History, &from, Some(&end), Deleted::Skip) {
            let (key, record) = item.map_err(|error| self.damaged(what, error))?;
            let replaced = Replaced::open(&key[size_of_val(&CONTENT)..], record);
            loader.add_replaced(replaced.map_err(|error| self.damaged(what, error))?);
        }
        Ok(())
    }
}

fn show(id: Option<LogId>) -> String {
    match id {
        Some(id) => format!("entry {} of term {}", id.index, term_of(&id)),
        None => "no entry".to_owned(),
    }
}
