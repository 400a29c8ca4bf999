//! Sealing of secrets at rest.
//!
//! A replica that takes a write encrypts the bodies with secrets before they enter the log. Logs, databases, snapshots,
//! backups and calls between replicas therefore contain them in encrypted form only. Each replica opens them in memory.
//!
//! | key | encrypts | where it is |
//! |---|---|---|
//! | key-encryption key (KEK) | data keys, the key of digests | outside: a file, a systemd credential, a KMS plugin |
//! | data key | bodies, each with a key that is derived for it | in the replicated state, wrapped by a KEK |
//! | key of digests | nothing; it makes digests of bodies | in the replicated state, wrapped by a KEK |
//!
//! [`Secrets`] is what a replica has: the source of the KEK, and the unwrapped keys.
//!
//! Invariants:
//! - A sealed body opens only with the same cluster keys, scope, type, name and data key as when it was sealed.
//! - No error, log message or metric contains a key or a part of a body. Keys are overwritten when they are dropped.
//! - Nothing here decides what a transaction does: the state knows sealed bodies by their digests only.

mod cipher;
mod error;
mod file;
mod kek;
mod key;
mod kms;
mod metrics;
mod ring;
mod secrets;

pub use error::{KekError, KmsError};
pub use file::KeyFileError;
pub use kek::KekSource;
pub use key::SealError;
pub use metrics::{METRICS, register_metrics};
pub use secrets::{Finder, KeyStatus, KeysError, Secrets};
