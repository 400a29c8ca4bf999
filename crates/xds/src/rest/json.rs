//! The JSON form of `DiscoveryResponse` (REST-02, REST-25).
//!
//! A response is encoded in slices. Each slice runs on a blocking thread, and slices of different
//! responses take turns, so a large response delays neither a shard nor a smaller response for long.
//!
//! Pollers of one view share its full state. It is encoded once per version, and at most once at the same
//! time. A poller that asks for a newer version meanwhile waits, and then gets the newest one.
//!
//! Invariants:
//! - The memory of full states and of responses above [`SMALL_BYTES`] is bounded, including those
//!   that slow clients still read. The limit for streams bounds the number of small responses.
//! - A response is complete before its first byte is sent, so every failure has its own status.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use chancery_fanout::limit_hit;
use chancery_model::{ResourceName, Revision, ScopeName, TypeUrl};
use chancery_protocol::{NOT_FOUND, NOT_FOUND_TEXT, PollContent};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

/// The number of slices that are encoded at the same time.
const THREADS: usize = 2;
/// The size of a slice in bytes of resources. A slice has at least one resource.
const SLICE_BYTES: usize = 256 << 10;
/// The size up to which a response is encoded in the task of its connection.
const SMALL_BYTES: usize = 16 << 10;
/// The size of an error, without its name.
const ERROR_BYTES: usize = 128;
/// The unit of the memory budget in bytes.
const UNIT_BYTES: usize = 1024;
/// The maximum number of full states that are kept or being encoded.
const SHARED_MAX: usize = 256;
/// The time for which a full state is kept after its last use.
const KEEP: Duration = Duration::from_secs(30);

/// The type of the wrapper around a variant.
const WRAPPER_URL: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

/// A function that writes the body of a resource as canonical JSON, with `@type`.
type Encode = dyn Fn(&TypeUrl, &[u8]) -> Result<String, String> + Send + Sync;

/// Writes the bodies of resources as JSON. This requires Envoy's descriptors, so the program that starts
/// the discovery services supplies it.
#[derive(Clone)]
pub struct BodyEncoder(Arc<Encode>);

impl BodyEncoder {
    /// Creates an encoder that calls `encode`. Its error says why a body has no JSON form.
    pub fn new(
        encode: impl Fn(&TypeUrl, &[u8]) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(encode))
    }

    /// Creates an encoder without descriptors, which rejects every body.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|type_url, _| Err(format!("there is no descriptor of {type_url}")))
    }
}

impl fmt::Debug for BodyEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyEncoder")
    }
}

/// The reason why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    /// REST-05.
    #[error("the resource {name:?} of type {type_url} cannot be written as JSON: {reason}")]
    Body { name: ResourceName, type_url: TypeUrl, reason: String },
    #[error(
        "the responses of all polls take more than {max} bytes (poll_bytes_max); try again later"
    )]
    Memory { max: usize },
    #[error("this replica is encoding {SHARED_MAX} full states; try again later")]
    Busy,
    #[error("the encoding of the response has failed")]
    Failed,
}

/// An encoded response.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) version: String,
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) len: u64,
    _memory: Option<OwnedSemaphorePermit>,
}

/// The age of a request, and of the rights with which it is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since {
    pub(crate) arrived: Instant,
    /// The last revision of the assignments and access rules.
    pub(crate) placed_at: Revision,
}

/// The result of a request for a response.
pub(crate) enum Outcome {
    Encoded(Result<Arc<Encoded>, EncodeError>),
    /// Another version of the same full state was being encoded. The newest version is due now.
    Again,
}

type Finished = Option<Result<Arc<Encoded>, EncodeError>>;

/// Encodes responses.
#[derive(Debug)]
pub(crate) struct JsonResponses {
    encoder: BodyEncoder,
    /// The members of a response after its resources.
    tail: String,
    threads: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    bytes_max: usize,
    shared: Mutex<VecDeque<Shared>>,
    next_number: AtomicU64,
}

/// A full state that is being encoded or is kept.
#[derive(Debug)]
struct Shared {
    number: u64,
    type_url: TypeUrl,
    scopes: Vec<ScopeName>,
    version: String,
    /// The time at which the encoding started, and the placement of the client that started it.
    since: Since,
    used: Instant,
    finished: watch::Receiver<Finished>,
}

