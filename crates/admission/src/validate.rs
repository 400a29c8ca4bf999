//! Checks resources by the rules of Envoy's API before they are stored.
//!
//! Three kinds of rules apply, in this order for every message of a resource:
//! 1. The rules of protoc-gen-validate (PGV) in the options of the proto files, with all nested messages
//!    and the content of every `Any` of a known type.
//! 2. Fields and values that Envoy rejects as deprecated.
//! 3. The rules that Envoy's code checks beyond them (`semantic`).
//!
//! gRPC clients have rules of their own (`grpc`). The clients of a scope decide which rules apply.
//!
//! A client would reject a resource with an error, and keep its previous version.

mod findings;
mod form;
mod grpc;
#[cfg(test)]
mod page;
mod rules;
mod semantic;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod typed_struct;
mod types;
mod walk;

use chancery_model::{ResourceDraft, ResourceKey, ScopeName, TypeUrl, is_structured};

use crate::{
    collection,
    mode::{Validation, ValidationMode},
    node::named,
    problem::{Fault, Severity},
    profile::{Audience, Profiles, Treatment},
    references::for_each_reference,
};
use findings::Findings;
use tree::Message;

/// Returns the findings that refuse a resource, and those that are only reported.
pub(crate) fn findings(
    validation: &Validation,
    scope: &ScopeName,
    draft: &ResourceDraft,
) -> (Vec<Fault>, Vec<Fault>) {
    let mode = validation.mode(scope);
    let found = || {
        let audience = validation.profiles.audience(scope);
        let mut faults = check(audience, &draft.key.type_url, &draft.body);
        for fault in &mut faults {
            name_nodes(fault, &validation.profiles, scope);
        }
        if audience.envoy() > Treatment::Ignore {
            spelled_references(&draft.key, &draft.body, &mut faults);
        }
        faults
    };
    match mode {
        ValidationMode::Off => (Vec::new(), Vec::new()),
        ValidationMode::Warn => {
            let mut faults = found();
            // Nothing refuses an effect either.
            for fault in faults.iter_mut().filter(|fault| fault.severity == Severity::Effect) {
                fault.severity = Severity::Warning;
            }
            (Vec::new(), faults)
        }
        ValidationMode::Enforce => {
            found().into_iter().partition(|fault| fault.severity == Severity::Error)
        }
    }
}

/// Adds to a finding how many of the connected nodes it concerns.
fn name_nodes(fault: &mut Fault, profiles: &Profiles, scope: &ScopeName) {
    if let Some(nodes) = profiles.connected_nodes(scope, fault.clients) {
        let is_effect = fault.id.starts_with("grpc.effect.");
        let verb = if is_effect { "would have this effect" } else { "would reject this" };
        fault.rule = format!("{}; {nodes} {verb}", fault.rule);
    }
}

/// Returns the violated rules of a resource, in the order of its fields: those of Envoy, then those of gRPC
/// clients. The body is known to parse. A body of an unknown type has no rules, but a warning.
pub(crate) fn check(audience: Audience, type_url: &TypeUrl, body: &[u8]) -> Vec<Fault> {
    let types = types::types();
    let is_collection = type_url.is_collection();
    let name = if is_collection { collection::RESOURCE } else { type_url.message_name() };
    let Some(kind) = types.get(name) else { return vec![walk::unknown(type_url.as_str())] };
    let message = match Message::decode(types, kind, body) {
        Ok(message) => message,
        Err(error) => return vec![Fault::new(error)],
    };
    let mut faults = Vec::new();
    if is_collection {
        let mut findings = Findings::default();
        walk::message(&message, &mut findings);
        faults = findings.into_faults();
        faults.extend(other_kind(type_url, body));
        return faults;
    }
    if audience.envoy() > Treatment::Ignore {
        let mut findings = Findings::new(audience);
        walk::message(&message, &mut findings);
        faults = findings.into_faults();
    }
    grpc::check(audience, &message, body, &mut faults);
    faults
}

/// Adds a warning for each reference with a structured name that is not canonical (XDSTP-03). Envoy compares the text of
/// the reference with the name in the body of the other resource, which is canonical.
fn spelled_references(key: &ResourceKey, body: &[u8], faults: &mut Vec<Fault>) {
    let mut colons = body.iter().enumerate().filter(|(_, byte)| **byte == b':');
    let is_end_of_scheme = |at: usize| {
        body.get(at.saturating_sub(5)..at).is_some_and(|text| text.eq_ignore_ascii_case(b"xdstp"))
    };
    if !colons.any(|(at, _)| is_end_of_scheme(at)) {
        return;
    }
    for_each_reference(key, body, |reference| {
        if is_structured(reference.written) && reference.written != reference.name {
            let rule = format!(
                "Envoy does not find the resource by this spelling of its name; write {:?}",
                reference.name
            );
            let fault = Fault::warning("reference.spelling", rule);
            faults.push(fault.within(&reference.field.whole()));
        }
    });
}

/// The collection that istiod requests, and whose resources it cannot decode.
const MESH_CONFIG: &str = "core/v1alpha1/MeshConfig";

/// Returns the warning about a resource whose content is not of the kind of its collection. istiod decodes the content
/// as the message of the collection's kind, and deletes the resource if that fails. Only the kinds of Istio have one known
/// message.
fn other_kind(type_url: &TypeUrl, resource: &[u8]) -> Option<Fault> {
    let kind = collection::kind_of_istiod(type_url)?;
    if type_url.as_str() == MESH_CONFIG {
        let rule = "istiod never acknowledges a resource of this collection, and ignores its content; delete it";
        return Some(Fault::warning("collection.kind", rule));
    }
    let (_, content) = collection::name_and_type(resource).ok()?;
    let message = content.rsplit('/').next().unwrap_or(&content);
    let (is_expected, expected) = match collection::message_of_istiod(type_url) {
        Some(known) => (message == known, format!("the message {known}")),
        None => (message.rsplit('.').next() == Some(kind), format!("a message named {kind}")),
    };
    if is_expected || content.is_empty() {
        return None;
    }
    let rule = format!("is {}, but istiod expects {expected} in this collection", named(message));
    Some(Fault::warning("collection.kind", rule).within("body.@type"))
}

/// Returns the key of a scoped route, which no other scoped route of a view can have.
pub(crate) fn scope_keys(type_url: &TypeUrl, body: &[u8]) -> Vec<String> {
    let types = types::types();
    let kind = types.get(type_url.message_name());
    let message = kind.and_then(|kind| Message::decode(types, kind, body).ok());
    message.map_or_else(Vec::new, |message| semantic::scope_key(&message))
}
