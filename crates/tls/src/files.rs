//! PEM files: certificates, keys and revocation lists, with bounds, and the detection of changes.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use x509_parser::{prelude::FromDer, revocation_list::CertificateRevocationList};

use crate::error::{TlsError, TlsFile};

/// The maximum size of a PEM file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum size of a file with revocation lists. An entry takes about 40 bytes.
const CRL_BYTES_MAX: u64 = 64 << 20;
/// The permissions of a key file that nobody except its owner and group needs: all of others, and writing
/// by the group.
const KEY_MODE_EXCESS: u32 = 0o027;

/// Inode, modification time and length of each file, which detect a replaced file. A symbolic link counts
/// as the file to which it leads: Kubernetes replaces the files of a secret by one change of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Option<(u64, i64, i64, u64)>>);

impl Stamp {
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let stamp = |path: &PathBuf| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
        };
        Self(paths.into_iter().map(stamp).collect())
    }
}

/// Reads the certificates of a file, of which there is at least one.
pub(crate) fn read_certificates(
    what: TlsFile,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    check_file(what, path, FILE_BYTES_MAX)?;
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| not_pem(what, path, error))?;
    if certificates.is_empty() {
        Err(unreadable(what, path, "it contains no PEM certificate"))
    } else {
        Ok(certificates)
    }
}

/// Reads a private key. The log warns about a file that other users can read.
pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let metadata = check_file(TlsFile::Key, path, FILE_BYTES_MAX)?;
    let mode = metadata.mode() & 0o777;
    if mode & KEY_MODE_EXCESS != 0 {
        let path = path.display();
        tracing::warn!(%path, "other users can read or change a private key; its mode is {mode:o}, use 600 or 640");
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| not_pem(TlsFile::Key, path, error))
}

/// Reads the revocation lists of a file, of which there is at least one. The log warns about outdated
/// ones.
pub(crate) fn read_crls(
    path: &Path,
    now: i64,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    check_file(TlsFile::Crl, path, CRL_BYTES_MAX)?;
    let lists: Vec<_> = CertificateRevocationListDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| not_pem(TlsFile::Crl, path, error))?;
    if lists.is_empty() {
        return Err(unreadable(
            TlsFile::Crl,
            path,
            "it contains no PEM revocation list (X509 CRL)",
        ));
    }
    for list in &lists {
        let (_, list) = CertificateRevocationList::from_der(list)
            .map_err(|error| unreadable(TlsFile::Crl, path, error))?;
        if list.next_update().is_some_and(|next| next.timestamp() < now) {
            let (path, issuer) = (path.display(), list.issuer().to_string());
            tracing::warn!(%path, ?issuer, "a revocation list is outdated: the time of its next update has passed");
        }
    }
    Ok(lists)
}

pub(crate) fn unreadable(what: TlsFile, path: &Path, error: impl ToString) -> TlsError {
    TlsError::File { what, path: path.to_owned(), reason: error.to_string() }
}

fn not_pem(what: TlsFile, path: &Path, error: pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => unreadable(what, path, error),
        pem::Error::NoItemsFound => unreadable(what, path, format!("it contains no PEM {what}")),
        // The error would print the content of the file, which may be the key.
        _ => unreadable(what, path, "it is not valid PEM"),
    }
}

/// Fails if `path` is not a regular file of a plausible size. A pipe would block the reader, and a device
/// may have no end.
fn check_file(what: TlsFile, path: &Path, bytes_max: u64) -> Result<fs::Metadata, TlsError> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(what, path, error))?;
    if !metadata.is_file() {
        return Err(unreadable(what, path, "it is not a regular file"));
    }
    if metadata.len() > bytes_max {
        return Err(unreadable(what, path, format!("it has more than {bytes_max} bytes")));
    }
    Ok(metadata)
}
