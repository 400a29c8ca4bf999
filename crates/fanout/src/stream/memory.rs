//! The memory of all subscriptions of a replica, and each stream's share of it.
//!
//! A subscribed name takes some hundred bytes for the life of the stream. At the limit for all streams
//! together, shares decide. A stream's share is the limit divided by the number of streams that hold
//! counted memory. A stream that would exceed its share is rejected. For a stream within its share, the
//! replica ends the stream that holds most. A client with few subscriptions is therefore always served,
//! whatever others hold.
//!
//! The first [`FREE_BYTES`] of each stream are not counted. They are small beside the other costs of a
//! stream, and the number of streams is bounded.
//!
//! Invariants:
//! - The counted bytes are at most the limit plus the bytes that ended streams have not released yet.
//! - A stream that holds no more than its share is never rejected, and never ended.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    messages::status::{End, EndCode},
    metrics::{limit_hit, set_subscription_bytes},
    stream::slot::StreamSlot,
};

/// The number of bytes of each stream that are not counted.
const FREE_BYTES: usize = 4 << 10;

/// The memory of the subscriptions of all streams.
#[derive(Debug)]
pub(crate) struct SubscriptionMemory {
    max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The bytes of the streams in `holders`.
    used: usize,
    /// The bytes of streams that were ended here and have not released their memory yet.
    leaving: usize,
    holders: HashMap<u64, (usize, Arc<StreamSlot>)>,
    by_size: BTreeSet<(usize, u64)>,
    last: u64,
}

/// The counted bytes of one stream. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Holding {
    memory: Arc<SubscriptionMemory>,
    id: u64,
    bytes: usize,
}

/// An error: a stream would exceed its share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this stream would hold {bytes} bytes for its subscriptions, more than its share of {share} of the {max} \
     for all streams (subscriptions_bytes_max); subscribe to fewer names, or raise the limit"
)]
pub(crate) struct ShareExceeded {
    bytes: usize,
    share: usize,
    max: usize,
}

impl SubscriptionMemory {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, inner: Mutex::default() })
    }

    /// Creates the holding of a new stream, with 0 bytes.
    pub(crate) fn holding(self: &Arc<Self>) -> Holding {
        let mut inner = self.inner.lock();
        inner.last += 1;
        Holding { memory: Arc::clone(self), id: inner.last, bytes: 0 }
    }

    #[cfg(test)]
    fn used(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.used, inner.leaving)
    }
}

impl Holding {
    /// Reserves `bytes` bytes for the stream. At the limit, ends the streams that hold most.
    pub(crate) fn reserve(
        &mut self,
        slot: &Arc<StreamSlot>,
        bytes: usize,
    ) -> Result<(), ShareExceeded> {
        let counted = bytes.saturating_sub(FREE_BYTES);
        if counted <= self.bytes {
            return Ok(());
        }
        let max = self.memory.max;
        let mut inner = self.memory.inner.lock();
        let is_new = !inner.holders.contains_key(&self.id);
        let share = max / (inner.holders.len() + usize::from(is_new)).max(1);
        let others = inner.used - self.bytes;
        if others + inner.leaving + counted > max {
            if counted > share {
                drop(inner);
                limit_hit("subscriptions_bytes");
                return Err(ShareExceeded { bytes, share, max });
            }
            while inner.used - self.bytes + counted > max && inner.end_largest(self.id, max) {}
        }
        inner.set(self.id, self.bytes, counted, Some(slot));
        self.bytes = counted;
        Ok(())
    }

    /// Updates the counted bytes to `bytes`, after a request was handled or answered.
    pub(crate) fn settle(&mut self, slot: &Arc<StreamSlot>, bytes: usize) {
        let counted = bytes.saturating_sub(FREE_BYTES);
        if counted != self.bytes {
            self.memory.inner.lock().set(self.id, self.bytes, counted, Some(slot));
            self.bytes = counted;
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.inner.lock().set(self.id, self.bytes, 0, None);
        }
    }
}

impl Inner {
    /// Replaces the counted bytes of a stream, from `old` to `new`.
    fn set(&mut self, id: u64, old: usize, new: usize, slot: Option<&Arc<StreamSlot>>) {
        if self.by_size.remove(&(old, id)) {
            self.used = self.used - old + new;
        } else if old == 0 && slot.is_some() {
            self.used += new;
        } else {
            // The stream was ended here.
            self.leaving = self.leaving - old + new;
            return self.tell();
        }
        if new == 0 {
            self.holders.remove(&id);
        } else {
            self.by_size.insert((new, id));
            match (self.holders.get_mut(&id), slot) {
                (Some((bytes, _)), _) => *bytes = new,
                (None, Some(slot)) => drop(self.holders.insert(id, (new, Arc::clone(slot)))),
                (None, None) => {}
            }
        }
        self.tell();
    }

