//! The replicated store: openraft over RocksDB
