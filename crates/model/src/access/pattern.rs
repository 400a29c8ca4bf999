//! Patterns of access rules. They compare by segment: no wildcard and no variable reaches across a `/`,
//! except `**` at the end.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::Principal;
use crate::{Node, ScopeName, has_private_key, is_unprintable};

/// The maximum length of a pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// The maximum number of variables in the identity of a rule.
pub const CAPTURES_MAX: usize = 16;

/// The parts of an identity that its variables stand for.
pub(super) type Captures<'a> = BTreeMap<&'a str, &'a str>;

/// The reason why a pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern is empty.
    #[error("the pattern is empty")]
    Empty,
    /// The pattern is too long.
    #[error("the pattern has {0} bytes, at most {PATTERN_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// The pattern contains spaces, control characters, or a private key.
    #[error("the pattern contains a space or a control character")]
    Character,
    /// A `{` without `}`, or a `}` without `{`.
    #[error("the pattern {0:?} has unbalanced braces")]
    Braces(String),
    /// A variable of an identity does not fill its segment, or its name is invalid.
    #[error(
        "the pattern {pattern:?} has the variable {variable:?}; a variable of an identity fills a whole segment, and its name consists of a-z, 0-9 and '_'"
    )]
    Capture {
        /// The whole pattern, as written.
        pattern: String,
        /// The name between the braces.
        variable: String,
    },
    /// The identity has too many variables.
    #[error("the pattern {0:?} has more than {CAPTURES_MAX} variables")]
    Captures(String),
    /// A variable that the identity of the rule does not have.
    #[error("the pattern {pattern:?} has the unknown variable {variable:?}; known are {known}")]
    Variable {
        /// The whole pattern, as written.
        pattern: String,
        /// The name between the braces.
        variable: String,
        /// The variables that the pattern may use.
        known: String,
    },
    /// A `*` in a place where it is not allowed.
    #[error(
        "the pattern {0:?} has a `*` that is not at its end, or that follows a variable; write `*` for the rest of the last segment, or `/**` for all segments that follow"
    )]
    Star(String),
    /// A `*` within a segment of an identity.
    #[error("the pattern {0:?} has a `*` that does not fill a segment")]
    IdentityStar(String),
    /// The identity has an unknown start.
    #[error(
        "the identity {0:?} is unknown; it must start with spiffe://, cert:, jwt:, k8s:, token: or unix:, or be anonymous"
    )]
    Scheme(String),
}

fn check_text(source: &str) -> Result<(), PatternError> {
    match source {
        "" => Err(PatternError::Empty),
        _ if source.len() > PATTERN_BYTES_MAX => Err(PatternError::TooLong(source.len())),
        _ if has_private_key(source.as_bytes()) => Err(PatternError::Character),
        _ if source.chars().any(|c| c.is_whitespace() || is_unprintable(c)) => {
            Err(PatternError::Character)
        }
        _ => Ok(()),
    }
}

// === identities ===

/// A pattern of principals, such as `spiffe://prod.example/ns/{ns}/sa/{sa}`.
///
/// A segment is literal text, a variable `{name}`, or `*`. A variable and a `*` stand for exactly one
/// segment. A variable stands only for letters, digits, `.`, `_` and `-`. Equal variables stand for equal
/// text.
#[derive(Clone, PartialEq, Eq)]
pub struct IdentityPattern {
    source: Arc<str>,
    segments: Vec<Segment>,
}

#[derive(Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    Capture(Box<str>),
    Any,
}

impl IdentityPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Fails if the pattern is invalid.
    pub fn parse(source: &str) -> Result<Self, PatternError> {
        check_text(source)?;
        let mut segments = Vec::new();
        let mut n_captures = 0;
        // The scheme up to its separator is literal, so no pattern spans two ways to authenticate.
        let start = ["spiffe://", "cert:", "jwt:", "k8s:", "token:", "unix:"]
            .into_iter()
            .find(|scheme| source.starts_with(*scheme));
        let rest = match start {
            Some(scheme) => {
                segments.push(Segment::Literal(scheme.into()));
                &source[scheme.len()..]
            }
            None if source == "anonymous" => "anonymous",
            None => return Err(PatternError::Scheme(source.to_owned())),
        };
        for segment in rest.split('/') {
            segments.push(match segment {
                "*" => Segment::Any,
                "" => return Err(PatternError::Empty),
                _ if segment.contains(['{', '}']) => {
                    n_captures += 1;
                    Segment::Capture(capture(source, segment)?.into())
                }
                _ if segment.contains('*') => {
                    return Err(PatternError::IdentityStar(source.to_owned()));
                }
                _ => Segment::Literal(segment.into()),
            });
        }
        if n_captures > CAPTURES_MAX {
            return Err(PatternError::Captures(source.to_owned()));
        }
        Ok(Self { source: source.into(), segments })
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Returns the names of the variables.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture(name) => Some(&**name),
            Segment::Literal(_) | Segment::Any => None,
        })
    }

    /// Returns the values of the variables, or `None` if the principal does not match.
    pub(super) fn captures<'a>(&'a self, principal: &'a Principal) -> Option<Captures<'a>> {
        let mut segments = self.segments.iter();
        let mut rest = principal.as_str();
        if let [Segment::Literal(scheme), _, ..] = self.segments.as_slice() {
            rest = rest.strip_prefix(&**scheme)?;
            segments.next();
        }
        let mut captures = Captures::new();
        let mut values = rest.split('/');
        for segment in segments {
            let value = values.next()?;
            match segment {
                Segment::Literal(literal) if **literal == *value => {}
                Segment::Any if !value.is_empty() => {}
                Segment::Capture(name) if is_capturable(value) => {
                    if captures.insert(name, value).is_some_and(|other| other != value) {
                        return None;
                    }
                }
                Segment::Literal(_) | Segment::Any | Segment::Capture(_) => return None,
            }
        }
        values.next().is_none().then_some(captures)
    }

    /// Returns whether the principal matches.
    #[must_use]
    pub fn matches(&self, principal: &Principal) -> bool {
        self.captures(principal).is_some()
    }
}

