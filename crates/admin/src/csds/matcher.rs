//! The selection of clients by their nodes (CSDS-04).
//!
//! The server keeps the scalars of a node's metadata as text by path. A matcher of a string or a
//! boolean value compares that text, and a matcher of a number parses it.

use chancery_model::Node;
use chancery_proto::csds::{
    DoublePattern, NodeMatcher, StringMatcher, StringPattern, StructMatcher, ValueMatcher,
    ValuePattern,
};

use crate::AdminError;

/// The maximum number of matchers in a request, counted at all levels.
const MATCHERS_MAX: usize = 100;

/// The matchers of a request. They select a node if at least one of them matches it. An empty list
/// selects every node.
#[derive(Debug)]
pub(crate) struct Matchers(Vec<OfNode>);

/// A matcher of a node. All parts must match.
#[derive(Debug)]
struct OfNode {
    id: Option<Text>,
    metadata: Vec<(String, OfValue)>,
}

#[derive(Debug)]
enum OfValue {
    Text(Text),
    Bool(&'static str),
    Number(DoublePattern),
    Present(bool),
    Any(Vec<OfValue>),
}

#[derive(Debug)]
struct Text {
    pattern: Pattern,
    ignore_case: bool,
}

#[derive(Debug)]
enum Pattern {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
}

impl Matchers {
    /// Validates the matchers of a request (CSDS-16).
    pub(crate) fn new(matchers: &[NodeMatcher]) -> Result<Self, AdminError> {
        let mut parser = Parser { n_left: MATCHERS_MAX };
        let all = matchers.iter().enumerate();
        let all = all.map(|(at, one)| parser.node(&format!("node_matchers[{at}]"), one));
        Ok(Self(all.collect::<Result<_, _>>()?))
    }

    pub(crate) fn select(&self, node: &Node) -> bool {
        self.0.is_empty() || self.0.iter().any(|one| one.matches(node))
    }
}

impl OfNode {
    fn matches(&self, node: &Node) -> bool {
        self.id.as_ref().is_none_or(|id| id.matches(&node.id))
            && self
                .metadata
                .iter()
                .all(|(path, value)| value.matches(node.metadata.get(path).map(String::as_str)))
    }
}

impl OfValue {
    fn matches(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Any(matchers), _) => matchers.iter().any(|one| one.matches(value)),
            (_, None) => false,
            (Self::Present(wanted), Some(_)) => *wanted,
            (Self::Text(text), Some(value)) => text.matches(value),
            (Self::Bool(wanted), Some(value)) => *wanted == value,
            (Self::Number(pattern), Some(value)) => {
                value.parse().is_ok_and(|number: f64| match pattern {
                    DoublePattern::Exact(exact) => number == *exact,
                    DoublePattern::Range(range) => range.start <= number && number < range.end,
                })
            }
        }
    }
}

impl Text {
    fn matches(&self, text: &str) -> bool {
        let lower = self.ignore_case.then(|| text.to_ascii_lowercase());
        let text = lower.as_deref().unwrap_or(text);
        match &self.pattern {
            Pattern::Exact(exact) => text == exact,
            Pattern::Prefix(prefix) => text.starts_with(prefix),
            Pattern::Suffix(suffix) => text.ends_with(suffix),
            Pattern::Contains(part) => text.contains(part),
        }
    }
}

struct Parser {
    n_left: usize,
}

impl Parser {
    fn count(&mut self) -> Result<(), AdminError> {
        self.n_left = self.n_left.checked_sub(1).ok_or_else(|| {
            AdminError::Parameter(format!("the request has more than {MATCHERS_MAX} matchers"))
        })?;
        Ok(())
    }

    fn node(&mut self, at: &str, matcher: &NodeMatcher) -> Result<OfNode, AdminError> {
        self.count()?;
        let id = matcher.node_id.as_ref().map(|id| text(&format!("{at}.node_id"), id));
        let metadata = matcher.node_metadatas.iter().enumerate();
        let metadata =
            metadata.map(|(n, one)| self.field(&format!("{at}.node_metadatas[{n}]"), one));
        Ok(OfNode { metadata: metadata.collect::<Result<_, _>>()?, id: id.transpose()? })
    }