/// Removes the entry of a full state when its task ends. If the task panics, the next poll starts another one.
struct EntryGuard {
    responses: Arc<JsonResponses>,
    number: u64,
}

impl Drop for EntryGuard {
    fn drop(&mut self) {
        let Self { responses, number } = self;
        let mut shared = responses.shared.lock();
        let at = shared.iter().position(|one| one.number == *number);
        let entry = at.and_then(|at| shared.remove(at));
        drop(shared);
        // Without the lock, because it may free a large response.
        drop(entry);
    }
}

/// A response that is being encoded.
struct Job {
    content: PollContent,
    type_url: TypeUrl,
    version: String,
    previous: Option<ResourceName>,
    n_encoded: usize,
    n_errors: usize,
    /// Whether the client reads the constraints of variants (DYN-04).
    reads_constraints: bool,
    /// The text that has not been cut off as a chunk.
    text: String,
}

/// The state of a job after a slice.
enum Slice {
    More,
    Last,
}

impl JsonResponses {
    pub(crate) fn new(encoder: BodyEncoder, control_plane: &str, bytes_max: usize) -> Arc<Self> {
        let units = (bytes_max / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            encoder,
            tail: format!(",\"control_plane\":{{\"identifier\":{}}}}}", quoted(control_plane)),
            threads: Arc::new(Semaphore::new(THREADS)),
            memory: Arc::new(Semaphore::new(units)),
            bytes_max,
            shared: Mutex::default(),
            next_number: AtomicU64::new(0),
        })
    }

    /// Encodes a response to a request.
    pub(crate) async fn encode(
        self: &Arc<Self>,
        type_url: &TypeUrl,
        version: &str,
        content: PollContent,
        since: Since,
        reads_constraints: bool,
    ) -> Outcome {
        let job = Job { reads_constraints, ..Job::new(type_url, version, content) };
        let view = match &job.content {
            PollContent::Named { resources, missing } => {
                let errors: usize = missing.iter().map(|name| ERROR_BYTES + name.len()).sum();
                let resources = resources.iter().map(|resource| resource.sotw_len());
                let bytes = errors + resources.sum::<usize>();
                return Outcome::Encoded(if bytes <= SMALL_BYTES {
                    self.encode_small(job)
                } else {
                    self.run(job).await
                });
            }
            // The full state depends on the parameters, the form and the rights of this client.
            PollContent::All { view, .. } if view.has_variants() || view.has_hidden() => {
                return Outcome::Encoded(self.run(job).await);
            }
            PollContent::All { view, .. } => view,
        };
        let scopes: Vec<ScopeName> = view.layers().map(|layer| layer.scope.clone()).collect();
        let (mut finished, is_other) = match self.share(job, scopes, since) {
            Ok(shared) => shared,
            Err(error) => return Outcome::Encoded(Err(error)),
        };
        let result = match finished.wait_for(Option::is_some).await {
            Ok(result) => result.clone(),
            Err(_) => None,
        };
        if is_other {
            Outcome::Again
        } else {
            Outcome::Encoded(result.unwrap_or(Err(EncodeError::Failed)))
        }
    }

    /// Returns the pending or finished encoding of a full state, and starts a missing one. A
    /// running encoding of another version is shared too. The flag is `true` if the client must not have its result,
    /// because that encoding started before the request arrived, or under other assignments or access rules.
    fn share(
        self: &Arc<Self>,
        job: Job,
        scopes: Vec<ScopeName>,
        since: Since,
    ) -> Result<(watch::Receiver<Finished>, bool), EncodeError> {
        let now = Instant::now();
        let mut all = self.shared.lock();
        if let Some(at) =
            all.iter().position(|one| one.type_url == job.type_url && one.scopes == scopes)
        {
            let known = &mut all[at];
            let is_finished = known.finished.borrow().is_some();
            if known.version == job.version || !is_finished {
                known.used = now;
                let is_other = known.version != job.version
                    && (known.since.arrived < since.arrived
                        || known.since.placed_at != since.placed_at);
                return Ok((known.finished.clone(), is_other));
            }
            all.remove(at);
        }
        if all.len() >= SHARED_MAX {
            let finished = all.iter().position(|one| one.finished.borrow().is_some());
            drop(all.remove(finished.ok_or(EncodeError::Busy)?));
        }
        let (sender, finished) = watch::channel(None);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let entry = Shared {
            number,
            type_url: job.type_url.clone(),
            scopes,
            version: job.version.clone(),
            since: Since { arrived: now, ..since },
            used: now,
            finished: finished.clone(),
        };
        all.push_back(entry);
        drop(all);
        let entry = EntryGuard { responses: Arc::clone(self), number };
        // The work continues if the client gives up: its next poll then finds the result.
        tokio::spawn(async move {
            let responses = &entry.responses;
            let result = responses.run(job).await;
            let is_kept = matches!(result, Ok(_) | Err(EncodeError::Body { .. }));
            sender.send_replace(Some(result));
            drop(sender);
            if is_kept {
                responses.until_unused(number).await;
            }
        });
        Ok((finished, false))
    }

    /// Waits until a kept full state has not been used for [`KEEP`], or has been replaced.
    async fn until_unused(&self, number: u64) {
        let mut until = Instant::now() + KEEP;
        loop {
            tokio::time::sleep_until(until).await;
            let shared = self.shared.lock();
            let Some(kept) = shared.iter().find(|one| one.number == number) else { return };
            until = kept.used + KEEP;
            if until <= Instant::now() {
                return;
            }
        }
    }

    /// Encodes a small response at once.
    fn encode_small(&self, mut job: Job) -> Result<Arc<Encoded>, EncodeError> {
        while let Slice::More = job.slice(&self.encoder)? {}
        job.text.push_str(&self.tail);
        let chunk = Bytes::from(job.text);
        let len = chunk.len() as u64;
        Ok(Arc::new(Encoded { version: job.version, len, chunks: vec![chunk], _memory: None }))
    }

    /// Encodes a response in slices.
    async fn run(&self, mut job: Job) -> Result<Arc<Encoded>, EncodeError> {
        let (mut chunks, mut len, mut memory) = (Vec::new(), 0, None::<OwnedSemaphorePermit>);
        loop {
            // The semaphore is fair and never closed.
            let permit = Arc::clone(&self.threads).acquire_owned().await;
            let encoder = self.encoder.clone();
            let slice = tokio::task::spawn_blocking(move || {
                let slice = job.slice(&encoder);
                drop(permit);
                (job, slice)
            });
            let (returned, slice) = slice.await.map_err(|_panicked| EncodeError::Failed)?;
            job = returned;
            let is_last = matches!(slice?, Slice::Last);
            if is_last {
                job.text.push_str(&self.tail);
            }
            let chunk = Bytes::from(std::mem::take(&mut job.text));
            let more = self.reserve(chunk.len())?;
            match &mut memory {
                Some(memory) => memory.merge(more),
                none => *none = Some(more),
            }
            len += chunk.len() as u64;
            chunks.push(chunk);
            if is_last {
                let version = job.version;
                return Ok(Arc::new(Encoded { version, chunks, len, _memory: memory }));
            }
        }
    }

    /// Takes memory for a chunk. Drops kept full states if there is not enough.
    fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, EncodeError> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        loop {
            if let Ok(permit) = Arc::clone(&self.memory).try_acquire_many_owned(units) {
                return Ok(permit);
            }
            let mut shared = self.shared.lock();
            let kept = shared.iter().enumerate().filter(|(_, one)| one.finished.borrow().is_some());
            let Some((oldest, _)) = kept.min_by_key(|(_, one)| one.used) else {
                limit_hit("poll_bytes");
                return Err(EncodeError::Memory { max: self.bytes_max });
            };
            // Clients that still read it keep its memory.
            shared.remove(oldest);
        }
    }

    #[cfg(test)]
    fn free_units(&self) -> usize {
        self.memory.available_permits()
    }
}

