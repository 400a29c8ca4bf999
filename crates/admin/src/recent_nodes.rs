//! The nodes that were connected to this replica recently, also before its last start.
//!
//! Invariants:
//! - The shards visit their streams without building anything. A known node costs one lookup.
//! - The number of nodes is bounded. A file with damage costs the list of earlier nodes, and nothing else.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs,
    io::{self, Read as _, Write as _},
    ops::Bound,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1 as pb_admin;
use chancery_fanout::{Fanout, LiveStream, LoggedEvents, LoggedKind};
use chancery_model::Node;
use chancery_raft_proto::v1 as pb;
use parking_lot::Mutex;
use prost::Message;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::warn;

use crate::times::millis;

/// The maximum number of nodes without a stream, and of the bytes of their names. Beyond it, the nodes that were connected
/// least recently are removed.
const DISCONNECTED_MAX: usize = 100_000;
const DISCONNECTED_BYTES_MAX: usize = 64 << 20;
/// The maximum size of the file in bytes. The file omits the nodes that do not fit.
const FILE_BYTES_MAX: usize = 128 << 20;
/// The maximum number of events that are taken at once.
const EVENTS_MAX: usize = 10_000;
/// The maximum number of bytes that the file has for a node besides its message.
const FRAME_BYTES_MAX: usize = 6;
/// Node IDs of this length in bytes or longer may be truncated in the log of client events, and are skipped.
const LOGGED_ID_BYTES_MAX: usize = 500;
/// The pause between two visits of the streams, and the maximum time between two versions of the file.
const VISIT_PAUSE: Duration = Duration::from_secs(5);
const SAVE_PAUSE: Duration = Duration::from_secs(30);

/// The settings of the list of recent nodes.
#[derive(Debug, Clone, Default)]
pub struct RecentNodesSettings {
    /// The time for which a node without streams stays in the list. With zero, the list has only connected nodes.
    pub keep: Duration,
    /// The file that keeps the list through a restart, in a directory of this replica; `None` keeps none.
    pub file: Option<PathBuf>,
}

/// The nodes that were connected to this replica recently. A clone is cheap.
#[derive(Debug, Clone)]
pub(crate) struct RecentNodes {
    settings: Arc<RecentNodesSettings>,
    nodes: Arc<Mutex<Nodes>>,
}

#[derive(Debug, Default)]
struct Nodes {
    by_id: BTreeMap<String, Recent>,
    /// The number of the newest visit.
    visit: u64,
    /// The number of the newest event that was taken.
    last_event: u64,
    /// Whether the file lacks a node, or a node has lost its streams since.
    has_changed: bool,
}

#[derive(Debug, Clone)]
struct Recent {
    cluster: String,
    user_agent: String,
    seen_ms: u64,
    /// The number of the last visit that found a stream.
    visit: u64,
    is_connected: bool,
}

impl RecentNodes {
    /// Creates the list, with the nodes in its file.
    pub(crate) fn new(settings: &RecentNodesSettings) -> Self {
        let mut nodes = Nodes::default();
        if let Some(path) = settings.file.as_deref().filter(|_| !settings.keep.is_zero()) {
            match read(path) {
                Ok(known) => nodes.by_id = known,
                Err(error) => {
                    warn!(path = %path.display(), %error, "the list of recent nodes is unreadable, and starts empty")
                }
            }
        }
        Self { settings: Arc::new(settings.clone()), nodes: Arc::new(Mutex::new(nodes)) }
    }

