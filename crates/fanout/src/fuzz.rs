//! Entry point for the fuzz target of `fuzz/`: the text of a rejection, whose cleaning is private.

use std::sync::{Arc, LazyLock};

use chancery_model::{
    Resource, ResourceDraft, ResourceKey, ResourceName, Revision, TypeUrl, types::SECRET,
};
use chancery_view::Resources;

use crate::rejection::{SecretFinder, cleaned};

/// Secrets of several lengths: the text is searched for each length.
const SECRETS: [&[u8]; 3] =
    [b"x9Q", b"q9Zx-7J", b"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n"];
/// The length of a piece of a secret that never remains.
const PIECE_BYTES: usize = 8;

static RESPONSE: LazyLock<Resources> = LazyLock::new(|| {
    let mut resources = Resources::default();
    for (n, secret) in SECRETS.iter().enumerate() {
        let name = ResourceName::new(&n.to_string()).expect("a number is a valid name");
        let key = ResourceKey { type_url: TypeUrl::from_static(SECRET), name };
        let draft = ResourceDraft::new(key, (*secret).into());
        resources.push(Arc::new(Resource::publish(&draft, Revision(1))));
    }
    resources
});

/// Cleans the text of a rejection of a response with secrets. Panics if a piece of a secret remains.
pub fn rejection_text(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let finder = SecretFinder::new(|_, body, found| found(body));
    let type_url = TypeUrl::from_static(SECRET);
    let cleaned = cleaned(&text, (&type_url, &RESPONSE), std::iter::empty(), &finder);
    for piece in SECRETS.iter().flat_map(|secret| secret.windows(PIECE_BYTES)) {
        let piece = std::str::from_utf8(piece).expect("the secrets are ASCII");
        assert!(!cleaned.contains(piece), "{piece:?} is in {cleaned:?}");
    }
}
