//! A list of resources that shares parts with other lists.

use std::{ops::Range, sync::Arc};

use chancery_model::Resource;

#[derive(Debug, Clone)]
enum Piece {
    One(Arc<Resource>),
    Shared(Arc<[Arc<Resource>]>, Range<usize>),
}

impl Piece {
    fn as_slice(&self) -> &[Arc<Resource>] {
        match self {
            Self::One(resource) => std::slice::from_ref(resource),
            Self::Shared(all, range) => &all[range.clone()],
        }
    }
}

/// The resources of one response.
///
/// The list refers to slices that all sessions with the same update share. Only resources that a
/// session adds individually take memory of the session's own.
/// A clone is cheap: it shares the list until one of the two changes.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    pieces: Arc<Vec<Piece>>,
    len: usize,
}

impl Resources {
    /// Adds one resource.
    pub fn push(&mut self, resource: Arc<Resource>) {
        self.len += 1;
        Arc::make_mut(&mut self.pieces).push(Piece::One(resource));
    }

    /// Adds a shared list, without copying it.
    pub fn push_shared(&mut self, all: &Arc<[Arc<Resource>]>) {
        self.push_range(all, 0..all.len());
    }

    /// Keeps the resources for which `keeps` returns `true`. Shared lists stay shared.
    pub fn retain(&mut self, keeps: impl Fn(&Resource) -> bool) {
        let mut kept = Self::default();
        for piece in Arc::unwrap_or_clone(std::mem::take(&mut self.pieces)) {
            match piece {
                Piece::One(resource) if keeps(&resource) => kept.push(resource),
                Piece::One(_) => {}
                Piece::Shared(all, range) => {
                    let mut start = range.start;
                    for at in range.clone().filter(|at| !keeps(&all[*at])).chain([range.end]) {
                        kept.push_range(&all, start..at);
                        start = at + 1;
                    }
                }
            }
        }
        *self = kept;
    }

    fn push_range(&mut self, all: &Arc<[Arc<Resource>]>, range: Range<usize>) {
        if !range.is_empty() {
            self.len += range.len();
            Arc::make_mut(&mut self.pieces).push(Piece::Shared(Arc::clone(all), range));
        }
    }

    /// Returns the number of resources.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the resources in order.
    #[must_use]
    pub fn iter(&self) -> ResourcesIter<'_> {
        ResourcesIter { pieces: self.pieces.iter(), current: [].iter() }
    }

    /// Removes resources from the front, up to a total of `bytes` as measured by `size`, and returns
    /// them.
    ///
    /// The result has at least one resource, unless the list is empty. The cost is O(resources
    /// taken), and O(1) without a limit (`usize::MAX`).
    #[must_use]
    pub fn take_front(&mut self, bytes: usize, mut size: impl FnMut(&Resource) -> usize) -> Self {
        if bytes == usize::MAX {
            return std::mem::take(self);
        }
        let (mut front, mut rest, mut len) = (Vec::new(), Vec::new(), 0);
        let mut taken = 0;
        let mut pieces = Arc::unwrap_or_clone(std::mem::take(&mut self.pieces)).into_iter();
        for piece in pieces.by_ref() {
            let fits = piece.as_slice().iter().take_while(|resource| {
                let first = taken == 0;
                let next = taken + size(resource);
                let fits = first || next <= bytes;
                if fits {
                    taken = next;
                }
                fits
            });
            let n = fits.count();
            len += n;
            match piece {
                Piece::Shared(all, range) if n < range.len() => {
                    let cut = range.start + n;
                    front.push(Piece::Shared(Arc::clone(&all), range.start..cut));
                    rest.push(Piece::Shared(all, cut..range.end));
                    break;
                }
                Piece::One(_) if n == 0 => {
                    rest.push(piece);
                    break;
                }
                whole => front.push(whole),
            }
        }
        rest.extend(pieces);
        self.pieces = Arc::new(rest);
        self.len -= len;
        Self { pieces: Arc::new(front), len }
    }

    /// Returns the resource at a cursor (piece, index in the piece) and the next cursor.
    #[must_use]
    pub fn at(&self, mut cursor: (usize, usize)) -> Option<(&Arc<Resource>, (usize, usize))> {
        loop {
            let slice = self.pieces.get(cursor.0)?.as_slice();
            match slice.get(cursor.1) {
                Some(resource) => return Some((resource, (cursor.0, cursor.1 + 1))),
                None => cursor = (cursor.0 + 1, 0),
            }
        }
    }
}

/// An iterator over [`Resources`].
#[derive(Debug, Clone)]
pub struct ResourcesIter<'a> {
    pieces: std::slice::Iter<'a, Piece>,
    current: std::slice::Iter<'a, Arc<Resource>>,
}

impl<'a> Iterator for ResourcesIter<'a> {
    type Item = &'a Arc<Resource>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(resource) = self.current.next() {
                return Some(resource);
            }
            self.current = self.pieces.next()?.as_slice().iter();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{ResourceDraft, ResourceKey, ResourceName, Revision, TypeUrl};

    use super::*;

    fn list(n: usize) -> Resources {
        let resource = |i: usize| {
            let key = ResourceKey {
                type_url: TypeUrl::from_static("t/x.Y"),
                name: ResourceName::new(&format!("{i:03}")).unwrap(),
            };
            Arc::new(Resource::publish(&ResourceDraft::new(key, Bytes::new()), Revision(1)))
        };
        let mut list = Resources::default();
        list.push(resource(0));
        list.push_shared(&(1..n).map(resource).collect());
        list.push(resource(n));
        list
    }

    #[test]
    fn take_front_keeps_all_resources_in_order() {
        for bytes in [0, 1, 3, 4, 11, 1000, usize::MAX] {
            let mut rest = list(10);
            let mut seen = Vec::new();
            while !rest.is_empty() {
                let before = rest.len();
                let front = rest.take_front(bytes, |_| 1);
                assert_eq!(front.len(), bytes.clamp(1, before), "cut at {bytes}");
                assert_eq!(front.iter().count(), front.len());
                seen.extend(front.iter().map(|resource| resource.name().to_string()));
            }
            assert_eq!(seen, (0..=10).map(|i| format!("{i:03}")).collect::<Vec<_>>());
        }
    }

    #[test]
    fn retain_keeps_exactly_the_chosen_resources() {
        for divisor in 1..5 {
            let mut list = list(10);
            let n = |resource: &Resource| resource.name().as_str().parse::<usize>().unwrap();
            list.retain(|resource| n(resource) % divisor != 1);
            let found: Vec<usize> = list.iter().map(|resource| n(resource)).collect();
            let expected: Vec<usize> = (0..=10).filter(|n| n % divisor != 1).collect();
            assert_eq!(found, expected, "{divisor}");
            assert_eq!(list.len(), expected.len());
        }
    }

    #[test]
    fn cursor_visits_all_pieces() {
        let list = list(5);
        let (mut cursor, mut n) = ((0, 0), 0);
        while let Some((_, next)) = list.at(cursor) {
            (cursor, n) = (next, n + 1);
        }
        assert_eq!(n, list.len());
    }
}
