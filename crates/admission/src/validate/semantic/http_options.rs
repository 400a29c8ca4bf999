//! The options of a cluster for HTTP.

use std::collections::BTreeMap;

use super::{
    cluster_kind::{Kind, config, kind},
    extensions::UPSTREAM_HTTP_FILTERS,
    transport_socket::has_alpn,
};
use crate::validate::{
    findings::{Findings, Step},
    tree::Message,
};

/// The name under which Envoy knows the options of HTTP protocols.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// The names under which Envoy finds options. The second one is older.
const KEYS: [&str; 2] = [HTTP_OPTIONS, "envoy.upstreams.http.http_protocol_options"];
const FIELD: &str = "typed_extension_protocol_options";

/// The options of HTTP protocols have a fixed key.
pub(super) fn protocol_options<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    for entry in cluster.messages(FIELD) {
        let (key, content) = (entry.text("key"), entry.any("value"));
        let kind = content.map_or("", |content| content.kind.name.as_str());
        let has_type = entry.message("value").is_some_and(|any| !any.bytes("type_url").is_empty());
        let (rule, fix) = match (KEYS.contains(&key), kind) {
            (false, HTTP_OPTIONS) => (
                "HttpProtocolOptions need another key".to_owned(),
                format!("use the key {HTTP_OPTIONS}"),
            ),
            (true, HTTP_OPTIONS | "google.protobuf.Struct") => continue,
            (true, "") if has_type => continue,
            (true, kind) if !super::extensions::is_typed_struct(kind) => {
                (format!("this key needs the type {HTTP_OPTIONS}"), "use this type".to_owned())
            }
            (false, _) if key.starts_with("envoy.filters.http.") => (
                "an HTTP filter cannot have options in a cluster".to_owned(),
                "remove the entry".to_owned(),
            ),
            _ => continue,
        };
        findings.field(FIELD, |findings| {
            findings.at(Step::Key(key), |findings| {
                findings.refuse_with_fix("cluster.protocol_options_key", rule, fix);
            });
        });
    }
}

/// Returns the options of HTTP protocols of a cluster, and their key.
fn options<'c, 'a>(cluster: &'c Message<'a>) -> Option<(&'a str, &'c Message<'a>)> {
    let mut entries = cluster.messages(FIELD);
    let entry = entries.find(|entry| KEYS.contains(&entry.text("key")))?;
    let content = entry.any("value").filter(|content| content.kind.name == HTTP_OPTIONS)?;
    Some((entry.text("key"), content))
}

/// Returns whether Envoy can use HTTP/2 for the cluster.
pub(super) fn has_http2(cluster: &Message<'_>) -> bool {
    let Some((_, options)) = options(cluster) else {
        return cluster.has("http2_protocol_options");
    };
    let has = |part| options.message(part).is_some_and(|part| part.has("http2_protocol_options"));
    options.has("auto_config")
        || has("explicit_http_config")
        || has("use_downstream_protocol_config")
}

/// The protocols of a cluster fit its transport socket and its type.
pub(super) fn protocols<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    let options = options(cluster);
    let common = match options {
        Some((_, options)) => options.message("common_http_protocol_options"),
        None => cluster.message("common_http_protocol_options"),
    };
    let has_limit = |part: &Message<'_>| part.has("max_requests_per_connection");
    if has_limit(cluster) && common.is_some_and(has_limit) {
        findings.field("max_requests_per_connection", |findings| {
            let rule = "is also set in common_http_protocol_options";
            findings.refuse_with_fix("cluster.max_requests", rule, "remove one of the two");
        });
    }
    let Some((key, options)) = options else {
        // The value `USE_CONFIGURED_PROTOCOL`.
        if cluster.has("http_protocol_options")
            && cluster.has("http2_protocol_options")
            && cluster.bits("protocol_selection") == 0
        {
            findings.field("http2_protocol_options", |findings| {
                let rule = "cannot be combined with http_protocol_options";
                findings.refuse_with_fix("cluster.two_protocols", rule, "remove one of the two");
            });
        }
        return secure_names(cluster, cluster, findings);
    };
    findings.field(FIELD, |findings| {
        findings.at(Step::Key(key), |findings| {
            socket(cluster, options, findings);
            secure_names(cluster, options, findings);
        });
    });
}

/// The name by which Envoy recognizes the transport socket of HTTP/3.
const QUIC: &str = "envoy.transport_sockets.quic";

