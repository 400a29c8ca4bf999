//! TLS contexts (GRPCV-13, -18 to -22).

use super::{
    matchers,
    rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, Rules},
};
use crate::{node::shown, validate::tree::Message};

const ID: &str = "grpc.tls";

/// The fields of the two generations of provider instances for the own certificate. Node knows only the first.
const IDENTITIES: [&str; 2] =
    ["tls_certificate_provider_instance", "tls_certificate_certificate_provider_instance"];

/// Checks the TLS context of a cluster.
pub(super) fn client(context: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    if context.text("sni").len() > 255 {
        // The name of the server is an experiment of Go. Node does not use it.
        let reason = "the name is longer than 255 bytes";
        rules.refuse(&at.field("sni"), CPP, ID, reason, "");
    }
    let at = at.field("common_tls_context");
    let Some(common) = context.message("common_tls_context") else {
        return rules.refuse(&at, ALL, ID, NO_AUTHORITY, AUTHORITY_FIX);
    };
    shared(common, &at, rules);
    // Certificates come only from providers.
    let has_identity = common.has(IDENTITIES[0]);
    let has_old_identity = has_identity || common.has(IDENTITIES[1]);
    for field in ["tls_certificates", "tls_certificate_sds_secret_configs"] {
        if common.has(field) {
            let clients = NODE.when(!has_identity) | (ALL - NODE).when(!has_old_identity);
            let reason =
                "gRPC takes certificates only from the certificate providers of its bootstrap";
            let fix = "use tls_certificate_provider_instance";
            rules.refuse(&at.field(field), clients, ID, reason, fix);
        }
    }
    let clients = without_authority(common);
    rules.refuse(&at, clients, ID, NO_AUTHORITY, AUTHORITY_FIX);
}

const NO_AUTHORITY: &str =
    "gRPC verifies a server only with a certificate provider of its bootstrap";
const AUTHORITY_FIX: &str = "give validation_context.ca_certificate_provider_instance";

/// Checks the TLS context of a filter chain.
pub(super) fn server(context: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    if let Some(required) = context.wrapped("require_sni") {
        let reason = "gRPC does not support require_sni";
        // Java does not read the value.
        let clients = JAVA | ALL.when(required == 1);
        rules.refuse(&at.field("require_sni"), clients, ID, reason, "remove require_sni");
    }
    if context.bits("ocsp_staple_policy") != 0 {
        let reason = "gRPC supports only the ocsp_staple_policy LENIENT_STAPLING";
        rules.refuse(&at.field("ocsp_staple_policy"), ALL, ID, reason, "remove ocsp_staple_policy");
    }
    let at_common = at.field("common_tls_context");
    let common = context.message("common_tls_context");
    let has = |field| {
        let provider = common.and_then(|common| common.message(field));
        provider.is_some_and(|provider| !provider.text("instance_name").is_empty())
    };
    let clients = NODE.when(!has(IDENTITIES[0]))
        | (ALL - NODE).when(!has(IDENTITIES[0]) && !has(IDENTITIES[1]));
    let reason =
        "a gRPC server takes its certificate only from a certificate provider of its bootstrap";
    let fix = "give tls_certificate_provider_instance";
    rules.refuse(&at_common, clients, ID, reason, fix);
    let Some(common) = common else { return };
    shared(common, &at_common, rules);
    if let Some((own, path)) = validation(common) {
        let has_provider = own.has("ca_certificate_provider_instance");
        let outer = at_common.field(path[0]);
        let at = path.get(1).map_or(outer, |inner| outer.field(inner));
        // Without a provider, Java reads no other field.
        let readers = ALL - NODE - JAVA.when(!has_java_authority(common));
        if own.has("system_root_certs") && !has_provider {
            let reason =
                "a gRPC server does not verify clients with the root certificates of the system";
            let fix = "give ca_certificate_provider_instance";
            rules.refuse(&at.field("system_root_certs"), readers - JAVA, ID, reason, fix);
        }
        if own.has("match_subject_alt_names") {
            let reason = "a gRPC server does not verify the names in client certificates";
            let fix = "remove match_subject_alt_names";
            rules.refuse(&at.field("match_subject_alt_names"), readers, ID, reason, fix);
        }
        // Go needs an authority in every validation context.
        let go = GO.when(!own.has("system_root_certs") && !has_provider);
        let go = go & without_authority(common);
        rules.refuse(&at, go, ID, "a validation context names a provider", "");
    }
    old_validation(common, &at_common, rules);
    if let Some(required) = context.wrapped("require_client_certificate") {
        let own = validation(common).map(|(own, _)| own);
        let has_provider = own.is_some_and(|own| own.has("ca_certificate_provider_instance"));
        let has_authority = has_provider || has_old_authority(common);
        // Node does not read the value.
        let clients = NODE.when(own.is_none()) | (CPP | GO).when(required == 1 && !has_authority);
        let reason =
            "a gRPC server verifies clients only with a certificate provider of its bootstrap";
        let at = at.field("require_client_certificate");
        rules.refuse(&at, clients, ID, reason, AUTHORITY_FIX);
        if required == 1 && !has_java_authority(common) {
            let rule = "gRPC servers (Java) accept clients without a certificate, because no certificate provider \
                        verifies them";
            rules.note(&at, JAVA, ID, rule);
        }
    }
}

