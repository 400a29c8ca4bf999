//! Assignments: which node sees which scopes.
//!
//! Assignments are tried by falling priority, then by name; the first whose matcher holds decides. A
//! matcher matches text by exact value or with `*`, never by regular expression (threat T14).

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{NameError, Node, ScopeName};

/// Text in which `*` stands for any run of characters, the empty one too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Arc<str>);

impl Glob {
    /// Takes a pattern. Every text is one.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `text` matches. O(pattern · text) at worst.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or("");
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut pieces: Vec<&str> = pieces.collect();
        // No `*` at all: the whole text has to be the first piece.
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

/// What has to hold of a node; what is not given holds of every node.
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
    /// Matches scalars of `Node.metadata` by path; a path that the node lacks does not match, not
    /// even `*`.
    pub metadata: BTreeMap<String, Glob>,
}

impl NodeMatcher {
    /// The first thing that does not hold of `node`, as a sentence; `None` if all holds.
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

/// Why a scope template was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{` without `}` or the reverse.
    #[error("the scope template {0:?} has unbalanced braces")]
    Braces(String),
    /// A variable that nodes do not have.
    #[error(
        "the scope template {template:?} has the unknown variable {variable:?}; known are node.id, \
         node.cluster, locality.region, locality.zone, locality.sub_zone and metadata.<path>"
    )]
    Variable {
        /// The template.
        template: String,
        /// The variable.
        variable: String,
    },
    /// The literal part is no scope name.
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

/// A scope name that may have variables of the node in it: `node/{node.id}`.
#[derive(Clone, PartialEq, Eq)]
pub struct ScopeTemplate {
    source: Arc<str>,
    pieces: Vec<Piece>,
}

impl ScopeTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// If braces are unbalanced, a variable is unknown, or the rest is no scope name.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
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

    /// The template as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// The scope it names for `node`; `None` if the node lacks a variable, or the name would be
    /// too long. Characters of a value that are special in a scope name are percent-encoded.
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
            let mut buffer = [0; 4];
            for c in value.chars() {
                if ScopeName::is_literal(c) {
                    name.push(c);
                } else {
                    for byte in c.encode_utf8(&mut buffer).bytes() {
                        name.push_str(&format!("%{byte:02X}"));
                    }
                }
            }
        }
        ScopeName::new(&name).ok()
    }
}

impl fmt::Debug for ScopeTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

/// An ordered rule: nodes that match see these scopes, the earlier over the later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its name, unique in the cluster.
    pub name: Arc<str>,
    /// Higher is tried first; equal ones are tried by name.
    pub priority: i64,
    /// What has to hold of the node.
    pub matcher: NodeMatcher,
    /// The scopes that make the view; an earlier one shadows a later one.
    pub scopes: Vec<ScopeTemplate>,
}

impl Assignment {
    /// The list of scopes for a node that matches: each once, at its first place.
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
}

/// The assignment that a new cluster starts with: every node sees the scope `default`.
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
    fn a_star_stands_for_any_run_and_anything_else_for_itself() {
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
    fn a_value_can_not_reach_another_scope() {
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
    fn a_bad_template_is_refused_with_its_reason() {
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

    /// Design 8: `["node/{node.id}", "edge", "default"]`, the most specific first.
    #[test]
    fn a_scope_counts_at_its_first_place() {
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
    fn an_absent_metadata_path_matches_nothing() {
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