    /// Notes which nodes have streams now.
    pub(crate) async fn update(&self, fanout: &Fanout) {
        if self.settings.keep.is_zero() {
            return;
        }
        self.take_events(fanout);
        let now = millis(SystemTime::now());
        let visit = {
            let mut nodes = self.nodes.lock();
            nodes.visit += 1;
            nodes.visit
        };
        let (since, nodes) = (Instant::now(), Arc::clone(&self.nodes));
        let see = move |stream: &LiveStream<'_>| {
            nodes.lock().see(stream.node, visit, now);
            false
        };
        fanout.for_each_stream_of(Arc::new(see), |_| {}).await;
        // A shard that did not answer has streams that were not visited.
        if fanout.stalled_since(since).is_empty() {
            let keep_ms = u64::try_from(self.settings.keep.as_millis()).unwrap_or(u64::MAX);
            self.nodes.lock().end_visit(visit, now.saturating_sub(keep_ms));
        }
    }

    /// Notes the nodes whose streams have begun or ended since the last call, also those that were connected only briefly.
    pub(crate) fn take_events(&self, fanout: &Fanout) {
        if self.settings.keep.is_zero() {
            return;
        }
        let mut nodes = self.nodes.lock();
        let LoggedEvents { events, newest, .. } =
            fanout.client_events(nodes.last_event, EVENTS_MAX);
        nodes.last_event = events.last().map_or(newest, |last| last.number);
        for event in events {
            let is_of_stream =
                matches!(event.kind, LoggedKind::Connected | LoggedKind::Disconnected);
            // The log cuts longer IDs.
            if is_of_stream && event.node.len() < LOGGED_ID_BYTES_MAX {
                nodes.see_event(event.node, millis(event.time));
            }
        }
    }

    /// Writes the file a last time, before the replica ends.
    pub(crate) async fn finish(&self, fanout: &Fanout) {
        if !self.settings.keep.is_zero() {
            self.take_events(fanout);
            self.save().await;
        }
    }

    /// Notes nodes that have a stream now.
    pub(crate) fn note<'a>(&self, connected: impl IntoIterator<Item = &'a Node>) {
        if self.settings.keep.is_zero() {
            return;
        }
        let now = millis(SystemTime::now());
        let mut nodes = self.nodes.lock();
        let visit = nodes.visit;
        connected.into_iter().for_each(|node| nodes.see(node, visit, now));
    }

    /// Returns the nodes without a stream at the last visit that `select` selects, in the order of their IDs.
    pub(crate) fn disconnected(
        &self,
        replica_id: u64,
        max: usize,
        select: impl Fn(&str) -> bool,
    ) -> Vec<pb_admin::DisconnectedNode> {
        let nodes = self.nodes.lock();
        let gone = nodes.by_id.iter().filter(|(id, one)| !one.is_connected && select(id));
        gone.take(max).map(|(id, one)| one.show(id, replica_id)).collect()
    }

    /// Returns the nodes with IDs after `after` and up to `end` that `is_absent` selects. The caller knows that they have
    /// no stream now, whatever the last visit found.
    pub(crate) fn absent(
        &self,
        replica_id: u64,
        max: usize,
        (after, end): (&str, Option<&str>),
        is_absent: impl Fn(&str) -> bool,
    ) -> Vec<pb_admin::DisconnectedNode> {
        let end = end.map_or(Bound::Unbounded, Bound::Included);
        let nodes = self.nodes.lock();
        let range = nodes.by_id.range::<str, _>((Bound::Excluded(after), end));
        let absent = range.filter(|(id, _)| is_absent(id));
        absent.take(max).map(|(id, one)| one.show(id, replica_id)).collect()
    }

    /// Visits the streams and writes the file again and again.
    pub(crate) async fn run(self, fanout: Fanout) {
        if self.settings.keep.is_zero() {
            return;
        }
        let mut ticks = tokio::time::interval(VISIT_PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut saved_at = Instant::now();
        loop {
            ticks.tick().await;
            self.update(&fanout).await;
            let has_changed = std::mem::take(&mut self.nodes.lock().has_changed);
            if has_changed || saved_at.elapsed() >= SAVE_PAUSE {
                saved_at = Instant::now();
                self.save().await;
            }
        }
    }

    async fn save(&self) {
        let Some(path) = self.settings.file.clone() else { return };
        let nodes = Arc::clone(&self.nodes);
        let written = tokio::task::spawn_blocking(move || {
            let bytes = nodes.lock().encode(FILE_BYTES_MAX);
            write(&path, &bytes).map_err(|error| (path, error))
        });
        if let Ok(Err((path, error))) = written.await {
            warn!(path = %path.display(), %error, "the list of recent nodes is not written");
        }
    }
}

impl Recent {
    /// Returns the bytes of the names.
    fn n_bytes(&self, id: &str) -> usize {
        id.len() + self.cluster.len() + self.user_agent.len()
    }

    fn show(&self, id: &str, replica_id: u64) -> pb_admin::DisconnectedNode {
        pb_admin::DisconnectedNode {
            id: id.to_owned(),
            cluster: self.cluster.clone(),
            user_agent: self.user_agent.clone(),
            since_ms: self.seen_ms,
            replica_id,
        }
    }
}

impl Nodes {
    /// Notes that a node has a stream.
    fn see(&mut self, node: &Node, visit: u64, now: u64) {
        if let Some(known) = self.by_id.get_mut(&node.id) {
            for (known, now) in
                [(&mut known.cluster, &node.cluster), (&mut known.user_agent, &node.user_agent)]
            {
                if known != now {
                    known.clone_from(now);
                }
            }
            known.visit = known.visit.max(visit);
            known.seen_ms = known.seen_ms.max(now);
            known.is_connected = true;
            return;
        }
        self.has_changed = true;
        let (cluster, user_agent) = (node.cluster.clone(), node.user_agent.clone());
        let recent = Recent { cluster, user_agent, seen_ms: now, visit, is_connected: true };
        self.by_id.insert(node.id.clone(), recent);
    }