/// Returns the name of the variable that a segment consists of.
fn capture<'a>(source: &str, segment: &'a str) -> Result<&'a str, PatternError> {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    name.filter(is_name).ok_or_else(|| PatternError::Capture {
        pattern: source.to_owned(),
        variable: segment.to_owned(),
    })
}

fn is_capturable(value: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !value.is_empty() && value.bytes().all(is_plain)
}

// === templates ===

/// A pattern of values in a rule: scopes, node IDs, resource names. It may use the variables of the rule's
/// identity, as in `ns/{ns}`.
///
/// A `*` at the end stands for the rest of the last segment, which must not be empty. `/**` at the end
/// stands for one or more segments, and `**` alone for any value.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    source: Arc<str>,
    pieces: Vec<Piece>,
    tail: Tail,
}

#[derive(Clone, PartialEq, Eq)]
enum Piece {
    Literal(Box<str>),
    Capture(Box<str>),
    Node(NodeVariable),
}

#[derive(Clone, PartialEq, Eq)]
enum NodeVariable {
    Id,
    Cluster,
    Region,
    Zone,
    SubZone,
    Metadata(Box<str>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// The value ends.
    Nothing,
    /// One or more characters other than `/`.
    Segment,
    /// One or more characters.
    Anything,
}

/// The variables that a template may use.
#[derive(Debug, Clone, Copy)]
pub struct Variables<'a> {
    /// The patterns of the rule's identities. Each must have every variable that a template uses.
    pub identities: &'a [IdentityPattern],
    /// Whether variables of the node are allowed, such as `{node.id}`.
    pub node: bool,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Fails if the template is invalid, or uses a variable that it may not use.
    pub fn parse(source: &str, variables: Variables<'_>) -> Result<Self, PatternError> {
        check_text(source)?;
        let (body, tail) = if source == "**" {
            ("", Tail::Anything)
        } else if source.ends_with("/**") {
            (&source[..source.len() - 2], Tail::Anything)
        } else if let Some(body) = source.strip_suffix('*') {
            (body, Tail::Segment)
        } else {
            (source, Tail::Nothing)
        };
        if body.contains('*') {
            return Err(PatternError::Star(source.to_owned()));
        }
        let unbalanced = || PatternError::Braces(source.to_owned());
        let mut pieces = Vec::new();
        let mut rest = body;
        while let Some((literal, after)) = rest.split_once('{') {
            let (variable, after) = after.split_once('}').ok_or_else(unbalanced)?;
            pieces.push(Piece::Literal(literal.into()));
            pieces.push(piece(source, variable, variables)?);
            rest = after;
        }
        pieces.push(Piece::Literal(rest.into()));
        let is_unbalanced =
            |piece: &Piece| matches!(piece, Piece::Literal(text) if text.contains('}'));
        if pieces.iter().any(is_unbalanced) {
            return Err(unbalanced());
        }
        pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
        // After a variable, a `*` would match values of other identities: `a*` also matches `ab`.
        let follows_variable = pieces.last().is_some_and(|last| !matches!(last, Piece::Literal(_)));
        if tail == Tail::Segment && follows_variable {
            return Err(PatternError::Star(source.to_owned()));
        }
        Ok(Self { source: source.into(), pieces, tail })
    }

    /// Returns the template as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Returns whether a scope matches a template without variables.
    #[must_use]
    pub fn includes(&self, scope: &ScopeName) -> bool {
        self.matches_with(scope.as_str(), &Captures::new(), None)
    }

    /// Returns whether a value of the node or a resource name matches.
    pub(super) fn matches(&self, value: &str, captures: &Captures<'_>) -> bool {
        self.matches_with(value, captures, None)
    }

    /// Returns whether a scope matches. Values of the node are compared as
    /// [`crate::ScopeTemplate`] encodes them.
    pub(super) fn matches_scope(
        &self,
        scope: &ScopeName,
        captures: &Captures<'_>,
        node: Option<&Node>,
    ) -> bool {
        self.matches_with(scope.as_str(), captures, node)
    }

