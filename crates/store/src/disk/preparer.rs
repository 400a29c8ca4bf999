//! Prepares large commands before their turn, with what this replica knows.

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
    /// Creates a value that predicts revisions from the published state, and opens sealed resources.
    pub(crate) fn new(published: Published, secrets: Secrets) -> Self {
        Self { published, secrets }
    }

    /// Prepares an encoded command, which takes long. Returns `None` if the command is not a transaction, or cannot be
    /// decoded.
    pub(crate) fn prepare(&self, command: &Bytes) -> Option<Prepared> {
        let state = self.published.state();
        let revision = self.published.next_revision();
        Prepared::new(command, revision, |upserts| self.open(&state, upserts))
    }

    /// Opens sealed bodies, as far as this replica has their keys. If keys arrive later, the state machine opens the rest.
    fn open(&self, state: &State, upserts: &mut [Upsert]) {
        for Upsert { scope, draft } in upserts {
            let Some(sealed) = &draft.sealed else { continue };
            let has_body =
                |held: &Resource| held.sealed().is_some_and(|held| held.mac == sealed.mac);
            if state.get(scope, &draft.key).is_some_and(|held| has_body(held)) {
                // The upsert probably changes nothing.
                continue;
            }
            if let Some(body) = self.secrets.open(&state.keys, scope, &draft.key, sealed) {
                draft.body = body;
            }
        }
    }
}
