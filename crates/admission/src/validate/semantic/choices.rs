//! Fields of which a message needs one, and fields that exclude each other.

use std::{collections::HashMap, sync::LazyLock};

use crate::validate::{
    findings::Findings,
    tree::{Message, Value},
};

/// How many of the fields a message may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    AtMostOne,
    AtLeastOne,
    ExactlyOne,
    /// The first field needs the second one.
    Needs,
}

use Count::{AtLeastOne, AtMostOne, ExactlyOne, Needs};

/// A rule: the type of the message, the count, the fields, and the ID of the rule.
type Choice = (&'static str, Count, &'static [&'static str], &'static str);

/// The rules about fields.
const CHOICES: &[Choice] = &[
    (
        super::common::HCM,
        AtMostOne,
        &["access_log_flush_interval", "access_log_options"],
        LOG_OPTIONS,
    ),
    (
        super::common::HCM,
        AtMostOne,
        &["flush_access_log_on_new_request", "access_log_options"],
        LOG_OPTIONS,
    ),
    (TCP_PROXY, AtMostOne, &["access_log_flush_interval", "access_log_options"], LOG_OPTIONS),
    (TCP_PROXY, AtMostOne, &["flush_access_log_on_connected", "access_log_options"], LOG_OPTIONS),
    (TUNNEL, Needs, &["post_path", "use_post"], "tunneling.post_path"),
    (UDP_TUNNEL, Needs, &["post_path", "use_post"], "tunneling.post_path"),
    (LISTENER, Needs, &["fcds_config", "filter_chain_matcher"], "listener.fcds"),
    (LISTENER, AtMostOne, &["api_listener", "internal_listener"], "listener.internal"),
    ("envoy.config.core.v3.KeyValueMutation", ExactlyOne, &["append", "remove"], PARAMETER),
    ("envoy.config.core.v3.KeyValueAppend", AtLeastOne, &["record"], PARAMETER),
    (STATS_LOG, ExactlyOne, &["stat_prefix", "stats_scope"], "stats_log.scope"),
    (COUNTER, ExactlyOne, &["value_format", "value_fixed"], "stats_log.value"),
    (GAUGE, ExactlyOne, &["value_format", "value_fixed"], "stats_log.value"),
    (GAUGE, ExactlyOne, &["set", "add_subtract"], "stats_log.operation"),
    (LOG_LIMIT, AtLeastOne, &["dynamic_config"], "access_log.rate_limit"),
    ("envoy.config.tap.v3.TapConfig", AtLeastOne, &["match", "match_config"], "tap.match"),
    (MIN_RTT, AtLeastOne, &["interval", "fixed_value"], "adaptive_concurrency.interval"),
    (
        "envoy.extensions.filters.http.api_key_auth.v3.KeySource",
        AtLeastOne,
        &["header", "query", "cookie"],
        "api_key.source",
    ),
    (
        "envoy.extensions.filters.http.cache.v3.CacheConfig",
        AtLeastOne,
        &["typed_config", "disabled"],
        "cache.store",
    ),
    (
        "envoy.extensions.filters.http.cache_v2.v3.CacheV2Config",
        AtLeastOne,
        &["typed_config", "disabled"],
        "cache.store",
    ),
    (
        "envoy.extensions.filters.http.composite.v3.ExecuteFilterAction",
        AtLeastOne,
        &["typed_config", "dynamic_config", "filter_chain", "filter_chain_name"],
        "composite.filters",
    ),
    (
        "envoy.extensions.filters.http.composite.v3.FilterChainConfiguration",
        AtLeastOne,
        &["typed_config"],
        "composite.filters",
    ),
    (
        "envoy.extensions.filters.http.file_server.v3.FileServerConfig.DirectoryBehavior",
        ExactlyOne,
        &["default_file", "list"],
        "file_server.directory",
    ),
    (
        "envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata.Rule",
        AtLeastOne,
        &["on_present", "on_missing"],
        "to_metadata.rule",
    ),
    (
        "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        AtMostOne,
        &["local_rate_limit_per_downstream_connection", "local_cluster_rate_limit"],
        "rate_limit.share",
    ),
    (
        "envoy.extensions.filters.http.thrift_to_metadata.v3.ThriftToMetadata",
        AtLeastOne,
        &["request_rules", "response_rules"],
        "to_metadata.rule",
    ),
    (
        "envoy.extensions.filters.http.transform.v3.TransformConfig",
        AtMostOne,
        &["clear_cluster_cache", "clear_route_cache"],
        "transform.clear",
    ),
    (
        "envoy.extensions.filters.network.dubbo_proxy.v3.DubboProxy",
        AtMostOne,
        &["drds", "multiple_route_config", "route_config"],
        "dubbo.routes",
    ),
    (
        "envoy.extensions.filters.network.generic_proxy.v3.GenericProxy",
        AtLeastOne,
        &["filters"],
        "generic_proxy.router",
    ),
    (
        "envoy.extensions.geoip_providers.maxmind.v3.MaxMindConfig",
        AtLeastOne,
        &["city_db_path", "isp_db_path", "asn_db_path", "anon_db_path", "country_db_path"],
        "geoip.database",
    ),
    (
        "envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor",
        AtLeastOne,
        &["text", "parsed"],
        "rate_limit.expression",
    ),
    (
        "envoy.extensions.rbac.matchers.upstream_ip_port.v3.UpstreamIpPortMatcher",
        AtLeastOne,
        &["upstream_ip", "upstream_port_range"],
        "rbac.upstream",
    ),
    (
        "envoy.extensions.rbac.principals.mtls_authenticated.v3.Config",
        AtLeastOne,
        &["san_matcher", "any_validated_client_certificate"],
        "rbac.certificate",
    ),
    ("envoy.extensions.access_loggers.wasm.v3.WasmAccessLog", AtLeastOne, &["config"], "wasm.code"),
    ("envoy.extensions.filters.http.wasm.v3.Wasm", AtLeastOne, &["config"], "wasm.code"),
    ("envoy.extensions.filters.network.wasm.v3.Wasm", AtLeastOne, &["config"], "wasm.code"),
    (
        "envoy.extensions.wasm.v3.PluginConfig",
        AtMostOne,
        &["fail_open", "failure_policy"],
        "wasm.policy",
    ),
    (
        "google.api.expr.v1alpha1.Expr",
        AtLeastOne,
        &[
            "const_expr",
            "ident_expr",
            "select_expr",
            "call_expr",
            "list_expr",
            "struct_expr",
            "comprehension_expr",
        ],
        "cel.syntax",
    ),
];

const LISTENER: &str = "envoy.config.listener.v3.Listener";
const TCP_PROXY: &str = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const TUNNEL: &str = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig";
const UDP_TUNNEL: &str =
    "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.UdpTunnelingConfig";
const STATS_LOG: &str = "envoy.extensions.access_loggers.stats.v3.Config";
const COUNTER: &str = "envoy.extensions.access_loggers.stats.v3.Config.Counter";
const GAUGE: &str = "envoy.extensions.access_loggers.stats.v3.Config.Gauge";
const LOG_LIMIT: &str =
    "envoy.extensions.access_loggers.filters.process_ratelimit.v3.ProcessRateLimitFilter";
const MIN_RTT: &str = "envoy.extensions.filters.http.adaptive_concurrency.v3.GradientControllerConfig.MinimumRTTCalculationParams";
const LOG_OPTIONS: &str = "access_log.options";
const PARAMETER: &str = "header_mutation.parameter";

static BY_TYPE: LazyLock<HashMap<&str, Vec<&Choice>>> = LazyLock::new(|| {
    let mut by_type: HashMap<&str, Vec<&Choice>> = HashMap::new();
    for choice in CHOICES {
        by_type.entry(choice.0).or_default().push(choice);
    }
    by_type
});

/// Returns the types of messages that have a rule.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    BY_TYPE.keys().copied()
}

