//! The files and manifests of authors.

use std::sync::Arc;

use bytes::Bytes;
use chancery_admission::{
    ClientKind, ClientProfile, FileEncoding, Manifest, Options, Profiles, Validation,
    ValidationMode, admit, import_bootstrap, manifest_of_file, write_discovery_response,
};
use chancery_model::{ScopeName, Transaction, TypeUrl, types::properties};

/// Reads a file with a `DiscoveryResponse`. If its resources have one type, they are written in the same
/// encoding and read again. The second reading gives the same bodies.
pub(crate) fn read(encoding: FileEncoding, content: &[u8], decoded: &dyn Fn()) {
    let Some(first) = admitted(encoding, content) else { return };
    decoded();
    let drafts = || first.upserts.iter().map(|upsert| &upsert.draft);
    let Some(type_url) = drafts().map(|draft| &draft.key.type_url).next() else { return };
    // The body of other types has no name, and a file has only bodies.
    let has_name = properties(type_url).name_field.is_some();
    if !has_name || !drafts().all(|draft| draft.key.type_url == *type_url) {
        return;
    }
    let resources: Vec<(&str, Bytes)> =
        drafts().map(|draft| (draft.key.name.as_str(), draft.body.clone())).collect();
    // JSON and YAML cannot express all resources.
    let Ok(written) = write_discovery_response(encoding, "1", type_url, &resources) else { return };
    let second = admitted(encoding, &written).map(|second| bodies(&second, type_url));
    assert_eq!(second, Some(bodies(&first, type_url)), "{}", String::from_utf8_lossy(&written));
}

fn admitted(encoding: FileEncoding, content: &[u8]) -> Option<Transaction> {
    let file = format!("file.{}", encoding.extension());
    let manifest = manifest_of_file(&file, encoding, content.to_vec()).ok()?;
    admit(&[manifest], &options()).ok()
}

fn bodies(transaction: &Transaction, type_url: &TypeUrl) -> Vec<(TypeUrl, Bytes)> {
    let drafts = transaction.upserts.iter().map(|upsert| &upsert.draft);
    drafts.map(|draft| (type_url.clone(), draft.body.clone())).collect()
}

/// Reads a manifest in YAML or JSON, and validates its resources for all clients.
pub(crate) fn manifest(content: &[u8]) {
    if let Ok(content) = std::str::from_utf8(content) {
        let manifest = Manifest { file: "-".to_owned(), content: content.to_owned() };
        let options = Options { validation: for_all_clients(), ..options() };
        drop(admit(&[manifest], &options));
    }
}

/// Reads the bootstrap of an Envoy in YAML or JSON, and validates its resources for all clients.
pub(crate) fn bootstrap(content: &[u8]) {
    if let Ok(content) = std::str::from_utf8(content) {
        drop(import_bootstrap(
            "-",
            content,
            &options().scope,
            Some("x"),
            &for_all_clients(),
            &Arc::default(),
        ));
    }
}

fn options() -> Options {
    Options::new(ScopeName::new("default").expect("the name is valid"))
}

/// Returns the strictest validation: the rules of Envoy, and those of every gRPC client.
fn for_all_clients() -> Validation {
    let clients = [
        ClientKind::Envoy,
        ClientKind::GrpcCpp,
        ClientKind::GrpcGo,
        ClientKind::GrpcJava,
        ClientKind::GrpcNode,
    ];
    let call = Some(clients.map(ClientProfile::of).into());
    let profiles = Profiles { call, ..Profiles::default() };
    Validation { profiles, ..Validation::of(ValidationMode::Enforce) }
}