fn socket<'m>(cluster: &'m Message<'_>, options: &'m Message<'_>, findings: &mut Findings<'m>) {
    let own = cluster.message("transport_socket");
    let has_http3 =
        |part: &str| options.message(part).is_some_and(|part| part.has("http3_protocol_options"));
    let parts = ["explicit_http_config", "use_downstream_protocol_config", "auto_config"];
    if let Some(part) = parts.into_iter().find(|part| has_http3(part))
        && own.is_none_or(|own| own.text("name") != QUIC)
    {
        findings.field(part, |findings| {
            let rule = format!("HTTP/3 needs a transport socket with the name {QUIC}");
            findings.field("http3_protocol_options", |f| f.refuse("http3.socket", rule));
        });
    }
    if !options.has("auto_config") {
        return;
    }
    let mut sockets = vec![own];
    let matches = cluster.messages("transport_socket_matches");
    sockets.extend(matches.map(|entry| entry.message("transport_socket")));
    if sockets.into_iter().any(|own| has_alpn(own) == Some(false)) {
        findings.field("auto_config", |findings| {
            let rule = "needs transport sockets with ALPN, such as TLS";
            let fix = "add a TLS transport socket, or use explicit_http_config";
            findings.refuse_with_fix("http.alpn", rule, fix);
        });
    }
}

/// A forward proxy verifies the names of the servers that clients choose.
fn secure_names<'m>(cluster: &'m Message<'_>, owner: &'m Message<'_>, findings: &mut Findings<'m>) {
    const NAMES: &str = "upstream_http_protocol_options";
    if kind(cluster) != Kind::ForwardProxy
        || config(cluster).is_some_and(|it| it.bits("allow_insecure_cluster_options") != 0)
        || owner.kind.name == cluster.kind.name && !owner.has(NAMES)
    {
        return;
    }
    let is_set = |option| owner.message(NAMES).is_some_and(|names| names.bits(option) != 0);
    if !is_set("auto_sni") || !is_set("auto_san_validation") {
        findings.field(NAMES, |findings| {
            let rule = "a forward proxy needs auto_sni and auto_san_validation";
            let fix = "set both to true, or allow_insecure_cluster_options in the cluster_type";
            findings.refuse_with_fix("forward_proxy.names", rule, fix);
        });
    }
}

/// The clusters of a forward proxy select endpoints themselves.
pub(super) fn forward_proxy<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    const CLUSTER_PROVIDED: u64 = 6;
    let parts = config.message("sub_clusters_config");
    if parts.is_some_and(|parts| parts.bits("lb_policy") == CLUSTER_PROVIDED) {
        findings.field("sub_clusters_config", |findings| {
            let rule = "CLUSTER_PROVIDED is not allowed here";
            findings.field("lb_policy", |f| f.refuse("forward_proxy.lb_policy", rule));
        });
    }
}

/// The parts of the options are known and complete.
pub(super) fn parts<'m>(options: &'m Message<'_>, findings: &mut Findings<'m>) {
    if options.has("header_validation_config") {
        findings.field("header_validation_config", |findings| {
            let rule = "released builds of Envoy have no header validators";
            findings.refuse("http.header_validation", rule);
        });
    }
    let auto = options.message("auto_config");
    if auto.is_some_and(|auto| {
        auto.has("http3_protocol_options") && !auto.has("alternate_protocols_cache_options")
    }) {
        findings.field("auto_config", |findings| {
            findings.field("alternate_protocols_cache_options", |findings| {
                findings
                    .refuse("http3.cache", "is required with http3_protocol_options, but missing");
            });
        });
    }
    let filters = options.messages("http_filters");
    for (index, filter) in filters.enumerate() {
        if filter.has("typed_config") {
            findings.item("http_filters", index, |f| UPSTREAM_HTTP_FILTERS.check(filter, f));
        }
    }
    let last = options.messages("http_filters").enumerate().last();
    if let Some((index, _)) = last.filter(|(_, last)| last.bits("disabled") != 0) {
        findings.item("http_filters", index, |findings| {
            let rule = "the last filter cannot be disabled";
            findings.field("disabled", |f| f.refuse("http_filter.codec_disabled", rule));
        });
    }
}

/// The settings of HTTP/2 that have a field, by their identifiers.
const NAMED: [(u64, &str); 3] =
    [(1, "hpack_table_size"), (3, "max_concurrent_streams"), (4, "initial_stream_window_size")];
const ENABLE_PUSH: u64 = 2;
const ENABLE_CONNECT: u64 = 8;

/// Further settings of HTTP/2 do not repeat the others.
pub(super) fn http2_settings<'m>(options: &'m Message<'_>, findings: &mut Findings<'m>) {
    const LIST: &str = "custom_settings_parameters";
    let mut seen = BTreeMap::new();
    for (index, setting) in options.messages(LIST).enumerate() {
        let (Some(id), Some(value)) = (setting.wrapped("identifier"), setting.wrapped("value"))
        else {
            continue;
        };
        let named = NAMED.iter().find(|(known, field)| *known == id && options.has(field));
        let first = *seen.entry(id).or_insert(value);
        let rule = match (id, named) {
            (ENABLE_PUSH, _) if value == 1 => "Envoy does not support server push".to_owned(),
            (ENABLE_CONNECT, _) => "the field allow_connect sets this".to_owned(),
            (_, Some((_, field))) => format!("the field {field} sets this too"),
            _ if first != value => {
                format!("an earlier item sets the identifier {id:#04x} to {first}")
            }
            _ => continue,
        };
        findings.item(LIST, index, |findings| findings.refuse("http2.settings", rule));
    }
}