/// Checks the deprecated forms of a server's validation context.
fn old_validation(common: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    // Go reads the old form only if it finds the identity there too.
    for (field, clients) in [
        ("validation_context_certificate_provider", GO | NODE),
        (OLD_AUTHORITY, NODE | GO.when(!common.has(IDENTITIES[1]))),
    ] {
        if common.has(field) {
            let reason = "a gRPC server takes the authority from its validation_context";
            rules.refuse(&at.field(field), clients, ID, reason, AUTHORITY_FIX);
        }
    }
}

/// Returns the validation context, and its path.
fn validation<'c, 'm>(
    common: &'c Message<'m>,
) -> Option<(&'c Message<'m>, &'static [&'static str])> {
    if let Some(combined) = common.message("combined_validation_context") {
        let own = combined.message("default_validation_context")?;
        return Some((own, &["combined_validation_context", "default_validation_context"]));
    }
    Some((common.message("validation_context")?, &["validation_context"]))
}

/// The deprecated field that names the provider of the authority.
const OLD_AUTHORITY: &str = "validation_context_certificate_provider_instance";

/// Returns whether a deprecated field names the provider of the authority.
fn has_old_authority(common: &Message<'_>) -> bool {
    common.has(OLD_AUTHORITY) || has_combined_authority(common)
}

/// C-core and Java read the deprecated field only in this message.
fn has_combined_authority(common: &Message<'_>) -> bool {
    let combined = common.message("combined_validation_context");
    combined.is_some_and(|combined| combined.has(OLD_AUTHORITY))
}

/// Returns the clients that find no authority. By default, Go and Node do not use the roots of the system.
fn without_authority(common: &Message<'_>) -> Clients {
    let own = validation(common).map(|(own, _)| own);
    let provider = own.and_then(|own| own.message("ca_certificate_provider_instance"));
    if let Some(provider) = provider {
        // The other clients look for the provider without a name.
        return GO.when(provider.text("instance_name").is_empty());
    }
    let has_system_roots = own.is_some_and(|own| own.has("system_root_certs"));
    let with_system_roots = (CPP | JAVA.since(77)).when(has_system_roots);
    let combined = (CPP | JAVA).when(!has_combined_authority(common)) - with_system_roots;
    NODE | combined | GO.when(!has_old_authority(common))
}

/// Returns whether Java finds a certificate provider that verifies the other side.
fn has_java_authority(common: &Message<'_>) -> bool {
    let own = validation(common).map(|(own, _)| own);
    own.is_some_and(|own| own.has("ca_certificate_provider_instance"))
        || has_combined_authority(common)
}

/// Checks what the contexts of both sides have in common.
fn shared(common: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    for field in ["tls_params", "custom_handshaker", "validation_context_sds_secret_config"] {
        if common.has(field) {
            let reason = format!("gRPC does not support {field}");
            rules.refuse(&at.field(field), ALL, ID, reason, "remove the field");
        }
    }
    for field in IDENTITIES {
        if let Some(provider) = common.message(field) {
            note_provider(provider, &at.field(field), rules);
        }
    }
    let Some((own, path)) = validation(common) else { return };
    let outer = at.field(path[0]);
    let at = path.get(1).map_or(outer, |inner| outer.field(inner));
    for field in [
        "verify_certificate_spki",
        "verify_certificate_hash",
        "crl",
        "custom_validator_config",
        "require_signed_certificate_timestamp",
    ] {
        // Node does not read the value.
        let is_false = own.wrapped(field) == Some(0) && field.starts_with("require");
        let ignoring = JAVA.when(!has_java_authority(common));
        let java = JAVA.when(own.has(field)) - ignoring;
        let clients = if is_false { NODE | java } else { ALL - ignoring };
        let reason = format!("gRPC does not support {field}");
        let at = at.field(field);
        rules.refuse(&at, clients.when(own.has(field)), ID, reason, "remove the field");
        if own.has(field) && !is_false {
            let reason =
                format!("{field}, because no certificate provider verifies the other side");
            rules.refuse_ignored(&at, ignoring, ID, reason, "remove the field");
        }
    }
    if let Some(provider) = own.message("ca_certificate_provider_instance") {
        note_provider(provider, &at.field("ca_certificate_provider_instance"), rules);
    }
    for (index, matcher) in own.messages("match_subject_alt_names").enumerate() {
        let list = at.field("match_subject_alt_names");
        matchers::text(matcher, CPP | GO | JAVA, &list.index(index), rules);
    }
}

/// The server does not know the bootstrap of a client (GRPCV-22).
fn note_provider(provider: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let name = provider.text("instance_name");
    if name.is_empty() {
        // Go ignores a provider without a name.
        let reason = "the name of the certificate provider is empty";
        let at = at.field("instance_name");
        return rules.refuse(&at, ALL - GO, ID, reason, "give instance_name");
    }
    let name = shown(name);
    let rule = format!(
        "gRPC clients whose bootstrap has no certificate provider {name} reject this resource"
    );
    rules.note(&at.field("instance_name"), ALL, "grpc.tls_provider", rule);
}