    /// Notes that a node had a stream at a time. The next visit finds whether it still has one.
    fn see_event(&mut self, id: String, time_ms: u64) {
        if let Some(known) = self.by_id.get_mut(&id) {
            known.seen_ms = known.seen_ms.max(time_ms);
            return;
        }
        self.has_changed = true;
        let (cluster, user_agent) = Default::default();
        let visit = self.visit;
        let recent = Recent { cluster, user_agent, seen_ms: time_ms, visit, is_connected: false };
        self.by_id.insert(id, recent);
    }

    /// Ends a visit of all streams. Forgets the nodes that were seen last before `oldest`.
    fn end_visit(&mut self, visit: u64, oldest: u64) {
        let (mut n_gone, mut bytes, mut has_changed) = (0, 0, self.has_changed);
        self.by_id.retain(|id, one| {
            if one.visit < visit {
                has_changed |= one.is_connected;
                one.is_connected = false;
            }
            let is_kept = one.is_connected || one.seen_ms >= oldest;
            if is_kept && !one.is_connected {
                n_gone += 1;
                bytes += one.n_bytes(id);
            }
            is_kept
        });
        self.has_changed = has_changed;
        if n_gone > DISCONNECTED_MAX || bytes > DISCONNECTED_BYTES_MAX {
            self.remove_oldest();
        }
    }

    /// Removes the nodes without a stream that were seen least recently, until the others are within the bounds.
    fn remove_oldest(&mut self) {
        let gone = self.by_id.iter().filter(|(_, one)| !one.is_connected);
        let mut gone: Vec<(u64, &String, usize)> =
            gone.map(|(id, one)| (one.seen_ms, id, one.n_bytes(id))).collect();
        gone.sort_unstable_by_key(|&(seen_ms, id, _)| (Reverse(seen_ms), id));
        let mut bytes = 0;
        let is_kept = |&&(_, _, n_bytes): &&(u64, &String, usize)| {
            bytes += n_bytes;
            bytes <= DISCONNECTED_BYTES_MAX
        };
        let n_kept = gone.iter().take(DISCONNECTED_MAX).take_while(is_kept).count();
        let removed: Vec<String> = gone[n_kept..].iter().map(|(_, id, _)| (*id).clone()).collect();
        for id in removed {
            self.by_id.remove(&id);
        }
    }

    /// Encodes the nodes that fit into `bytes_max`, in the order of their IDs.
    fn encode(&self, bytes_max: usize) -> Vec<u8> {
        let nodes = self.by_id.iter().map(|(id, one)| pb::RecentNode {
            id: id.clone(),
            cluster: one.cluster.clone(),
            user_agent: one.user_agent.clone(),
            seen_ms: one.seen_ms,
        });
        let mut bytes = 0;
        let fits = |node: &pb::RecentNode| {
            bytes += node.encoded_len() + FRAME_BYTES_MAX;
            bytes <= bytes_max
        };
        pb::RecentNodes { nodes: nodes.take_while(fits).collect() }.encode_to_vec()
    }
}

/// Reads the file. Without one, the list is empty.
fn read(path: &Path) -> io::Result<BTreeMap<String, Recent>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        file => file?,
    };
    let n_bytes = file.metadata()?.len();
    if n_bytes > FILE_BYTES_MAX as u64 {
        let text = format!("it has {n_bytes} bytes, more than {FILE_BYTES_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    let list = pb::RecentNodes::decode(bytes.as_slice())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let node = |one: pb::RecentNode| {
        let pb::RecentNode { id, cluster, user_agent, seen_ms } = one;
        (id, Recent { cluster, user_agent, seen_ms, visit: 0, is_connected: false })
    };
    Ok(list.nodes.into_iter().map(node).collect())
}

