//! The commands `chancery keys`.

use chancery_model::types::{CLUSTER, SECRET};

use super::{
    FIRST, SECOND, clients::Client, contains, files_with, key_file, publish, secret, start,
};
use crate::support::{Server, clusters};

fn status(server: &Server) -> serde_json::Value {
    server.json(&["keys", "status"], "")
}

fn version(server: &Server, name: &str) -> String {
    let list = server.json(&["get", "secret", name], "");
    list["resources"][0]["version"].as_str().unwrap().to_owned()
}

/// Rotation and resealing send nothing to clients, and change neither versions nor the revision.
#[test]
fn rotation_and_reseal_send_nothing_to_clients() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    for n in 0..20 {
        publish(&server, &secret(&format!("s{n}"), &format!("{FIRST}{n}")));
    }
    let mut client = Client::open(&server.xds, None);
    let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
    client.subscribe(SECRET, &names.iter().map(String::as_str).collect::<Vec<_>>());
    client.subscribe(CLUSTER, &[]);
    client.next(SECRET).unwrap();
    let before = version(&server, "s3");
    assert_eq!(server.run(&["keys", "rotate"]).code, 0);
    let rotated = status(&server);
    assert_eq!(
        (&rotated["keys"][0]["resources"], &rotated["keys"][1]["resources"]),
        (&20.into(), &0.into())
    );
    let done = server.run(&["keys", "retire", "1"]);
    assert_ne!(done.code, 0);
    assert!(done.err.contains("it still seals 20 resources"), "{done:?}");
    let revision = server.json(&["get", "secret"], "")["revision"].clone();
    let done = server.run(&["keys", "reseal", "--rate", "2000"]);
    assert_eq!((done.code, done.out.as_str()), (0, "resealed 20 resources\n"), "{done:?}");
    assert_eq!(server.json(&["get", "secret"], "")["revision"], revision);
    assert_eq!(version(&server, "s3"), before);
    let resealed = status(&server);
    assert_eq!(
        (&resealed["keys"][0]["resources"], &resealed["keys"][1]["resources"]),
        (&0.into(), &20.into())
    );
    assert_eq!(server.run(&["keys", "retire", "1"]).code, 0);
    assert!(server.run(&["keys", "retire", "2"]).err.contains("it seals new resources"));
    // The next response is that of a real change: nothing came before it.
    publish(&server, &clusters(&["web"], "1s"));
    while !contains(&client.next(CLUSTER).unwrap(), "web") {}
    assert_eq!(client.n_early(SECRET), 0);
    // Identical bytes change nothing, also under another key.
    let done = publish(&server, &secret("s3", &format!("{FIRST}3")));
    assert!(done.out.contains("unchanged"), "{done:?}");
    assert_eq!(server.terminate().0, Some(0));
    let server = start(dir.path(), &key);
    assert!(contains(&Client::open(&server.xds, None).get(SECRET, "s3"), FIRST));
    assert_eq!(version(&server, "s3"), before);
}

/// A new key-encryption key replaces the old one in three steps: add it, rewrap, remove the old one.
#[test]
fn rewrapped_keys_need_only_the_new_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    publish(&server, &secret("token", FIRST));
    let old = status(&server)["keys"][0]["kek"].clone();
    key_file(dir.path(), "keys", &[2, 1]);
    let done = server.run(&["keys", "rewrap"]);
    assert_eq!(done.code, 0, "{done:?}");
    let new = status(&server);
    assert_ne!(new["keys"][0]["kek"], old);
    assert_eq!(new["keys"][0]["kek"], new["digest_kek"]);
    assert_eq!(server.terminate().0, Some(0));
    key_file(dir.path(), "keys", &[2]);
    let server = start(dir.path(), &key);
    assert!(contains(&Client::open(&server.xds, None).get(SECRET, "token"), FIRST));
    assert_eq!(server.terminate().0, Some(0));
    key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    assert_eq!(status(&server)["unopened"], 1, "the old key opens nothing");
}

/// Secrets from before the keys were configured stay readable. Resealing seals them, in the same version.
#[test]
fn plain_secrets_of_an_older_configuration_are_sealed_by_reseal() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    publish(&server, &secret("old", FIRST));
    let before = version(&server, "old");
    assert!(server.run(&["keys", "reseal"]).err.contains("keys rotate"), "there are no keys");
    assert_eq!(server.terminate().0, Some(0));
    let key = key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    publish(&server, &secret("new", SECOND));
    assert_eq!(status(&server)["plain_secrets"], 1);
    let mut client = Client::open(&server.xds, None);
    assert!(contains(&client.get(SECRET, "old"), FIRST));
    assert_eq!(server.run(&["keys", "reseal"]).out, "resealed 1 resources\n");
    let sealed = status(&server);
    assert_eq!((&sealed["plain_secrets"], &sealed["sealed"]), (&0.into(), &2.into()));
    assert_eq!(version(&server, "old"), before);
    let backup = dir.path().join("backup");
    assert_eq!(server.run(&["backup", &backup.display().to_string()]).code, 0);
    let backup = std::fs::read(backup).unwrap();
    assert!(!contains(&backup, FIRST) && !contains(&backup, SECOND));
    assert!(
        !files_with(dir.path(), FIRST).is_empty(),
        "old files still have it, as the manual says"
    );
}
