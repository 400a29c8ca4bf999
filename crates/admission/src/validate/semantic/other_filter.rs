//! Further filters.

use super::{common::repeated, pem, uri};
use crate::{
    node::shown,
    validate::{findings::Findings, tree::Message},
};

/// The engine of WebAssembly in released builds, and how each module begins.
const WASM_RUNTIME: &str = "envoy.wasm.runtime.v8";
const WASM_MAGIC: &[u8] = b"\0asm";

/// A filter in WebAssembly has code that its engine can run.
pub(super) fn wasm<'m>(plugin: &'m Message<'_>, findings: &mut Findings<'m>) {
    let vm = plugin.message("vm_config");
    let code = vm.and_then(|vm| vm.message("code"));
    let Some((vm, code)) = vm.zip(code) else {
        let rule = "needs vm_config.code";
        return findings.refuse("wasm.code", rule);
    };
    if code.has("remote") {
        return;
    }
    findings.field("vm_config", |findings| {
        let runtime = vm.text("runtime");
        if !runtime.is_empty() && runtime != WASM_RUNTIME {
            return findings.field("runtime", |findings| {
                let rule = format!("released builds of Envoy have no engine {}", shown(runtime));
                findings.refuse_with_fix("wasm.runtime", rule, format!("use {WASM_RUNTIME}"));
            });
        }
        let local = code.message("local").and_then(pem::inline);
        if let Some((field, content)) = local
            && !content.starts_with(WASM_MAGIC)
        {
            findings.field("code", |findings| {
                findings.field("local", |findings| {
                    findings.field(field, |findings| {
                        findings.refuse("wasm.code", "is not a module in WebAssembly");
                    });
                });
            });
        }
    });
}

/// The metadata for a body without the value, or for another body, has a value of its own.
pub(super) fn json_to_metadata<'m>(rule: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in ["on_missing", "on_error"] {
        if rule.message(field).is_some_and(|pair| !pair.has("value")) {
            findings.field(field, |f| f.refuse("to_metadata.value", "needs a value"));
        }
    }
}

/// The daemon of X-Ray receives datagrams at a port with a number.
pub(super) fn x_ray<'m>(tracer: &'m Message<'_>, findings: &mut Findings<'m>) {
    const UDP: u64 = 1;
    let Some(daemon) = tracer.message("daemon_endpoint") else { return };
    if daemon.bits("protocol") != UDP || daemon.has("named_port") {
        findings.field("daemon_endpoint", |findings| {
            let rule = "must have protocol: UDP and a port_value";
            findings.refuse("tracing.x_ray", rule);
        });
    }
}

/// The identifier of a content delivery network is a host with an optional port, or a token.
pub(super) fn cdn_id<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let id = filter.text("cdn_id");
    let is_token = |text: &str| {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        text.chars().all(is_valid)
    };
    let (host, after) = match id.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or(("", "]")),
        None => id.split_once(':').map_or((id, ""), |(host, _)| (host, &id[host.len()..])),
    };
    let is_host = if id.starts_with('[') { !host.is_empty() } else { is_token(host) };
    let port = after.strip_prefix(':').unwrap_or(after);
    if !is_host || !port.chars().all(|c| c.is_ascii_digit()) {
        findings.field("cdn_id", |findings| {
            let rule = format!("{} is not an identifier of RFC 8586", shown(id));
            findings.refuse("cdn_loop.id", rule);
        });
    }
}

/// The paths and the default files of a file server differ.
pub(super) fn file_server<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let prefixes = filter.messages("path_mappings").map(|it| it.text("request_path_prefix"));
    for (index, first) in repeated(prefixes) {
        findings.item("path_mappings", index, |findings| {
            let rule = format!("has the request_path_prefix of path_mappings[{first}]");
            findings.refuse("file_server.duplicate", rule);
        });
    }
    let behaviors = filter.messages("directory_behaviors").map(|it| it.text("default_file"));
    for (index, first) in repeated(behaviors) {
        findings.item("directory_behaviors", index, |findings| {
            let rule = format!("repeats directory_behaviors[{first}]");
            findings.refuse("file_server.duplicate", rule);
        });
    }
}

/// A static tap writes neither to the admin interface nor to a gRPC stream.
pub(super) fn tap<'m>(common: &'m Message<'_>, findings: &mut Findings<'m>) {
    let output = common.message("static_config").and_then(|it| it.message("output_config"));
    let sinks = output.into_iter().flat_map(|output| output.messages("sinks"));
    for (index, sink) in sinks.enumerate() {
        for field in ["streaming_admin", "buffered_admin", "streaming_grpc"] {
            if !sink.has(field) {
                continue;
            }
            findings.field("static_config", |findings| {
                findings.field("output_config", |findings| {
                    findings.item("sinks", index, |findings| {
                        findings.field(field, |findings| {
                            let rule = "is not possible in static_config";
                            findings.refuse_with_fix("tap.sink", rule, "use file_per_tap");
                        });
                    });
                });
            });
        }
    }
}

/// A redirect of responses has a URI, and changes no part of the path.
pub(super) fn response_redirect<'m>(policy: &'m Message<'_>, findings: &mut Findings<'m>) {
    let target = policy.text("uri");
    if !target.is_empty() && !uri::is_absolute(target) {
        findings.field("uri", |findings| uri::refuse(target, findings));
    }
    let Some(action) = policy.message("redirect_action") else { return };
    for field in ["prefix_rewrite", "regex_rewrite"] {
        if action.has(field) {
            findings.field("redirect_action", |findings| {
                findings.field(field, |findings| {
                    findings.refuse("custom_response.rewrite", "is not possible here");
                });
            });
        }
    }
}

/// The threshold of consistent hashing is at most the modulus.
pub(super) fn consistent_hashing<'m>(matcher: &'m Message<'_>, findings: &mut Findings<'m>) {
    let (threshold, modulo) = (matcher.bits("threshold"), matcher.bits("modulo"));
    if threshold > modulo {
        findings.field("threshold", |findings| {
            findings.refuse("matcher.threshold", format!("is {threshold}, but modulo is {modulo}"));
        });
    }
}
