//! Descriptors that operators add. The pool is global, so this is the only test of its process.

use chancery_proto::{MCP_DESCRIPTORS, add_descriptor_sets, envoy_pool};
use prost::Message;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

fn set(dependency: &str) -> Vec<u8> {
    let field = FieldDescriptorProto {
        name: Some("cluster".into()),
        number: Some(1),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::Message.into()),
        type_name: Some(".envoy.config.cluster.v3.Cluster".into()),
        ..FieldDescriptorProto::default()
    };
    let message = DescriptorProto {
        name: Some("Own".into()),
        field: vec![field],
        ..DescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("example/own.proto".into()),
        package: Some("example".into()),
        dependency: vec![dependency.to_owned()],
        message_type: vec![message],
        syntax: Some("proto3".into()),
        ..FileDescriptorProto::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

/// Returns the files of MCP's resources under the names that they have in Istio's API, and a file that uses one.
fn set_of_mcp(change: impl FnOnce(&mut DescriptorProto)) -> Vec<u8> {
    let ours = FileDescriptorSet::decode(MCP_DESCRIPTORS);
    let ours = ours.expect("the build script wrote valid descriptors");
    let mut files = ["metadata", "resource"].map(|file| {
        let name = format!("istio/mcp/v1alpha1/{file}.proto");
        let file = ours.file.iter().find(|file| file.name() == name);
        let mut file = file.expect("the file is part of MCP").clone();
        let names = file.name.iter_mut().chain(&mut file.dependency);
        names.for_each(|name| *name = name.replace("istio/mcp", "mcp"));
        file
    });
    change(&mut files[1].message_type[0]);
    let field = FieldDescriptorProto {
        name: Some("resource".into()),
        number: Some(1),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::Message.into()),
        type_name: Some(".istio.mcp.v1alpha1.Resource".into()),
        ..FieldDescriptorProto::default()
    };
    let message = DescriptorProto {
        name: Some("Resources".into()),
        field: vec![field],
        ..DescriptorProto::default()
    };
    let user = FileDescriptorProto {
        name: Some("mcp/v1alpha1/resources.proto".into()),
        package: Some("example.mcp".into()),
        dependency: vec!["mcp/v1alpha1/resource.proto".into()],
        message_type: vec![message],
        syntax: Some("proto3".into()),
        ..FileDescriptorProto::default()
    };
    let [metadata, resource] = files;
    FileDescriptorSet { file: vec![metadata, resource, user] }.encode_to_vec()
}

/// REST-05: operators can add descriptors, which may refer to Envoy's. An invalid set is named.
#[test]
fn operators_can_add_descriptors() {
    let good = set("envoy/config/cluster/v3/cluster.proto");
    let (index, reason) = add_descriptor_sets(&[good.clone(), b"\xff".to_vec()]).unwrap_err();
    assert!(index == 1 && !reason.is_empty(), "{index}: {reason}");
    let (index, reason) = add_descriptor_sets(&[set("missing.proto")]).unwrap_err();
    assert!(index == 0 && reason.contains("missing.proto"), "{index}: {reason}");
    // Another definition of a type that is there.
    let other = set_of_mcp(|message| message.field[0].number = Some(77));
    let (index, reason) = add_descriptor_sets(&[good.clone(), other]).unwrap_err();
    assert!(index == 1 && reason.contains("istio.mcp.v1alpha1.Resource"), "{index}: {reason}");
    // MCP-01: Istio's API has the files of MCP under other names.
    add_descriptor_sets(&[good, set_of_mcp(|_| {})]).unwrap();
    let resources = envoy_pool().get_message_by_name("example.mcp.Resources").unwrap();
    let field = resources.get_field_by_name("resource").unwrap().kind();
    assert_eq!(field.as_message().unwrap().full_name(), "istio.mcp.v1alpha1.Resource");
    let own = envoy_pool().get_message_by_name("example.Own").unwrap();
    let field = own.get_field_by_name("cluster").unwrap().kind();
    assert_eq!(field.as_message().unwrap().full_name(), "envoy.config.cluster.v3.Cluster");
    assert!(envoy_pool().get_message_by_name("envoy.config.listener.v3.Listener").is_some());
    assert!(add_descriptor_sets(&[]).is_err(), "the pool is in use");
}
