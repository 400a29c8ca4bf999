//! The size of the log's entries in bytes, for purging by size.

use std::collections::VecDeque;

/// The maximum number of entries between two marks.
const STRIDE: u64 = 64;
/// The maximum size of the entries between two marks in bytes, except for the last entry before the
/// second mark.
const STRIDE_BYTES: u64 = 64 << 10;

/// The size of the log's entries, as running totals at every [`STRIDE`]th entry, or more often if
/// entries are large. Sizes are exact to one stride.
#[derive(Debug, Default)]
pub(crate) struct LogSize {
    /// The size of all entries ever appended to this log since it was opened, in bytes.
    total: u64,
    /// The index of the last entry.
    last: u64,
    /// The marks: the index of an entry, and the total before that entry. Ascending in both.
    marks: VecDeque<(u64, u64)>,
}

impl LogSize {
    /// Counts an appended entry.
    pub(crate) fn append(&mut self, index: u64, len: usize) {
        let next = |(mark, before): &(u64, u64)| {
            index >= mark + STRIDE || self.total - before >= STRIDE_BYTES
        };
        if self.marks.back().is_none_or(next) {
            self.marks.push_back((index, self.total));
        }
        self.total += len as u64;
        self.last = index;
    }

    /// Forgets the entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        self.last = self.last.min(index.saturating_sub(1));
        while let Some((mark, total)) = self.marks.back().copied()
            && mark >= index
        {
            self.marks.pop_back();
            self.total = total;
        }
    }

    /// Forgets the entries up to `index`.
    pub(crate) fn purge(&mut self, index: u64) {
        while self.marks.get(1).is_some_and(|(mark, _)| *mark <= index + 1) {
            self.marks.pop_front();
        }
        if index >= self.last {
            self.marks.clear();
        }
    }

    /// Returns the size of the log in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.marks.front().map_or(0, |(_, before)| self.total - before)
    }

    /// Returns the size of the entries after `index`, possibly with some entries before it. Returns
    /// 0 after the last entry.
    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        if index >= self.last {
            return 0;
        }
        let next = self.marks.partition_point(|(mark, _)| *mark <= index + 1);
        let before = match next.checked_sub(1).and_then(|at| self.marks.get(at)) {
            Some((_, before)) => *before,
            None => self.marks.front().map_or(self.total, |(_, before)| *before),
        };
        self.total - before
    }

    /// Returns the index up to which the log must be purged to hold about `bytes` bytes. Returns
    /// `None` if the log is already small enough.
    pub(crate) fn cut(&self, bytes: u64) -> Option<u64> {
        if self.bytes() <= bytes {
            return None;
        }
        match self.marks.iter().find(|(_, before)| self.total - before <= bytes) {
            Some((first, _)) => first.checked_sub(1),
            // The last stride alone exceeds `bytes`.
            None => Some(self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_last_entry_is_purged() {
        let mut size = LogSize::default();
        for index in 0..3 {
            size.append(index, 10);
        }
        size.append(3, 1_000_000);
        assert_eq!(size.cut(1000), Some(3));
        size.purge(3);
        assert_eq!((size.bytes(), size.cut(1000)), (0, None));
        size.append(4, 10);
        assert_eq!((size.bytes(), size.bytes_after(4), size.cut(1000)), (10, 0, None));
    }

    #[test]
    fn log_size_is_exact_to_one_stride() {
        let mut size = LogSize::default();
        assert_eq!((size.bytes(), size.cut(0)), (0, None));
        for index in 1..=1000 {
            size.append(index, 10);
        }
        assert_eq!(size.bytes(), 10_000);
        let after = size.bytes_after(500);
        assert!((5000..5000 + 10 * STRIDE).contains(&after), "{after}");
        let cut = size.cut(3000).unwrap();
        assert!((700..700 + STRIDE).contains(&cut), "{cut}");
        size.purge(cut);
        assert!(size.bytes() <= 3000, "{}", size.bytes());
        assert_eq!(size.cut(3000), None);
        size.truncate(900);
        let exact = 10 * (900 - cut - 1);
        assert!((exact..=exact + 20 * STRIDE).contains(&size.bytes()), "{}", size.bytes());
        size.purge(2000);
        assert!(size.bytes() <= 10 * STRIDE);
    }
}
