//! The section `[store]`: the data directory and the limits of the store.

use std::path::PathBuf;

use super::{
    bounds::{GIB, HOUR, KIB, MIB, MINUTE, SECOND, bytes, count, time},
    section::section,
    units::{ByteSize, Span},
};

section! {
    /// The section `[store]`: the data directory and the limits of the store.
    pub struct Store {
        let store = chancery_store::Config::default();

        /// The directory of the replica's data. Only one process at a time can use it.
        data_dir: PathBuf = "./chancery-data".into();
        /// The replica takes a snapshot after this number of log entries.
        snapshot_log_entries: u64 = store.snapshot_log_entries, count(1, 100_000_000);
        /// The replica also takes a snapshot after this many bytes of log entries.
        snapshot_log_bytes: ByteSize = ByteSize::new(store.snapshot_log_bytes),
            bytes(64 * KIB, 64 * GIB);
        /// A leader rejects writes that would leave less free space than this on its disk, and
        /// transfers leadership to a voter with more space. 0 disables the check.
        free_bytes_min: ByteSize = ByteSize::new(store.free_bytes_min),
            bytes(64 * MIB, 1024 * 1024 * GIB).or_zero();
        /// The maximum number of revisions whose replaced content the history keeps. The limits of the leader apply to
        /// all replicas.
        history_revisions: u64 = store.retention.revisions, count(1, 10_000);
        /// The maximum size of the replaced content, before compression. The history always keeps the content that the
        /// newest revision replaced.
        history_bytes: ByteSize = ByteSize::new(store.retention.bytes), bytes(0, 1024 * 1024 * GIB);
        /// The maximum age of such a revision, checked at each new revision. 0 disables the limit.
        history_age: Span = Span::new(store.retention.age), time(MINUTE, 10 * 365 * 24 * HOUR).or_zero();
        /// The maximum size of a transaction: the sum of its encoded resources. All replicas need
        /// the same value; raise it on all of them before a larger transaction is sent.
        // One transaction can publish a scope of 100,000 resources of 1 KB with --prune.
        transaction_bytes_max: ByteSize = ByteSize::mib(256), bytes(64 * KIB, GIB);
        /// A write that is not committed within this time fails.
        transact_timeout: Span = Span::new(store.transact_timeout), time(100, 10 * MINUTE);
        /// The maximum time of a start to form a new cluster, or to apply what the only voter has
        /// committed. Reading the data has no limit.
        open_timeout: Span = Span::new(store.open_timeout), time(SECOND, 24 * HOUR);
    }
}
