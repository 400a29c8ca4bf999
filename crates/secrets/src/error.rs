//! The reasons why a key cannot be wrapped or unwrapped. No text contains a key or a part of a body.

use std::path::PathBuf;

use crate::{file::KeyFileError, key::SealError};

/// The reason why a KMS plugin did not wrap or unwrap a key.
#[derive(Debug, thiserror::Error)]
pub enum KmsError {
    /// The socket does not answer.
    #[error("cannot connect to the KMS plugin at `{}`: {source}; check secrets.kms_socket", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        source: tonic::transport::Error,
    },
    /// The plugin refused a call. Its text is not shown, because it may quote the request.
    #[error("the KMS plugin at `{}` failed in {method}: {code}; look at its log", path.display())]
    Call {
        /// The socket.
        path: PathBuf,
        /// The method of the KMS API, such as `Encrypt`.
        method: &'static str,
        /// The status of gRPC.
        code: tonic::Code,
    },
    /// The plugin is not healthy, or speaks another version of the API.
    #[error("the KMS plugin at `{}` is not usable: version {version:?}, health {healthz:?}", path.display())]
    Unhealthy {
        /// The socket.
        path: PathBuf,
        /// The version of the API.
        version: String,
        /// The health: `ok` if the plugin is healthy.
        healthz: String,
    },
}

/// The reason why a key was not wrapped or unwrapped.
#[derive(Debug, thiserror::Error)]
pub enum KekError {
    /// The key file cannot be used.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The KMS plugin did not answer as expected.
    #[error(transparent)]
    Kms(#[from] KmsError),
    /// Encryption or decryption failed.
    #[error("cannot encrypt or decrypt a key: {0}")]
    Seal(#[from] SealError),
    /// No source has the key.
    #[error(
        "no configured source has the key `{0}`; add it to the key file, or configure its source"
    )]
    Unknown(String),
    /// No source has a key that is still in memory.
    #[error(
        "no configured source has the key `{0}` now: the replica uses its copy in memory, and cannot open secrets after \
         a restart; add the key to the key file again, or run `chancery keys rewrap`"
    )]
    Lost(String),
    /// No source is configured.
    #[error("no key is configured; set secrets.key_file, secrets.credential or secrets.kms_socket")]
    None,
}
