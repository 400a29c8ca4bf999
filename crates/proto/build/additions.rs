//! Fields of Envoy 1.40 that the package's files lack.
//!
//! The package follows Envoy with a delay. Without these fields, manifests that Envoy accepts would be rejected
//! because of an unknown field. An addition fails the build when the package has the field, so that it is removed.

use std::borrow::Cow;

/// A file, a line of it, and the text to insert after the line.
struct Addition {
    file: &'static str,
    line: &'static str,
    text: &'static str,
}

const ADDITIONS: [Addition; 8] = [
    Addition {
        file: "envoy/config/core/v3/health_check.proto",
        line: "  TlsOptions tls_options = 21;",
        text: "  string name = 27;",
    },
    Addition {
        file: "envoy/config/core/v3/health_check.proto",
        line: "    type.v3.CodecClientType codec_client_type = 10 [(validate.rules).enum = {defined_only: true}];",
        text: "    bool use_alpn_protocol = 15;",
    },
    Addition {
        file: "envoy/extensions/filters/network/http_connection_manager/v3/http_connection_manager.proto",
        line: "  type.v3.Percent drain_timeout_jitter = 62;",
        text: "  bool record_route_resolution_stats = 63;",
    },
    Addition {
        file: "envoy/extensions/filters/http/basic_auth/v3/basic_auth.proto",
        line: "  bool emit_dynamic_metadata = 5;",
        text: r#"  string realm = 6 [(validate.rules).string = {pattern: "^[^\\x00-\\x1f\\x7f]*$"}];"#,
    },
    Addition {
        file: "envoy/extensions/filters/http/ext_authz/v3/ext_authz.proto",
        line: "  google.protobuf.BoolValue emit_client_span = 33;",
        text: "  repeated string clear_route_cache_headers = 34 [(validate.rules).repeated = {items {string {min_len: 1 \
               well_known_regex: HTTP_HEADER_NAME strict: false}}}];",
    },
    Addition {
        file: "envoy/extensions/filters/http/lua/v3/lua.proto",
        line: "  google.protobuf.Struct filter_context = 6;",
        text: "  string shared_vm_id = 9;",
    },
    Addition {
        file: "envoy/extensions/filters/http/lua/v3/lua.proto",
        line: "  google.protobuf.Struct filter_context = 4;",
        text: "  string shared_vm_id = 7;",
    },
    Addition {
        file: "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        line: "    type.v3.RateLimitUnit unit = 2 [(validate.rules).enum = {defined_only: true}];",
        text: "    google.protobuf.UInt32Value unit_multiplier = 3 [(validate.rules).uint32 = {gt: 0}];",
    },
];

/// Returns the source of a file with the additions to it. Fails if a line is not in the file exactly once.
pub(crate) fn apply<'s>(file: &str, source: &'s str) -> Result<Cow<'s, str>, String> {
    let mut source = Cow::Borrowed(source);
    for addition in ADDITIONS.iter().filter(|addition| addition.file == file) {
        let Addition { line, text, .. } = addition;
        let whole = format!("\n{line}\n");
        let n = source.matches(&whole).count();
        if n != 1 {
            return Err(format!("{file} has the line {line:?} {n} times; correct the additions"));
        }
        source = Cow::Owned(source.replacen(&whole, &format!("{whole}{text}\n"), 1));
    }
    Ok(source)
}
