//! The container image as an OCI layout: one layer, in which the static program is the only executable file.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    archive::{Tree, gzip, sha256},
    release::Release,
    root_certificates,
};

/// The user and the group of the process, as in other images without a shell.
const USER: u64 = 65532;

/// The file that Docker reads instead of `index.json`, unless it uses the image store of containerd.
const DOCKER_MANIFEST: &str = "manifest.json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Writes the layout into the directory, and returns the digest of the manifest.
pub(super) fn write(release: &Release, program: &[u8], dir: &Path) -> Result<String> {
    let layout = layout(release, program)?;
    for (path, content) in layout.tree.files() {
        let path = dir.join(path);
        let parent = path.parent().context("a file has no directory")?;
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, content))
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(layout.digest)
}

/// An image, as the files of its layout.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) tree: Tree,
    /// The digest of the manifest, by which a registry names the image.
    pub(super) digest: String,
}

/// Returns the layout of the image with this program.
pub(super) fn layout(release: &Release, program: &[u8]) -> Result<Layout> {
    let tar = root_files(program).tar("", release.epoch)?;
    let diff = format!("sha256:{}", sha256(&tar));
    let mut blobs = Blobs::default();
    let layer = blobs.add(LAYER, gzip(&tar)?);
    let config = blobs.add(CONFIG, serde_json::to_vec(&config(release, &diff))?);
    let docker = json!([{
        "Config": path(&config)?,
        "RepoTags": [tag(release)],
        "Layers": [path(&layer)?],
    }]);
    blobs.0.file(DOCKER_MANIFEST, 0o644, serde_json::to_vec(&docker)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [layer],
        "annotations": labels(release),
    });
    let mut manifest = blobs.add(MANIFEST, serde_json::to_vec(&manifest)?);
    let digest = manifest["digest"].as_str().context("a descriptor has no digest")?.to_owned();
    manifest["platform"] = json!({"architecture": "amd64", "os": "linux"});
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": release.version,
        "io.containerd.image.name": format!("docker.io/library/chancery:{}", release.version),
    });
    // A release that also builds other architectures adds their manifests here.
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    blobs.0.file("index.json", 0o644, serde_json::to_vec(&index)?);
    blobs.0.file("oci-layout", 0o644, r#"{"imageLayoutVersion":"1.0.0"}"#);
    Ok(Layout { tree: blobs.0, digest })
}

/// Returns the name that `docker load` gives to the image.
pub(super) fn tag(release: &Release) -> String {
    format!("chancery:{}", release.version)
}

/// Returns the path of a blob in the layout.
fn path(descriptor: &Value) -> Result<String> {
    let digest = descriptor["digest"].as_str().context("a descriptor has no digest")?;
    Ok(format!("blobs/{}", digest.replace(':', "/")))
}

/// The blobs of a layout, by digest.
#[derive(Debug, Default)]
struct Blobs(Tree);

impl Blobs {
    /// Adds a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let (digest, size) = (sha256(&content), content.len());
        self.0.file(&format!("blobs/sha256/{digest}"), 0o644, content);
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
    }
}

/// Returns the root file system.
fn root_files(program: &[u8]) -> Tree {
    let mut root = Tree::default();
    root.file("chancery", 0o755, program);
    root.file(
        "etc/passwd",
        0o644,
        format!(
            "root:x:0:0:root:/:/sbin/nologin\nchancery:x:{USER}:{USER}:chancery:/data:/sbin/nologin\n"
        ),
    );
    root.file("etc/group", 0o644, format!("root:x:0:\nchancery:x:{USER}:\n"));
    root.file("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n");
    root.file("etc/ssl/certs/ca-certificates.crt", 0o644, root_certificates::bundle());
    root.dir("tmp", 0o1777);
    root.dir_of("data", 0o700, USER);
    root
}

fn config(release: &Release, diff: &str) -> Value {
    json!({
        "created": release.created(),
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/chancery"],
            "Cmd": ["serve"],
            "Env": [
                "PATH=/",
                "CHANCERY_STORE_DATA_DIR=/data",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "ExposedPorts": {"18000/tcp": {}, "18001/tcp": {}, "18002/tcp": {}},
            "Volumes": {"/data": {}},
            "Labels": labels(release),
        },
        "rootfs": {"type": "layers", "diff_ids": [diff]},
        "history": [{"created": release.created(), "created_by": "cargo xtask image"}],
    })
}

/// Returns the labels. `url`, `source` and `documentation` are missing, because the project has no public address, and
/// `base.name`, because the image has no base.
fn labels(release: &Release) -> Value {
    json!({
        "org.opencontainers.image.title": "chancery",
        "org.opencontainers.image.description": "An xDS control plane for Envoy and gRPC clients",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.revision,
        "org.opencontainers.image.created": release.created(),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.vendor": "The Chancery authors",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_depends_on_program_and_release_only() {
        let release =
            |epoch| Release { version: "1.2.3".to_owned(), revision: "c0ffee".to_owned(), epoch };
        let digest = |epoch, program: &[u8]| layout(&release(epoch), program).unwrap().digest;
        assert_eq!(digest(1, b"program"), digest(1, b"program"));
        assert_ne!(digest(1, b"program"), digest(2, b"program"));
        assert_ne!(digest(1, b"program"), digest(1, b"another"));
    }

    #[test]
    fn manifest_of_docker_names_the_config_and_the_layer() {
        let release =
            Release { version: "1.2.3".to_owned(), revision: "c0ffee".to_owned(), epoch: 0 };
        let tree = layout(&release, b"program").unwrap().tree;
        let files: std::collections::BTreeMap<_, _> = tree.files().collect();
        let manifest: Value = serde_json::from_slice(files[DOCKER_MANIFEST]).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["chancery:1.2.3"]));
        let config: Value =
            serde_json::from_slice(files[manifest[0]["Config"].as_str().unwrap()]).unwrap();
        let layer = files[manifest[0]["Layers"][0].as_str().unwrap()];
        let mut tar = Vec::new();
        std::io::copy(&mut flate2::read::GzDecoder::new(layer), &mut tar).unwrap();
        let diff = format!("sha256:{}", sha256(&tar));
        assert_eq!(config["rootfs"]["diff_ids"], json!([diff]));
    }

    #[test]
    fn process_is_not_root_and_owns_only_its_data() {
        let release =
            Release { version: "1.2.3".to_owned(), revision: "c0ffee".to_owned(), epoch: 0 };
        let config = config(&release, "sha256:0");
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3");
        let tar = root_files(b"program").tar("", 0).unwrap();
        let mut archive = tar::Archive::new(tar.as_slice());
        let owned: Vec<_> = (archive.entries().unwrap())
            .map(Result::unwrap)
            .filter(|entry| entry.header().uid().unwrap() == USER)
            .map(|entry| entry.path().unwrap().display().to_string())
            .collect();
        assert_eq!(owned, ["data/"]);
    }
}
