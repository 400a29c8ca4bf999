//! RocksDB: one database, one write-ahead log (WAL), and a column family for each kind of record.
//!
//! Invariants:
//! - All writes go through one WAL, in the order in which they are made. A crash therefore leaves a
//!   prefix of them, across all families.
//! - [`Database::sync`] makes all earlier writes durable.

use std::{io, path::Path};

use bytes::Bytes;
use parking_lot::Mutex;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRecoveryMode, Direction, FlushOptions, IteratorMode, LogLevel, Options, ReadOptions,
    WriteBatch,
    properties::{self, PropName},
};
use rustix::process::{Resource, getrlimit};

use crate::format::record::Family;

const MIB: usize = 1 << 20;

/// The size of the data of all families in memory above which a write starts a flush to tables, in
/// bytes.
pub(crate) const WRITE_BUFFERS_BYTES: usize = 24 * MIB;

/// The maximum number of memtables of a family. [`WRITE_BUFFERS_BYTES`] limits their size long before.
const MEMTABLES_MAX: i32 = 8;

/// The minimum and the maximum number of open tables.
const TABLE_FILES_LEAST: u64 = 32;
const TABLE_FILES_MAX: u64 = 512;

/// Returns the maximum number of tables that the store keeps open in a process with this limit of open files.
#[must_use]
pub fn table_files_max(limit: Option<u64>) -> u32 {
    let files = limit.unwrap_or(u64::MAX) / 8;
    let files = files.clamp(TABLE_FILES_LEAST, TABLE_FILES_MAX);
    u32::try_from(files).expect("it is at most TABLE_FILES_MAX")
}

/// The mode in which a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The database must not exist.
    Create,
    /// The database must exist. Opening it changes nothing, so that a damaged database stays as it
    /// is.
    ReadOnly,
    /// The database must exist.
    ReadWrite,
}

/// An open database. A thread that owns the last handle must be joined before the process ends:
/// RocksDB must not be closed while the process runs its static destructors.
pub(crate) struct Database {
    db: DB,
    /// Held by code that changes the purge position, from reading the position until it is written.
    pub(crate) purging: Mutex<()>,
    #[cfg(test)]
    pub(crate) fail_points: crate::failpoint::FailPoints,
}

/// Whether a scan returns records that a range deletion has deleted, but no compaction has dropped
/// yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// The scan skips these records.
    Skip,
    /// The scan returns these records.
    Read,
}

/// Writes that take effect together.
#[derive(Default)]
pub(crate) struct Batch(WriteBatch);

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("bytes", &self.0.size_in_bytes()).finish()
    }
}

fn io_error(error: rocksdb::Error) -> io::Error {
    let kind = match error.kind() {
        _ if error.as_ref().contains("No space left on device") => io::ErrorKind::StorageFull,
        // An expected file is missing or too short.
        _ if error.as_ref().contains("No such file or directory") => io::ErrorKind::NotFound,
        rocksdb::ErrorKind::IOError => io::ErrorKind::Other,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error.into_string())
}

fn database_options(access: Access) -> Options {
    let mut options = Options::default();
    options.create_if_missing(access == Access::Create);
    options.create_missing_column_families(access == Access::Create);
    options.set_error_if_exists(access == Access::Create);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(2);
    options.set_log_level(LogLevel::Warn);
    let limit = getrlimit(Resource::Nofile).current;
    options.set_max_open_files(i32::try_from(table_files_max(limit)).unwrap_or(i32::MAX));
    // Bounds the WAL that a restart replays and, with the memtables, the data that is not yet in
    // tables.
    options.set_max_total_wal_size(128 * MIB as u64);
    options.set_db_write_buffer_size(WRITE_BUFFERS_BYTES);
    // The kernel begins to write a large batch while RocksDB still appends it, so that its sync waits for less.
    options.set_wal_bytes_per_sync(MIB as u64);
    // A tail that was never synced is normal after a power cut; replay ends there. The high-water
    // mark decides whether the log lacks an acknowledged entry (`crate::recovery`).
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_atomic_flush(true);
    options
}

fn family_options(family: Family, cache: &Cache) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_format_version(6);
    table.set_block_cache(cache);
    table.set_block_size(16 << 10);
    let mut options = Options::default();
    // A large change fills several memtables at once. RocksDB would stop all writes, including those of the log,
    // until the second one is in a table.
    options.set_max_write_buffer_number(MEMTABLES_MAX);
    match family {
        Family::Log => {
            // The log is read once, in order, soon after it was written.
            options.set_write_buffer_size(8 * MIB);
            options.set_compression_type(DBCompressionType::None);
        }
        Family::Resources => {
            table.set_bloom_filter(10.0, false);
            options.set_write_buffer_size(8 * MIB);
            options.set_compression_type(DBCompressionType::Lz4);
        }
        Family::History => {
            table.set_bloom_filter(10.0, false);
            options.set_write_buffer_size(4 * MIB);
            options.set_compression_type(DBCompressionType::Lz4);
        }
        Family::Index | Family::Meta => {
            options.set_write_buffer_size(4 * MIB);
            options.set_compression_type(DBCompressionType::Lz4);
        }
    }
    options.set_block_based_table_factory(&table);
    options
}