/// Replaces the file as a whole.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str) -> Node {
        Node { id: id.to_owned(), cluster: "edge".to_owned(), ..Node::default() }
    }

    fn recent(nodes: Nodes) -> RecentNodes {
        let settings = RecentNodesSettings { keep: Duration::from_secs(60), file: None };
        RecentNodes { settings: Arc::new(settings), nodes: Arc::new(Mutex::new(nodes)) }
    }

    fn ids(nodes: &RecentNodes) -> Vec<String> {
        nodes.disconnected(1, 10, |_| true).into_iter().map(|one| one.id).collect()
    }

    /// A node that no visit found is listed after its stream has ended, also after a restart, and a visit that finds it
    /// corrects its properties.
    #[test]
    fn brief_node_is_disconnected_and_properties_are_the_newest() {
        let nodes = recent(Nodes::default());
        nodes.nodes.lock().see_event("brief".to_owned(), 7);
        assert!(nodes.nodes.lock().has_changed);
        assert_eq!(ids(&nodes), ["brief"]);
        nodes.nodes.lock().see(&node("brief"), 1, 8);
        assert_eq!(ids(&nodes), Vec::<String>::new());
        let moved = Node { cluster: "core".to_owned(), ..node("brief") };
        nodes.nodes.lock().see(&moved, 2, 9);
        nodes.nodes.lock().end_visit(3, 0);
        let listed = nodes.disconnected(1, 10, |_| true);
        assert_eq!((listed[0].cluster.as_str(), listed[0].since_ms), ("core", 9));
    }

    #[test]
    fn node_without_streams_is_disconnected_until_it_is_forgotten() {
        let nodes = recent(Nodes::default());
        let visit = |number, now, seen: &[&str], oldest| {
            let mut nodes = nodes.nodes.lock();
            seen.iter().for_each(|id| nodes.see(&node(id), number, now));
            nodes.end_visit(number, oldest);
        };
        visit(1, 100, &["a", "b"], 0);
        assert!(ids(&nodes).is_empty());
        visit(2, 200, &["b"], 0);
        assert_eq!(ids(&nodes), ["a"]);
        assert_eq!(nodes.disconnected(1, 10, |_| true)[0].since_ms, 100);
        visit(3, 300, &["a"], 0);
        assert_eq!(ids(&nodes), ["b"]);
        visit(4, 400, &["a"], 201);
        assert!(ids(&nodes).is_empty(), "b was seen last at 200");
    }

    #[test]
    fn number_of_disconnected_nodes_is_bounded() {
        let mut nodes = Nodes::default();
        for n in 0..DISCONNECTED_MAX + 5 {
            nodes.see(&node(&format!("n{n}")), 1, n as u64);
        }
        nodes.end_visit(2, 0);
        assert_eq!(nodes.by_id.len(), DISCONNECTED_MAX);
        assert!(!nodes.by_id.contains_key("n4") && nodes.by_id.contains_key("n5"));
    }

    /// All nodes of a visit were seen at the same time.
    #[test]
    fn disconnected_nodes_of_one_time_and_with_long_ids_are_bounded() {
        let mut nodes = Nodes::default();
        for n in 0..DISCONNECTED_MAX + 5 {
            nodes.see(&node(&format!("n{n}")), 1, 7);
        }
        nodes.end_visit(2, 0);
        assert_eq!(nodes.by_id.len(), DISCONNECTED_MAX);

        let mut nodes = Nodes::default();
        let long = "x".repeat(DISCONNECTED_BYTES_MAX / 4);
        for n in 0..5 {
            nodes.see(&node(&format!("{n}{long}")), 1, n);
        }
        nodes.end_visit(2, 0);
        let kept: Vec<&str> = nodes.by_id.keys().map(|id| &id[..1]).collect();
        assert_eq!(kept, ["2", "3", "4"], "the newest");
    }

    /// The file was written larger than it may be read.
    #[test]
    fn file_omits_the_nodes_that_do_not_fit() {
        let mut nodes = Nodes::default();
        for id in ["a", "b", "c"] {
            nodes.see(&node(id), 1, 7);
        }
        let bytes = nodes.encode(FILE_BYTES_MAX);
        let fewer = nodes.encode(bytes.len());
        assert!(fewer.len() < bytes.len(), "the bytes around a message are estimated");
        let listed = pb::RecentNodes::decode(fewer.as_slice()).unwrap();
        let ids: Vec<String> = listed.nodes.into_iter().map(|one| one.id).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    #[test]
    fn list_survives_a_restart_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recent-nodes");
        let mut nodes = Nodes::default();
        nodes.see(&node("a"), 1, 7);
        write(&path, &nodes.encode(FILE_BYTES_MAX)).unwrap();
        let known = read(&path).unwrap();
        assert_eq!((known["a"].seen_ms, known["a"].is_connected), (7, false));
        assert!(read(&dir.path().join("none")).unwrap().is_empty());
        fs::write(&path, b"\x0a\x63damaged").unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
