//! Three replicas as processes that authenticate each other with certificates.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};

use crate::{
    cluster::{Replica, eventually, names},
    support::http_get,
};

/// A CA of replicas.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns the certificate and the key of a replica. The certificate expires on the first day
    /// of `year`.
    fn sign(&self, year: i32) -> (String, String) {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ClientAuth, ServerAuth];
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// The files of one replica.
struct Files(PathBuf);

impl Files {
    fn new(root: &Path, id: u64) -> Self {
        let dir = root.join(format!("tls-{id}"));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    /// Replaces the files atomically.
    fn place(&self, (cert, key): (String, String), trusted: &[&Ca]) {
        let ca: String = trusted.iter().map(|ca| ca.0.pem()).collect();
        for (name, content) in [("ca", ca), ("cert", cert), ("key", key)] {
            let new = self.0.join("new");
            fs::write(&new, content).unwrap();
            fs::rename(&new, self.0.join(name)).unwrap();
        }
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.0.join(name).display().to_string();
        vec![
            ("CHANCERY_RAFT_TLS_CERT", path("cert")),
            ("CHANCERY_RAFT_TLS_KEY", path("key")),
            ("CHANCERY_RAFT_TLS_CA", path("ca")),
        ]
    }
}

fn metric(replica: &Replica, sample: &str) -> f64 {
    let (_, page) = http_get(&replica.admin, "/metrics");
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample}")).parse().unwrap()
}

/// Returns the year on whose first day the certificate of a replica expires.
fn certificate_expiry_year(replica: &Replica) -> u64 {
    let left = metric(replica, "chancery_raft_certificate_seconds_left");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let expires = now + Duration::from_secs_f64(left);
    let days = (expires.as_secs_f64() / 86_400.0).round();
    (1970..2200).find(|year| (days_before_year(*year) - days).abs() < 0.5).unwrap()
}

fn days_before_year(year: u64) -> f64 {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    (1970..year).map(|year| if leap(year) { 366.0 } else { 365.0 }).sum()
}

/// T15, T18, attack 48: three processes form a cluster over TLS and accept writes on every replica. A process
/// with a certificate of another CA is rejected and learns why, and the log of the contacted
/// replicas shows it. Replaced files are loaded without a restart; then replicas of the new CA can
/// join.
#[test]
fn cluster_with_certificates_rejects_other_ca() {
    let root = tempfile::tempdir().unwrap();
    let [ca, other, new] = ["ca", "other", "new"].map(Ca::new);
    let mut replicas = [1, 2, 3, 4].map(|id| Replica::new(root.path(), id));
    let files = [1, 2, 3, 4].map(|id| Files::new(root.path(), id));
    for (replica, files) in replicas.iter_mut().zip(&files) {
        files.place(ca.sign(2090), &[&ca]);
        replica.environment = files.environment();
    }
    let first = replicas[0].raft.clone();
    let join = ["--join", first.as_str()];
    replicas[0].start_and_wait(&[]);
    for replica in &mut replicas[1..3] {
        replica.start_and_wait(&join);
    }
    let [one, two, three, four] = &mut replicas;
    one.wait_voters(3);
    let all = [&*one, &*two, &*three];
    for (replica, name) in all.iter().zip(["a", "b", "c"]) {
        replica.apply(name);
        assert_eq!(certificate_expiry_year(replica), 2090);
    }
    for replica in all {
        assert_eq!(names(&replica.json(&["get"])).len(), 3);
    }

    // The fourth replica trusts the others, but they do not trust it.
    files[3].place(other.sign(2090), &[&other, &ca]);
    four.start(&join);
    let refused = "was rejected on the replication port: invalid peer certificate: UnknownIssuer";
    eventually("it is refused", || one.output("log").contains(refused).then_some(()));
    let told = || four.output("log").contains(&format!("waiting to join the cluster: {first}"));
    eventually("it waits to join", || told().then_some(()));
    assert_eq!(four.output("out"), "", "it was never ready");
    four.terminate();
    let status = one.wait_voters(3);
    assert_eq!(status["members"].as_array().unwrap().len(), 3, "{status}");
    let refused = "chancery_raft_refused_connections_total{reason=\"tls\"}";
    assert!(metric(one, refused) >= 1.0);

    // First all replicas trust both CAs, then the certificates are replaced.
    for files in &files[..3] {
        files.place(ca.sign(2090), &[&ca, &new]);
    }
    let reread = |n: usize| {
        for replica in [&*one, &*two, &*three] {
            let text = "read the changed certificate files for replication";
            eventually(text, || (replica.output("log").matches(text).count() >= n).then_some(()));
        }
    };
    reread(1);
    for files in &files[..3] {
        files.place(new.sign(2095), &[&ca, &new]);
    }
    for replica in [&*one, &*two, &*three] {
        eventually("the new certificate is used", || {
            (certificate_expiry_year(replica) == 2095).then_some(())
        });
    }
    files[3].place(new.sign(2096), &[&new]);
    fs::remove_dir_all(&four.directory).unwrap_or_default();
    four.start_and_wait(&join);
    four.wait_voters(4);
    four.apply("d");
    assert_eq!(names(&one.json(&["get"])).len(), 4);
    assert_eq!(certificate_expiry_year(four), 2096);
    for replica in [four, three, two, one] {
        replica.terminate();
    }
}
