//! Advice for unknown sections and keys of a configuration file.

use strsim::osa_distance;
use toml::{Table, Value};

/// Returns the advice for an unknown section.
pub(crate) fn section(given: &str, known: &Table) -> String {
    if let [only] = sections_with(given, known).as_slice() {
        return format!("{given} is a key of [{only}]; write it below [{only}]");
    }
    let names = known.keys().map(String::as_str);
    match nearest(given, names).as_slice() {
        [] => format!("the sections are {}", known.keys().cloned().collect::<Vec<_>>().join(", ")),
        near => {
            let near: Vec<String> = near.iter().map(|name| format!("[{name}]")).collect();
            format!("did you mean {}?", near.join(" or "))
        }
    }
}

/// Returns the advice for an unknown key of a section.
pub(crate) fn key(section: &str, given: &str, known: &Table) -> String {
    let keys: Vec<&str> = keys(known.get(section)).collect();
    let near = nearest(given, keys.iter().copied());
    if !near.is_empty() {
        let near: Vec<String> = near.iter().map(|name| format!("{section}.{name}")).collect();
        return format!("did you mean {}?", near.join(" or "));
    }
    match sections_with(given, known).as_slice() {
        [] => format!("the keys of [{section}] are {}", keys.join(", ")),
        others => {
            let others: Vec<String> = others.iter().map(|name| format!("{name}.{given}")).collect();
            format!("did you mean {}?", others.join(" or "))
        }
    }
}

fn keys(section: Option<&Value>) -> impl Iterator<Item = &str> {
    section.and_then(Value::as_table).into_iter().flat_map(Table::keys).map(String::as_str)
}

/// Returns the sections that have a key.
fn sections_with<'a>(key: &str, known: &'a Table) -> Vec<&'a str> {
    let has = |(_, section): &(&String, &Value)| keys(Some(section)).any(|name| name == key);
    known.iter().filter(has).map(|(name, _)| name.as_str()).collect()
}

/// Returns the names with the smallest edit distance. Shorter names allow fewer edits.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut least = (given.chars().count() / 4).clamp(1, 3);
    let given = given.to_lowercase().replace('-', "_");
    let mut near = Vec::new();
    for name in known {
        let edits = osa_distance(&given, name);
        if edits < least {
            near.clear();
            least = edits;
        }
        if edits == least {
            near.push(name);
        }
    }
    near
}
