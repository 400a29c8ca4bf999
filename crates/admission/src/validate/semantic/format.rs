//! Format strings: `%REQ(x-id?:authority):20%`.

use prost::Message as _;
use prost_types::value::Kind;

use super::{
    format_parameter::{self, Defect},
    registry, versions,
};
use crate::{
    clients::{Clients, ENVOY},
    node::shown,
    problem::suggestion,
    validate::{findings::Findings, tree::Message},
};

/// The commands without a parameter.
const BARE: &[&str] = &[
    "ACCESS_LOG_TYPE",
    "BYTES_RECEIVED",
    "BYTES_RETRANSMITTED",
    "BYTES_SENT",
    "CONNECTION_ID",
    "CONNECTION_TERMINATION_DETAILS",
    "CUSTOM_FLAGS",
    "DOWNSTREAM_CX_RTT",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "DOWNSTREAM_DETECTED_CLOSE_TYPE",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID",
    "DOWNSTREAM_DIRECT_LOCAL_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
    "DOWNSTREAM_DIRECT_REMOTE_PORT",
    "DOWNSTREAM_HANDSHAKE_DURATION",
    "DOWNSTREAM_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_HEADER_BYTES_SENT",
    "DOWNSTREAM_LOCAL_ADDRESS",
    "DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID",
    "DOWNSTREAM_LOCAL_CLOSE_REASON",
    "DOWNSTREAM_LOCAL_DNS_SAN",
    "DOWNSTREAM_LOCAL_EMAIL_SAN",
    "DOWNSTREAM_LOCAL_IP_SAN",
    "DOWNSTREAM_LOCAL_OTHERNAME_SAN",
    "DOWNSTREAM_LOCAL_PORT",
    "DOWNSTREAM_LOCAL_SUBJECT",
    "DOWNSTREAM_LOCAL_URI_SAN",
    "DOWNSTREAM_PEER_CERT",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256",
    "DOWNSTREAM_PEER_CHAIN_SERIALS",
    "DOWNSTREAM_PEER_DNS_SAN",
    "DOWNSTREAM_PEER_EMAIL_SAN",
    "DOWNSTREAM_PEER_FINGERPRINT_1",
    "DOWNSTREAM_PEER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_IP_SAN",
    "DOWNSTREAM_PEER_ISSUER",
    "DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_ISSUER_SERIAL",
    "DOWNSTREAM_PEER_OTHERNAME_SAN",
    "DOWNSTREAM_PEER_SERIAL",
    "DOWNSTREAM_PEER_SUBJECT",
    "DOWNSTREAM_PEER_URI_SAN",
    "DOWNSTREAM_REMOTE_ADDRESS",
    "DOWNSTREAM_REMOTE_PORT",
    "DOWNSTREAM_TLS_CIPHER",
    "DOWNSTREAM_TLS_GROUP",
    "DOWNSTREAM_TLS_SESSION_ID",
    "DOWNSTREAM_TLS_VERSION",
    "DOWNSTREAM_TRANSPORT_FAILURE_REASON",
    "DOWNSTREAM_WIRE_BYTES_RECEIVED",
    "DOWNSTREAM_WIRE_BYTES_SENT",
    "DURATION",
    "FILTER_CHAIN_NAME",
    "GRPC_STATUS_NUMBER",
    "HOSTNAME",
    "LISTENER_NAME",
    "LOCAL_REPLY_BODY",
    "PACKETS_RETRANSMITTED",
    "PROTOCOL",
    "REQUEST_DURATION",
    "REQUEST_HEADERS_BYTES",
    "REQUEST_TX_DURATION",
    "RESPONSE_CODE",
    "RESPONSE_DURATION",
    "RESPONSE_FLAGS",
    "RESPONSE_FLAGS_LONG",
    "RESPONSE_HEADERS_BYTES",
    "RESPONSE_TRAILERS_BYTES",
    "RESPONSE_TX_DURATION",
    "ROUNDTRIP_DURATION",
    "ROUTE_NAME",
    "ROUTE_RESOLUTION_COUNT",
    "ROUTE_RESOLUTION_TIME_US",
    "SPAN_ID",
    "STREAM_ID",
    "TLS_JA3_FINGERPRINT",
    "TLS_JA4_FINGERPRINT",
    "TRACE_ID",
    "UNIQUE_ID",
    "UPSTREAM_CLUSTER",
    "UPSTREAM_CLUSTER_RAW",
    "UPSTREAM_CONNECTION_ID",
    "UPSTREAM_CONNECTION_IDS_ATTEMPTED",
    "UPSTREAM_CONNECTION_POOL_READY_DURATION",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "UPSTREAM_DETECTED_CLOSE_TYPE",
    "UPSTREAM_HEADER_BYTES_RECEIVED",
    "UPSTREAM_HEADER_BYTES_SENT",
    "UPSTREAM_HOST",
    "UPSTREAM_HOSTS_ATTEMPTED",
    "UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT",
    "UPSTREAM_HOST_NAME",
    "UPSTREAM_HOST_NAMES_ATTEMPTED",
    "UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT",
    "UPSTREAM_HOST_NAME_WITHOUT_PORT",
    "UPSTREAM_LOCAL_ADDRESS",
    "UPSTREAM_LOCAL_CLOSE_REASON",
    "UPSTREAM_LOCAL_DNS_SAN",
    "UPSTREAM_LOCAL_IP_SAN",
    "UPSTREAM_LOCAL_PORT",
    "UPSTREAM_LOCAL_URI_SAN",
    "UPSTREAM_PEER_CERT",
    "UPSTREAM_PEER_DNS_SAN",
    "UPSTREAM_PEER_IP_SAN",
    "UPSTREAM_PEER_ISSUER",
    "UPSTREAM_PEER_SUBJECT",
    "UPSTREAM_PEER_URI_SAN",
    "UPSTREAM_PROTOCOL",
    "UPSTREAM_REMOTE_ADDRESS",
    "UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID",
    "UPSTREAM_REMOTE_PORT",
    "UPSTREAM_REQUEST_ATTEMPT_COUNT",
    "UPSTREAM_SERVER_NAME",
    "UPSTREAM_TLS_CIPHER",
    "UPSTREAM_TLS_GROUP",
    "UPSTREAM_TLS_SESSION_ID",
    "UPSTREAM_TLS_VERSION",
    "UPSTREAM_TRANSPORT_FAILURE_REASON",
    "UPSTREAM_WIRE_BYTES_RECEIVED",
    "UPSTREAM_WIRE_BYTES_SENT",
    "VIRTUAL_CLUSTER_NAME",
];

