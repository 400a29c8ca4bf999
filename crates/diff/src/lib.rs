//! The difference between two configurations, as people describe it.
//!
//! [`diff`] compares two JSON values by structure. It matches the items of lists by a key that identifies them, such as
//! `name` or `address`, and else by their content, never by index alone. An item in another place is moved, not removed
//! and added. [`unified`] shows the differences as lines of YAML, and [`words`] shows two long texts by their words.
//!
//! The work is O(n log n) in the size of the values, except for parts with a fixed bound.

#![forbid(unsafe_code)]

mod compare;
mod difference;
mod list;
mod text;
mod unified;
mod yaml;

pub use crate::{
    compare::diff,
    difference::{Difference, Edit, Path, Segment},
    text::{common_lines, words},
    unified::{Line, Sign, Unified, unified},
    yaml::field_lines,
};

#[cfg(test)]
mod tests;
