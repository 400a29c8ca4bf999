//! The types of extensions that a client accepts in a place.
//!
//! Envoy finds an extension by the type of its configuration. The lists are those of the released Envoy 1.40. The
//! types of other builds are known if an operator declares them with a descriptor set.

use super::versions;
use crate::validate::{findings::Findings, tree::Message, types};

/// A category of extensions.
pub(super) struct Category {
    /// The noun for messages.
    pub(super) what: &'static str,
    /// The name before each name of `types`.
    prefix: &'static str,
    types: &'static [&'static str],
}

pub(super) const DNS_RESOLVERS: Category = Category {
    what: "DNS resolver",
    prefix: "envoy.extensions.network.dns_resolver.",
    // The builds for macOS have `apple`.
    types: &[
        "apple.v3.AppleDnsResolverConfig",
        "cares.v3.CaresDnsResolverConfig",
        "getaddrinfo.v3.GetAddrInfoDnsResolverConfig",
        "hickory.v3.HickoryDnsResolverConfig",
    ],
};

pub(super) const UPSTREAM_SOCKETS: Category = Category {
    what: "transport socket of a cluster",
    prefix: "envoy.extensions.transport_sockets.",
    types: &[
        "alts.v3.Alts",
        "dynamic_modules.v3.DynamicModuleTransportSocket",
        "http_11_proxy.v3.Http11ProxyUpstreamTransport",
        "internal_upstream.v3.InternalUpstreamTransport",
        "proxy_protocol.v3.ProxyProtocolUpstreamTransport",
        "quic.v3.QuicUpstreamTransport",
        "raw_buffer.v3.RawBuffer",
        "s2a.v3.S2AConfiguration",
        "starttls.v3.UpstreamStartTlsConfig",
        "tap.v3.Tap",
        "tcp_stats.v3.Config",
        "tls.v3.UpstreamTlsContext",
    ],
};

pub(super) const HEALTH_CHECKERS: Category = Category {
    what: "health checker",
    prefix: "envoy.",
    types: &[
        "config.core.v3.HealthCheck.GrpcHealthCheck",
        "config.core.v3.HealthCheck.HttpHealthCheck",
        "config.core.v3.HealthCheck.TcpHealthCheck",
        "extensions.health_checkers.dynamic_modules.v3.DynamicModuleHealthCheck",
        "extensions.health_checkers.redis.v3.Redis",
        "extensions.health_checkers.thrift.v3.Thrift",
        "extensions.health_checkers.udp.v3.UdpHealthCheck",
    ],
};

pub(super) const HEALTH_EVENT_SINKS: Category = Category {
    what: "health check event sink",
    prefix: "envoy.extensions.health_check.event_sinks.",
    types: &["file.v3.HealthCheckEventFileSink"],
};

pub(super) const UPSTREAM_NETWORK_FILTERS: Category =
    Category { what: "network filter of a cluster", prefix: "google.protobuf.", types: &["Empty"] };

pub(super) const UPSTREAM_HTTP_FILTERS: Category = Category {
    what: "HTTP filter of a cluster",
    prefix: "envoy.extensions.",
    types: &[
        "common.matching.v3.ExtensionWithMatcher",
        "filters.http.admission_control.v3.AdmissionControl",
        "filters.http.ai_protocol_manager.v3.AiProtocolManager",
        "filters.http.aws_lambda.v3.Config",
        "filters.http.aws_request_signing.v3.AwsRequestSigning",
        "filters.http.body_size_limit.v3.BodySizeLimit",
        "filters.http.buffer.v3.Buffer",
        "filters.http.composite.v3.Composite",
        "filters.http.compressor.v3.Compressor",
        "filters.http.credential_injector.v3.CredentialInjector",
        "filters.http.dynamic_modules.v3.DynamicModuleFilter",
        "filters.http.ext_proc.v3.ExternalProcessor",
        "filters.http.header_mutation.v3.HeaderMutation",
        "filters.http.lua.v3.Lua",
        "filters.http.rbac.v3.RBAC",
        "filters.http.upstream_codec.v3.UpstreamCodec",
        "filters.http.wasm.v3.Wasm",
    ],
};

pub(super) const CONFIG_VALIDATORS: Category = Category {
    what: "config validator",
    prefix: "envoy.extensions.config.validators.",
    types: &[
        "dynamic_modules.v3.DynamicModuleConfigValidator",
        "minimum_clusters.v3.MinimumClustersValidator",
    ],
};

pub(super) const KEY_VALUE_STORES: Category = Category {
    what: "key value store",
    prefix: "envoy.extensions.key_value.",
    types: &["file_based.v3.FileBasedKeyValueStoreConfig"],
};

