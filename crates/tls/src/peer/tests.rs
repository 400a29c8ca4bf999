//! The end of connections: which ends when.

use chancery_testing::Ca;
use tokio::time::advance;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::*;

/// The Unix time at which the certificates of these tests expire: 2090-01-01.
const NOT_AFTER: i64 = 3_786_912_000;

fn chain(ca: &Ca) -> Vec<CertificateDer<'static>> {
    let leaf = ca.sign(&["B.example", "a.example", "b.example"], |params| {
        params.not_after = chancery_testing::rcgen::date_time_ymd(2090, 1, 1);
    });
    vec![CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap()]
}

fn by_common_name(is: bool) -> ClientCertificates {
    ClientCertificates { by_common_name: is, ..ClientCertificates::default() }
}

fn end(peer: &Peer) -> Option<CredentialEnd> {
    peer.0.end.get().copied()
}

#[test]
fn identity_has_the_names_that_the_port_uses() {
    let (peers, chain) = (Arc::new(Peers::default()), chain(&Ca::new("ca")));
    let peer = peers.add(&chain, &by_common_name(false), 0).unwrap();
    let identity = peer.identity();
    assert_eq!(identity.dns, ["a.example", "b.example"]);
    assert_eq!((&identity.spiffe_id, &identity.common_name), (&None, &None));
    assert_eq!((&*identity.ca, identity.not_after), ("clients", time(NOT_AFTER)));
    let peer = peers.add(&chain, &by_common_name(true), 0).unwrap();
    assert_eq!(peer.identity().common_name.as_deref(), Some("leaf"));
    assert!(peers.add(&[], &by_common_name(true), 0).is_err());
}

#[test]
fn connections_end_before_their_certificate_expires_and_not_together() {
    let hour = 3600;
    let ends: Vec<i64> =
        (0..100).map(|_| NOT_AFTER - ends_at(NOT_AFTER, NOT_AFTER - hour)).collect();
    assert!(ends.iter().all(|early| (2..=302).contains(early)), "{ends:?}");
    assert!(ends.iter().any(|early| *early < 100) && ends.iter().any(|early| *early > 200));
    let early = NOT_AFTER - ends_at(NOT_AFTER, NOT_AFTER - 10);
    assert!((2..=3).contains(&early), "a short time leaves little for jitter: {early}");
}

/// A clock that jumps back does not extend a certificate.
#[tokio::test(start_paused = true)]
async fn expired_connection_ends_once_and_others_stay() {
    let (peers, chain) = (Arc::new(Peers::default()), chain(&Ca::new("ca")));
    // Longer before the end than the largest random time.
    let left = 2 * JITTER_SECONDS_MAX;
    let (start, now) = (NOT_AFTER - left - 3600, NOT_AFTER - left);
    let due = peers.add(&chain, &by_common_name(false), start).unwrap();
    let ended = parking_lot::Mutex::new(Vec::new());
    let expire = |now| peers.end_expired(now, |end| ended.lock().push(end));
    // A clock that has been right for an hour is believed.
    for minute in 1..=60 {
        advance(Duration::from_secs(60)).await;
        expire(start + minute * 60);
    }
    assert_eq!(end(&due), None);
    advance(Duration::from_secs(left.unsigned_abs())).await;
    expire(NOT_AFTER);
    expire(now);
    assert_eq!(
        (end(&due), &*ended.lock()),
        (Some(CredentialEnd::Expired), &vec![CredentialEnd::Expired])
    );
    let late = peers.add(&chain, &by_common_name(false), now).unwrap();
    expire(now);
    assert_eq!(end(&late), Some(CredentialEnd::Expired), "the clock has jumped back");
    drop((due, late));
    assert!(peers.0.lock().by_end.is_empty());
}

/// One wrong moment of the wall clock ended each later connection at once, until the restart.
#[tokio::test(start_paused = true)]
async fn wrong_moment_of_the_wall_clock_ends_no_later_connection() {
    let (peers, chain) = (Arc::new(Peers::default()), chain(&Ca::new("ca")));
    let now = NOT_AFTER - 24 * 3600;
    let before = peers.add(&chain, &by_common_name(false), now).unwrap();
    peers.end_expired(now + 100 * 24 * 3600, |_| {});
    assert_eq!(end(&before), Some(CredentialEnd::Expired), "the wall clock may be right");
    let after = peers.add(&chain, &by_common_name(false), now).unwrap();
    peers.end_expired(now, |_| {});
    assert_eq!(end(&after), None);
    advance(Duration::from_secs(24 * 3600)).await;
    peers.end_expired(now, |_| {});
    assert_eq!(end(&after), Some(CredentialEnd::Expired), "the wall clock stands still");
}

#[test]
fn closed_connections_leave_nothing_behind() {
    let (peers, chain) = (Arc::new(Peers::default()), chain(&Ca::new("ca")));
    let all: Vec<Peer> =
        (0..3).map(|_| peers.add(&chain, &by_common_name(false), 0).unwrap()).collect();
    assert_eq!(peers.0.lock().by_end.len(), 3);
    drop(all);
    assert!(peers.0.lock().by_end.is_empty());
}
