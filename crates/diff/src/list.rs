//! Which item of a list became which.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::Value;
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// The fields that identify the items of lists in xDS resources and manifests. The first one that all items have, each
/// with another value, is the key of a list.
const KEYS: [&str; 16] = [
    "name",
    "endpoint.address",
    "address",
    "domains",
    "match",
    "filter_chain_match",
    "locality",
    "key",
    "header.key",
    "header_name",
    "cluster",
    "id",
    "path",
    "prefix",
    "priority",
    "@type",
];
/// The maximum product of the numbers of items that are compared with each other.
const SIMILAR_MAX: usize = 2500;
/// The maximum length of a list with equal items for which the longest common subsequence is searched.
const SUBSEQUENCE_MAX: usize = 2000;

/// The items of two lists.
#[derive(Debug)]
pub(crate) struct Matched {
    /// The key of the list.
    pub(crate) key: Option<&'static str>,
    /// The items, in the order of the second list. An item that is gone follows the one that it followed before.
    pub(crate) pairs: Vec<Pair>,
}

/// An item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) before: Option<usize>,
    pub(crate) after: Option<usize>,
    pub(crate) is_moved: bool,
}

/// Matches the items of two lists.
pub(crate) fn match_items(old: &[Value], new: &[Value]) -> Matched {
    let key = KEYS.into_iter().find(|key| is_key(old, key) && is_key(new, key));
    // The index of the new item for each old one.
    let mut became: Vec<Option<usize>> = vec![None; old.len()];
    match key {
        Some(key) => match_unique(old, new, |item| text_of_key(item, key), &mut became),
        None => match_equal(old, new, &mut became),
    }
    let stays = longest_rising(&became);
    match_similar(old, new, &stays, &mut became);
    let stays = longest_rising(&became);
    Matched { key, pairs: in_order(&became, &stays, new.len()) }
}

/// Returns the value of a key of an item. The value of `endpoint.address` is shown as `IP:PORT`.
pub(crate) fn key_of<'a>(item: &'a Value, key: &str) -> Option<Cow<'a, Value>> {
    let mut value = item;
    for field in key.split('.') {
        value = value.as_object()?.get(field)?;
    }
    let socket = value.get("socket_address").and_then(|socket| {
        let port = socket.get("port_value")?;
        Some(format!("{}:{port}", socket.get("address")?.as_str()?))
    });
    Some(socket.map_or(Cow::Borrowed(value), |text| Cow::Owned(Value::String(text))))
}

fn text_of_key(item: &Value, key: &str) -> String {
    key_of(item, key).map(|value| value.to_string()).unwrap_or_default()
}

fn is_key(items: &[Value], key: &str) -> bool {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().all(|item| key_of(item, key).is_some_and(|value| seen.insert(value.to_string())))
}

fn match_unique(
    old: &[Value],
    new: &[Value],
    key: impl Fn(&Value) -> String,
    became: &mut [Option<usize>],
) {
    let by_key: HashMap<String, usize> =
        new.iter().enumerate().map(|(at, item)| (key(item), at)).collect();
    for (item, became) in old.iter().zip(became) {
        *became = by_key.get(&key(item)).copied();
    }
}

/// Matches equal items: those of a longest common subsequence first, then the rest in their order.
fn match_equal(old: &[Value], new: &[Value], became: &mut [Option<usize>]) {
    let mut ids: HashMap<String, usize> = HashMap::new();
    let mut id = |item: &Value| {
        let next = ids.len();
        *ids.entry(item.to_string()).or_insert(next)
    };
    let old: Vec<usize> = old.iter().map(&mut id).collect();
    let new: Vec<usize> = new.iter().map(&mut id).collect();
    let mut is_taken = vec![false; new.len()];
    if old.len().max(new.len()) <= SUBSEQUENCE_MAX {
        for op in capture_diff_slices(Algorithm::Myers, &old, &new) {
            let DiffOp::Equal { old_index, new_index, len } = op else { continue };
            for at in 0..len {
                became[old_index + at] = Some(new_index + at);
                is_taken[new_index + at] = true;
            }
        }
    }
    let mut free: HashMap<usize, Vec<usize>> = HashMap::new();
    for (at, id) in new.iter().enumerate().rev().filter(|(at, _)| !is_taken[*at]) {
        free.entry(*id).or_default().push(at);
    }
    for (id, became) in old.iter().zip(became).filter(|(_, became)| became.is_none()) {
        *became = free.get_mut(id).and_then(Vec::pop);
    }
}

/// Returns for each old item whether it keeps its place: the most items whose order is the same.
fn longest_rising(became: &[Option<usize>]) -> Vec<bool> {
    let moved: Vec<(usize, usize)> =
        became.iter().enumerate().filter_map(|(at, after)| Some((at, (*after)?))).collect();
    // The index in `moved` of the last item of the best sequence of each length, and the item before each.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
    for (n, (_, after)) in moved.iter().enumerate() {
        let len = ends.partition_point(|end| moved[*end].1 < *after);
        before.push(len.checked_sub(1).map(|at| ends[at]));
        if len == ends.len() {
            ends.push(n);
        } else {
            ends[len] = n;
        }
    }
    let mut stays = vec![false; became.len()];
    let mut next = ends.last().copied();
    while let Some(n) = next {
        stays[moved[n].0] = true;
        next = before[n];
    }
    stays
}

