//! The tally of the records of a state, by which a start detects a record that was lost or reverted.

use crate::format::record;

/// The number of records and the sum of their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    pub(crate) sum: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, record: &[u8]) {
        self.records = self.records.wrapping_add(1);
        self.sum = self.sum.wrapping_add(record::checksum(record));
    }

    pub(crate) fn remove(&mut self, record: &[u8]) {
        self.records = self.records.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(record::checksum(record));
    }
}
