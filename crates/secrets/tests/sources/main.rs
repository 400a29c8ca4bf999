//! Sources of key-encryption keys, as a replica uses them.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod plugin;

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use chancery_model::{
    Incarnation, KeyOp, Keys, Outcome, ResourceDraft, ResourceKey, ResourceName, ScopeName, Sealed,
    State, Transaction, TypeUrl, Upsert,
};
use chancery_secrets::{KekSource, Secrets};
use plugin::Plugin;

fn key_file(dir: &Path, keys: &[u8]) -> PathBuf {
    let (path, new) = (dir.join("keys"), dir.join("new"));
    let lines: Vec<_> = keys.iter().map(|key| BASE64_STANDARD.encode([*key; 32])).collect();
    fs::write(&new, lines.join("\n")).unwrap();
    fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
    fs::rename(&new, &path).unwrap();
    path
}

fn replica(sources: Vec<KekSource>) -> Secrets {
    Secrets::new(sources, false, |_, _| true)
}

/// A cluster: its state, which changes as its log says.
struct Cluster(State);

impl Cluster {
    fn new() -> Self {
        Self(State::new(Incarnation(1)))
    }

    /// Returns a cluster whose keys a replica has created and unwrapped.
    async fn with_keys_of(secrets: &Secrets) -> Self {
        let mut cluster = Self::new();
        cluster.apply(vec![secrets.create().await.unwrap()]);
        secrets.refresh(&cluster.keys()).await;
        cluster
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.0.keys)
    }

    fn apply(&mut self, keys: Vec<KeyOp>) {
        let applied = self.0.apply(&Transaction { keys, ..Transaction::default() });
        assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
        self.0 = applied.state;
    }
}

fn place() -> (ScopeName, ResourceKey) {
    let type_url = TypeUrl::new("type.googleapis.com/x.Y").unwrap();
    (
        ScopeName::new("mesh").unwrap(),
        ResourceKey { type_url, name: ResourceName::new("n").unwrap() },
    )
}

fn seal(secrets: &Secrets, cluster: &Cluster, body: &'static str) -> Result<Sealed, String> {
    let (scope, key) = place();
    let draft = ResourceDraft::new(key, Bytes::from_static(body.as_bytes()));
    let mut upserts = vec![Upsert { scope, draft }];
    secrets.seal_all(&cluster.keys(), &mut upserts).map_err(|error| error.to_string())?;
    Ok(upserts.remove(0).draft.sealed.unwrap())
}

fn open(secrets: &Secrets, cluster: &Cluster, sealed: &Sealed) -> Option<Bytes> {
    let (scope, key) = place();
    secrets.open(&cluster.keys(), &scope, &key, sealed)
}

#[tokio::test]
async fn replicas_with_one_key_file_open_what_each_other_seals() {
    let dir = tempfile::tempdir().unwrap();
    let path = key_file(dir.path(), &[1]);
    let (a, b) =
        (replica(vec![KekSource::File(path.clone())]), replica(vec![KekSource::File(path)]));
    let mut cluster = Cluster::new();
    cluster.apply(vec![a.create().await.unwrap()]);
    a.refresh(&cluster.keys()).await;
    b.refresh_now(&cluster.keys());
    let sealed = seal(&a, &cluster, "secret").unwrap();
    assert_eq!(open(&b, &cluster, &sealed).unwrap(), "secret");
    assert_eq!(sealed.mac, seal(&b, &cluster, "secret").unwrap().mac);
    assert_ne!(sealed.mac, seal(&b, &cluster, "Secret").unwrap().mac);
}

