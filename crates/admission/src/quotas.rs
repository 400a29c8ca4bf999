//! Reads the `quotas` of a manifest.

use chancery_model::{QUOTA_PATTERNS_MAX, Quota, QuotaKey, Template};

use crate::{
    access::texts, assignments::name, keys::unknown_keys, node::Node, problem::Fault, sensitive,
};

const KEYS: [&str; 6] =
    ["name", "scopes", "max_resources", "max_bytes", "max_scopes", "max_body_bytes"];

/// Reads a quota, or returns all its faults.
pub(crate) fn read(node: &Node) -> Result<Quota, Vec<Fault>> {
    let mut faults = Vec::new();
    if !matches!(node, Node::Map(_)) {
        return Err(vec![Fault::new(format!("expected a map, found {node}"))]);
    }
    if node.has_private_key() {
        return Err(vec![Fault::new(sensitive::IS_KEY)]);
    }
    unknown_keys(node, &KEYS, &mut faults);
    let name = name(node.get("name")).map_err(|fault| faults.push(fault.within("name")));
    let scopes = scopes(node, &mut faults);
    let mut limit = |key: QuotaKey| limit(node, key.name(), &mut faults);
    let quota = Quota {
        name: name.unwrap_or_default().into(),
        scopes,
        max_resources: limit(QuotaKey::Resources),
        max_bytes: limit(QuotaKey::Bytes),
        max_scopes: limit(QuotaKey::Scopes),
        max_body_bytes: limit(QuotaKey::BodyBytes),
    };
    let has_limit = QuotaKey::ALL.into_iter().any(|key| quota.limit(key).is_some());
    if faults.is_empty() && !has_limit {
        let keys = QuotaKey::ALL.map(QuotaKey::name).join(", ");
        faults.push(Fault::new(format!("the quota has no limit; add one of {keys}")));
    }
    if faults.is_empty() { Ok(quota) } else { Err(faults) }
}

fn scopes(node: &Node, faults: &mut Vec<Fault>) -> Vec<Template> {
    let mut scopes = Vec::new();
    let sources = texts(node, "scopes", faults);
    if sources.len() > QUOTA_PATTERNS_MAX {
        let rule =
            format!("has {} entries, at most {QUOTA_PATTERNS_MAX} are allowed", sources.len());
        faults.push(Fault::new(rule).within("scopes"));
        return scopes;
    }
    let is_empty = sources.is_empty();
    for (field, source) in sources {
        match Quota::pattern(source) {
            Ok(pattern) => scopes.push(pattern),
            Err(error) => faults.push(Fault::new(error.to_string()).within(&field)),
        }
    }
    if is_empty && faults.is_empty() {
        let rule = "is missing or empty; write [\"**\"] for all scopes";
        faults.push(Fault::new(rule).within("scopes"));
    }
    scopes
}

fn limit(node: &Node, key: &str, faults: &mut Vec<Fault>) -> Option<u64> {
    let fault = |other: &Node| {
        Fault::new(format!("expected a number of at least 0, found {other}")).within(key)
    };
    match node.get(key)? {
        value @ Node::Int(number) => {
            let number = u64::try_from(*number);
            number.map_err(|_| faults.push(fault(value))).ok()
        }
        Node::Uint(number) => Some(*number),
        other => {
            faults.push(fault(other));
            None
        }
    }
}