    fn field(
        &mut self,
        at: &str,
        matcher: &StructMatcher,
    ) -> Result<(String, OfValue), AdminError> {
        let keys: Vec<&str> = matcher.path.iter().map(|segment| segment.key.as_str()).collect();
        if keys.is_empty() || keys.contains(&"") {
            return Err(AdminError::Parameter(format!("`{at}.path` has no key, or an empty key")));
        }
        let value = matcher.value.as_ref();
        let value =
            value.ok_or_else(|| AdminError::Parameter(format!("`{at}.value` is not set")))?;
        Ok((keys.join("."), self.value(&format!("{at}.value"), value)?))
    }

    fn value(&mut self, at: &str, matcher: &ValueMatcher) -> Result<OfValue, AdminError> {
        self.count()?;
        Ok(match &matcher.pattern {
            Some(ValuePattern::String(string)) => {
                OfValue::Text(text(&format!("{at}.string_match"), string)?)
            }
            Some(ValuePattern::Bool(true)) => OfValue::Bool("true"),
            Some(ValuePattern::Bool(false)) => OfValue::Bool("false"),
            Some(ValuePattern::Present(wanted)) => OfValue::Present(*wanted),
            Some(ValuePattern::Double(number)) => {
                OfValue::Number(number.pattern.ok_or_else(|| {
                    AdminError::Parameter(format!("`{at}.double_match` has no pattern"))
                })?)
            }
            Some(ValuePattern::Or(any)) => {
                let all = any.value_matchers.iter().enumerate();
                let all = all
                    .map(|(n, one)| self.value(&format!("{at}.or_match.value_matchers[{n}]"), one));
                OfValue::Any(all.collect::<Result<_, _>>()?)
            }
            Some(ValuePattern::Null(_)) => return Err(unsupported(&format!("{at}.null_match"))),
            Some(ValuePattern::List(_)) => return Err(unsupported(&format!("{at}.list_match"))),
            None => return Err(AdminError::Parameter(format!("`{at}` has no pattern"))),
        })
    }
}

fn text(at: &str, matcher: &StringMatcher) -> Result<Text, AdminError> {
    let ignore_case = matcher.ignore_case;
    let folded = |text: &String| if ignore_case { text.to_ascii_lowercase() } else { text.clone() };
    let full = |field: &str, text: &String| {
        if text.is_empty() {
            Err(AdminError::Parameter(format!("`{at}.{field}` is empty")))
        } else {
            Ok(folded(text))
        }
    };
    let pattern = match &matcher.pattern {
        Some(StringPattern::Exact(exact)) => Pattern::Exact(folded(exact)),
        Some(StringPattern::Prefix(prefix)) => Pattern::Prefix(full("prefix", prefix)?),
        Some(StringPattern::Suffix(suffix)) => Pattern::Suffix(full("suffix", suffix)?),
        Some(StringPattern::Contains(part)) => Pattern::Contains(full("contains", part)?),
        Some(StringPattern::SafeRegex(_)) => return Err(unsupported(&format!("{at}.safe_regex"))),
        Some(StringPattern::Custom(_)) => return Err(unsupported(&format!("{at}.custom"))),
        None => return Err(AdminError::Parameter(format!("`{at}` has no pattern"))),
    };
    Ok(Text { pattern, ignore_case })
}

