//! Pages of lists: a limit, and a cursor that continues a list after the last item of a page.
//!
//! A cursor has the key of an item and not its place, so that it stays valid while the list changes. Callers pass it on
//! as it is.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};

use crate::AdminError;

/// The maximum number of items that a request may ask for.
pub(crate) const LIMIT_MAX: u32 = 10_000;

/// A page of a list that is ordered by a key.
#[derive(Debug, Clone)]
pub(crate) struct Page<K> {
    /// The name of the list, so that no list takes the cursor of another one.
    list: &'static str,
    /// The maximum number of items; `usize::MAX` for all.
    limit: usize,
    /// The key of the last item before the page.
    after: Option<K>,
}

impl<K: Serialize + DeserializeOwned + Ord> Page<K> {
    /// Reads the limit and the cursor of a request. A limit of 0 stands for `default`.
    pub(crate) fn parse(
        list: &'static str,
        limit: u32,
        cursor: &str,
        default: usize,
    ) -> Result<Self, AdminError> {
        if limit > LIMIT_MAX {
            let text =
                format!("the limit is {limit}; at most {LIMIT_MAX} items are listed at a time");
            return Err(AdminError::Parameter(text));
        }
        let limit = if limit == 0 { default } else { usize::try_from(limit).unwrap_or(usize::MAX) };
        let after = if cursor.is_empty() { None } else { Some(read(list, cursor)?) };
        Ok(Self { list, limit, after })
    }

    /// Reads the limit and the cursor of a request. A limit of 0 means all items.
    pub(crate) fn parse_or_all(
        list: &'static str,
        limit: u32,
        cursor: &str,
    ) -> Result<Self, AdminError> {
        Self::parse(list, limit, cursor, usize::MAX)
    }

    /// The maximum number of items.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The key of the last item before the page.
    pub(crate) fn after(&self) -> Option<&K> {
        self.after.as_ref()
    }

    /// Returns the items of the page, and the cursor of the next page; empty after the last page. `items` are ordered by
    /// `key`.
    pub(crate) fn of<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> K,
    ) -> (Vec<T>, String) {
        let is_before = |item: &T| self.after.as_ref().is_some_and(|after| key(item) <= *after);
        let mut items = items.into_iter().skip_while(is_before);
        let page: Vec<T> = items.by_ref().take(self.limit).collect();
        let next = match page.last() {
            Some(last) if items.next().is_some() => self.cursor(&key(last)),
            _ => String::new(),
        };
        (page, next)
    }

    /// Returns the cursor that continues the list after an item.
    pub(crate) fn cursor(&self, key: &K) -> String {
        let json = serde_json::to_vec(&(self.list, key)).expect("keys are numbers and texts");
        URL_SAFE_NO_PAD.encode(json)
    }
}

/// Reads a cursor.
fn read<K: DeserializeOwned>(list: &str, cursor: &str) -> Result<K, AdminError> {
    let not_ours = |why: &str| {
        AdminError::Parameter(format!(
            "the cursor is invalid: {why}; use `next` of the answer before, or no cursor to start at the first item"
        ))
    };
    let json = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| not_ours("no list has made it"))?;
    let (of, key): (String, serde_json::Value) =
        serde_json::from_slice(&json).map_err(|_| not_ours("no list has made it"))?;
    if of != list {
        let of: String = of.chars().take(20).collect();
        return Err(not_ours(&format!("it continues the list {of:?}, not {list:?}")));
    }
    serde_json::from_value(key).map_err(|_| not_ours("no list has made it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Key = (i64, String);

    fn walk(limit: u32, mut list: impl FnMut() -> Vec<Key>) -> Vec<Vec<Key>> {
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = Page::<Key>::parse_or_all("x", limit, &cursor).unwrap();
            let (items, next) = page.of(list(), Clone::clone);
            pages.push(items);
            if next.is_empty() {
                return pages;
            }
            cursor = next;
        }
    }

    fn keys(numbers: impl IntoIterator<Item = i64>) -> Vec<Key> {
        numbers.into_iter().map(|n| (n / 3, format!("é\"{n}"))).collect()
    }

    #[test]
    fn pages_are_the_list() {
        let list = keys(0..10);
        for limit in [0, 1, 3, 10, 11] {
            let pages = walk(limit, || list.clone());
            assert_eq!(pages.concat(), list);
            let size = if limit == 0 { 10 } else { limit as usize };
            assert_eq!(pages.len(), 10_usize.div_ceil(size), "{limit}");
        }
        assert_eq!(walk(2, Vec::new), [keys([])]);
    }

    /// Items come and go between two pages, also the last item of a page.
    #[test]
    fn surviving_items_are_listed_once_while_the_list_changes() {
        let mut turn = 0;
        let pages = walk(2, || {
            turn += 1;
            match turn {
                1 => keys([0, 2, 4, 6, 8]),
                2 => keys([1, 4, 5, 6, 8]),
                _ => keys([0, 1, 3, 6, 8, 9]),
            }
        });
        assert_eq!(pages, [keys([0, 2]), keys([4, 5]), keys([6, 8]), keys([9])]);
    }

    #[test]
    fn cursor_that_the_list_has_not_made_is_refused() {
        let page = Page::<Key>::parse_or_all("x", 1, "").unwrap();
        let cursor = page.cursor(&(7, "a".to_owned()));
        assert_eq!(
            Page::parse_or_all("x", 1, &cursor).unwrap().after(),
            Some(&(7, "a".to_owned()))
        );
        let refused =
            |cursor: &str| Page::<Key>::parse_or_all("x", 1, cursor).unwrap_err().to_string();
        let none = "the cursor is invalid: no list has made it; use `next` of the answer before, or no cursor to start \
                    at the first item";
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let deep = format!("[\"x\",{}", "[".repeat(100_000));
        for cursor in [
            "a",
            "%",
            " ",
            "é",
            "5",
            &cursor[1..],
            &cursor[..8],
            &encode("[]"),
            &encode("null"),
            &encode("\u{0}"),
            &encode("[\"x\",7]"),
            &encode("[\"x\",[7]]"),
            &encode("[\"x\",[7,8]]"),
            &encode("[\"x\",[1e99,\"a\"]]"),
            &encode("[\"x\",[7,\"a\"],1]"),
            &encode(&deep),
        ] {
            assert_eq!(refused(cursor), none, "{cursor:.99}");
        }
        assert!(URL_SAFE_NO_PAD.decode("5").is_err());
        let other = refused(&encode("[\"y\",[7,\"a\"]]"));
        assert!(other.contains("it continues the list \"y\", not \"x\";"), "{other}");
        let error = Page::<Key>::parse_or_all("x", 10_001, "").unwrap_err().to_string();
        assert_eq!(error, "the limit is 10001; at most 10000 items are listed at a time");
    }
}
