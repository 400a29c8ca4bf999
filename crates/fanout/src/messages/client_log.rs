//! The newest events of clients, for those who watch them.
//!
//! The number of events is bounded: a reader that comes too late learns how many it has missed.

use std::{collections::VecDeque, net::SocketAddr, time::SystemTime};

use chancery_model::{Node, TypeUrl};
use parking_lot::Mutex;

/// The number of newest events that are kept.
const EVENTS_MAX: usize = 4096;
/// The maximum length of a kept ID of a node and of a message, in bytes.
const TEXT_BYTES_MAX: usize = 512;

/// An event of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The number of the event. Numbers ascend by one.
    pub number: u64,
    /// The time of the event.
    pub time: SystemTime,
    /// The kind.
    pub kind: LoggedKind,
    /// The ID of the node, truncated.
    pub node: String,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The rejected type; `None` for other events.
    pub type_url: Option<TypeUrl>,
    /// The client's message of a rejection, truncated; otherwise empty.
    pub message: String,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedKind {
    /// A stream has opened.
    Connected,
    /// A stream has ended.
    Disconnected,
    /// The client has rejected a response.
    Rejected,
    /// The last rejection of the client has ended.
    Recovered,
}

/// The events after a number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedEvents {
    /// The events, the oldest first.
    pub events: Vec<LoggedEvent>,
    /// The number of events after the number that are no longer kept.
    pub n_missed: u64,
    /// The number of the newest event; 0 before the first one.
    pub newest: u64,
}

/// The newest events of all shards.
#[derive(Debug, Default)]
pub(crate) struct ClientLog(Mutex<Events>);

#[derive(Debug, Default)]
struct Events {
    newest: VecDeque<LoggedEvent>,
    last: u64,
}

impl ClientLog {
    /// Adds an event of a node.
    pub(crate) fn record(
        &self,
        kind: LoggedKind,
        node: &Node,
        peer: SocketAddr,
        rejected: Option<(&TypeUrl, &str)>,
    ) {
        let event = LoggedEvent {
            number: 0,
            time: SystemTime::now(),
            kind,
            node: truncated(&node.id),
            peer,
            type_url: rejected.map(|(type_url, _)| type_url.clone()),
            message: rejected.map(|(_, message)| truncated(message)).unwrap_or_default(),
        };
        let mut events = self.0.lock();
        if events.newest.len() == EVENTS_MAX {
            events.newest.pop_front();
        }
        events.last += 1;
        let number = events.last;
        events.newest.push_back(LoggedEvent { number, ..event });
    }

    /// Returns the events after a number, at most `max`.
    pub(crate) fn after(&self, number: u64, max: usize) -> LoggedEvents {
        let events = self.0.lock();
        let first = events.last - events.newest.len() as u64 + 1;
        let next = number.saturating_add(1);
        let skipped = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
        LoggedEvents {
            events: events.newest.iter().skip(skipped).take(max).cloned().collect(),
            n_missed: first.saturating_sub(next),
            newest: events.last,
        }
    }
}

fn truncated(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_gets_each_event_once_and_learns_what_it_has_missed() {
        let log = ClientLog::default();
        let node = Node { id: "é".repeat(400), ..Node::default() };
        let peer = "127.0.0.1:1".parse().unwrap();
        let record = || log.record(LoggedKind::Connected, &node, peer, None);
        assert_eq!(log.after(0, 10), LoggedEvents::default());
        (0..3).for_each(|_| record());
        let read = log.after(1, 10);
        assert_eq!(read.events.iter().map(|event| event.number).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((read.n_missed, read.newest, read.events[0].node.len()), (0, 3, 512));
        assert_eq!(log.after(0, 1).events.len(), 1);
        for number in [3, 9, u64::MAX] {
            assert!(log.after(number, 10).events.is_empty());
        }
        (0..EVENTS_MAX).for_each(|_| record());
        let read = log.after(1, usize::MAX);
        assert_eq!((read.events.len(), read.n_missed), (EVENTS_MAX, 2));
    }
}
