//! The parameters of the commands of format strings.

use serde_json::Value as Json;

use super::cel;
use crate::node::shown;

/// A violated rule, and what to do about it.
pub(super) type Defect = (String, &'static str);

const PATHS: [&str; 3] = ["ORIG", "PATH", "ORIG_OR_PATH"];
const METADATA: [&str; 7] = [
    "CLUSTER",
    "DYNAMIC",
    "LISTENER",
    "LISTENER_FILTER_CHAIN",
    "ROUTE",
    "UPSTREAM_HOST",
    "VIRTUAL_HOST",
];
const NAME_SOURCES: [&str; 3] = ["SNI_ONLY", "SNI_FIRST", "HOST_FIRST"];
const NAME_FORMS: [&str; 3] = ["ORIG_OR_HOST", "HOST", "ORIG"];
/// The elements of a forwarded client certificate, in lower case.
const CERTIFICATE_PARTS: [&str; 7] = ["by", "hash", "cert", "chain", "subject", "uri", "dns"];

/// Checks the form of the parameters of some commands. A parameter may contain format strings.
pub(super) fn check(name: &str, given: &str, is_format: fn(&str) -> bool) -> Result<(), Defect> {
    let mut parts = given.split(':');
    let first = parts.next().unwrap_or_default();
    let (second, third) = (parts.next(), parts.next());
    let rule = match name {
        "REQ" | "RESP" | "TRAILER" | "REQUEST_HEADER" | "RESPONSE_HEADER" | "RESPONSE_TRAILER" => {
            match given {
                _ if given.matches('?').count() > 1 => "names more than one alternative header",
                _ if given.contains(' ') => "names a header with a space",
                _ => return Ok(()),
            }
        }
        "FILTER_STATE" | "UPSTREAM_FILTER_STATE" if !given.is_empty() => match (second, third) {
            _ if first.is_empty() => "needs a key",
            (None | Some("PLAIN" | "TYPED"), None) | (Some("FIELD"), Some(_)) => return Ok(()),
            _ => "takes PLAIN, TYPED, or FIELD and the name of a field",
        },
        "PATH" => {
            if ["", "WQ", "NQ"].contains(&first) && second.is_none_or(|path| PATHS.contains(&path))
            {
                return Ok(());
            } else {
                "takes WQ or NQ, and then ORIG, PATH or ORIG_OR_PATH"
            }
        }
        "QUERY_PARAMS" if !["", "ORIG", "DECODED"].contains(&given) => "takes ORIG or DECODED",
        "REQUESTED_SERVER_NAME"
            if !first.is_empty() && !NAME_SOURCES.contains(&first)
                || second.is_some_and(|form| !NAME_FORMS.contains(&form)) =>
        {
            "takes SNI_ONLY, SNI_FIRST or HOST_FIRST, and then ORIG_OR_HOST, HOST or ORIG"
        }
        "XFCC_VALUE"
            if !given.is_empty()
                && !CERTIFICATE_PARTS.contains(&given.to_ascii_lowercase().as_str()) =>
        {
            "does not name an element of a certificate, such as uri"
        }
        "METADATA" if !given.is_empty() && !METADATA.contains(&first) => {
            "names an unknown type of metadata"
        }
        "GRPC_STATUS" if !["", "CAMEL_STRING", "SNAKE_STRING", "NUMBER"].contains(&given) => {
            "takes CAMEL_STRING, SNAKE_STRING or NUMBER"
        }
        "COMMON_DURATION" if second.is_none() => "needs two points of time",
        "COMMON_DURATION" if third.is_some_and(|unit| !["ms", "us", "ns"].contains(&unit)) => {
            "takes ms, us or ns as the precision"
        }
        "CEL" | "TYPED_CEL" if !given.is_empty() => match cel::check(given) {
            Ok(()) => return Ok(()),
            Err(rule) => rule,
        },
        "COALESCE" if !given.is_empty() => match operators(given, is_format) {
            Ok(()) => return Ok(()),
            Err(rule) => rule,
        },
        _ => return Ok(()),
    };
    Err((format!("the command {name} with the parameter {} {rule}", shown(given)), ""))
}

/// Checks the commands of which the first one with a value counts: `{"operators": ["PROTOCOL"]}`.
fn operators(given: &str, is_format: fn(&str) -> bool) -> Result<(), &'static str> {
    const WRONG: &str = "is not JSON with a list of operators";
    let json: Json = serde_json::from_str(given).map_err(|_| WRONG)?;
    let operators = json.get("operators").and_then(Json::as_array).ok_or(WRONG)?;
    if operators.is_empty() {
        return Err("has no operators");
    }
    for operator in operators {
        let text = |name: &str| operator.get(name).and_then(Json::as_str);
        let command = operator.as_str().or(text("command")).ok_or(WRONG)?;
        let parameter = text("param").map_or(String::new(), |text| format!("({text})"));
        if !is_format(&format!("%{command}{parameter}%")) {
            return Err("has an operator that is not a command with its parameters");
        }
    }
    Ok(())
}