    fn matches_with(&self, value: &str, captures: &Captures<'_>, node: Option<&Node>) -> bool {
        let mut rest = value;
        for piece in &self.pieces {
            let after = match piece {
                Piece::Literal(literal) => rest.strip_prefix(&**literal),
                Piece::Capture(name) => {
                    captures.get(&**name).and_then(|value| rest.strip_prefix(value))
                }
                Piece::Node(variable) => node
                    .and_then(|node| variable.of(node))
                    .and_then(|value| rest.strip_prefix(&*ScopeName::encode_value(value))),
            };
            let Some(after) = after else { return false };
            rest = after;
        }
        match self.tail {
            Tail::Nothing => rest.is_empty(),
            Tail::Segment => !rest.is_empty() && !rest.contains('/'),
            Tail::Anything => !rest.is_empty(),
        }
    }

    /// Returns whether every value that `other` matches also matches this template, as far as their texts
    /// show. A `false` may be wrong, a `true` never is.
    pub(super) fn covers(&self, other: &Self, captures: &Captures<'_>) -> bool {
        let Some(own) = self.literal(captures) else { return false };
        // The value of a variable in `other` is unknown, so only the text before it counts.
        let (start, is_whole) = other.start();
        match self.tail {
            Tail::Nothing => is_whole && other.tail == Tail::Nothing && own == start,
            Tail::Segment => {
                let rest = start.strip_prefix(own.as_str());
                let is_within = |rest: &str| {
                    !rest.contains('/') && (!rest.is_empty() || other.tail == Tail::Segment)
                };
                is_whole && other.tail != Tail::Anything && rest.is_some_and(is_within)
            }
            Tail::Anything => {
                let rest = start.strip_prefix(own.as_str());
                let has_more = !is_whole || other.tail != Tail::Nothing;
                rest.is_some_and(|rest| !rest.is_empty() || has_more)
            }
        }
    }

    /// Returns the text of a template without variables of the node, before its tail.
    fn literal(&self, captures: &Captures<'_>) -> Option<String> {
        let text = |piece: &Piece| match piece {
            Piece::Literal(text) => Some(text.to_string()),
            Piece::Capture(name) => captures.get(&**name).map(|value| (*value).to_owned()),
            Piece::Node(_) => None,
        };
        self.pieces.iter().map(text).collect()
    }

    /// Returns the text before the first variable, and whether that is all before the tail.
    fn start(&self) -> (&str, bool) {
        match self.pieces.as_slice() {
            [] => ("", true),
            [Piece::Literal(text)] => (text, true),
            [Piece::Literal(text), ..] => (text, false),
            [_, ..] => ("", false),
        }
    }
}

fn piece(source: &str, variable: &str, variables: Variables<'_>) -> Result<Piece, PatternError> {
    let node = match variable {
        "node.id" => Some(NodeVariable::Id),
        "node.cluster" => Some(NodeVariable::Cluster),
        "locality.region" => Some(NodeVariable::Region),
        "locality.zone" => Some(NodeVariable::Zone),
        "locality.sub_zone" => Some(NodeVariable::SubZone),
        _ => (variable.strip_prefix("metadata."))
            .filter(|path| !path.is_empty())
            .map(|path| NodeVariable::Metadata(path.into())),
    };
    let in_all = |identity: &IdentityPattern| identity.variables().any(|name| name == variable);
    match node {
        Some(node) if variables.node => Ok(Piece::Node(node)),
        None if !variables.identities.is_empty() && variables.identities.iter().all(in_all) => {
            Ok(Piece::Capture(variable.into()))
        }
        _ => Err(PatternError::Variable {
            pattern: source.to_owned(),
            variable: variable.to_owned(),
            known: known(variables),
        }),
    }
}

fn known(variables: Variables<'_>) -> String {
    let identities = variables.identities.iter().flat_map(IdentityPattern::variables);
    let mut names: Vec<&str> = identities.collect();
    names.sort_unstable();
    names.dedup();
    if variables.node {
        names.extend(["node.id", "node.cluster", "locality.region", "locality.zone"]);
        names.extend(["locality.sub_zone", "metadata.<path>"]);
    }
    match names.as_slice() {
        [] => "none, because the identity has no variable".to_owned(),
        names => format!("{}, if all identities of the rule have them", names.join(", ")),
    }
}

impl NodeVariable {
    fn of<'a>(&self, node: &'a Node) -> Option<&'a str> {
        let value = match self {
            Self::Id => &node.id,
            Self::Cluster => &node.cluster,
            Self::Region => &node.locality.region,
            Self::Zone => &node.locality.zone,
            Self::SubZone => &node.locality.sub_zone,
            Self::Metadata(path) => node.metadata.get(&**path)?,
        };
        (!value.is_empty()).then_some(value)
    }
}

impl fmt::Debug for IdentityPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.source, f)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.source, f)
    }
}

#[cfg(test)]
mod tests;
