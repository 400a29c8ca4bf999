//! The UNIX socket of the admin port. The kernel says which user is at the other end of a connection.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream as BlockingStream,
    },
    path::{Path, PathBuf},
};

use chancery_auth::TransportPeer;
use chancery_net::Listener;
use tokio::net::{UnixListener, UnixStream};

use super::listen::{Failed, Opened, Opener};
use crate::Failure;

/// The permissions of the socket: its owner and root may connect.
const MODE: u32 = 0o600;

/// A bound socket. Dropping it removes its file.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// Binds the socket. Replaces the file of a socket on which nobody listens. The file has its permissions from the
/// start, because it gets its name after them.
///
/// # Errors
/// Fails if another process listens on the socket, or the path is another file.
pub(super) fn bind(path: &Path) -> Result<Socket, Failure> {
    let failed = |reason: &dyn std::fmt::Display| {
        let path = path.display();
        Failure::new(format_args!("cannot listen on {path} (admin.socket): {reason}"))
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(failed(
                &"the path is a file that is not a socket; remove it, or choose another path",
            ));
        }
        Ok(_) if BlockingStream::connect(path).is_ok() => {
            return Err(failed(
                &"another process listens on it; stop that process, or choose another path",
            ));
        }
        Ok(_) => {}
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    let bound = || {
        drop(fs::remove_file(&new));
        let listener = UnixListener::bind(&new)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(MODE))?;
        fs::rename(&new, path)?;
        Ok(listener)
    };
    let listener = bound().map_err(|error: io::Error| failed(&error))?;
    Ok(Socket { listener, path: path.to_owned() })
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

impl Listener for Socket {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        Listener::accept(&self.listener).await
    }
}

/// The opener of connections to a UNIX socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnixUsers;

impl Opener for UnixUsers {
    type Accepted = UnixStream;
    type Stream = UnixStream;

    async fn open(&self, stream: UnixStream, _: SocketAddr) -> Result<Opened<UnixStream>, Failed> {
        // A connection without a user would be anonymous: its credential would be ignored.
        let user = stream.peer_cred()?.uid();
        Ok(Opened { stream, peer: Some(TransportPeer::UnixUser(user)), certificate: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        bind(path).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn socket_is_private_and_replaces_only_a_stale_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let first = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(refusal(&path).contains("another process listens on it"));
        drop(first);
        assert!(!path.exists());
        // The file of a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = bind(&path).unwrap();
        BlockingStream::connect(&path).unwrap();
        drop(second);
        fs::write(&path, "data").unwrap();
        assert!(refusal(&path).contains("a file that is not a socket"));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        assert!(refusal(&dir.path().join("none/admin.sock")).contains("No such file"));
    }
}