impl Database {
    /// Opens the database in the directory `path`.
    pub(crate) fn open(path: &Path, access: Access) -> io::Result<Self> {
        let options = database_options(access);
        // The state is held in memory and the database is rarely read, so a small block cache
        // suffices.
        let cache = Cache::new_lru_cache(8 * MIB);
        let families = Family::ALL.map(|family| {
            ColumnFamilyDescriptor::new(family.name(), family_options(family, &cache))
        });
        let db = match access {
            Access::ReadOnly => DB::open_cf_descriptors_read_only(&options, path, families, false),
            Access::Create | Access::ReadWrite => DB::open_cf_descriptors(&options, path, families),
        };
        Ok(Self {
            db: db.map_err(io_error)?,
            purging: Mutex::new(()),
            #[cfg(test)]
            fail_points: crate::failpoint::FailPoints::default(),
        })
    }

    fn family(&self, family: Family) -> &ColumnFamily {
        self.db.cf_handle(family.name()).expect("all families are opened with the database")
    }

    /// Adds a write to a batch.
    pub(crate) fn put(&self, batch: &mut Batch, family: Family, key: &[u8], record: &[u8]) {
        batch.0.put_cf(self.family(family), key, record);
    }

    /// Adds a deletion to a batch.
    pub(crate) fn delete(&self, batch: &mut Batch, family: Family, key: &[u8]) {
        batch.0.delete_cf(self.family(family), key);
    }

    /// Adds a deletion of all keys from `from` up to, not including, `to` to a batch. The deletion
    /// is cheap for any number of keys, but makes later reads across the range slower.
    pub(crate) fn delete_range(&self, batch: &mut Batch, family: Family, from: &[u8], to: &[u8]) {
        batch.0.delete_range_cf(self.family(family), from, to);
    }

    /// Makes a batch readable. The batch is durable only after the next [`Database::sync`].
    pub(crate) fn write(&self, batch: Batch) -> io::Result<()> {
        #[cfg(test)]
        {
            self.fail_points.pass(crate::failpoint::Point::Write)?;
            crate::failpoint::step(self.db.path(), crate::failpoint::Step::Change)?;
        }
        self.db.write(batch.0).map_err(io_error)
    }

    /// Makes all earlier writes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        {
            self.fail_points.pass(crate::failpoint::Point::Sync)?;
            crate::failpoint::step(self.db.path(), crate::failpoint::Step::Change)?;
        }
        self.db.flush_wal(true).map_err(io_error)?;
        #[cfg(test)]
        crate::failpoint::step(self.db.path(), crate::failpoint::Step::Synced)?;
        Ok(())
    }

    /// Returns the size of the data that is in memory and not yet in tables, in bytes. After a
    /// large write, the size exceeds [`WRITE_BUFFERS_BYTES`] until the next write.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        let of = |family| self.property(family, properties::CUR_SIZE_ALL_MEM_TABLES);
        Family::ALL.into_iter().map(of).sum()
    }

    /// Returns the size of the tables of a family in bytes, including deleted records that are
    /// still in them.
    pub(crate) fn table_bytes(&self, family: Family) -> u64 {
        self.property(family, properties::LIVE_SST_FILES_SIZE)
    }

    fn property(&self, family: Family, name: &PropName) -> u64 {
        let value = self.db.property_int_value_cf(self.family(family), name);
        value.ok().flatten().unwrap_or_default()
    }

    /// Writes the data in memory to tables, after which a new WAL begins. Blocks.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.db
            .flush_cfs_opt(&Family::ALL.map(|family| self.family(family)), &FlushOptions::default())
            .map_err(io_error)
    }

    /// Drops the deleted records of a family. Blocks.
    pub(crate) fn compact(&self, family: Family) {
        self.db.compact_range_cf(self.family(family), None::<&[u8]>, None::<&[u8]>);
    }

    /// Returns one record.
    pub(crate) fn get(&self, family: Family, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.db.get_cf(self.family(family), key).map_err(io_error)?.map(Bytes::from))
    }

    /// Returns the last key of a family.
    pub(crate) fn last_key(&self, family: Family) -> io::Result<Option<Bytes>> {
        let last = self.db.iterator_cf(self.family(family), IteratorMode::End).next();
        Ok(last.transpose().map_err(io_error)?.map(|(key, _)| key.into()))
    }

    /// Returns the records from `from` up to, not including, `to`, in key order. Verifies the
    /// checksums of their blocks.
    pub(crate) fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        deleted: Deleted,
    ) -> impl Iterator<Item = io::Result<(Bytes, Bytes)>> {
        let mut options = ReadOptions::default();
        // A scan reads each block once, and would only evict useful blocks from the cache.
        options.fill_cache(false);
        options.set_verify_checksums(true);
        #[expect(deprecated, reason = "used to read deleted records, not as a speed-up")]
        options.set_ignore_range_deletions(deleted == Deleted::Read);
        if let Some(to) = to {
            options.set_iterate_upper_bound(to.to_vec());
        }
        let mode = IteratorMode::From(from, Direction::Forward);
        self.db
            .iterator_cf_opt(self.family(family), options, mode)
            .map(|item| item.map(|(k, v)| (k.into(), v.into())).map_err(io_error))
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("path", &self.db.path()).finish()
    }
}
