//! Suggests a known message type for a misspelled one.

use prost_reflect::DescriptorPool;

use crate::problem::suggestion;

/// Returns the known message whose name is most similar to `name`, if one is similar.
pub(crate) fn suggest_type(pool: &DescriptorPool, name: &str) -> Option<String> {
    let names: Vec<String> = pool
        .all_messages()
        .map(|message| message.full_name().to_owned())
        .filter(|known| known.len().abs_diff(name.len()) <= 2)
        .collect();
    // Long names share most of their letters, so only the last parts are compared.
    let tail = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let head = |name: &str| name.rsplit_once('.').map(|(head, _)| head.to_owned());
    let same_package: Vec<(String, &String)> = names
        .iter()
        .filter(|known| head(known) == head(name))
        .map(|known| (tail(known), known))
        .collect();
    match suggestion(&tail(name), same_package.iter().map(|(tail, _)| tail.as_str())) {
        Some(meant) => {
            same_package.iter().find(|(tail, _)| tail == meant).map(|(_, known)| (*known).clone())
        }
        None => in_other_package(pool, name),
    }
}

/// Returns the known message of the same name whose package begins with the most segments of `name`, if there is only one
/// such message.
fn in_other_package(pool: &DescriptorPool, name: &str) -> Option<String> {
    let last = name.rsplit('.').next()?;
    let n_common = |known: &str| {
        known.split('.').zip(name.split('.')).take_while(|(known, given)| known == given).count()
    };
    let messages = pool.all_messages().filter(|message| message.name() == last);
    let same_name = messages.map(|message| (n_common(message.full_name()), message));
    let mut same_root: Vec<_> = same_name.filter(|(n, _)| *n > 0).collect();
    same_root.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    match same_root.as_slice() {
        [(_, meant)] => Some(meant.full_name().to_owned()),
        [(n, meant), (next, _), ..] if n > next => Some(meant.full_name().to_owned()),
        _ => None,
    }
}