/// The commands that need a parameter.
const WITH_PARAMETER: &[&str] = &[
    "CEL",
    "CLUSTER_METADATA",
    "COALESCE",
    "COMMON_DURATION",
    "DYNAMIC_METADATA",
    "ENVIRONMENT",
    "FILTER_STATE",
    "METADATA",
    "PER_REQUEST_STATE",
    "QUERY_PARAM",
    "REQ",
    "REQUEST_HEADER",
    "RESP",
    "RESPONSE_HEADER",
    "RESPONSE_TRAILER",
    "STREAM_INFO_REQ",
    "TRAILER",
    "TYPED_CEL",
    "UPSTREAM_FILTER_STATE",
    "UPSTREAM_METADATA",
    "XFCC_VALUE",
];

/// The commands whose parameter is optional.
const OPTIONAL: &[&str] = &[
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_PEER_CERT_V_END",
    "DOWNSTREAM_PEER_CERT_V_START",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "EMIT_TIME",
    "EMIT_TIME_LOCAL",
    "GRPC_STATUS",
    "PATH",
    "QUERY_PARAMS",
    "REQUESTED_SERVER_NAME",
    "RESPONSE_CODE_DETAILS",
    "START_TIME",
    "START_TIME_LOCAL",
    "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "UPSTREAM_PEER_CERT_V_END",
    "UPSTREAM_PEER_CERT_V_START",
    "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
];

