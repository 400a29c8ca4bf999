//! Reads the `access` rules of a manifest.

use std::collections::BTreeMap;

use chancery_model::{
    AccessRule, Grant, IdentityPattern, IdentityQuota, NodeBinding, PATTERNS_MAX, SecretsGrant,
    Template, TypeUrl, Variables, Verb, types,
};

use crate::{
    assignments::name,
    keys::unknown_keys,
    node::Node,
    problem::{Fault, suggestion},
    sensitive,
};

const KEYS: [&str; 10] = [
    "name",
    "identity",
    "identities",
    "refuse",
    "node",
    "read",
    "secrets",
    "allow",
    "deny",
    "quota",
];

/// Reads an access rule, or returns all its faults.
pub(crate) fn read(node: &Node) -> Result<AccessRule, Vec<Fault>> {
    let mut faults = Vec::new();
    if !matches!(node, Node::Map(_)) {
        return Err(vec![Fault::new(format!("expected a map, found {node}"))]);
    }
    if node.has_private_key() {
        return Err(vec![Fault::new(sensitive::IS_KEY)]);
    }
    unknown_keys(node, &KEYS, &mut faults);
    let name = name(node.get("name")).map_err(|fault| faults.push(fault.within("name")));
    let identities = identities(node, &mut faults);
    let reader = Reader { identities: &identities };
    let refuse = flag(node.get("refuse"), "refuse", &mut faults);
    let rule = AccessRule {
        name: name.unwrap_or_default().into(),
        refuse,
        node: reader.binding(node.get("node"), &mut faults),
        read: reader.templates(node, "read", NodeVariables::Allowed, &mut faults),
        secrets: reader.secrets(node.get("secrets"), &mut faults),
        allow: reader.grants(node, "allow", &mut faults),
        deny: reader.grants(node, "deny", &mut faults),
        quota: quota(node.get("quota"), &mut faults),
        identities: identities.clone(),
    };
    if faults.is_empty() {
        faults.extend(useless(&rule));
    }
    if faults.is_empty() { Ok(rule) } else { Err(faults) }
}

/// Returns the fault of a rule that has no effect, or whose parts contradict each other.
fn useless(rule: &AccessRule) -> Option<Fault> {
    let has_rights = !rule.read.is_empty() || !rule.allow.is_empty();
    let has_secrets = !rule.secrets.scopes.is_empty();
    let has_binding = rule.node != NodeBinding::default();
    if rule.refuse && (has_rights || has_secrets || !rule.deny.is_empty()) {
        let text = "takes all rights from its identities, so the rule cannot contain rights";
        return Some(Fault::new(text).within("refuse"));
    }
    let has_rate = rule.quota.requests_per_second.or(rule.quota.writes_per_second).is_some();
    if !rule.refuse && !has_rights && rule.deny.is_empty() && !has_rate {
        return Some(Fault::new(
            "the rule has no effect; add `read`, `allow`, `deny`, or `refuse: true`",
        ));
    }
    if rule.read.is_empty() {
        let needs_read =
            |key| Some(Fault::new("applies to clients, but the rule has no `read`").within(key));
        if has_secrets {
            return needs_read("secrets");
        }
        if has_binding {
            return needs_read("node");
        }
        if rule.quota.streams.is_some() {
            return needs_read("quota.streams");
        }
    }
    None
}

fn flag(node: Option<&Node>, key: &str, faults: &mut Vec<Fault>) -> bool {
    match node {
        None => false,
        Some(Node::Bool(value)) => *value,
        Some(other) => {
            faults.push(Fault::new(format!("expected true or false, found {other}")).within(key));
            false
        }
    }
}

/// Returns the texts of a list with their fields, and reports everything else.
pub(crate) fn texts<'n>(
    node: &'n Node,
    key: &str,
    faults: &mut Vec<Fault>,
) -> Vec<(String, &'n str)> {
    let items = match node.get(key) {
        None => return Vec::new(),
        Some(Node::List(items)) => items,
        Some(other) => {
            faults.push(Fault::new(format!("expected a list, found {other}")).within(key));
            return Vec::new();
        }
    };
    if items.len() > PATTERNS_MAX {
        let rule = format!("has {} entries, at most {PATTERNS_MAX} are allowed", items.len());
        faults.push(Fault::new(rule).within(key));
        return Vec::new();
    }
    let mut texts = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let field = format!("{key}[{index}]");
        match item {
            Node::Text(text) => texts.push((field, text.as_str())),
            other => {
                faults.push(Fault::new(format!("expected text, found {other}")).within(&field))
            }
        }
    }
    texts
}

