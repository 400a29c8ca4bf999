//! Storage on one replica: the Raft log, the state machine, snapshots, recovery and backups.
//!
//! | module | content |
//! |---|---|
//! | `directory`, `high_water` | the data directory, and its files beside the database |
//! | `database`, `wal` | RocksDB, and a check of its files |
//! | `log`, `recent`, `flusher`, `log_size` | the Raft log; its newest entries in memory; the thread that writes and syncs it |
//! | `machine`, `preparer`, `ahead`, `published` | apply entries, large ones early; publish the state |
//! | `persister`, `state_writer` | write the records of the state |
//! | `image`, `effect` | the state as one value, and the effect of an entry |
//! | `records`, `tally`, `loader` | the records of the state |
//! | `opening` | the opening of sealed resources in memory |
//! | `kept`, `content_reader`, `part`, `past`, `earlier_content` | the records that revisions replaced: how long they are kept, how they are read, and their copies in snapshots |
//! | `snapshot`, `digest` | the encoding of a state, and its digest |
//! | `recovery`, `parts` | what is read and checked before Raft runs |
//! | `entry_check` | comparison of received entries with those in the log |
//! | `backup`, `restore` | a state in a file |
//! | `storage` | the storage of a running replica |
//! | `space` | the reserve of free disk space |

pub(crate) mod ahead;
pub(crate) mod apply_times;
pub(crate) mod backup;
pub(crate) mod content_reader;
pub(crate) mod database;
pub(crate) mod digest;
pub(crate) mod directory;
pub(crate) mod earlier_content;
pub(crate) mod effect;
pub(crate) mod entry_check;
pub(crate) mod flusher;
pub(crate) mod high_water;
pub(crate) mod image;
pub(crate) mod kept;
pub(crate) mod loader;
pub(crate) mod log;
pub(crate) mod log_size;
pub(crate) mod machine;
pub(crate) mod opening;
pub(crate) mod part;
pub(crate) mod parts;
pub(crate) mod past;
pub(crate) mod persister;
pub(crate) mod preparer;
pub(crate) mod probe;
pub(crate) mod progress;
pub(crate) mod published;
pub(crate) mod recent;
pub(crate) mod recent_changes;
pub(crate) mod records;
pub(crate) mod recovery;
pub(crate) mod restore;
pub(crate) mod snapshot;
pub(crate) mod space;
pub(crate) mod state_writer;
pub(crate) mod storage;
pub(crate) mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod wal;