/// Matches items that are alike, between the same two items that keep their places.
fn match_similar(old: &[Value], new: &[Value], stays: &[bool], became: &mut [Option<usize>]) {
    let mut is_taken = vec![false; new.len()];
    became.iter().flatten().for_each(|at| is_taken[*at] = true);
    let anchors: Vec<(usize, usize)> = (0..old.len())
        .filter(|at| stays[*at])
        .filter_map(|at| Some((at, became[at]?)))
        .chain([(old.len(), new.len())])
        .collect();
    let (mut first_old, mut first_new) = (0, 0);
    for (end_old, end_new) in anchors {
        let gone: Vec<usize> = (first_old..end_old).filter(|at| became[*at].is_none()).collect();
        let come: Vec<usize> = (first_new..end_new).filter(|at| !is_taken[*at]).collect();
        for (before, after) in alike(old, new, &gone, &come) {
            became[before] = Some(after);
        }
        (first_old, first_new) = (end_old + 1, end_new + 1);
    }
}

/// Returns the pairs of items that are alike, in the order of both lists, with the greatest sum of similarities.
fn alike(old: &[Value], new: &[Value], gone: &[usize], come: &[usize]) -> Vec<(usize, usize)> {
    if gone.is_empty() || come.is_empty() || gone.len() * come.len() > SIMILAR_MAX {
        return Vec::new();
    }
    let width = come.len() + 1;
    let mut best = vec![0_u32; (gone.len() + 1) * width];
    let mut likeness = vec![0_u32; gone.len() * come.len()];
    for (row, before) in gone.iter().enumerate().rev() {
        for (column, after) in come.iter().enumerate().rev() {
            let alike = similarity(&old[*before], &new[*after]);
            likeness[row * come.len() + column] = alike;
            let here = row * width + column;
            let paired = if alike > 0 { best[here + width + 1] + alike } else { 0 };
            best[here] = paired.max(best[here + 1]).max(best[here + width]);
        }
    }
    let (mut row, mut column, mut pairs) = (0, 0, Vec::new());
    while row < gone.len() && column < come.len() {
        let (here, alike) = (row * width + column, likeness[row * come.len() + column]);
        if alike > 0 && best[here] == best[here + width + 1] + alike {
            pairs.push((gone[row], come[column]));
            (row, column) = (row + 1, column + 1);
        } else if best[here] == best[here + 1] {
            column += 1;
        } else {
            row += 1;
        }
    }
    pairs
}

/// Returns how alike two items are, in percent; 0 below the half. Only objects and lists are alike without being equal.
fn similarity(before: &Value, after: &Value) -> u32 {
    if !(before.is_object() && after.is_object() || before.is_array() && after.is_array()) {
        return 0;
    }
    let (n_before, n_after) = (n_leaves(before), n_leaves(after));
    let percent = n_equal(before, after) * 100 / n_before.max(n_after).max(1);
    if percent < 50 { 0 } else { u32::try_from(percent).unwrap_or(100) }
}

fn n_leaves(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.values().map(n_leaves).sum(),
        Value::Array(items) => items.iter().map(n_leaves).sum(),
        _ => 1,
    }
}

fn n_equal(before: &Value, after: &Value) -> usize {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let both = old.iter().filter_map(|(name, old)| Some((old, new.get(name)?)));
            both.map(|(old, new)| n_equal(old, new)).sum()
        }
        (Value::Array(old), Value::Array(new)) => {
            old.iter().zip(new).map(|(old, new)| n_equal(old, new)).sum()
        }
        _ => usize::from(before == after),
    }
}

/// Returns the items in the order of the second list.
fn in_order(became: &[Option<usize>], stays: &[bool], n_new: usize) -> Vec<Pair> {
    let mut before_of: Vec<Option<usize>> = vec![None; n_new];
    // The items that are gone, by the new index of the item that stays before them.
    let mut gone_after: Vec<Vec<usize>> = vec![Vec::new(); n_new + 1];
    let mut place = 0;
    for (before, after) in became.iter().enumerate() {
        match after {
            Some(after) => {
                before_of[*after] = Some(before);
                if stays[before] {
                    place = after + 1;
                }
            }
            None => gone_after[place].push(before),
        }
    }
    let mut pairs = Vec::with_capacity(became.len().max(n_new));
    for (at, gone) in gone_after.into_iter().enumerate() {
        pairs.extend(gone.into_iter().map(|before| Pair {
            before: Some(before),
            after: None,
            is_moved: false,
        }));
        if let Some(before) = before_of.get(at) {
            let is_moved = before.is_some_and(|before| !stays[before]);
            pairs.push(Pair { before: *before, after: Some(at), is_moved });
        }
    }
    pairs
}
