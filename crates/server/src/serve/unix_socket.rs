//! The UNIX socket of the admin port. The kernel says which user is at the other end of a connection.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream as BlockingStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use chancery_auth::TransportPeer;
use chancery_net::{Eviction, FirstBytes, Slot, Slots};
use metrics::Gauge;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use super::listen::{self, Kind, Limits};
use crate::cli::Failure;

/// The permissions of the socket: its owner and root may connect.
const MODE: u32 = 0o600;
/// The pause after a failed accept. The usual cause is a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The address of all peers in logs. A UNIX socket has no addresses of peers.
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

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

/// Serves `router` on the socket until `stop`. Then asks the connections to end, and returns when all have ended.
pub(super) async fn serve(
    socket: Socket,
    kind: Kind,
    router: Router,
    connections_max: usize,
    limits: Limits,
    stop: CancellationToken,
) {
    let slots = chancery_net::Limits {
        connections_max,
        per_peer_max: usize::MAX,
        eviction: Eviction::LongestIdle,
    };
    let (slots, tracker) = (Slots::new(slots, Gauge::noop()), TaskTracker::new());
    while let Some(accepted) = stop.run_until_cancelled(socket.listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(port = kind.port, %error, "cannot accept connections on the UNIX socket; retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = slots.take(PEER) else {
            debug!(
                port = kind.port,
                connections_max, "a connection is rejected: all connections are busy"
            );
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        tracker.spawn(async move {
            if let Err(error) = connection(stream, kind, router, &slot, limits, stop).await {
                debug!(port = kind.port, %error, "a connection of the UNIX socket has ended");
            }
        });
    }
    drop(socket);
    tracker.close();
    tracker.wait().await;
}

async fn connection(
    mut stream: UnixStream,
    kind: Kind,
    router: Router,
    slot: &Slot,
    limits: Limits,
    stop: CancellationToken,
) -> Result<(), listen::Failed> {
    // A connection without a user would be anonymous: its credential would be ignored.
    let user = stream.peer_cred()?.uid();
    let activity = Arc::clone(slot.activity());
    let first_bytes = tokio::select! {
        first_bytes = FirstBytes::read(&mut stream) => first_bytes?,
        () = stop.cancelled() => return Ok(()),
        () = activity.evicted() => return Ok(()),
        _ = activity.unused(limits.timeouts()) => return Ok(()),
    };
    if first_bytes.is_http2() {
        activity.on_preface();
    }
    let peer = (slot, Some(TransportPeer::UnixUser(user)));
    listen::run((stream, first_bytes), kind, router, peer, limits, stop, std::future::pending())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        bind(path).unwrap_err().lines.join(" ")
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
