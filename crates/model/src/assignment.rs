//! Assignments: the rules that map nodes to scopes.
//!
//! Assignments are evaluated by descending priority, then by name. The first assignment that
//! matches a node decides its scopes. A matcher supports exact values and `*`, but not regular
//! expressions (threat T14).

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{NameError, Node, ScopeName, has_private_key};

/// A pattern in which `*` matches any sequence of characters, including the empty sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Arc<str>);

impl Glob {
    /// Creates a pattern. Every text is a valid pattern.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the pattern matches every text.
    fn matches_everything(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| byte == b'*')
    }

    /// Returns whether `text` matches, in O(pattern · text) at worst.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or("");
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut pieces: Vec<&str> = pieces.collect();
        // Without a `*`, the first piece must equal the whole text.
        let Some(last) = pieces.pop() else { return rest.is_empty() };
        for piece in pieces {
            match rest.find(piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        rest.len() >= last.len() && rest.ends_with(last)
    }
}

/// The conditions that a node must meet. An absent condition matches every node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeMatcher {
    /// Matches `Node.id`.
    pub id: Option<Glob>,
    /// Matches `Node.cluster`.
    pub cluster: Option<Glob>,
    /// Matches `Node.locality.region`.
    pub region: Option<Glob>,
    /// Matches `Node.locality.zone`.
    pub zone: Option<Glob>,
    /// Matches `Node.locality.sub_zone`.
    pub sub_zone: Option<Glob>,
    /// Matches scalars of `Node.metadata` by path. A path that the node lacks does not match any
    /// pattern, including `*`.
    pub metadata: BTreeMap<String, Glob>,
}

impl NodeMatcher {
    /// Returns the conditions on the ID of a node, without all others.
    #[must_use]
    pub fn id_alone(&self) -> Self {
        Self { id: self.id.clone(), ..Self::default() }
    }

    /// Describes the conditions on other properties than the ID. A `*` on a property that every node has is
    /// no condition.
    #[must_use]
    pub fn beyond_id(&self) -> Vec<String> {
        let fixed = [
            ("cluster", &self.cluster),
            ("locality.region", &self.region),
            ("locality.zone", &self.zone),
            ("locality.sub_zone", &self.sub_zone),
        ];
        let fixed = fixed.into_iter().filter_map(|(what, glob)| Some((what, glob.as_ref()?)));
        let fixed = fixed.filter(|(_, glob)| glob.as_str() != "*");
        let fixed = fixed.map(|(what, glob)| format!("{what} must match {:?}", glob.as_str()));
        let metadata = self.metadata.iter();
        let metadata = metadata
            .map(|(path, glob)| format!("metadata {path:?} must match {:?}", glob.as_str()));
        fixed.chain(metadata).collect()
    }

    /// Returns whether the conditions hold for every node.
    #[must_use]
    pub fn matches_every_node(&self) -> bool {
        let fixed = [&self.id, &self.cluster, &self.region, &self.zone, &self.sub_zone];
        self.metadata.is_empty() && fixed.into_iter().flatten().all(Glob::matches_everything)
    }

    /// Describes the first condition that `node` does not meet, or returns `None` if all match.
    #[must_use]
    pub fn mismatch(&self, node: &Node) -> Option<String> {
        let fixed = [
            ("id", &self.id, &node.id),
            ("cluster", &self.cluster, &node.cluster),
            ("locality.region", &self.region, &node.locality.region),
            ("locality.zone", &self.zone, &node.locality.zone),
            ("locality.sub_zone", &self.sub_zone, &node.locality.sub_zone),
        ];
        for (what, glob, value) in fixed {
            if let Some(glob) = glob
                && !glob.matches(value)
            {
                return Some(format!("{what} {value:?} does not match {:?}", glob.as_str()));
            }
        }
        for (path, glob) in &self.metadata {
            match node.metadata.get(path) {
                None => return Some(format!("the node has no metadata {path:?}")),
                Some(value) if !glob.matches(value) => {
                    let glob = glob.as_str();
                    return Some(format!(
                        "metadata {path:?} is {value:?}, which does not match {glob:?}"
                    ));
                }
                Some(_) => {}
            }
        }
        None
    }
}