#[tokio::test]
async fn rotation_rewrap_and_a_replaced_file_keep_everything_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = key_file(dir.path(), &[1]);
    let secrets = replica(vec![KekSource::File(path.clone())]);
    let mut cluster = Cluster::with_keys_of(&secrets).await;
    let old = seal(&secrets, &cluster, "old").unwrap();
    cluster.apply(vec![secrets.rotate(&cluster.keys()).await.unwrap()]);
    secrets.refresh(&cluster.keys()).await;
    let new = seal(&secrets, &cluster, "new").unwrap();
    assert!(new.key > old.key);
    key_file(dir.path(), &[2, 1]);
    let ops = secrets.rewrap(&cluster.keys()).await.unwrap();
    assert_eq!(ops.len(), 3, "two data keys and the key of digests");
    cluster.apply(ops);
    assert!(secrets.rewrap(&cluster.keys()).await.unwrap().is_empty(), "nothing is left to do");
    key_file(dir.path(), &[2]);
    let fresh = replica(vec![KekSource::File(path)]);
    fresh.refresh(&cluster.keys()).await;
    assert_eq!(open(&fresh, &cluster, &old).unwrap(), "old");
    assert_eq!(open(&fresh, &cluster, &new).unwrap(), "new");
}

/// Wrong and missing keys give reasons, and never a key.
#[tokio::test]
async fn replica_without_the_key_seals_and_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = replica(vec![KekSource::File(key_file(dir.path(), &[1]))]);
    let cluster = Cluster::with_keys_of(&secrets).await;
    let sealed = seal(&secrets, &cluster, "secret").unwrap();
    let path = key_file(dir.path(), &[2]);
    for (sources, expected) in [
        (vec![KekSource::File(path)], "no configured source has the key `file:"),
        (vec![KekSource::File(dir.path().join("none"))], "cannot read the key file"),
        (vec![KekSource::Kms(dir.path().join("none"))], "no configured source has the key"),
        (vec![], "this replica has no key to seal it"),
    ] {
        let other = replica(sources);
        other.refresh(&cluster.keys()).await;
        assert_eq!(open(&other, &cluster, &sealed), None);
        let error = seal(&other, &cluster, "secret").unwrap_err();
        assert!(error.contains(expected), "{error}");
        let (statuses, _) = other.status(&cluster.keys());
        assert!(statuses.iter().all(|status| !status.is_unwrapped), "{statuses:?}");
    }
}

/// A data key that only one replica can unwrap would stop all others from storing secrets.
#[tokio::test]
async fn replica_with_another_key_adds_no_data_key() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = replica(vec![KekSource::File(key_file(dir.path(), &[1]))]);
    let mut cluster = Cluster::new();
    cluster.apply(vec![secrets.create().await.unwrap()]);
    let stranger = replica(vec![KekSource::File(key_file(dir.path(), &[2]))]);
    stranger.refresh(&cluster.keys()).await;
    let error = stranger.rotate(&cluster.keys()).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot add a data key: this replica cannot unwrap"), "{error}");
}

/// A file that lacks the key in use is reported while the key is still in memory. Rewrapping repairs it.
#[tokio::test]
async fn lost_key_is_reported_before_a_restart_and_rewrapped_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = key_file(dir.path(), &[1]);
    let secrets = replica(vec![KekSource::File(path.clone())]);
    let mut cluster = Cluster::with_keys_of(&secrets).await;
    let sealed = seal(&secrets, &cluster, "secret").unwrap();
    assert_eq!(secrets.status(&cluster.keys()).1, None);
    key_file(dir.path(), &[2]);
    secrets.refresh(&cluster.keys()).await;
    let failure = secrets.status(&cluster.keys()).1.unwrap();
    assert!(failure.contains("cannot open secrets after a restart"), "{failure}");
    seal(&secrets, &cluster, "other").unwrap();
    cluster.apply(secrets.rewrap(&cluster.keys()).await.unwrap());
    secrets.refresh(&cluster.keys()).await;
    assert_eq!(secrets.status(&cluster.keys()).1, None);
    let fresh = replica(vec![KekSource::File(path)]);
    fresh.refresh(&cluster.keys()).await;
    assert_eq!(open(&fresh, &cluster, &sealed).unwrap(), "secret");
}