pub(super) const ADDRESS_SELECTORS: Category = Category {
    what: "local address selector",
    prefix: "envoy.",
    types: &[
        "config.upstream.local_address_selector.v3.DefaultLocalAddressSelector",
        "extensions.local_address_selectors.filter_state_override.v3.Config",
    ],
};

pub(super) const HEADER_FORMATTERS: Category = Category {
    what: "header formatter",
    prefix: "envoy.extensions.http.header_formatters.",
    types: &[
        "dynamic_modules.v3.DynamicModuleHeaderFormatter",
        "preserve_case.v3.PreserveCaseFormatterConfig",
    ],
};

const TYPED_STRUCTS: [&str; 2] = ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"];

/// Returns the name of the type in an `Any`, or in a `TypedStruct` in it; empty without one.
pub(super) fn type_name<'m>(any: Option<&'m Message<'_>>) -> &'m str {
    let Some(any) = any else { return "" };
    let url = match any.content.as_deref() {
        Some(content) if is_typed_struct(&content.kind.name) => content.text("type_url"),
        _ => any.text("type_url"),
    };
    url.rsplit('/').next().unwrap_or(url)
}

/// Returns whether a type holds the configuration of another type as a `Struct`.
pub(super) fn is_typed_struct(name: &str) -> bool {
    TYPED_STRUCTS.contains(&name)
}

/// Returns whether a type is declared, but not by the API of Envoy.
pub(super) fn is_declared_by_operator(name: &str) -> bool {
    const API: [&str; 4] = ["envoy.", "google.protobuf.", "xds.", "udpa."];
    !API.iter().any(|prefix| name.starts_with(prefix)) && types::types().get(name).is_some()
}

impl Category {
    pub(super) fn contains(&self, name: &str) -> bool {
        name.strip_prefix(self.prefix).is_some_and(|name| self.types.contains(&name))
    }

    /// Checks that the field `typed_config` of a message has a type of this category.
    pub(super) fn check<'m>(&self, owner: &'m Message<'_>, findings: &mut Findings<'m>) {
        let name = type_name(owner.message("typed_config"));
        let is_named = !name.is_empty() && name != "google.protobuf.Struct";
        let what = self.what;
        if is_named && (self.contains(name) || is_declared_by_operator(name)) {
            return findings.field("typed_config", |findings| {
                versions::extension(name, &[what], findings);
            });
        }
        findings.field("typed_config", |findings| {
            let is_unknown = types::types().get(name).is_none();
            let rule = match name {
                name if is_unknown && !name.is_empty() => {
                    let rule = format!("no extension has the type {}", crate::node::named(name));
                    let fix =
                        "if your build of Envoy has it, add its descriptors to xds.descriptor_sets";
                    return findings.refuse_with_fix("extension.unknown", rule, fix);
                }
                "" => format!(
                    "has no type, but Envoy finds a {what} by the type of its configuration"
                ),
                name => format!("the type {} is not a {what}", crate::node::named(name)),
            };
            let fix = format!("use {}, for example", self.example());
            findings.refuse_with_fix("extension.type", rule, fix);
        });
    }

    /// Checks the message in a field, if it is present.
    pub(super) fn check_field<'m>(
        &self,
        owner: &'m Message<'_>,
        field: &'static str,
        findings: &mut Findings<'m>,
    ) {
        if let Some(extension) = owner.message(field) {
            findings.field(field, |findings| self.check(extension, findings));
        }
    }

    /// Checks each message of a list.
    pub(super) fn check_list<'m>(
        &self,
        owner: &'m Message<'_>,
        list: &'static str,
        findings: &mut Findings<'m>,
    ) {
        for (index, extension) in owner.messages(list).enumerate() {
            findings.item(list, index, |findings| self.check(extension, findings));
        }
    }

    fn example(&self) -> String {
        format!("{}{}", self.prefix, self.types.last().copied().unwrap_or_default())
    }
}

/// The validators of an API source are known.
pub(super) fn config_validators<'m>(source: &'m Message<'_>, findings: &mut Findings<'m>) {
    CONFIG_VALIDATORS.check_list(source, "config_validators", findings);
}

/// The store of a cache is known.
pub(super) fn key_value_store<'m>(store: &'m Message<'_>, findings: &mut Findings<'m>) {
    KEY_VALUE_STORES.check_field(store, "config", findings);
}

/// The formatter of header names is known.
pub(super) fn header_formatter<'m>(format: &'m Message<'_>, findings: &mut Findings<'m>) {
    HEADER_FORMATTERS.check_field(format, "stateful_formatter", findings);
}
