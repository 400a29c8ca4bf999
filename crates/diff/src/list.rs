//! Which item of a list became which.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::Value;
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// The fields that identify the items of lists in xDS resources and manifests. The key of a list is the
/// first field that has a different value in each item. If no field does, the comparison matches items by the first field
/// that identifies at least half of them, and chooses a key for each item.
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
const SIMILAR_MAX: usize = 40_000;
/// The maximum number of their leaves that are compared.
const LEAVES_MAX: usize = 4_000_000;
/// The maximum length of a list with equal items for which the longest common subsequence is searched.
const SUBSEQUENCE_MAX: usize = 2000;
/// The minimum similarity, in percent, of an item before and after a change: in the same place, and in another place.
const ALIKE_MIN: usize = 50;
const ALIKE_MOVED_MIN: usize = 75;

/// An item of two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) before: Option<usize>,
    pub(crate) after: Option<usize>,
    pub(crate) is_moved: bool,
    /// The key whose value no other item of the list has.
    pub(crate) key: Option<&'static str>,
}

/// Matches the items of two lists, in the order of the second list. An item that is gone follows the one that it
/// followed before.
pub(crate) fn match_items(old: &[Value], new: &[Value]) -> Vec<Pair> {
    let keyed = find_key(old, new, |n_keyed, n| n_keyed == n);
    let strict = keyed.as_ref().map(|(key, ..)| *key);
    let keyed = keyed.or_else(|| find_key(old, new, |n_keyed, n| n_keyed * 2 >= n));
    // The index of the new item for each old one.
    let mut became: Vec<Option<usize>> = vec![None; old.len()];
    if let Some((_, by_old, by_new)) = &keyed {
        for (key, before) in by_old {
            became[*before] = by_new.get(key).copied();
        }
    }
    match_equal(old, new, &mut became);
    let stays = longest_rising(old, new, &became);
    match_similar(old, new, &stays, &mut became);
    match_moved(old, new, &mut became);
    let stays = longest_rising(old, new, &became);
    let mut pairs = in_order(&became, &stays, new.len());
    let (keys_old, keys_new) = (own_keys(old, strict), own_keys(new, strict));
    for pair in &mut pairs {
        let key = pair.before.map(|at| keys_old[at]);
        pair.key = key.or_else(|| pair.after.map(|at| keys_new[at])).flatten();
    }
    pairs
}

