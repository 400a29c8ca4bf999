//! Handshakes while files change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// Attack 63: the files of a port change and are read again as fast as possible. No handshake fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_handshakes_fail_none() {
    let ca = Ca::new("ca");
    let pairs = [ca.loopback(), ca.loopback()];
    let files = Files::new(&pairs[0], &ca.pem());
    let port = files.open(TlsPort::Xds);
    let (n_changes, is_done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let changing = {
        let (port, n_changes, is_done) = (port.clone(), n_changes.clone(), is_done.clone());
        let dir = files.0.path().to_owned();
        tokio::task::spawn_blocking(move || {
            for pair in pairs.iter().cycle() {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                // Between the two files, the pair does not match.
                fs::write(dir.join("server.pem"), &pair.cert).unwrap();
                port.refresh();
                fs::write(dir.join("server.key"), &pair.key).unwrap();
                port.refresh();
                n_changes.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let client = Client::of(&ca, &ca.client("spiffe://a/b"));
    let mut n_handshakes = 0;
    while n_handshakes < 100 || n_changes.load(Ordering::Relaxed) < 50 {
        let result = client.result(&port).await;
        assert_eq!(result, HandshakeResult::Ok, "handshake {n_handshakes}");
        n_handshakes += 1;
    }
    is_done.store(true, Ordering::Relaxed);
    changing.await.unwrap();
}