/// Returns whether a field has a value that is not the default.
fn is_set(message: &Message<'_>, field: &str) -> bool {
    match message.values(field).next() {
        Some(Value::Bits(bits)) => *bits != 0,
        Some(Value::Bytes(bytes)) => !bytes.is_empty(),
        Some(Value::Message(_)) => true,
        None => false,
    }
}

/// The message has as many of the fields as Envoy needs.
pub(super) fn fields<'m>(message: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (_, count, fields, id) in BY_TYPE.get(message.kind.name.as_str()).into_iter().flatten() {
        let mut given = fields.iter().filter(|field| is_set(message, field));
        match (count, given.next(), given.next()) {
            (AtMostOne | ExactlyOne, Some(first), Some(second)) => {
                findings.field(second, |findings| {
                    let rule = format!("cannot be combined with {first}");
                    findings.refuse_with_fix(*id, rule, "remove one of the two");
                });
            }
            (AtLeastOne | ExactlyOne, None, _) => match fields {
                [field] => findings.field(field, |findings| {
                    findings.refuse(*id, "is required, but missing");
                }),
                _ => findings.refuse(*id, format!("needs one of {}", fields.join(", "))),
            },
            (Needs, Some(first), None) if *first == fields[0] => {
                findings.field(first, |findings| {
                    findings.refuse(*id, format!("needs {}", fields[1]));
                });
            }
            _ => {}
        }
    }
}

/// Returns the types of messages with a rule, each with its fields.
#[cfg(test)]
pub(super) fn named_fields() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    CHOICES.iter().map(|(kind, _, fields, _)| (*kind, fields.to_vec()))
}