impl Job {
    fn new(type_url: &TypeUrl, version: &str, content: PollContent) -> Self {
        let text = format!(
            "{{\"version_info\":{},\"type_url\":{},\"resources\":[",
            quoted(version),
            quoted(type_url.as_str())
        );
        let (type_url, version) = (type_url.clone(), version.to_owned());
        let (n_encoded, n_errors, reads_constraints) = (0, 0, false);
        let previous = None;
        Self { content, type_url, version, previous, n_encoded, n_errors, reads_constraints, text }
    }

    /// Encodes the next resources, and then the errors.
    fn slice(&mut self, encoder: &BodyEncoder) -> Result<Slice, EncodeError> {
        let mut bytes = 0;
        while bytes < SLICE_BYTES {
            let next = self.content.next_after(self.previous.as_ref(), self.n_encoded);
            let Some(resource) = next else {
                let Some(name) = self.content.missing().get(self.n_errors) else {
                    self.text.push(']');
                    return Ok(Slice::Last);
                };
                self.text.push_str(if self.n_errors == 0 {
                    "],\"resource_errors\":["
                } else {
                    ","
                });
                self.text.push_str(&error(name));
                bytes += ERROR_BYTES + name.len();
                self.n_errors += 1;
                continue;
            };
            if self.n_encoded > 0 {
                self.text.push(',');
            }
            let json = if resource.constraints().is_some() && self.reads_constraints {
                (encoder.0)(&TypeUrl::from_static(WRAPPER_URL), &resource.delta_content())
            } else {
                (encoder.0)(&self.type_url, &resource.sent_body())
            };
            let json = json.map_err(|reason| {
                let (name, type_url) = (resource.name().clone(), self.type_url.clone());
                EncodeError::Body { name, type_url, reason }
            })?;
            self.text.push_str(&json);
            bytes += resource.sotw_len();
            self.previous = Some(resource.name().clone());
            self.n_encoded += 1;
        }
        Ok(Slice::More)
    }
}