/// The reason why a scope template is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template has a `{` without `}`, or a `}` without `{`.
    #[error("the scope template {0:?} has unbalanced braces")]
    Braces(String),
    /// The template has a variable that nodes do not have.
    #[error(
        "the scope template {template:?} has the unknown variable {variable:?}; known are node.id, \
         node.cluster, locality.region, locality.zone, locality.sub_zone and metadata.<path>"
    )]
    Variable {
        /// The whole template, as written.
        template: String,
        /// The name between the braces.
        variable: String,
    },
    /// The literal parts do not form a valid scope name.
    #[error(transparent)]
    Name(#[from] NameError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    NodeId,
    NodeCluster,
    Region,
    Zone,
    SubZone,
    Metadata(String),
}

/// A scope name that may contain variables of the node, such as `node/{node.id}`.
#[derive(Clone, PartialEq, Eq)]
pub struct ScopeTemplate {
    source: Arc<str>,
    pieces: Vec<Piece>,
}

impl ScopeTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Fails if braces are unbalanced, a variable is unknown, or the literal parts do not form a
    /// valid scope name.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        Self::parsed(source).map_err(|error| {
            if has_private_key(source.as_bytes()) {
                NameError::PrivateKey { what: "scope template" }.into()
            } else {
                error
            }
        })
    }

    fn parsed(source: &str) -> Result<Self, TemplateError> {
        let unbalanced = || TemplateError::Braces(source.to_owned());
        let mut pieces = Vec::new();
        let mut rest = source;
        while let Some((literal, tail)) = rest.split_once('{') {
            let (variable, tail) = tail.split_once('}').ok_or_else(unbalanced)?;
            pieces.push(Piece::Literal(literal.to_owned()));
            pieces.push(match variable {
                "node.id" => Piece::NodeId,
                "node.cluster" => Piece::NodeCluster,
                "locality.region" => Piece::Region,
                "locality.zone" => Piece::Zone,
                "locality.sub_zone" => Piece::SubZone,
                _ => match variable.strip_prefix("metadata.") {
                    Some(path) if !path.is_empty() => Piece::Metadata(path.to_owned()),
                    _ => {
                        return Err(TemplateError::Variable {
                            template: source.to_owned(),
                            variable: variable.to_owned(),
                        });
                    }
                },
            });
            rest = tail;
        }
        pieces.push(Piece::Literal(rest.to_owned()));
        let mut sample = String::new();
        for piece in &pieces {
            match piece {
                Piece::Literal(text) if text.contains('}') => return Err(unbalanced()),
                Piece::Literal(text) => sample.push_str(text),
                _ => sample.push('x'),
            }
        }
        ScopeName::new(&sample)?;
        pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
        Ok(Self { source: source.into(), pieces })
    }

    /// Returns the template as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Returns whether the scope name depends on more than the ID of a node.
    #[must_use]
    pub fn needs_more_than_id(&self) -> bool {
        self.pieces.iter().any(|piece| !matches!(piece, Piece::Literal(_) | Piece::NodeId))
    }

    /// Returns whether some values of the variables give this scope name. Values are percent-encoded, so that none
    /// has a `/`. A variable that occurs twice counts as two variables.
    #[must_use]
    pub fn may_resolve_to(&self, scope: &ScopeName) -> bool {
        let text = scope.as_str().as_bytes();
        // Whether the pieces so far may end at each position.
        let mut ends = vec![false; text.len() + 1];
        ends[0] = true;
        for piece in &self.pieces {
            let mut next = vec![false; ends.len()];
            for at in 0..ends.len() {
                match piece {
                    Piece::Literal(literal) => {
                        if ends[at] && text[at..].starts_with(literal.as_bytes()) {
                            next[at + literal.len()] = true;
                        }
                    }
                    // A value has at least one character.
                    _ => {
                        if (ends[at] || next[at])
                            && text.get(at).is_some_and(|byte| ScopeName::is_value_byte(*byte))
                        {
                            next[at + 1] = true;
                        }
                    }
                }
            }
            ends = next;
        }
        ends[text.len()]
    }

    /// Resolves the template to the scope name for `node`.
    ///
    /// Returns `None` if the node lacks a variable or the name would be too long. Characters that
    /// are special in a scope name are percent-encoded in values.
    #[must_use]
    pub fn resolve(&self, node: &Node) -> Option<ScopeName> {
        let mut name = String::new();
        for piece in &self.pieces {
            let value = match piece {
                Piece::Literal(text) => {
                    name.push_str(text);
                    continue;
                }
                Piece::NodeId => &node.id,
                Piece::NodeCluster => &node.cluster,
                Piece::Region => &node.locality.region,
                Piece::Zone => &node.locality.zone,
                Piece::SubZone => &node.locality.sub_zone,
                Piece::Metadata(path) => node.metadata.get(path)?,
            };
            if value.is_empty() {
                return None;
            }
            name.push_str(&ScopeName::encode_value(value));
        }
        ScopeName::new(&name).ok()
    }
}

