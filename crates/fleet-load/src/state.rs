//! The resources that one client has, and the checks of each response.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

/// The arrivals of a response for which a client keeps memory.
const ARRIVALS_KEPT: usize = 4;

/// The type and the name of a resource, as numbers.
pub(crate) type Key = (u8, u32);

/// The content of a resource that a client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    /// The hash of the encoded resource.
    pub(crate) hash: u64,
    /// The version of a delta response, as a number.
    pub(crate) version: u32,
}

/// A resource of the current response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) name: u32,
    pub(crate) content: Content,
    /// The write of the content, if it is one of this test.
    pub(crate) write: Option<u32>,
}

/// The result of a response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// The writes that the client now has, and did not have before.
    pub(crate) writes: Vec<u32>,
    /// The number of these that came only with a newer write of the same resource.
    pub(crate) replaced: u64,
    /// The resources that came again without a change.
    pub(crate) repeats: u64,
    /// The resources that are older than what the client had.
    pub(crate) older: u64,
    /// The changed resources.
    pub(crate) changed: Vec<(Key, u64)>,
}

/// The resources of a client.
#[derive(Debug, Default)]
pub(crate) struct ClientState {
    held: HashMap<Key, Content>,
    /// The newest write of each resource of the test; 0 for none.
    newest: Vec<u32>,
    arrivals: Vec<Arrival>,
    removals: Vec<u32>,
}

impl ClientState {
    /// Returns the state of a new client, for a test with `n` resources.
    pub(crate) fn new(n: usize) -> Self {
        Self { newest: vec![0; n], ..Self::default() }
    }

    pub(crate) fn held(&self) -> &HashMap<Key, Content> {
        &self.held
    }

    /// Returns whether the client has a version of every resource of the test.
    pub(crate) fn has_all(&self) -> bool {
        self.newest.iter().all(|write| *write > 0)
    }

    /// Returns whether the client has a write, or a newer one of the same resource.
    pub(crate) fn has(&self, write: u32) -> bool {
        resource_of(write, self.newest.len())
            .and_then(|n| self.newest.get(n))
            .is_some_and(|newest| *newest >= write)
    }

    /// Forgets everything, as a client that starts.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.newest.len());
    }

    /// Forgets a response whose end has not arrived.
    pub(crate) fn interrupt(&mut self) {
        self.arrivals.clear();
        self.removals.clear();
    }

    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        self.arrivals.push(arrival);
    }

    pub(crate) fn remove(&mut self, name: u32) {
        self.removals.push(name);
    }

    /// Applies a response of a type. A state-of-the-world response replaces all resources of the type (`is_whole`). The
    /// first response after a connection may repeat what the client has (`is_first`).
    pub(crate) fn apply(&mut self, type_number: u8, is_whole: bool, is_first: bool) -> Applied {
        let mut applied = Applied::default();
        let arrivals = std::mem::take(&mut self.arrivals);
        if is_whole {
            let names: HashSet<u32> = arrivals.iter().map(|arrival| arrival.name).collect();
            self.held.retain(|(of_type, name), _| *of_type != type_number || names.contains(name));
        }
        for Arrival { name, content, write } in &arrivals {
            let key = (type_number, *name);
            let before = self.held.insert(key, *content);
            if before.is_some_and(|before| before.hash == content.hash) {
                applied.repeats += u64::from(!is_whole && !is_first);
                continue;
            }
            applied.changed.push((key, content.hash));
            if let Some(write) = write {
                self.receive(*write, &mut applied);
            }
        }
        for name in std::mem::take(&mut self.removals) {
            self.held.remove(&(type_number, name));
        }
        self.arrivals = arrivals;
        self.arrivals.clear();
        self.arrivals.shrink_to(ARRIVALS_KEPT);
        applied
    }

    /// Notes a write, and the writes of the same resource that it replaces.
    fn receive(&mut self, write: u32, applied: &mut Applied) {
        let n = self.newest.len();
        let Some(newest) = resource_of(write, n).and_then(|at| self.newest.get_mut(at)) else {
            return;
        };
        if write < *newest {
            applied.older += 1;
            return;
        }
        let step = u32::try_from(n).unwrap_or(u32::MAX);
        let mut one = write;
        while one > *newest {
            applied.writes.push(one);
            match one.checked_sub(step) {
                // A new client does not count what it never missed.
                Some(earlier) if *newest > 0 => {
                    applied.replaced += u64::from(earlier > *newest);
                    one = earlier;
                }
                _ => break,
            }
        }
        *newest = write;
    }
}