#[tokio::test]
async fn kms_plugin_wraps_and_unwraps_keys() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kms.sock");
    let plugin = Plugin::start(&socket, "key-1");
    let source = || vec![KekSource::Kms(socket.clone())];
    let secrets = replica(source());
    let mut cluster = Cluster::new();
    cluster.apply(vec![secrets.create().await.unwrap()]);
    secrets.refresh_now(&cluster.keys());
    assert!(seal(&secrets, &cluster, "secret").is_err(), "the plugin unwraps only with I/O");
    secrets.refresh(&cluster.keys()).await;
    let sealed = seal(&secrets, &cluster, "secret").unwrap();
    assert_eq!(&*cluster.keys().data[0].wrapped.kek, "kms:key-1");
    // The plugin changes its key. What it has encrypted stays readable.
    plugin.set_key_id("key-2");
    let ops = secrets.rewrap(&cluster.keys()).await.unwrap();
    assert_eq!(ops.len(), 2);
    cluster.apply(ops);
    assert_eq!(&*cluster.keys().data[0].wrapped.kek, "kms:key-2");
    let other = replica(source());
    other.refresh(&cluster.keys()).await;
    assert_eq!(open(&other, &cluster, &sealed).unwrap(), "secret");
    // Only seeds reach the plugin, no key and no secret.
    assert!(plugin.n_encrypted() >= 4);
    drop(plugin);
}

/// The plugin is the source that counts, and the file still unwraps: keys can move from one to the other.
#[tokio::test]
async fn keys_move_from_a_file_to_a_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let file = KekSource::File(key_file(dir.path(), &[1]));
    let secrets = replica(vec![file.clone()]);
    let mut cluster = Cluster::with_keys_of(&secrets).await;
    let sealed = seal(&secrets, &cluster, "secret").unwrap();
    let socket = dir.path().join("kms.sock");
    let _plugin = Plugin::start(&socket, "key-1");
    let both = replica(vec![KekSource::Kms(socket.clone()), file]);
    cluster.apply(both.rewrap(&cluster.keys()).await.unwrap());
    let plugin_only = replica(vec![KekSource::Kms(socket)]);
    plugin_only.refresh(&cluster.keys()).await;
    assert_eq!(open(&plugin_only, &cluster, &sealed).unwrap(), "secret");
}

#[tokio::test]
async fn unusable_kms_plugin_gives_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kms.sock");
    let secrets = replica(vec![KekSource::Kms(socket.clone())]);
    let error = secrets.create().await.unwrap_err().to_string();
    assert!(error.contains("cannot connect to the KMS plugin"), "{error}");
    let plugin = Plugin::start(&socket, "key-1");
    let mut cluster = Cluster::new();
    cluster.apply(vec![secrets.create().await.unwrap()]);
    plugin.fail(true);
    let error = secrets.create().await.unwrap_err().to_string();
    assert!(error.contains("failed in Encrypt"), "{error}");
    let error = secrets.rewrap(&cluster.keys()).await.unwrap_err().to_string();
    assert!(error.contains("is not usable") && error.contains("broken"), "{error}");
    secrets.refresh(&cluster.keys()).await;
    let (_, failure) = secrets.status(&cluster.keys());
    assert!(failure.unwrap().contains("failed in Decrypt"));
    plugin.fail(false);
    secrets.refresh(&cluster.keys()).await;
    assert_eq!(secrets.status(&cluster.keys()).1, None);
}

/// Nothing that a person could print has a key.
#[tokio::test]
async fn debug_output_has_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = key_file(dir.path(), &[65]);
    let secrets = replica(vec![KekSource::File(path)]);
    let mut cluster = Cluster::new();
    let create = secrets.create().await.unwrap();
    let shown = format!("{create:?}");
    cluster.apply(vec![create]);
    secrets.refresh(&cluster.keys()).await;
    let sealed = seal(&secrets, &cluster, "secret").unwrap();
    let shown = format!("{shown}{secrets:?}{sealed:?}{:?}", cluster.keys());
    for part in ["AAAA", "QUFB", "65, 65", "4141", "secret\""] {
        assert!(!shown.contains(part), "{part}: {shown}");
    }
}
