//! The part of a record that describes the event: one JSON object in printable characters, of bounded size.

use chancery_model::is_unprintable;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    event::{Event, source_text},
    policy::Level,
    time,
};

/// The maximum length of a text in a record, in bytes. Longer texts are truncated.
const TEXT_BYTES_MAX: usize = 512;
/// The maximum number of scopes in a record. Their names have no characters that need escapes.
const SCOPES_SHOWN_MAX: usize = 10;
/// The maximum size of the details. Larger details are left out.
const DETAILS_BYTES_MAX: usize = 4096;
/// The maximum length of a line. Escapes need at most six bytes for each byte of a text.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// The order of the keys in a record.
#[derive(Serialize)]
struct Body<'a> {
    time: String,
    port: crate::event::Port,
    verb: &'a str,
    decision: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    principal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    request_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    scope: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scopes_omitted: Option<usize>,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    type_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    details: Map<String, Value>,
}

/// Returns the JSON object of an event.
pub(crate) fn body(event: &Event, level: Level) -> String {
    let Event { time, port, verb, decision, source, target, .. } = event;
    let body = Body {
        time: time::timestamp(time::millis(*time)),
        port: *port,
        verb,
        decision: decision.word(),
        reason: decision.reason(),
        principal: truncated(&event.principal),
        source: source.map(source_text),
        user_agent: truncated(&event.user_agent),
        request_id: truncated(&event.request_id),
        scope: truncated(&target.scope),
        scopes: target.scopes.iter().take(SCOPES_SHOWN_MAX).map(|one| truncated(one)).collect(),
        scopes_omitted: target.scopes.len().checked_sub(SCOPES_SHOWN_MAX).filter(|n| *n > 0),
        type_name: truncated(&target.type_name),
        name: truncated(&target.name),
        details: match level {
            Level::Request => bounded(&event.details),
            Level::None | Level::Metadata => Map::new(),
        },
    };
    let json = serde_json::to_string(&body).expect("all keys are texts");
    printable(&json)
}

/// Truncates a text to 512 bytes. A truncated text ends with its original length.
#[must_use]
pub fn truncated(text: &str) -> String {
    let shown = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    if shown.len() < text.len() {
        format!("{shown}… ({} bytes)", text.len())
    } else {
        shown.to_owned()
    }
}

fn bounded(details: &Map<String, Value>) -> Map<String, Value> {
    let bytes = serde_json::to_string(details).map_or(usize::MAX, |json| json.len());
    if bytes <= DETAILS_BYTES_MAX {
        return details.clone();
    }
    Map::from_iter([("omitted_bytes".to_owned(), Value::from(bytes))])
}

/// Escapes characters that could control a terminal or reorder text. In JSON they occur only in strings.
fn printable(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unprintable(c) {
            out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c)
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::event::{Decision, Port, Target};

    fn event() -> Event {
        let time = UNIX_EPOCH + Duration::from_millis(1_795_167_942_123);
        Event { time, ..Event::new(Port::Admin, "apply") }
    }

    #[test]
    fn body_has_keys_in_fixed_order_and_details_only_at_level_request() {
        let event = Event {
            decision: Decision::Refused("input"),
            source: Some("[::ffff:10.0.0.1]:7".parse().unwrap()),
            request_id: "r1".to_owned(),
            target: Target { scope: "default".to_owned(), ..Target::default() },
            ..event().detail("files", 2)
        };
        let start = r#"{"time":"2026-11-20T09:45:42.123Z","port":"admin","verb":"apply","decision":"refused","reason":"input","principal":"anonymous","source":"10.0.0.1:7","request_id":"r1","scope":"default""#;
        assert_eq!(body(&event, Level::Metadata), format!("{start}}}"));
        assert_eq!(body(&event, Level::Request), format!("{start},\"details\":{{\"files\":2}}}}"));
    }

    /// Attack 52: a client's text cannot end a record, nor control the terminal that shows it.
    #[test]
    fn foreign_text_stays_inside_one_printable_line() {
        let forged = "a\r\n{\"seq\":9}\u{1b}[2J\u{9b}\u{202e}\u{2028}\0\u{7f}";
        let event = Event {
            principal: forged.to_owned(),
            user_agent: forged.to_owned(),
            request_id: forged.to_owned(),
            target: Target {
                scope: forged.to_owned(),
                scopes: vec![forged.to_owned()],
                type_name: forged.to_owned(),
                name: forged.to_owned(),
            },
            ..event().detail("reason", forged)
        };
        let body = body(&event, Level::Request);
        assert!(!body.contains(is_unprintable), "{body}");
        let value: Value = serde_json::from_str(&body).unwrap();
        for key in ["principal", "user_agent", "request_id", "scope", "type", "name"] {
            assert_eq!(value[key], forged, "{key}");
        }
        assert_eq!(value["details"]["reason"], forged);
    }

    #[test]
    fn size_of_line_is_bounded() {
        let long = "\u{202e}".repeat(100_000);
        let event = Event {
            principal: long.clone(),
            user_agent: long.clone(),
            request_id: long.clone(),
            target: Target {
                scope: long.clone(),
                scopes: vec!["s".repeat(600); 1000],
                type_name: long.clone(),
                name: long.clone(),
            },
            ..event()
        };
        let few = event.clone().detail("reason", long[..3900].to_owned());
        let text = body(&few, Level::Request);
        assert!(text.len() < LINE_BYTES_MAX - 200, "{}", text.len());
        assert!(text.contains("(300000 bytes)"), "{text}");
        let many = event.detail("reason", long);
        let text = body(&many, Level::Request);
        assert!(text.contains(r#""details":{"omitted_bytes":300013}"#), "{text}");
    }
}