fn unsupported(at: &str) -> AdminError {
    AdminError::Parameter(format!(
        "`{at}` is not supported; use exact, prefix, suffix or contains for strings, and double_match, \
         string_match, bool_match, present_match or or_match for values"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::csds::from_json;

    fn node() -> Node {
        let pairs = [("zone.name", "Eu-1"), ("weight", "3.5"), ("canary", "true")];
        let pairs = pairs.map(|(path, text)| (path.to_owned(), text.to_owned()));
        Node { id: "edge/1".to_owned(), metadata: BTreeMap::from(pairs), ..Node::default() }
    }

    fn selects(matchers: &str) -> Result<bool, String> {
        let request = from_json(&format!("{{\"node_matchers\": [{matchers}]}}")).unwrap();
        let matchers = Matchers::new(&request.node_matchers).map_err(|error| error.to_string())?;
        Ok(matchers.select(&node()))
    }

    fn metadata(path: &str, value: &str) -> String {
        let path: Vec<String> =
            path.split('.').map(|key| format!("{{\"key\": {key:?}}}")).collect();
        let path = path.join(",");
        format!("{{\"node_metadatas\": [{{\"path\": [{path}], \"value\": {value}}}]}}")
    }

    /// CSDS-04: any matcher selects a client, and all parts of a matcher must match.
    #[test]
    fn matchers_select_by_any_and_match_by_all() {
        let id = |pattern: &str| format!("{{\"node_id\": {pattern}}}");
        for (pattern, expected) in [
            (r#"{"exact": "edge/1"}"#, true),
            (r#"{"exact": "EDGE/1"}"#, false),
            (r#"{"exact": "EDGE/1", "ignore_case": true}"#, true),
            (r#"{"prefix": "edge/"}"#, true),
            (r#"{"prefix": "dge"}"#, false),
            (r#"{"suffix": "/1"}"#, true),
            (r#"{"suffix": "/2"}"#, false),
            (r#"{"contains": "ge"}"#, true),
            (r#"{"contains": "GE", "ignoreCase": true}"#, true),
            (r#"{"contains": "x"}"#, false),
        ] {
            assert_eq!(selects(&id(pattern)), Ok(expected), "{pattern}");
        }
        for (path, value, expected) in [
            ("zone.name", r#"{"string_match": {"exact": "Eu-1"}}"#, true),
            ("zone.name", r#"{"string_match": {"prefix": "eu", "ignore_case": true}}"#, true),
            ("zone.none", r#"{"string_match": {"exact": "Eu-1"}}"#, false),
            ("zone", r#"{"present_match": true}"#, false),
            ("canary", r#"{"present_match": true}"#, true),
            ("canary", r#"{"present_match": false}"#, false),
            ("canary", r#"{"bool_match": true}"#, true),
            ("canary", r#"{"bool_match": false}"#, false),
            ("weight", r#"{"double_match": {"exact": 3.5}}"#, true),
            ("weight", r#"{"double_match": {"range": {"start": 3, "end": 3.5}}}"#, false),
            ("weight", r#"{"double_match": {"range": {"start": 3.5, "end": 4}}}"#, true),
            ("canary", r#"{"double_match": {"exact": 1}}"#, false),
            (
                "weight",
                r#"{"or_match": {"value_matchers": [{"bool_match": true}, {"present_match": true}]}}"#,
                true,
            ),
        ] {
            assert_eq!(selects(&metadata(path, value)), Ok(expected), "{path} {value}");
        }
        let yes = r#"{"node_id": {"exact": "edge/1"}}"#;
        let no = r#"{"node_id": {"exact": "edge/2"}}"#;
        assert_eq!(selects(&format!("{no}, {yes}")), Ok(true));
        assert_eq!(selects(no), Ok(false));
        assert_eq!(selects(""), Ok(true));
        let both = |id: &str| {
            let canary = r#"{"path": [{"key": "canary"}], "value": {"bool_match": true}}"#;
            let absent = r#"{"path": [{"key": "x"}], "value": {"present_match": true}}"#;
            let of = |metadata: &str| {
                selects(&format!(
                    "{{\"node_id\": {{\"exact\": {id:?}}}, \"node_metadatas\": [{metadata}]}}"
                ))
            };
            (of(canary).unwrap(), of(&format!("{canary}, {absent}")).unwrap())
        };
        assert_eq!((both("edge/1"), both("edge/2")), ((true, false), (false, false)));
    }

    /// CSDS-16: the rejection names the matcher.
    #[test]
    fn unsupported_and_invalid_matchers_are_rejected_by_place() {
        let id = |pattern: &str| format!("{{\"node_id\": {pattern}}}");
        for (matcher, part) in [
            (id(r#"{"safe_regex": {"regex": ".*"}}"#), "node_matchers[0].node_id.safe_regex"),
            (id(r#"{"custom": {"name": "x"}}"#), "node_matchers[0].node_id.custom"),
            (id(r#"{"prefix": ""}"#), "node_id.prefix` is empty"),
            (id("{}"), "node_id` has no pattern"),
            (metadata("a", r#"{"null_match": {}}"#), "node_metadatas[0].value.null_match"),
            (metadata("a", r#"{"list_match": {}}"#), "value.list_match"),
            (metadata("a", "{}"), "value` has no pattern"),
            (metadata("a", r#"{"double_match": {}}"#), "double_match` has no pattern"),
            (
                metadata("a", r#"{"or_match": {"value_matchers": [{"null_match": {}}]}}"#),
                "or_match.value_matchers[0].null_match",
            ),
            (r#"{"node_metadatas": [{}]}"#.to_owned(), "path` has no key"),
            (vec!["{}"; 101].join(","), "more than 100 matchers"),
        ] {
            let error = selects(&matcher).unwrap_err();
            assert!(error.contains(part), "{matcher}: {error}");
        }
    }
}
