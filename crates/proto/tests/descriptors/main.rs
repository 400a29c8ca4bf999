//! Descriptors that operators add. The pool is global, so this is the only test of its process.

use chancery_proto::{add_descriptor_sets, envoy_pool};
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

/// REST-05: operators can add descriptors, which may refer to Envoy's. An invalid set is named.
#[test]
fn operators_can_add_descriptors() {
    let good = set("envoy/config/cluster/v3/cluster.proto");
    let (index, reason) = add_descriptor_sets(&[good.clone(), b"\xff".to_vec()]).unwrap_err();
    assert!(index == 1 && !reason.is_empty(), "{index}: {reason}");
    let (index, reason) = add_descriptor_sets(&[set("missing.proto")]).unwrap_err();
    assert!(index == 0 && reason.contains("missing.proto"), "{index}: {reason}");
    add_descriptor_sets(&[good]).unwrap();
    let own = envoy_pool().get_message_by_name("example.Own").unwrap();
    let field = own.get_field_by_name("cluster").unwrap().kind();
    assert_eq!(field.as_message().unwrap().full_name(), "envoy.config.cluster.v3.Cluster");
    assert!(envoy_pool().get_message_by_name("envoy.config.listener.v3.Listener").is_some());
    assert!(add_descriptor_sets(&[]).is_err(), "the pool is in use");
}
