//! The protocol state of a sink, over successive streams to one source.
//!
//! The caller sends the requests, commits each [`Change`], and reports the outcome. Before it reports the outcome, the
//! caller can offer the message again with a newer state.

mod change;
mod failure;
mod guard;

use std::collections::BTreeMap;

use chancery_model::{ScopeName, State, TypeUrl, has_private_key};
use chancery_proto::{google::rpc::Status, istio::mcp::v1alpha1 as pb};
use prost::Message as _;

pub use change::Change;
pub use failure::Failure;
pub use guard::{ConfirmError, Deletion, Guard};

pub(crate) use failure::HELD;

use crate::message::{Head, RESOURCES_MAX, Resources};
use failure::UNIMPLEMENTED;
use guard::Guarded;

/// The maximum length of the name of a collection in bytes, and that of a nonce.
const COLLECTION_BYTES_MAX: usize = 512;
const NONCE_BYTES_MAX: usize = 512;
/// The maximum length of the text of a NACK in bytes.
const TEXT_BYTES_MAX: usize = 1024;
/// The collections of a trigger: the first message of a source that connects. Older versions of Istio use the empty
/// name (MCP-65).
const TRIGGERS: [&str; 2] = ["$triggerCollection", ""];

/// The settings of a sink.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the source.
    pub source: String,
    /// The ID under which the sink introduces itself.
    pub sink_id: String,
    /// The scope that receives the collections.
    pub scope: ScopeName,
    /// The collections to request.
    pub collections: Vec<TypeUrl>,
    /// Whether the sink accepts incremental responses.
    pub incremental: bool,
    /// The limits for deletions.
    pub guard: Guard,
}

/// The session of a sink.
#[derive(Debug)]
pub struct Sink {
    settings: Settings,
    collections: BTreeMap<TypeUrl, Watched>,
}

/// The state of one collection (MCP-10).
#[derive(Debug, Default)]
struct Watched {
    /// Whether the most recent request accepts an incremental response (MCP-34).
    accepts_incremental: bool,
    /// Whether the sink has accepted a message on this stream.
    has_accepted: bool,
    guarded: Guarded,
}

/// The caller's next action for a message.
#[derive(Debug)]
#[must_use = "a message without an answer blocks its collection"]
pub enum Step {
    /// Commit the change, and report the outcome to [`Sink::on_outcome`].
    Commit(Change),
    /// Send this request, which rejects the message.
    Reject(pb::RequestResources),
    /// End the stream: the message cannot be answered.
    Close(String),
}

// === impl Sink ===

impl Sink {
    /// Creates a session before its first stream.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let collections = settings.collections.iter().cloned();
        let collections = collections.map(|name| (name, Watched::default())).collect();
        Self { settings, collections }
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Starts a stream. Returns one request per collection (MCP-55).
    pub fn open(&mut self, state: &State) -> Vec<pb::RequestResources> {
        let Self { settings, collections } = self;
        let open = |(name, watched): (&TypeUrl, &mut Watched)| {
            watched.has_accepted = false;
            watched.accepts_incremental = settings.incremental;
            initial(settings, name, state)
        };
        collections.iter_mut().map(open).collect()
    }

    /// Checks a message, and compares it with the stored collection in `state`.
    pub fn on_message(&mut self, message: &Resources, state: &State) -> Step {
        let name = message.collection.as_str();
        if is_trigger(name) {
            let text = format!("{name:?} is not a collection");
            return self.reject(message, Failure { code: UNIMPLEMENTED, text });
        }
        if name.len() > COLLECTION_BYTES_MAX || message.nonce.len() > NONCE_BYTES_MAX {
            return Step::Close(format!(
                "the name of the collection or the nonce of a message is longer than {NONCE_BYTES_MAX} bytes"
            ));
        }
        if message.resources.len() > RESOURCES_MAX
            || message.removed_resources.len() > RESOURCES_MAX
        {
            let text =
                format!("the message has more than {RESOURCES_MAX} resources or removed names");
            return self.reject(message, Failure::invalid(text));
        }
        if message.nonce.is_empty() {
            return Step::Close(format!(
                "a message of the collection {name:?} has no nonce, so it cannot be answered"
            ));
        }
        match self.check(message, state) {
            Ok(change) => Step::Commit(change),
            Err(failure) => self.reject(message, failure),
        }
    }

    fn check(&mut self, message: &Resources, state: &State) -> Result<Change, Failure> {
        let Self { settings, collections } = self;
        let watched = collections.iter_mut().find(|(url, _)| url.as_str() == message.collection);
        let Some((type_url, watched)) = watched else {
            let text = format!("the sink did not request the collection {:?}", message.collection);
            return Err(Failure { code: UNIMPLEMENTED, text });
        };
        if message.incremental && !watched.accepts_incremental {
            return Err(Failure::invalid(
                "the message is incremental, but the most recent request of the collection was not",
            ));
        }
        let stored = state.collection(&settings.scope, type_url);
        let change = Change::new(message, type_url, stored.map(AsRef::as_ref))?;
        let is_wipe = change.deletes_all() && !watched.has_accepted;
        let held = watched.guarded.check(&settings.guard, &change, is_wipe);
        match held {
            None => Ok(change),
            Some(deletion) => Err(Failure {
                code: HELD,
                text: format!(
                    "guard `mass-deletion` holds the message: it deletes {} of {} resources of the collection {type_url} \
                     in the scope {}; nothing was changed; to allow it, run `chancery mcp confirm {} {type_url} {}`",
                    deletion.names.len(),
                    deletion.n_stored,
                    settings.scope,
                    settings.source,
                    deletion.token,
                ),
            }),
        }
    }