fn identities(node: &Node, faults: &mut Vec<Fault>) -> Vec<IdentityPattern> {
    let mut sources = texts(node, "identities", faults);
    match node.get("identity") {
        None => {}
        Some(Node::Text(text)) => sources.push(("identity".to_owned(), text)),
        Some(other) => {
            let rule = format!("expected text, found {other}");
            faults.push(Fault::new(rule).within("identity"));
        }
    }
    let mut identities = Vec::new();
    for (field, source) in sources {
        match IdentityPattern::parse(source) {
            Ok(identity) => identities.push(identity),
            Err(error) => faults.push(Fault::new(error.to_string()).within(&field)),
        }
    }
    if identities.is_empty() && faults.is_empty() {
        faults.push(
            Fault::new("is missing; the rule needs one, or a list `identities`").within("identity"),
        );
    }
    identities
}

fn quota(node: Option<&Node>, faults: &mut Vec<Fault>) -> IdentityQuota {
    let Some(node) = node else { return IdentityQuota::default() };
    let mut inner = Vec::new();
    if !matches!(node, Node::Map(_)) {
        inner.push(Fault::new(format!("expected a map, found {node}")));
    }
    let keys = ["streams", "requests_per_second", "writes_per_second"];
    unknown_keys(node, &keys, &mut inner);
    let [streams, requests, writes] = keys.map(|key| match node.get(key)? {
        Node::Int(number) if (1..=i64::from(u32::MAX)).contains(number) => {
            u32::try_from(*number).ok()
        }
        other => {
            let rule = format!("expected a number from 1 to {}, found {other}", u32::MAX);
            inner.push(Fault::new(rule).within(key));
            None
        }
    });
    faults.extend(inner.into_iter().map(|fault| fault.within("quota")));
    IdentityQuota {
        streams: streams.map(u64::from),
        requests_per_second: requests,
        writes_per_second: writes,
    }
}

/// Whether templates may use variables of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeVariables {
    Allowed,
    Unknown,
}

/// Reads the templates of a rule, which may use the variables of its identities.
struct Reader<'a> {
    identities: &'a [IdentityPattern],
}