/// Returns the key of each item: that of the list, or else the first one whose value no other item has.
fn own_keys(items: &[Value], of_list: Option<&'static str>) -> Vec<Option<&'static str>> {
    let mut keys = vec![of_list; items.len()];
    if of_list.is_none() {
        for key in KEYS {
            for at in by_key(items, key).into_values() {
                keys[at].get_or_insert(key);
            }
        }
    }
    keys
}

/// The index of the only item with each value of a key.
type ByKey = HashMap<String, usize>;

/// Returns the first key for which enough items of both lists have a value that no other item has.
fn find_key(
    old: &[Value],
    new: &[Value],
    is_enough: impl Fn(usize, usize) -> bool,
) -> Option<(&'static str, ByKey, ByKey)> {
    let by_key = |items: &[Value], key: &str| {
        let by_key = by_key(items, key);
        is_enough(by_key.len(), items.len()).then_some(by_key)
    };
    KEYS.into_iter().find_map(|key| Some((key, by_key(old, key)?, by_key(new, key)?)))
}

fn by_key(items: &[Value], key: &str) -> ByKey {
    let mut found: HashMap<String, Option<usize>> = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        if let Some(value) = key_of(item, key) {
            let only = found.entry(value.to_string());
            only.and_modify(|only| *only = None).or_insert(Some(at));
        }
    }
    found.into_iter().filter_map(|(value, only)| Some((value, only?))).collect()
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

/// Matches equal items: those of a longest common subsequence first, then the rest in their order.
fn match_equal(old: &[Value], new: &[Value], became: &mut [Option<usize>]) {
    let (gone, come) = unmatched(became, new.len());
    let mut ids: HashMap<String, usize> = HashMap::new();
    let mut id = |item: &Value| {
        let next = ids.len();
        *ids.entry(item.to_string()).or_insert(next)
    };
    let old: Vec<usize> = gone.iter().map(|at| id(&old[*at])).collect();
    let new: Vec<usize> = come.iter().map(|at| id(&new[*at])).collect();
    let mut is_taken = vec![false; new.len()];
    if old.len().max(new.len()) <= SUBSEQUENCE_MAX {
        for op in capture_diff_slices(Algorithm::Myers, &old, &new) {
            let DiffOp::Equal { old_index, new_index, len } = op else { continue };
            for at in 0..len {
                became[gone[old_index + at]] = Some(come[new_index + at]);
                is_taken[new_index + at] = true;
            }
        }
    }
    let mut free: HashMap<usize, Vec<usize>> = HashMap::new();
    for (at, id) in new.iter().enumerate().rev().filter(|(at, _)| !is_taken[*at]) {
        free.entry(*id).or_default().push(come[at]);
    }
    for (id, before) in old.iter().zip(gone) {
        if became[before].is_none() {
            became[before] = free.get_mut(id).and_then(Vec::pop);
        }
    }
}

/// Returns the old and the new items that have no match.
fn unmatched(became: &[Option<usize>], n_new: usize) -> (Vec<usize>, Vec<usize>) {
    let mut is_taken = vec![false; n_new];
    became.iter().flatten().for_each(|at| is_taken[*at] = true);
    let gone = (0..became.len()).filter(|at| became[*at].is_none());
    (gone.collect(), (0..n_new).filter(|at| !is_taken[*at]).collect())
}

/// Returns for each old item whether it keeps its place. The items that keep their places are a longest common
/// subsequence. Among several, the function chooses one with the most unchanged items.
fn longest_rising(old: &[Value], new: &[Value], became: &[Option<usize>]) -> Vec<bool> {
    // A Fenwick tree. Each node has the best rising sequence that ends at one of its new items: its length and
    // its number of unchanged items in one number, and its last old item.
    let mut best: Vec<(usize, Option<usize>)> = vec![(0, None); new.len() + 1];
    let mut before: Vec<Option<usize>> = vec![None; old.len()];
    let one = old.len() + 1;
    let mut whole = (0, None);
    for (at, after) in became.iter().enumerate() {
        let Some(after) = *after else { continue };
        let mut longest = (0, None);
        let mut node = after;
        while node > 0 {
            longest = longest.max(best[node]);
            node &= node - 1;
        }
        before[at] = longest.1;
        let found = (longest.0 + one + usize::from(old[at] == new[after]), Some(at));
        whole = whole.max(found);
        node = after + 1;
        while node <= new.len() {
            best[node] = best[node].max(found);
            node += node & node.wrapping_neg();
        }
    }
    let mut stays = vec![false; old.len()];
    let mut next = whole.1;
    while let Some(at) = next {
        stays[at] = true;
        next = before[at];
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

/// Matches items that are very alike, wherever they are.
fn match_moved(old: &[Value], new: &[Value], became: &mut [Option<usize>]) {
    let (gone, come) = unmatched(became, new.len());
    let Some(likeness) = likeness(old, new, &gone, &come) else { return };
    let mut pairs: Vec<_> = likeness
        .into_iter()
        .enumerate()
        .filter(|(_, alike)| *alike >= ALIKE_MOVED_MIN)
        .map(|(at, alike)| (Reverse(alike), gone[at / come.len()], come[at % come.len()]))
        .collect();
    pairs.sort_unstable();
    let mut taken = HashSet::new();
    for (_, before, after) in pairs {
        if became[before].is_none() && taken.insert(after) {
            became[before] = Some(after);
        }
    }
}

/// Returns the pairs of items that are alike, in the order of both lists, with the greatest sum of similarities.
fn alike(old: &[Value], new: &[Value], gone: &[usize], come: &[usize]) -> Vec<(usize, usize)> {
    let Some(likeness) = likeness(old, new, gone, come) else {
        let both =
            gone.iter().copied().zip(come.iter().copied()).filter(|_| gone.len() == come.len());
        let leaves = |item: &Value| sorted_leaves(item);
        return both
            .filter(|(a, b)| similarity(&leaves(&old[*a]), &leaves(&new[*b])) >= ALIKE_MIN)
            .collect();
    };
    let width = come.len() + 1;
    let mut best = vec![0; (gone.len() + 1) * width];
    let alike = |row: usize, column: usize| {
        Some(likeness[row * come.len() + column]).filter(|alike| *alike >= ALIKE_MIN)
    };
    for row in (0..gone.len()).rev() {
        for column in (0..come.len()).rev() {
            let here = row * width + column;
            let paired = alike(row, column).map_or(0, |alike| best[here + width + 1] + alike);
            best[here] = paired.max(best[here + 1]).max(best[here + width]);
        }
    }
    let (mut row, mut column, mut pairs) = (0, 0, Vec::new());
    while row < gone.len() && column < come.len() {
        let here = row * width + column;
        if alike(row, column).is_some_and(|alike| best[here] == best[here + width + 1] + alike) {
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

/// Returns the similarity of each old item to each new item, in percent, row by row; `None` if the comparison exceeds
/// [`SIMILAR_MAX`] or [`LEAVES_MAX`].
fn likeness(old: &[Value], new: &[Value], gone: &[usize], come: &[usize]) -> Option<Vec<usize>> {
    if gone.len() * come.len() > SIMILAR_MAX {
        return None;
    }
    let old: Vec<Leaves> = gone.iter().map(|at| sorted_leaves(&old[*at])).collect();
    let new: Vec<Leaves> = come.iter().map(|at| sorted_leaves(&new[*at])).collect();
    let n_leaves = |leaves: &[Leaves]| leaves.iter().map(Vec::len).sum::<usize>();
    if n_leaves(&old) * come.len() + n_leaves(&new) * gone.len() > LEAVES_MAX {
        return None;
    }
    Some(old.iter().flat_map(|old| new.iter().map(|new| similarity(old, new))).collect())
}

/// The hashes of the leaves of an item with their paths, where items of lists have no index. They are sorted.
type Leaves = Vec<u64>;

/// Returns the leaves of an object or a list. Other items have none: they are not alike without being equal.
fn sorted_leaves(item: &Value) -> Leaves {
    fn add(value: &Value, path: &DefaultHasher, leaves: &mut Leaves) {
        let mut path = path.clone();
        match value {
            Value::Object(fields) => {
                path.write_u8(b'{');
                for (name, value) in fields {
                    let mut path = path.clone();
                    name.hash(&mut path);
                    add(value, &path, leaves);
                }
            }
            Value::Array(items) => {
                path.write_u8(b'[');
                items.iter().for_each(|item| add(item, &path, leaves));
            }
            leaf => {
                leaf.hash(&mut path);
                leaves.push(path.finish());
            }
        }
    }
    let mut leaves = Vec::new();
    if item.is_object() || item.is_array() {
        add(item, &DefaultHasher::new(), &mut leaves);
    }
    leaves.sort_unstable();
    leaves
}

/// Returns the percentage of leaves that two items share.
fn similarity(before: &Leaves, after: &Leaves) -> usize {
    let (mut old, mut new, mut n_equal) = (0, 0, 0);
    while old < before.len() && new < after.len() {
        let order = before[old].cmp(&after[new]);
        n_equal += usize::from(order.is_eq());
        old += usize::from(order.is_le());
        new += usize::from(order.is_ge());
    }
    2 * n_equal * 100 / (before.len() + after.len()).max(1)
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
            key: None,
        }));
        if let Some(before) = before_of.get(at) {
            let is_moved = before.is_some_and(|before| !stays[before]);
            pairs.push(Pair { before: *before, after: Some(at), is_moved, key: None });
        }
    }
    pairs
}
