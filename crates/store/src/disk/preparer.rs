//! Prepares large commands before they are applied, with the published state and the keys of this replica.

use bytes::Bytes;
use chancery_model::{Resource, State, Upsert};
use chancery_secrets::Secrets;

use crate::{disk::published::Published, format::prepared::Prepared};

/// Prepares large commands. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Preparer {
    published: Published,
    secrets: Secrets,
}

impl Preparer {
    /// Creates a preparer that predicts revisions from the published state, and opens sealed resources with `secrets`.
    pub(crate) fn new(published: Published, secrets: Secrets) -> Self {
        Self { published, secrets }
    }

    /// Prepares an encoded command. This is slow, so callers use a thread for blocking work. Returns `None` if the command
    /// is not a transaction or cannot be decoded.
    pub(crate) fn prepare(&self, command: &Bytes) -> Option<Prepared> {
        let state = self.published.state();
        let revision = self.published.next_revision();
        Prepared::new(command, revision, |upserts| self.open(&state, upserts))
    }

    /// Opens the sealed bodies for which this replica has the key. The state machine opens the remaining bodies when it
    /// applies the command, or when their keys arrive.
    fn open(&self, state: &State, upserts: &mut [Upsert]) {
        for Upsert { scope, draft } in upserts {
            let Some(sealed) = &draft.sealed else { continue };
            let has_body =
                |held: &&Resource| held.sealed().is_some_and(|held| held.mac == sealed.mac);
            let held = state.get(scope, &draft.key).map(|held| &**held).filter(has_body);
            // Most upserts of a large transaction may change nothing. Their bodies need no decryption.
            let body = held.and_then(Resource::body);
            let body = body.or_else(|| self.secrets.open(&state.keys, scope, &draft.key, sealed));
            draft.body = body.unwrap_or_default();
        }
    }
}