    /// Ends the stream that holds most, except `but`. Returns whether there was one.
    fn end_largest(&mut self, but: u64, max: usize) -> bool {
        let Some(&(bytes, id)) = self.by_size.iter().rev().find(|(_, id)| *id != but) else {
            return false;
        };
        self.by_size.remove(&(bytes, id));
        self.used -= bytes;
        self.leaving += bytes;
        if let Some((_, slot)) = self.holders.remove(&id) {
            limit_hit("subscriptions_bytes");
            let text = format!(
                "this stream holds {bytes} bytes for its subscriptions, the most of all streams, and other \
                 streams need their share of the {max} for all (subscriptions_bytes_max); subscribe to fewer \
                 names, or raise the limit"
            );
            slot.end_in_order(End::new(EndCode::ResourceExhausted, text));
        }
        true
    }

    fn tell(&self) {
        set_subscription_bytes(self.used + self.leaving);
    }
}

#[cfg(test)]
mod tests {
    use chancery_protocol::{Protocol, StreamKind};

    use super::*;
    use crate::{StreamInfo, stream::slot::ReadyList};

    fn slot() -> Arc<StreamSlot> {
        let kind = StreamKind { protocol: Protocol::Delta, type_url: None };
        let info = StreamInfo { kind, peer: ([127, 0, 0, 1], 1).into(), identity: None };
        StreamSlot::new(info, Arc::<ReadyList>::default())
    }

    struct Stream {
        slot: Arc<StreamSlot>,
        holding: Holding,
    }

    impl Stream {
        fn new(memory: &Arc<SubscriptionMemory>) -> Self {
            Self { slot: slot(), holding: memory.holding() }
        }

        /// Reserves bytes beyond the free allowance of the stream.
        fn reserve(&mut self, counted: usize) -> bool {
            self.holding.reserve(&self.slot, FREE_BYTES + counted).is_ok()
        }
    }

    /// L11, L12: a stream over its share is rejected when no memory is left, and ended when another
    /// stream needs its share.
    #[test]
    fn largest_stream_is_closed_to_serve_small_stream() {
        let memory = SubscriptionMemory::new(1000);
        let (mut hog, mut second, mut small) =
            (Stream::new(&memory), Stream::new(&memory), Stream::new(&memory));
        assert!(hog.reserve(900), "a single stream may hold everything");
        assert!(!second.reserve(600), "more than half, and there is no memory left");
        assert!(second.reserve(100));
        assert!(!hog.slot.is_closed());
        assert!(!hog.reserve(901), "the hog gets no more");
        assert!(small.reserve(300));
        assert!(hog.slot.is_closed() && !second.slot.is_closed());
        assert_eq!(memory.used(), (400, 900));
        assert!(!second.reserve(600), "the hog has not released its memory");
        drop(hog);
        assert_eq!(memory.used(), (400, 0));
        assert!(second.reserve(600));
        drop((second, small));
        assert_eq!(memory.used(), (0, 0));
    }

    /// A stream within its share is served, however many streams came before and whatever they hold.
    #[test]
    fn later_stream_gets_its_share_of_memory() {
        let memory = SubscriptionMemory::new(10_000);
        let mut streams: Vec<Stream> = Vec::new();
        for n in 1..=100 {
            let mut stream = Stream::new(&memory);
            // Each stream takes its full share.
            let share = 10_000 / n;
            assert!(stream.reserve(share), "stream {n}");
            streams.retain(|stream| !stream.slot.is_closed());
            streams.push(stream);
            let (used, leaving) = memory.used();
            assert!(used <= 10_000 && leaving == 0, "{used} and {leaving} after {n}");
        }
        assert!(streams.len() >= 50, "{} streams are left", streams.len());
    }

    /// Unused bytes are released, and the free bytes are not counted.
    #[test]
    fn bytes_within_free_allowance_are_not_counted() {
        let memory = SubscriptionMemory::new(1000);
        let mut stream = Stream::new(&memory);
        assert!(stream.holding.reserve(&stream.slot, FREE_BYTES).is_ok());
        assert_eq!(memory.used(), (0, 0));
        assert!(stream.reserve(500));
        stream.holding.settle(&stream.slot, FREE_BYTES + 20);
        assert_eq!(memory.used(), (20, 0));
        stream.holding.settle(&stream.slot, 0);
        assert_eq!(memory.used(), (0, 0));
        assert!(memory.inner.lock().holders.is_empty());
    }
}