/// Returns the number of the resource that a write changes. Writes take the resources in turn, from 1 on.
pub(crate) fn resource_of(write: u32, n_resources: usize) -> Option<usize> {
    let write = usize::try_from(write).ok()?.checked_sub(1)?;
    (n_resources > 0).then(|| write % n_resources)
}

/// Returns the hash of an encoded resource.
pub(crate) fn hash(body: &[u8]) -> u64 {
    xxh3_64(body)
}

/// Returns the name of a resource in a state-of-the-world response: the first field of its message, as in all types with
/// a name (`google.protobuf.Any` around it).
pub(crate) fn name_of(any: &[u8]) -> Option<&[u8]> {
    let message = field(any, 2)?;
    field(message, 1)
}

/// Returns the first field with this number and bytes as its content.
fn field(mut message: &[u8], number: u64) -> Option<&[u8]> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        match key & 7 {
            0 => drop(varint(&mut message)?),
            1 => message = message.get(8..)?,
            2 => {
                let len = usize::try_from(varint(&mut message)?).ok()?;
                let content = message.get(..len)?;
                if key >> 3 == number {
                    return Some(content);
                }
                message = message.get(len..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    None
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(message).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_proto::discovery::{Any, Resource};
    use prost::Message as _;

    use super::*;

    fn arrival(name: u32, write: u32) -> Arrival {
        let content = Content { hash: u64::from(write) + 100, version: write };
        Arrival { name, content, write: Some(write) }
    }

    fn applied(state: &mut ClientState, arrivals: &[Arrival]) -> Applied {
        arrivals.iter().for_each(|one| state.arrive(*one));
        state.apply(0, false, false)
    }

    #[test]
    fn write_that_replaces_others_counts_for_them() {
        let mut state = ClientState::new(2);
        assert!(!state.has_all());
        let first = applied(&mut state, &[arrival(0, 1), arrival(1, 2)]);
        assert_eq!(first.writes, [1, 2]);
        assert!(state.has_all() && state.has(2) && !state.has(3));
        // Writes 3 and 5 change the same resource.
        let later = applied(&mut state, &[arrival(0, 5)]);
        assert_eq!((later.writes, later.replaced), (vec![5, 3], 1));
        assert!(state.has(3) && !state.has(4));
    }

    #[test]
    fn repeated_and_older_resources_are_found() {
        let mut state = ClientState::new(1);
        applied(&mut state, &[arrival(0, 2)]);
        assert_eq!(applied(&mut state, &[arrival(0, 2)]).repeats, 1);
        assert_eq!(applied(&mut state, &[arrival(0, 1)]).older, 1);
        state.arrive(arrival(0, 1));
        assert_eq!(state.apply(0, false, true).repeats, 0, "a resumed stream may repeat");
    }

    #[test]
    fn state_of_the_world_replaces_its_type() {
        let mut state = ClientState::new(0);
        state.arrive(arrival(0, 1));
        state.arrive(arrival(1, 2));
        state.apply(0, true, true);
        state.arrive(arrival(7, 3));
        state.apply(1, true, true);
        state.arrive(arrival(1, 2));
        assert_eq!(state.apply(0, true, false).repeats, 0);
        let mut keys: Vec<Key> = state.held().keys().copied().collect();
        keys.sort_unstable();
        assert_eq!(keys, [(0, 1), (1, 7)]);
        state.remove(7);
        state.apply(1, false, false);
        assert_eq!(state.held().len(), 1);
    }

    #[test]
    fn name_is_the_first_field_of_the_message() {
        let named = Resource { name: "x".into(), version: "web".into(), ..Resource::default() };
        let value = Bytes::from(named.encode_to_vec());
        let any = Any { type_url: "t".into(), value }.encode_to_vec();
        // `Resource.version` has the number 1.
        assert_eq!(name_of(&any), Some(&b"web"[..]));
        assert_eq!(name_of(&[0x12, 200]), None);
    }
}