impl fmt::Debug for ScopeTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

/// A rule that gives matching nodes an ordered list of scopes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The name, unique in the cluster.
    pub name: Arc<str>,
    /// The priority. Higher priorities are evaluated first, equal priorities in order of name.
    pub priority: i64,
    /// The conditions that a node must meet.
    pub matcher: NodeMatcher,
    /// The scopes of the view. An earlier scope shadows a later one.
    pub scopes: Vec<ScopeTemplate>,
}

impl Assignment {
    /// Returns the scopes for a matching node. A scope that occurs repeatedly keeps its first
    /// position.
    #[must_use]
    pub fn scopes_for(&self, node: &Node) -> Vec<ScopeName> {
        let mut scopes: Vec<ScopeName> = Vec::with_capacity(self.scopes.len());
        for scope in self.scopes.iter().filter_map(|template| template.resolve(node)) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes
    }

    /// Returns the first scope template that `node` lacks a variable for, or whose name would be too long.
    #[must_use]
    pub fn unresolved(&self, node: &Node) -> Option<&ScopeTemplate> {
        self.scopes.iter().find(|template| template.resolve(node).is_none())
    }
}

/// Returns the assignment of a new cluster, which gives every node the scope `default`.
#[must_use]
pub fn default_assignment() -> Assignment {
    Assignment {
        name: "default".into(),
        priority: i64::MIN,
        matcher: NodeMatcher::default(),
        scopes: vec![ScopeTemplate::parse("default").expect("a literal scope name is a template")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_star_matches_any_sequence() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("edge-*", "edge-", true),
            ("edge-*", "edge", false),
            ("*-eu", "edge-eu", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "ac", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "abab", true),
            ("a.c", "abc", false),
            ("**", "x", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn template_value_cannot_name_another_scope() {
        let template = ScopeTemplate::parse("node/{node.id}").unwrap();
        let scope = |id: &str| {
            template.resolve(&Node { id: id.into(), ..Node::default() }).map(|s| s.to_string())
        };
        assert_eq!(scope("r7").unwrap(), "node/r7");
        assert_eq!(scope("sidecar~10.0.0.1~a.b").unwrap(), "node/sidecar~10.0.0.1~a.b");
        assert_eq!(scope("../mesh").unwrap(), "node/..%2Fmesh");
        assert_eq!(scope("a%2Fb").unwrap(), "node/a%252Fb");
        assert_eq!(scope("é").unwrap(), "node/%C3%A9");
        assert_eq!(scope(""), None);
        assert_eq!(scope(&"x".repeat(600)), None);
    }

    #[test]
    fn template_may_resolve_to_the_names_that_values_can_give() {
        for (template, scope, expected) in [
            ("default", "default", true),
            ("default", "default2", false),
            ("node/{node.id}", "node/a", true),
            ("node/{node.id}", "node/a%2Fb", true),
            ("node/{node.id}", "node/a/b", false),
            ("node/{node.id}", "nodes/a", false),
            ("{node.cluster}{node.id}", "ab", true),
            ("{node.cluster}{node.id}", "a", false),
            ("{node.cluster}-{node.id}/own", "a-b-c/own", true),
            ("{node.cluster}-{node.id}/own", "a/own", false),
        ] {
            let scope = ScopeName::new(scope).unwrap();
            let template = ScopeTemplate::parse(template).unwrap();
            assert_eq!(template.may_resolve_to(&scope), expected, "{template:?} {scope:?}");
        }
    }

    #[test]
    fn only_conditions_that_every_node_meets_match_every_node() {
        let star = || Some(Glob::new("*"));
        let all = NodeMatcher { id: star(), zone: Some(Glob::new("**")), ..NodeMatcher::default() };
        assert!(all.matches_every_node() && NodeMatcher::default().matches_every_node());
        let some = |id: &str| NodeMatcher { id: Some(Glob::new(id)), ..all.clone() };
        assert!(!some("").matches_every_node() && !some("a*").matches_every_node());
        let metadata = BTreeMap::from([("mesh".to_owned(), Glob::new("*"))]);
        assert!(!NodeMatcher { metadata, ..all }.matches_every_node());
    }

    #[test]
    fn invalid_template_is_rejected_with_reason() {
        for (source, error) in [
            ("node/{node.id", "the scope template \"node/{node.id\" has unbalanced braces"),
            ("node/}x", "the scope template \"node/}x\" has unbalanced braces"),
            ("", "the scope name is empty"),
            ("a b", "the scope name \"a b\" has the character ' ', which is not allowed there"),
        ] {
            assert_eq!(ScopeTemplate::parse(source).unwrap_err().to_string(), error);
        }
        let error = ScopeTemplate::parse("x/{node.name}").unwrap_err().to_string();
        assert!(error.contains("unknown variable \"node.name\""), "{error}");
    }

    /// If two templates resolve to one scope, the first one counts.
    #[test]
    fn repeated_scope_keeps_its_first_position() {
        let template = |source| ScopeTemplate::parse(source).unwrap();
        let assignment = Assignment {
            scopes: vec![
                template("node/{node.id}"),
                template("{node.cluster}"),
                template("default"),
                template("edge"),
            ],
            ..default_assignment()
        };
        let scopes = |cluster: &str| {
            let node = Node { id: "r7".into(), cluster: cluster.into(), ..Node::default() };
            assignment.scopes_for(&node).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(scopes("edge"), ["node/r7", "edge", "default"]);
        assert_eq!(scopes(""), ["node/r7", "default", "edge"]);
    }

    #[test]
    fn conditions_beyond_the_id_are_listed() {
        let matcher = NodeMatcher {
            id: Some(Glob::new("edge-*")),
            cluster: Some(Glob::new("*")),
            zone: Some(Glob::new("a")),
            metadata: BTreeMap::from([("mesh".to_owned(), Glob::new("*"))]),
            ..NodeMatcher::default()
        };
        let expected = ["locality.zone must match \"a\"", "metadata \"mesh\" must match \"*\""];
        assert_eq!(matcher.beyond_id(), expected);
        assert_eq!(matcher.id_alone().beyond_id(), Vec::<String>::new());
        let needs_more = |source| ScopeTemplate::parse(source).unwrap().needs_more_than_id();
        assert!(!needs_more("default") && !needs_more("node/{node.id}"));
        assert!(needs_more("{node.id}/{locality.zone}"));
    }

    #[test]
    fn absent_metadata_path_matches_no_pattern() {
        let matcher = NodeMatcher {
            metadata: BTreeMap::from([("mesh".to_owned(), Glob::new("*"))]),
            ..NodeMatcher::default()
        };
        assert_eq!(
            matcher.mismatch(&Node::default()).unwrap(),
            "the node has no metadata \"mesh\""
        );
        let node = Node {
            metadata: BTreeMap::from([("mesh".to_owned(), "m1".to_owned())]),
            ..Node::default()
        };
        assert_eq!(matcher.mismatch(&node), None);
    }
}