/// The optional commands, and those with a parameter, that differ from others in whether they take a length.
const WITH_LENGTH: [&str; 2] = ["PATH", "QUERY_PARAMS"];
const WITHOUT_LENGTH: [&str; 2] = ["CLUSTER_METADATA", "UPSTREAM_METADATA"];

/// The formatters that add a command, by the type of their configuration.
const FORMATTERS: [(&str, &str); 5] = [
    ("envoy.extensions.formatter.cel.v3.Cel", ""),
    ("envoy.extensions.formatter.file_content.v3.FileContent", "FILE_CONTENT"),
    ("envoy.extensions.formatter.generic_secret.v3.GenericSecret", "SECRET"),
    ("envoy.extensions.formatter.metadata.v3.Metadata", ""),
    ("envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery", "REQ_WITHOUT_QUERY"),
];

/// The commands that a format may use beside the common ones.
pub(super) type Extra<'a> = &'a [&'a str];

/// A defect, and the clients that reject it.
#[derive(Debug)]
pub(super) struct Broken {
    defect: Defect,
    clients: Clients,
}

impl From<Defect> for Broken {
    fn from(defect: Defect) -> Self {
        Self { defect, clients: ENVOY }
    }
}

/// Checks a format string.
pub(super) fn check(text: &str) -> Result<(), Broken> {
    check_with(text, &[])
}

/// Checks a format string with further commands.
pub(super) fn check_with(text: &str, extra: Extra<'_>) -> Result<(), Broken> {
    // A defect for some versions must not hide one for all of them.
    let (mut rest, mut older) = (text, None);
    while let Some((_, after)) = rest.split_once('%') {
        rest = match after.strip_prefix('%') {
            Some(after) => after,
            None => {
                let command = command(after, extra)?;
                older = older.or_else(|| command.older());
                command.rest
            }
        };
    }
    older.map_or(Ok(()), Err)
}

/// A command at the start of a text.
struct Command<'t> {
    name: &'t str,
    has_parameter: bool,
    has_len: bool,
    /// The text behind the command.
    rest: &'t str,
}

impl Command<'_> {
    /// Returns the defect for versions of Envoy that do not have the command.
    fn older(&self) -> Option<Broken> {
        let clients = versions::without_command(self.name, self.has_parameter, self.has_len)?;
        let rule = format!("these versions do not have the command {} in this form", self.name);
        Some(Broken { defect: (rule, ""), clients })
    }
}

/// Returns whether a format string consists of one command.
pub(super) fn is_single(text: &str) -> bool {
    text.strip_prefix('%')
        .is_some_and(|text| command(text, &[]).is_ok_and(|command| command.rest.is_empty()))
}

/// Returns the commands that the formatters of a message add; `None` if one of them is not known.
pub(super) fn added(owner: &Message<'_>) -> Option<Vec<&'static str>> {
    let find = |formatter: &Message<'_>| {
        let kind = formatter.message("typed_config").map_or("", registry::kind_of);
        FORMATTERS.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name)
    };
    owner.messages("formatters").map(find).collect()
}