    /// Takes the outcome of a commit. Returns the ACK or the NACK.
    #[must_use = "a message without an answer blocks its collection"]
    pub fn on_outcome(
        &mut self,
        message: &Resources,
        outcome: Result<(), Failure>,
    ) -> pb::RequestResources {
        let incremental = self.settings.incremental;
        match outcome {
            Ok(()) => {
                if let Some(watched) = self.watched(&message.collection) {
                    watched.accepts_incremental = incremental;
                    watched.has_accepted = true;
                    watched.guarded = Guarded::default();
                }
                pb::RequestResources { incremental, ..answer(message) }
            }
            Err(failure) => self.nack(message, failure),
        }
    }

    /// Returns the deletion that is held in a collection.
    #[must_use]
    pub fn held(&self, collection: &TypeUrl) -> Option<&Deletion> {
        self.collections.get(collection)?.guarded.held()
    }

    /// Allows the held deletion with this token. Returns the request that makes the source send its state again.
    ///
    /// # Errors
    /// If no such deletion is held. The token depends on the names, so it never allows another deletion.
    pub fn confirm(
        &mut self,
        collection: &str,
        token: &str,
        state: &State,
    ) -> Result<pb::RequestResources, ConfirmError> {
        let Self { settings, collections } = self;
        let watched = collections.iter_mut().find(|(url, _)| url.as_str() == collection);
        let Some((type_url, watched)) = watched else {
            return Err(ConfirmError::UnknownCollection(collection.to_owned()));
        };
        watched.guarded.confirm(collection, token)?;
        watched.accepts_incremental = settings.incremental;
        Ok(initial(settings, type_url, state))
    }

    /// Withdraws the confirmation of a deletion that has not happened.
    pub fn withdraw_confirmation(&mut self, collection: &str) {
        if let Some(watched) = self.watched(collection) {
            watched.guarded.withdraw();
        }
    }

    fn watched(&mut self, collection: &str) -> Option<&mut Watched> {
        let watched = self.collections.iter_mut().find(|(url, _)| url.as_str() == collection);
        watched.map(|(_, watched)| watched)
    }

    fn reject(&mut self, message: &Resources, failure: Failure) -> Step {
        Step::Reject(self.nack(message, failure))
    }

    /// Returns a NACK. It asks for a full state, which does not depend on what the source assumes (MCP-35).
    fn nack(&mut self, message: &Resources, mut failure: Failure) -> pb::RequestResources {
        if let Some(watched) = self.watched(&message.collection) {
            watched.accepts_incremental = false;
        }
        if has_private_key(failure.text.as_bytes()) {
            failure.text = "the reason quotes a private key, and is not shown".to_owned();
        }
        failure.text.truncate(failure.text.floor_char_boundary(TEXT_BYTES_MAX));
        let status = Status { code: failure.code, message: failure.text, details: Vec::new() };
        pb::RequestResources { error_detail: Some(status), ..answer(message) }
    }
}

/// Returns whether a message of this collection only opens the stream (MCP-65).
pub(crate) fn is_trigger(collection: &str) -> bool {
    TRIGGERS.contains(&collection)
}

/// Returns a request that repeats the nonce of a message.
fn answer(message: &Resources) -> pb::RequestResources {
    pb::RequestResources {
        collection: message.collection.clone(),
        response_nonce: message.nonce.clone(),
        ..pb::RequestResources::default()
    }
}

/// Returns a request for a collection. It lists what the sink holds, if the sink takes differences (MCP-57).
fn initial(settings: &Settings, collection: &TypeUrl, state: &State) -> pb::RequestResources {
    let node = pb::SinkNode { id: settings.sink_id.clone(), ..pb::SinkNode::default() };
    let mut versions = BTreeMap::new();
    let stored = state.collection(&settings.scope, collection).filter(|_| settings.incremental);
    for (name, resource) in stored.iter().flat_map(|stored| &stored.resources) {
        // The source sends the others again.
        let Some(body) = resource.body() else { continue };
        let head = Head::decode(body).unwrap_or_default();
        let pb::Metadata { name: given, version, .. } = head.metadata.unwrap_or_default();
        let name = if given.is_empty() { name.as_str().to_owned() } else { given };
        versions.insert(name, version);
    }
    pb::RequestResources {
        sink_node: Some(node),
        collection: collection.as_str().to_owned(),
        initial_resource_versions: versions,
        incremental: settings.incremental,
        ..pb::RequestResources::default()
    }
}
