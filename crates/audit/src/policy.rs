//! The policy: which events are recorded, and with which details. The first rule that matches decides.

use serde::{Deserialize, Deserializer, de};

use crate::event::{Event, Port};

/// The maximum number of rules.
const RULES_MAX: usize = 1000;

/// The extent of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// The event is not recorded.
    None,
    /// Everything except the details.
    #[default]
    Metadata,
    /// Everything.
    Request,
}

/// The policy. The default policy records the metadata of all events.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Policy {
    /// The level of an event that no rule matches.
    default: Level,
    #[serde(deserialize_with = "few_rules")]
    rules: Vec<Rule>,
}

/// A rule. An empty list matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    verbs: Vec<Pattern>,
    #[serde(default)]
    decisions: Vec<Word>,
    #[serde(default)]
    principals: Vec<Pattern>,
    #[serde(default)]
    scopes: Vec<Pattern>,
    #[serde(default)]
    types: Vec<Pattern>,
    #[serde(default)]
    names: Vec<Pattern>,
}

/// A decision without its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Pending,
    Allowed,
    Refused,
    Failed,
    Unknown,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// A text, or the beginning of a text followed by `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Exact(String),
    Prefix(String),
}

impl Pattern {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Prefix(prefix) => text.starts_with(prefix),
        }
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (prefix, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text.as_str(), false),
        };
        if prefix.contains('*') {
            let rule = format!("the pattern {text:?} has a `*` that is not its last character");
            return Err(de::Error::custom(rule));
        }
        let prefix = prefix.to_owned();
        Ok(if is_prefix { Self::Prefix(prefix) } else { Self::Exact(prefix) })
    }
}

fn few_rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rule>, D::Error> {
    let rules = Vec::<Rule>::deserialize(deserializer)?;
    if rules.len() > RULES_MAX {
        let n = rules.len();
        return Err(de::Error::custom(format!("{n} rules exceed the maximum of {RULES_MAX}")));
    }
    Ok(rules)
}

impl Policy {
    /// Returns the level of an event. If the event concerns several scopes, the most detailed of their levels counts.
    pub(crate) fn level(&self, event: &Event) -> Level {
        let of_scope = |scope: &str| {
            let rule = self.rules.iter().find(|rule| rule.matches(event, scope));
            rule.map_or(self.default, |rule| rule.level)
        };
        let levels = event.target.scopes.iter().map(|scope| of_scope(scope));
        levels.max().unwrap_or_else(|| of_scope(&event.target.scope))
    }
}

impl Rule {
    fn matches(&self, event: &Event, scope: &str) -> bool {
        let any = |patterns: &[Pattern], text: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(text))
        };
        let decision = event.decision.word();
        (self.ports.is_empty() || self.ports.contains(&event.port))
            && (self.decisions.is_empty()
                || self.decisions.iter().any(|word| word.text() == decision))
            && any(&self.verbs, event.verb)
            && any(&self.principals, &event.principal)
            && any(&self.scopes, scope)
            && any(&self.types, &event.target.type_name)
            && any(&self.names, &event.target.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Decision, Target};

    fn policy(text: &str) -> Policy {
        toml::from_str(text).unwrap()
    }

    fn event(verb: &'static str, scope: &str) -> Event {
        let target = Target { scope: scope.to_owned(), ..Target::default() };
        Event { target, ..Event::new(Port::Admin, verb) }
    }

    #[test]
    fn first_matching_rule_decides() {
        let policy = policy(
            r#"
            default = "metadata"
            [[rules]]
            level = "none"
            verbs = ["dry-run"]
            [[rules]]
            level = "request"
            scopes = ["prod/*", "shared"]
            [[rules]]
            level = "none"
            scopes = ["prod/eu"]
            "#,
        );
        for (verb, scope, level) in [
            ("dry-run", "prod/eu", Level::None),
            ("apply", "prod/eu", Level::Request),
            ("apply", "shared", Level::Request),
            ("apply", "shared2", Level::Metadata),
            ("apply", "", Level::Metadata),
        ] {
            assert_eq!(policy.level(&event(verb, scope)), level, "{verb} {scope}");
        }
        assert_eq!(Policy::default().level(&event("apply", "x")), Level::Metadata);
        let several = |scopes: &[&str]| {
            let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
            let target = Target { scopes, ..Target::default() };
            Event { target, ..event("apply", "") }
        };
        // A write cannot hide a scope behind another one.
        assert_eq!(
            policy.level(&several(&["lab", "prod/us"])),
            policy.level(&event("apply", "prod/us"))
        );
        assert_eq!(
            policy.level(&several(&["prod/us", "lab"])),
            policy.level(&event("apply", "prod/us"))
        );
    }

    #[test]
    fn rule_matches_only_if_each_of_its_lists_matches() {
        let policy = policy(
            r#"
            [[rules]]
            level = "none"
            ports = ["admin"]
            verbs = ["delete"]
            decisions = ["refused"]
            principals = ["spiffe://prod.example/*"]
            types = ["sds"]
            names = ["*"]
            "#,
        );
        let matching = || Event {
            principal: "spiffe://prod.example/ns/a".to_owned(),
            decision: Decision::Refused("input"),
            target: Target { type_name: "sds".to_owned(), ..Target::default() },
            ..Event::new(Port::Admin, "delete")
        };
        assert_eq!(policy.level(&matching()), Level::None);
        let others = [
            Event { port: Port::Xds, ..matching() },
            Event { verb: "apply", ..matching() },
            Event { decision: Decision::Allowed, ..matching() },
            Event { principal: "spiffe://prod.example".to_owned(), ..matching() },
            Event { target: Target::default(), ..matching() },
        ];
        for other in others {
            assert_eq!(policy.level(&other), Level::Metadata, "{other:?}");
        }
    }

    #[test]
    fn invalid_policy_is_rejected() {
        for text in [
            "level = \"none\"",
            "[[rules]]\nverbs = [\"a\"]",
            "[[rules]]\nlevel = \"all\"",
            "[[rules]]\nlevel = \"none\"\nusers = [\"a\"]",
            "[[rules]]\nlevel = \"none\"\nports = [\"http\"]",
            "[[rules]]\nlevel = \"none\"\nnames = [\"a*b\"]",
            "[[rules]]\nlevel = \"none\"\ndecisions = [\"maybe\"]",
        ] {
            toml::from_str::<Policy>(text).unwrap_err();
        }
        let many = "[[rules]]\nlevel = \"none\"\n".repeat(RULES_MAX + 1);
        let error = toml::from_str::<Policy>(&many).unwrap_err();
        assert!(error.to_string().contains("1001 rules"), "{error}");
    }
}
