//! Reads the `assignments` of a manifest.

use std::collections::BTreeMap;

use chancery_model::{Assignment, Glob, NodeMatcher, ScopeTemplate};

use crate::{keys::unknown_keys, node::Node, problem::Fault, sensitive};

/// The maximum length of the name of an assignment or an access rule in bytes.
const NAME_BYTES_MAX: usize = 512;

/// Reads an assignment, or returns all its faults.
pub(crate) fn read(node: &Node) -> Result<Assignment, Vec<Fault>> {
    let mut faults = Vec::new();
    if !matches!(node, Node::Map(_)) {
        return Err(vec![Fault::new(format!("expected a map, found {node}"))]);
    }
    if node.has_private_key() {
        return Err(vec![Fault::new(sensitive::IS_KEY)]);
    }
    unknown_keys(node, &["name", "priority", "match", "scopes"], &mut faults);
    let name = name(node.get("name")).map_err(|fault| faults.push(fault.within("name")));
    let priority = match node.get("priority") {
        None => 0,
        Some(Node::Int(priority)) => *priority,
        Some(other) => {
            let rule = format!("expected a 64-bit integer, found {other}");
            faults.push(Fault::new(rule).within("priority"));
            0
        }
    };
    let matcher = matcher(node.get("match"), &mut faults);
    let scopes = scopes(node.get("scopes"), &mut faults);
    match name {
        Ok(name) if faults.is_empty() => {
            Ok(Assignment { name: name.into(), priority, matcher, scopes })
        }
        _ => Err(faults),
    }
}

/// Reads the name of an assignment or an access rule.
pub(crate) fn name(node: Option<&Node>) -> Result<&str, Fault> {
    match node {
        None => Err(Fault::new("is missing")),
        Some(Node::Text(name)) if name.is_empty() => Err(Fault::new("is empty")),
        Some(Node::Text(name)) if name.len() > NAME_BYTES_MAX => Err(Fault::new(format!(
            "has {} bytes, at most {NAME_BYTES_MAX} are allowed",
            name.len()
        ))),
        Some(Node::Text(name)) if name.chars().any(char::is_control) => {
            Err(Fault::new("has control characters"))
        }
        Some(Node::Text(name)) => Ok(name),
        Some(other) => Err(Fault::new(format!("expected text, found {other}"))),
    }
}

fn scopes(node: Option<&Node>, faults: &mut Vec<Fault>) -> Vec<ScopeTemplate> {
    let mut scopes = Vec::new();
    match node {
        None => faults.push(Fault::new("is missing").within("scopes")),
        Some(Node::List(items)) if items.is_empty() => {
            let rule = "is empty: nodes that match would lose all their resources";
            faults.push(Fault::new(rule).within("scopes"));
        }
        Some(Node::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                let template = match item {
                    Node::Text(text) => ScopeTemplate::parse(text).map_err(|e| e.to_string()),
                    other => Err(format!("expected text, found {other}")),
                };
                match template {
                    Ok(template) => scopes.push(template),
                    Err(rule) => faults.push(Fault::new(rule).within(&format!("scopes[{index}]"))),
                }
            }
        }
        Some(other) => {
            let rule = format!("expected a list, found {other}");
            faults.push(Fault::new(rule).within("scopes"));
        }
    }
    scopes
}

fn matcher(node: Option<&Node>, faults: &mut Vec<Fault>) -> NodeMatcher {
    let Some(node) = node else { return NodeMatcher::default() };
    let mut inner = Vec::new();
    let locality = node.get("locality");
    let mut in_locality = Vec::new();
    let matcher = NodeMatcher {
        id: glob(node, "id", &mut inner),
        cluster: glob(node, "cluster", &mut inner),
        region: locality.and_then(|node| glob(node, "region", &mut in_locality)),
        zone: locality.and_then(|node| glob(node, "zone", &mut in_locality)),
        sub_zone: locality.and_then(|node| glob(node, "sub_zone", &mut in_locality)),
        metadata: metadata(node.get("metadata"), &mut inner),
    };
    if let Some(locality) = locality {
        map_only(locality, &mut in_locality);
        unknown_keys(locality, &["region", "zone", "sub_zone"], &mut in_locality);
    }
    inner.extend(in_locality.into_iter().map(|fault| fault.within("locality")));
    map_only(node, &mut inner);
    unknown_keys(node, &["id", "cluster", "locality", "metadata"], &mut inner);
    faults.extend(inner.into_iter().map(|fault| fault.within("match")));
    matcher
}

fn map_only(node: &Node, faults: &mut Vec<Fault>) {
    if !matches!(node, Node::Map(_)) {
        faults.push(Fault::new(format!("expected a map, found {node}")));
    }
}

fn glob(node: &Node, key: &str, faults: &mut Vec<Fault>) -> Option<Glob> {
    match node.get(key)? {
        Node::Text(pattern) => Some(Glob::new(pattern)),
        other => {
            let rule = format!("expected text, found {other}");
            faults.push(Fault::new(rule).within(key));
            None
        }
    }
}

/// Reads metadata patterns by path: `{a: {b: 1}}` is `a.b` → `1`. The metadata of a node is flattened in the
/// same way.
fn metadata(node: Option<&Node>, faults: &mut Vec<Fault>) -> BTreeMap<String, Glob> {
    let mut globs = BTreeMap::new();
    let Some(node) = node else { return globs };
    let mut open = vec![(String::new(), node)];
    while let Some((path, node)) = open.pop() {
        let value = match node {
            Node::Map(entries) => {
                for (key, value) in entries {
                    let dot = if path.is_empty() { "" } else { "." };
                    open.push((format!("{path}{dot}{key}"), value));
                }
                continue;
            }
            Node::Text(pattern) if !path.is_empty() => pattern.clone(),
            Node::Bool(value) if !path.is_empty() => value.to_string(),
            Node::Int(value) if !path.is_empty() => value.to_string(),
            Node::Uint(value) if !path.is_empty() => value.to_string(),
            Node::Float(value) if !path.is_empty() => value.to_string(),
            other => {
                let what = if path.is_empty() { "a map" } else { "text" };
                let field =
                    if path.is_empty() { "metadata".into() } else { format!("metadata.{path}") };
                faults.push(Fault::new(format!("expected {what}, found {other}")).within(&field));
                continue;
            }
        };
        if globs.insert(path.clone(), Glob::new(&value)).is_some() {
            let rule = "is given twice, once with dots and once nested";
            faults.push(Fault::new(rule).within(&format!("metadata.{path}")));
        }
    }
    globs
}
