//! The messages of the admin API as JSON, for HTTP answers and the output of the command line.
//!
//! Field names are those of the .proto. 64-bit integers are numbers. Default values are printed,
//! and a field with presence is omitted when it is not set. The body and the constraints of a
//! resource are the only exceptions to proto JSON, because only the Envoy descriptors can decode them.

use chancery_admin_proto::{pool, v1 as pb};
use prost::Message;
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::redact;

/// A message of the JSON API.
pub trait JsonMessage: Message + Sized {
    /// The full name of the message in the .proto.
    const NAME: &'static str;

    /// Returns the message as JSON.
    fn to_json(&self) -> Value {
        plain(self)
    }
}

macro_rules! shapes {
    ($($name:ident),* $(,)?) => {
        $(impl JsonMessage for pb::$name {
            const NAME: &'static str = concat!("chancery.admin.v1.", stringify!($name));
        })*
    };
}

shapes!(
    AccessRule,
    AnalyzeResponse,
    Assignment,
    BlameResponse,
    ChangeResponse,
    CheckAccessResponse,
    ClusterStatus,
    CreateTokenResponse,
    DisconnectNodeResponse,
    DrainStatus,
    ErrorResponse,
    ListFreezesResponse,
    ExplainAccessResponse,
    ExplainResponse,
    KeysStatusResponse,
    ListAccessResponse,
    ListAssignmentsResponse,
    ListHistoryResponse,
    ListNodesResponse,
    ListQuotasResponse,
    ListTokensResponse,
    LoadSettings,
    LoadStatus,
    LogFilter,
    McpStatus,
    NodeStatus,
    QuotaStatus,
    ResealSecretsResponse,
    ResolveResponse,
    RevisionChanges,
    RevisionComparison,
    TakeSnapshotResponse,
    TokenInfo,
    VersionInfo,
    WaitResult,
    WatchEvent,
    WhoAmIResponse,
    WriteResponse,
);

impl JsonMessage for pb::Resource {
    const NAME: &'static str = "chancery.admin.v1.Resource";

    fn to_json(&self) -> Value {
        let mut bare = self.clone();
        let body = bare.body.take();
        let constraints = bare.dynamic_parameter_constraints.take();
        let mut json = plain(&bare);
        if let Some(constraints) = constraints {
            json["dynamic_parameter_constraints"] =
                chancery_admission::constraints_to_json(&constraints.value);
        }
        if let Some(body) = body {
            json["body"] = redact::body_to_json(&body);
        }
        json
    }
}

impl JsonMessage for pb::ListResourcesResponse {
    const NAME: &'static str = "chancery.admin.v1.ListResourcesResponse";

    fn to_json(&self) -> Value {
        let next = self.next.clone();
        let mut json = plain(&Self { revision: self.revision, resources: Vec::new(), next });
        json["resources"] = self.resources.iter().map(JsonMessage::to_json).collect();
        json
    }
}

impl JsonMessage for pb::DescribeResourceResponse {
    const NAME: &'static str = "chancery.admin.v1.DescribeResourceResponse";

    fn to_json(&self) -> Value {
        let mut bare = self.clone();
        let resources: Vec<_> =
            bare.scopes.iter_mut().map(|scope| scope.resource.take().unwrap_or_default()).collect();
        let mut json = plain(&bare);
        for (index, resource) in resources.iter().enumerate() {
            json["scopes"][index]["resource"] = resource.to_json();
        }
        json
    }
}

/// Returns a message without an `Any` as JSON.
fn plain<M: JsonMessage>(message: &M) -> Value {
    const OPTIONS: SerializeOptions = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    let descriptor = pool()
        .get_message_by_name(M::NAME)
        .expect("the pool has every message of the module it was generated with");
    DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
        .expect("generated code writes what its own descriptor reads")
        .serialize_with_options(serde_json::value::Serializer, &OPTIONS)
        .expect("only an Any of an unknown type can fail, and the message has no Any")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_has_proto_names_plain_numbers_and_defaults() {
        let response = pb::WriteResponse {
            revision: u64::MAX,
            changed: 1,
            changes: vec![pb::Change {
                scope: "default".into(),
                type_url: "t".into(),
                name: "web".into(),
                kind: "added".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        assert_eq!(
            response.to_json(),
            json!({
                "revision": u64::MAX,
                "changed": 1,
                "removed": 0,
                "unchanged": 0,
                "assignments": 0,
                "dry_run": false,
                "changes": [{
                    "scope": "default", "type_url": "t", "name": "web", "kind": "added", "version": "",
                    "differences": [], "variant": "",
                    "differences_omitted": 0, "unified": "", "unified_lines_omitted": 0
                }],
                "changes_omitted": 0,
                "problems": [],
                "warnings": [],
                "access": 0,
                "access_effects": [],
                "assignment_changes": [],
                "repeated": false,
                "guards": [],
                "checked_clients": [],
                "left_out": [],
                "not_asked": [],
                "access_changes": [],
            })
        );
    }

    #[test]
    fn a_field_with_presence_is_left_out_when_it_is_not_set() {
        let mut status = pb::ClusterStatus::default();
        assert_eq!(status.to_json().get("leader"), None);
        status.leader = Some(0);
        assert_eq!(status.to_json()["leader"], 0);
    }

    #[test]
    fn a_body_of_an_unknown_type_is_shown_in_base64() {
        let resource = pb::Resource {
            name: "x".into(),
            body: Some(prost_types::Any {
                type_url: "example.com/unknown.Type".into(),
                value: b"\xff\x00".to_vec(),
            }),
            ..Default::default()
        };
        let list = pb::ListResourcesResponse {
            revision: 3,
            resources: vec![resource],
            ..Default::default()
        };
        assert_eq!(
            list.to_json()["resources"][0]["body"],
            json!({"@type": "example.com/unknown.Type", "value": "/wA="})
        );
    }
}