impl Reader<'_> {
    fn parse(&self, source: &str, node: NodeVariables) -> Result<Template, Fault> {
        let node = node == NodeVariables::Allowed;
        let variables = Variables { identities: self.identities, node };
        Template::parse(source, variables).map_err(|error| Fault::new(error.to_string()))
    }

    fn templates(
        &self,
        node: &Node,
        key: &str,
        variables: NodeVariables,
        faults: &mut Vec<Fault>,
    ) -> Vec<Template> {
        let mut templates = Vec::new();
        for (field, source) in texts(node, key, faults) {
            match self.parse(source, variables) {
                Ok(template) => templates.push(template),
                Err(fault) => faults.push(fault.within(&field)),
            }
        }
        templates
    }

    fn binding(&self, node: Option<&Node>, faults: &mut Vec<Fault>) -> NodeBinding {
        let Some(node) = node else { return NodeBinding::default() };
        let mut inner = Vec::new();
        if !matches!(node, Node::Map(_)) {
            inner.push(Fault::new(format!("expected a map, found {node}")));
        }
        unknown_keys(node, &["id", "cluster", "metadata"], &mut inner);
        let binding = NodeBinding {
            id: self.one(node, "id", &mut inner),
            cluster: self.one(node, "cluster", &mut inner),
            metadata: self.metadata(node.get("metadata"), &mut inner),
        };
        faults.extend(inner.into_iter().map(|fault| fault.within("node")));
        binding
    }

    fn one(&self, node: &Node, key: &str, faults: &mut Vec<Fault>) -> Option<Template> {
        let parsed = match node.get(key)? {
            Node::Text(source) => self.parse(source, NodeVariables::Unknown),
            other => Err(Fault::new(format!("expected text, found {other}"))),
        };
        parsed.map_err(|fault| faults.push(fault.within(key))).ok()
    }

    /// Reads the patterns of metadata. A key is a path, such as `a.b` for `{a: {b: …}}` in the node.
    fn metadata(&self, node: Option<&Node>, faults: &mut Vec<Fault>) -> BTreeMap<String, Template> {
        let mut metadata = BTreeMap::new();
        let entries = match node {
            None => return metadata,
            Some(Node::Map(entries)) => entries,
            Some(other) => {
                let rule = format!("expected a map, found {other}");
                faults.push(Fault::new(rule).within("metadata"));
                return metadata;
            }
        };
        for (path, value) in entries {
            let field = format!("metadata.{path}");
            let parsed = match value {
                Node::Text(source) => self.parse(source, NodeVariables::Unknown),
                other => Err(Fault::new(format!("expected text, found {other}"))),
            };
            match parsed {
                Ok(template) => drop(metadata.insert(path.clone(), template)),
                Err(fault) => faults.push(fault.within(&field)),
            }
        }
        metadata
    }

    fn secrets(&self, node: Option<&Node>, faults: &mut Vec<Fault>) -> SecretsGrant {
        let Some(node) = node else { return SecretsGrant::default() };
        let mut inner = Vec::new();
        if !matches!(node, Node::Map(_)) {
            inner.push(Fault::new(format!("expected a map, found {node}")));
        }
        unknown_keys(node, &["scopes", "names"], &mut inner);
        let grant = SecretsGrant {
            scopes: self.templates(node, "scopes", NodeVariables::Allowed, &mut inner),
            names: self.templates(node, "names", NodeVariables::Unknown, &mut inner),
        };
        if grant.scopes.is_empty() && inner.is_empty() {
            inner.push(Fault::new("is missing or empty").within("scopes"));
        }
        not_empty(node, "names", &mut inner);
        faults.extend(inner.into_iter().map(|fault| fault.within("secrets")));
        grant
    }

    fn grants(&self, node: &Node, key: &str, faults: &mut Vec<Fault>) -> Vec<Grant> {
        let items = match node.get(key) {
            None => return Vec::new(),
            Some(Node::List(items)) if items.len() <= PATTERNS_MAX => items,
            Some(other) => {
                let rule = format!("expected a list of at most {PATTERNS_MAX} maps, found {other}");
                faults.push(Fault::new(rule).within(key));
                return Vec::new();
            }
        };
        let mut grants = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let mut inner = Vec::new();
            grants.push(self.grant(item, &mut inner));
            let field = format!("{key}[{index}]");
            faults.extend(inner.into_iter().map(|fault| fault.within(&field)));
        }
        grants
    }

    fn grant(&self, node: &Node, faults: &mut Vec<Fault>) -> Grant {
        if !matches!(node, Node::Map(_)) {
            faults.push(Fault::new(format!("expected a map, found {node}")));
        }
        unknown_keys(node, &["verbs", "scopes", "types", "names"], faults);
        let grant = Grant {
            verbs: verbs(node, faults),
            scopes: self.templates(node, "scopes", NodeVariables::Unknown, faults),
            types: types_of(node, faults),
            names: self.templates(node, "names", NodeVariables::Unknown, faults),
        };
        // An empty list must not mean everything.
        for key in ["types", "names"] {
            not_empty(node, key, faults);
        }
        if !grant.names.is_empty() && grant.verbs.contains(&Verb::Get) {
            let rule =
                "do not limit `get`, which reads whole types; put it into an entry without names";
            faults.push(Fault::new(rule).within("names"));
        }
        if faults.is_empty() {
            let scoped = grant.verbs.iter().find(|verb| verb.is_scoped());
            let global = grant.verbs.iter().find(|verb| !verb.is_scoped());
            match (scoped, global) {
                (Some(verb), _) if grant.scopes.is_empty() => {
                    let rule =
                        format!("is missing: {verb} concerns scopes; write [\"**\"] for all");
                    faults.push(Fault::new(rule).within("scopes"));
                }
                (None, Some(verb)) if !grant.scopes.is_empty() => {
                    let rule = format!("{verb} concerns the whole cluster; remove the scopes");
                    faults.push(Fault::new(rule).within("scopes"));
                }
                (Some(scoped), Some(global)) => {
                    let rule = format!(
                        "{global} concerns the whole cluster, and {scoped} concerns scopes; put them into two entries"
                    );
                    faults.push(Fault::new(rule).within("verbs"));
                }
                (None, Some(verb)) if !(grant.types.is_empty() && grant.names.is_empty()) => {
                    let rule = format!("{verb} concerns the whole cluster; remove types and names");
                    faults.push(Fault::new(rule).within("verbs"));
                }
                _ => {}
            }
        }
        grant
    }
}

fn not_empty(node: &Node, key: &str, faults: &mut Vec<Fault>) {
    if matches!(node.get(key), Some(Node::List(items)) if items.is_empty()) {
        let rule = "is empty, which permits nothing; leave it out for all";
        faults.push(Fault::new(rule).within(key));
    }
}

fn verbs(node: &Node, faults: &mut Vec<Fault>) -> Vec<Verb> {
    let mut verbs = Vec::new();
    for (field, name) in texts(node, "verbs", faults) {
        match Verb::of_name(name) {
            Some(verb) => verbs.push(verb),
            None => {
                let names = Verb::ALL.iter().map(|verb| verb.name());
                let rule = match suggestion(name, names.clone()) {
                    Some(meant) => format!("unknown verb; did you mean {meant:?}?"),
                    None => format!(
                        "unknown verb; known verbs are {}",
                        names.collect::<Vec<_>>().join(", ")
                    ),
                };
                faults.push(Fault::new(rule).within(&field));
            }
        }
    }
    if verbs.is_empty() && faults.is_empty() {
        faults.push(Fault::new("is missing or empty").within("verbs"));
    }
    verbs.sort_unstable_by_key(|verb| verb.name());
    verbs.dedup();
    verbs
}

fn types_of(node: &Node, faults: &mut Vec<Fault>) -> Vec<TypeUrl> {
    let mut urls = Vec::new();
    for (field, text) in texts(node, "types", faults) {
        match types::by_alias(text) {
            Ok(url) => urls.push(url),
            Err(rule) => faults.push(Fault::new(rule).within(&field)),
        }
    }
    urls
}
