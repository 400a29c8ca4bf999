//! Shards: which sessions care about a commit, and when can they take it
