//! The selection of routes by scope (SRDS).

use chancery_model::types;
use prost_reflect::DynamicMessage;

use crate::{
    answer::End,
    headers::{HeaderValue, Seen},
    message::Msg,
    walk::{Skips, Walk, shown},
};

/// The routes of the selected scope.
pub(crate) enum Scope {
    /// The name of a route configuration.
    Named(String),
    /// A scope that contains its routes.
    Inline(DynamicMessage),
    /// No scope.
    End(End),
}

/// Selects the scope of a request.
pub(crate) fn select_scope(walk: &mut Walk<'_>, scoped: Msg<'_>, seen: &Seen<'_>) -> Scope {
    let builder = scoped.sub("scope_key_builder");
    let mut key = Vec::new();
    for (index, fragment) in builder.into_iter().flat_map(|it| it.list("fragments")).enumerate() {
        match extract(fragment, seen) {
            Ok(Some(text)) => key.push(text),
            Ok(None) => {
                let reason = format!(
                    "the request has no value for fragment {index} of the scope key, so that no scope matches"
                );
                return Scope::End(End::NoRoute { reason });
            }
            Err(reason) => {
                walk.doubt(&format!("scope_key_builder.fragments[{index}]"), &reason, "");
                return Scope::End(End::Undecided { reason });
            }
        }
    }
    let mut skips = Skips::default();
    let found = if let Some(list) = scoped.sub("scoped_route_configurations_list") {
        let scopes = list.list("scoped_route_configurations").enumerate();
        let mut scopes = scopes.map(|(index, scope)| (format!("scope [{index}]"), scope.0.clone()));
        scopes.find(|(place, scope)| is_selected(Msg(scope), &key, place, &mut skips))
    } else {
        find_resource(walk, &key, &mut skips)
    };
    let shown_key = key.join(", ");
    let Some((place, scope)) = found else {
        walk.step("scope", String::new(), format!("none has the key {shown_key:?}"), skips);
        let reason = format!("no scope has the key {shown_key:?}");
        return Scope::End(End::NoRoute { reason });
    };
    walk.step("scope", place, format!("has the key {shown_key:?}"), skips);
    let message = Msg(&scope);
    if message.has("route_configuration") {
        return Scope::Inline(scope);
    }
    Scope::Named(message.text("route_configuration_name").to_owned())
}

/// Finds the scope with a key among the resources of the node.
fn find_resource(
    walk: &mut Walk<'_>,
    key: &[String],
    skips: &mut Skips,
) -> Option<(String, DynamicMessage)> {
    for name in walk.resources.names(types::SCOPED_ROUTE) {
        let Some((Ok(scope), _)) = walk.peek(types::SCOPED_ROUTE, &name) else { continue };
        let place = shown(types::SCOPED_ROUTE, &name);
        if is_selected(Msg(&scope), key, &place, skips) {
            return walk.fetch(types::SCOPED_ROUTE, &name).map(|scope| (place, scope));
        }
    }
    None
}

fn is_selected(scope: Msg<'_>, key: &[String], place: &str, skips: &mut Skips) -> bool {
    let fragments = scope.sub("key").into_iter().flat_map(|key| key.list("fragments"));
    let own: Vec<&str> = fragments.map(|fragment| fragment.text("string_key")).collect();
    let is_equal = own == key;
    if !is_equal {
        skips.add(place, format!("has the key {:?}", own.join(", ")));
    }
    is_equal
}

/// Returns the value of a fragment; `None` if the request has none.
fn extract(fragment: Msg<'_>, seen: &Seen<'_>) -> Result<Option<String>, String> {
    let Some(extractor) = fragment.sub("header_value_extractor") else {
        return Err("a fragment of the scope key does not come from a header".to_owned());
    };
    let name = extractor.text("name").to_ascii_lowercase();
    let value = match seen.header(&name) {
        HeaderValue::Unknown => return Err(format!("the node sets the header {name:?} itself")),
        HeaderValue::Known(None) => return Ok(None),
        // Envoy uses the first value.
        HeaderValue::Known(Some(value)) => {
            let mut given = seen.request.headers.iter().filter(|(known, _)| *known == name);
            given.next().map_or(value, |(_, value)| value.clone())
        }
    };
    let separator = extractor.text("element_separator");
    let elements: Vec<&str> =
        if separator.is_empty() { vec![&value] } else { value.split(separator).collect() };
    if let Some(element) = extractor.sub("element") {
        let (separator, key) = (element.text("separator"), element.text("key"));
        let mut pairs = elements.iter().map(|one| one.split_once(separator).unwrap_or((one, "")));
        return Ok(pairs.find(|(own, _)| *own == key).map(|(_, value)| value.to_owned()));
    }
    let index = usize::try_from(extractor.number("index")).unwrap_or(usize::MAX);
    Ok(elements.get(index).map(|&element| element.to_owned()))
}
