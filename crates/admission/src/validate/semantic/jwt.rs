//! JWT authentication: its providers, their keys, and the requirements that name them.

use std::collections::HashSet;

use serde_json::Value as Json;

use super::pem;
use crate::{
    node::named,
    scalar::base64_decoded,
    validate::{findings::Findings, tree::Message},
};

/// The minimum length of the modulus of an RSA key, and of a coordinate of a point, in bytes.
const RSA_BYTES_MIN: usize = 64;
const EC_BYTES_MIN: usize = 28;
/// The length of a key of Ed25519 in bytes.
const ED25519_BYTES: usize = 32;

/// The requirements of JWT authentication refer to providers and requirements that exist.
pub(super) fn requirements<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let keys =
        |map| -> HashSet<&'m str> { filter.messages(map).map(|entry| entry.text("key")).collect() };
    let (providers, named_requirements) = (keys("providers"), keys("requirement_map"));
    for (index, rule) in filter.messages("rules").enumerate() {
        findings.item("rules", index, |findings| {
            let name = rule.text("requirement_name");
            if !name.is_empty() && !named_requirements.contains(name) {
                findings.field("requirement_name", |findings| {
                    let rule = format!("{} is not a key of requirement_map", named(name));
                    findings.refuse("jwt.requirement", rule);
                });
            }
            if let Some(requires) = rule.message("requires") {
                findings.field("requires", |f| requirement(requires, &providers, f));
            }
        });
    }
    for entry in filter.messages("requirement_map") {
        if let Some(value) = entry.message("value") {
            findings.field("requirement_map", |findings| {
                findings.key(entry.text("key"), |f| requirement(value, &providers, f));
            });
        }
    }
    if let Some(rules) = filter.message("filter_state_rules") {
        for entry in rules.messages("requires") {
            if let Some(value) = entry.message("value") {
                findings.field("filter_state_rules", |findings| {
                    findings.field("requires", |findings| {
                        findings.key(entry.text("key"), |f| requirement(value, &providers, f));
                    });
                });
            }
        }
    }
}

/// Checks the providers of a requirement, and of the requirements in it.
fn requirement<'m>(
    requirement: &'m Message<'_>,
    providers: &HashSet<&str>,
    findings: &mut Findings<'m>,
) {
    let check = |name: &'m str, findings: &mut Findings<'m>| {
        if !providers.contains(name) {
            findings.field("provider_name", |findings| {
                let rule = format!("{} is not a key of providers", named(name));
                match findings.suggestion(name, providers.iter().copied()) {
                    Some(meant) => {
                        let fix = format!("did you mean {meant}?");
                        findings.refuse_with_fix("jwt.provider", rule, fix);
                    }
                    None => findings.refuse("jwt.provider", rule),
                }
            });
        }
    };
    if requirement.has("provider_name") {
        check(requirement.text("provider_name"), findings);
    }
    if let Some(other) = requirement.message("provider_and_audiences") {
        findings.field("provider_and_audiences", |f| check(other.text("provider_name"), f));
    }
    for list in ["requires_any", "requires_all"] {
        let Some(inner) = requirement.message(list) else { continue };
        for (index, inner) in inner.messages("requirements").enumerate() {
            findings.field(list, |findings| {
                findings.item("requirements", index, |f| self::requirement(inner, providers, f));
            });
        }
    }
}

/// The keys of a JWT provider are a JSON document with at least one usable key.
pub(super) fn provider<'m>(provider: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Some((field, content)) = provider.message("local_jwks").and_then(pem::inline)
        && let Err(rule) = key_set(content)
    {
        findings.field("local_jwks", |findings| {
            findings.field(field, |findings| findings.refuse("jwt.keys", rule));
        });
    }
    for (index, claim) in provider.messages("claim_to_headers").enumerate() {
        let has = |field| !claim.text(field).is_empty() || claim.has(field);
        if has("claim_name") == claim.has("claim_path") {
            findings.item("claim_to_headers", index, |findings| {
                findings.refuse("jwt.claim", "needs exactly one of claim_name and claim_path");
            });
        }
    }
}

/// Checks a JSON Web Key Set (RFC 7517), or certificates as a map of PEM.
fn key_set(content: &[u8]) -> Result<(), &'static str> {
    if content.is_empty() {
        return Ok(());
    }
    let Ok(json) = serde_json::from_slice::<Json>(content) else {
        return Err("is not a JSON Web Key Set: it is not JSON");
    };
    let Some(map) = json.as_object() else { return Err("is not a JSON Web Key Set") };
    let Some(keys) = map.get("keys") else {
        return Err("is not a JSON Web Key Set: it has no \"keys\"");
    };
    let Some(keys) = keys.as_array() else {
        return Err("is not a JSON Web Key Set: \"keys\" is not a list");
    };
    if keys.iter().any(is_usable) {
        Ok(())
    } else {
        Err("has no key of type RSA, EC, oct or OKP with its parameters")
    }
}

/// Returns whether a key has the parameters of its type, and an algorithm of this type.
fn is_usable(key: &Json) -> bool {
    let text = |name: &str| key.get(name).and_then(Json::as_str).unwrap_or_default();
    let bytes = |name: &str| base64_decoded(text(name)).map_or(0, |bytes| bytes.len());
    let is_for = |kinds: &[&str]| match text("alg") {
        "" => true,
        algorithm => kinds.iter().any(|kind| algorithm.starts_with(kind)),
    };
    match text("kty") {
        "RSA" if key.get("x5c").is_some() => true,
        "RSA" => bytes("n") >= RSA_BYTES_MIN && bytes("e") > 0 && is_for(&["RS", "PS"]),
        "EC" => bytes("x") >= EC_BYTES_MIN && bytes("y") >= EC_BYTES_MIN && is_for(&["ES"]),
        "oct" => bytes("k") > 0 && is_for(&["HS"]),
        "OKP" => bytes("x") == ED25519_BYTES && is_for(&["EdDSA"]),
        _ => false,
    }
}