/// Checks the command at the start of a text.
fn command<'t>(text: &'t str, extra: Extra<'_>) -> Result<Command<'t>, Defect> {
    const ESCAPE: &str = "write %% for a percent sign";
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let len = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(len);
    let broken = || (format!("no valid command follows the % before {}", shown(text)), ESCAPE);
    if name.is_empty() {
        return Err(broken());
    }
    let (mut has_parameter, mut given) = (false, "");
    if let Some(parameter) = rest.strip_prefix('(') {
        // The shortest parameter after which the command ends.
        let end = parameter.match_indices(')').find(|(at, _)| {
            let after = &parameter[at + 1..];
            let digits = after
                .strip_prefix(':')
                .map(|after| after.trim_start_matches(|c: char| c.is_ascii_digit()));
            after.starts_with('%') || digits.is_some_and(|after| after.starts_with('%'))
        });
        let (at, _) = end.ok_or_else(broken)?;
        has_parameter = at > 0;
        given = &parameter[..at];
        rest = &parameter[at + 1..];
    }
    let mut has_len = false;
    if let Some(after) = rest.strip_prefix(':') {
        let digits = after.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits_len = after.len() - digits.len();
        if after[..digits_len].parse::<u64>().is_err() {
            return Err(broken());
        }
        has_len = true;
        rest = digits;
    }
    let rest = rest.strip_prefix('%').ok_or_else(broken)?;
    let command = Command { name, has_parameter, has_len, rest };
    if extra.contains(&name) {
        return Ok(command);
    }
    format_parameter::check(name, given, |text| check(text).is_ok())?;
    let has_no_length = if OPTIONAL.contains(&name) {
        !WITH_LENGTH.contains(&name)
    } else {
        WITHOUT_LENGTH.contains(&name)
    };
    if has_len && has_no_length {
        return Err((format!("the command {name} takes no length"), "remove it"));
    }
    if WITH_PARAMETER.contains(&name) {
        if !has_parameter {
            return Err((
                format!("the command {name} needs a parameter"),
                "write it in parentheses",
            ));
        }
    } else if BARE.contains(&name) {
        if has_parameter || has_len {
            let rule = format!("the command {name} takes neither a parameter nor a length");
            return Err((rule, "remove it"));
        }
    } else if !OPTIONAL.contains(&name) {
        let known = BARE.iter().chain(WITH_PARAMETER).chain(OPTIONAL).copied();
        let rule = match suggestion(name, known) {
            Some(meant) => format!("{} is not a command; did you mean {meant}?", shown(name)),
            None => format!("{} is not a command", shown(name)),
        };
        return Err((rule, ESCAPE));
    }
    Ok(command)
}

/// Records a defect.
pub(super) fn refuse(broken: Broken, findings: &mut Findings<'_>) {
    let (rule, fix) = broken.defect;
    findings.only(broken.clients, |findings| findings.refuse_with_fix("format.command", rule, fix));
}

/// The deprecated format of a log is a format string.
pub(super) fn file_format<'m>(log: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Err(rule) = check(log.text("format")) {
        findings.field("format", |findings| refuse(rule, findings));
    }
}

/// Checks the texts of a `Struct`.
pub(super) fn check_struct(content: &[u8], extra: Extra<'_>) -> Result<(), Broken> {
    let fields = prost_types::Struct::decode(content).unwrap_or_default().fields;
    fields.into_values().try_for_each(|value| value_defect(&value, extra))
}

/// Checks a `Value` that is a text; `None` for another one.
pub(super) fn check_text_value(content: &[u8]) -> Option<Result<(), Broken>> {
    let value = prost_types::Value::decode(content).unwrap_or_default();
    matches!(value.kind, Some(Kind::StringValue(_))).then(|| value_defect(&value, &[]))
}

fn value_defect(value: &prost_types::Value, extra: Extra<'_>) -> Result<(), Broken> {
    match &value.kind {
        Some(Kind::StringValue(text)) => check_with(text, extra),
        Some(Kind::ListValue(list)) => {
            list.values.iter().try_for_each(|value| value_defect(value, extra))
        }
        Some(Kind::StructValue(map)) => {
            map.fields.values().try_for_each(|value| value_defect(value, extra))
        }
        _ => Ok(()),
    }
}

/// The texts of a JSON format are format strings.
pub(super) fn json_format<'m>(log: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(extra) = added(log) else { return };
    for field in ["json_format", "typed_json_format"] {
        if let Err(rule) = check_struct(log.bytes(field), &extra) {
            findings.field(field, |findings| refuse(rule, findings));
        }
    }
}

/// A text format is a format string. Custom formatters add commands.
pub(super) fn text_format<'m>(format: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(extra) = added(format) else { return };
    let source = format.message("text_format_source");
    let inline = source.map_or("", |source| source.text("inline_string"));
    if let Err(rule) = check_with(format.text("text_format"), &extra) {
        findings.field("text_format", |findings| refuse(rule, findings));
    }
    if let Err(rule) = check_with(inline, &extra) {
        findings.field("text_format_source", |findings| {
            findings.field("inline_string", |findings| refuse(rule, findings));
        });
    }
}