/// Returns the JSON of a `ResourceError` (ERR-01).
fn error(name: &str) -> String {
    let (name, text) = (quoted(name), quoted(NOT_FOUND_TEXT));
    format!(
        "{{\"resource_name\":{{\"name\":{name}}},\
         \"error_detail\":{{\"code\":{NOT_FOUND},\"message\":{text}}}}}"
    )
}

/// Returns a text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, sync::mpsc};

    use bytes::Bytes;
    use chancery_model::{
        Incarnation, Node, Outcome as Committed, ResourceDraft, ResourceKey, State, Transaction,
        Upsert, types::CLUSTER,
    };
    use chancery_view::{TypeView, View};

    use super::*;

    /// Returns the clusters of a state with one resource per body.
    fn view(bodies: &[&str]) -> TypeView {
        let upsert = |(n, body): (usize, &&str)| Upsert {
            scope: ScopeName::new("default").unwrap(),
            draft: ResourceDraft::new(
                ResourceKey {
                    type_url: TypeUrl::from_static(CLUSTER),
                    name: ResourceName::new(&format!("r{n}")).unwrap(),
                },
                Bytes::from((*body).to_owned()),
            ),
        };
        let upserts = bodies.iter().enumerate().map(upsert).collect();
        let applied =
            State::new(Incarnation(7)).apply(&Transaction { upserts, ..Transaction::default() });
        assert!(matches!(applied.outcome, Committed::Committed(_)));
        let node = Node { id: "n".into(), ..Node::default() };
        let scopes = applied.state.assignments.for_node(&node).unwrap().scopes_for(&node);
        View::resolve(&applied.state, &scopes).of_type(&TypeUrl::from_static(CLUSTER))
    }

    fn verbatim() -> BodyEncoder {
        BodyEncoder::new(|_, body| match body {
            b"bad" => Err("there is no descriptor".to_owned()),
            body => Ok(format!("\"{}\"", String::from_utf8_lossy(body))),
        })
    }

    async fn encode(
        responses: &Arc<JsonResponses>,
        version: &str,
        view: &TypeView,
    ) -> Result<Arc<Encoded>, EncodeError> {
        let type_url = TypeUrl::from_static(CLUSTER);
        loop {
            let content = PollContent::All { view: view.clone(), others: Vec::new() };
            match responses.encode(&type_url, version, content, now(), false).await {
                Outcome::Encoded(result) => return result,
                Outcome::Again => {}
            }
        }
    }

    fn now() -> Since {
        Since { arrived: Instant::now(), placed_at: Revision(1) }
    }

    fn text(encoded: &Encoded) -> String {
        let bytes: Vec<u8> = encoded.chunks.iter().flat_map(|chunk| chunk.to_vec()).collect();
        assert_eq!(bytes.len() as u64, encoded.len);
        String::from_utf8(bytes).unwrap()
    }

    /// REST-25: the response has its version, its type, its resources and the control plane.
    #[tokio::test]
    async fn response_has_all_members() {
        let responses = JsonResponses::new(verbatim(), "c\"1", 1 << 20);
        let encoded = encode(&responses, "v\"1", &view(&["a", "b"])).await.unwrap();
        let json: serde_json::Value = serde_json::from_str(&text(&encoded)).unwrap();
        let expected = serde_json::json!({
            "version_info": "v\"1", "type_url": CLUSTER, "resources": ["a", "b"],
            "control_plane": {"identifier": "c\"1"},
        });
        assert_eq!(json, expected);
        let empty = encode(&responses, "2", &TypeView::empty()).await.unwrap();
        let json: serde_json::Value = serde_json::from_str(&text(&empty)).unwrap();
        assert_eq!(json["resources"], serde_json::json!([]));
    }

    /// ERR-01, ERR-05: the errors follow the resources, in slices like them.
    #[tokio::test]
    async fn response_has_errors_after_resources() {
        let responses = JsonResponses::new(verbatim(), "c", 64 << 20);
        for n_missing in [1, 3, 5_000] {
            let missing: Vec<String> = (0..n_missing).map(|n| format!("\"{n}")).collect();
            let view = view(&["a"]);
            let resources = view.iter().cloned().collect();
            let content = PollContent::Named { resources, missing: missing.clone() };
            let type_url = TypeUrl::from_static(CLUSTER);
            let outcome = responses.encode(&type_url, "1", content, now(), false).await;
            let Outcome::Encoded(Ok(encoded)) = outcome else { panic!("no response") };
            let json: serde_json::Value = serde_json::from_str(&text(&encoded)).unwrap();
            assert_eq!(json["resources"], serde_json::json!(["a"]));
            let error = |name: &String| {
                serde_json::json!({
                    "resource_name": {"name": name},
                    "error_detail": {
                        "code": 5, "message": "this node has no resource of this type and name",
                    },
                })
            };
            let expected: Vec<_> = missing.iter().map(error).collect();
            assert_eq!(json["resource_errors"], serde_json::Value::from(expected));
            assert!(json["control_plane"].is_object());
        }
    }

    /// REST-05: the failure names the resource, its type and the reason.
    #[tokio::test]
    async fn resource_without_json_form_is_named() {
        let responses = JsonResponses::new(verbatim(), "c", 1 << 20);
        let error = encode(&responses, "1", &view(&["a", "bad"])).await.unwrap_err().to_string();
        let text = format!(
            "the resource \"r1\" of type {CLUSTER} cannot be written as JSON: there is no descriptor"
        );
        assert_eq!(error, text);
    }

    /// The end of a runtime drops the task as a panic does: in the middle.
    #[test]
    fn full_state_whose_task_ended_is_encoded_again() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let responses = JsonResponses::new(verbatim(), "c", 1 << 20);
        let view = view(&["a"]);
        let (ended, next) = (runtime().unwrap(), runtime().unwrap());
        ended.block_on(async {
            let mut first = Box::pin(encode(&responses, "1", &view));
            assert!(futures::poll!(first.as_mut()).is_pending());
        });
        assert_eq!(responses.shared.lock().len(), 1, "the task has not finished it");
        drop(ended);
        let encoded = next.block_on(encode(&responses, "1", &view)).unwrap();
        assert!(text(&encoded).contains("\"resources\":[\"a\"]"));
    }

    /// OPS-17: many pollers of one view cost one encoding per version, even if the first gives up.
    #[tokio::test]
    async fn full_state_is_encoded_once_for_all_pollers() {
        let calls = Arc::new(AtomicUsize::new(0));
        let (count, (gate, wait)) = (Arc::clone(&calls), mpsc::sync_channel::<()>(1));
        let wait = Mutex::new(wait);
        let encoder = BodyEncoder::new(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            // Waits until the gate is dropped.
            let _closed = wait.lock().recv();
            Ok("1".to_owned())
        });
        let responses = JsonResponses::new(encoder, "c", 1 << 20);
        let view = view(&["a"]);
        let mut impatient = Box::pin(encode(&responses, "1", &view));
        assert!(futures::poll!(impatient.as_mut()).is_pending());
        drop(impatient);
        let mut others: Vec<_> =
            (0..100).map(|_| Box::pin(encode(&responses, "1", &view))).collect();
        for other in &mut others {
            assert!(futures::poll!(other.as_mut()).is_pending());
        }
        drop(gate);
        for other in others {
            other.await.unwrap();
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        encode(&responses, "2", &view).await.unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    /// OPS-11: responses that clients still read count. Kept ones make room for new ones.
    #[tokio::test]
    async fn memory_of_responses_is_bounded() {
        let responses = JsonResponses::new(verbatim(), "c", 300 << 10);
        let large = "x".repeat(150 << 10);
        let view = view(&[&large]);
        let free = responses.free_units();
        let first = encode(&responses, "1", &view).await.unwrap();
        assert!(responses.free_units() < free - 150);
        let error = encode(&responses, "2", &view).await.unwrap_err();
        assert_eq!(error, EncodeError::Memory { max: 300 << 10 });
        drop(first);
        let second = encode(&responses, "3", &view).await.unwrap();
        drop(second);
        encode(&responses, "4", &view).await.unwrap();
    }

    /// A full state that is no longer used is dropped.
    #[tokio::test(start_paused = true)]
    async fn unused_full_state_is_dropped() {
        let responses = JsonResponses::new(verbatim(), "c", 1 << 20);
        let free = responses.free_units();
        let view = view(&["a"]);
        drop(encode(&responses, "1", &view).await.unwrap());
        assert!(responses.free_units() < free);
        tokio::time::sleep(KEEP / 2).await;
        drop(encode(&responses, "1", &view).await.unwrap());
        tokio::time::sleep(KEEP / 2 + Duration::from_secs(1)).await;
        assert!(responses.free_units() < free, "it was used meanwhile");
        tokio::time::sleep(KEEP).await;
        assert_eq!(responses.free_units(), free);
    }

    /// T3: the first client may read a secret body. The write that deletes this body lets the second client read the
    /// scope, while the first response is encoded.
    #[tokio::test(start_paused = true)]
    async fn running_encoding_is_not_shared_after_a_change_of_rights() {
        let (gate, wait) = mpsc::sync_channel::<()>(1);
        let wait = Mutex::new(wait);
        let encoder = BodyEncoder::new(move |_, body| {
            let _closed = wait.lock().recv();
            Ok(format!("\"{}\"", String::from_utf8_lossy(body)))
        });
        let responses = JsonResponses::new(encoder, "c", 1 << 20);
        let (before, after) = (view(&["secret"]), view(&["public"]));
        // The second poll arrives first, and waits for a change.
        let second = now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let content = |view: &TypeView| PollContent::All { view: view.clone(), others: Vec::new() };
        let type_url = TypeUrl::from_static(CLUSTER);
        let mut first = Box::pin(responses.encode(&type_url, "1", content(&before), now(), false));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let second = Since { placed_at: Revision(2), ..second };
        let shared = responses.encode(&type_url, "2", content(&after), second, false);
        let mut shared = Box::pin(shared);
        assert!(futures::poll!(shared.as_mut()).is_pending());
        drop(gate);
        assert!(matches!(first.await, Outcome::Encoded(Ok(_))));
        assert!(matches!(shared.await, Outcome::Again));
        let own = responses.encode(&type_url, "2", content(&after), second, false).await;
        let Outcome::Encoded(Ok(own)) = own else { panic!("no response") };
        assert!(text(&own).contains("public") && !text(&own).contains("secret"));
    }
}
