//! The gRPC services: admin, health and reflection.

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_model::{
    ResourceDraft, ResourceKey, ResourceName, ScopeName, Transaction, TypeUrl, Upsert, types,
};
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::support::{Server, clusters};

fn apply(content: &str, options: pb::WriteOptions) -> pb::ApplyRequest {
    let file = pb::File { name: "web.yaml".into(), content: content.into() };
    pb::ApplyRequest { files: vec![file], options: Some(options), ..pb::ApplyRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_manifest_names_its_file_in_the_status_or_in_the_answer() {
    let server = Server::start().await;
    let bad =
        "resources:\n- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, nam: x}\n";
    let status = server.grpc().apply(apply(bad, pb::WriteOptions::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("web.yaml:2:3: document 1: "), "{}", status.message());
    assert!(!status.details().is_empty());

    let inside = pb::WriteOptions { problems_in_response: true, ..pb::WriteOptions::default() };
    let response = server.grpc().apply(apply(bad, inside)).await.unwrap().into_inner();
    assert_eq!((response.problems[0].file.as_str(), response.revision), ("web.yaml", 0));
    server.stop().await;
}

/// A client that converts resources of the API to JSON writes the mark of a secret in base64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_masked_secrets_of_a_write_are_refused_in_the_order_of_their_positions() {
    let server = Server::start().await;
    let secrets = "resources:
- {'@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret, name: a,
   generic_secret: {secret: {inline_bytes: W3JlZGFjdGVkXQ==}}}
---
resources:
- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: b
  metadata: {filter_metadata: {'[redacted private key] 2': {}}}
- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: c
  alt_stat_name: '[redacted private key] 3'
";
    let options = pb::WriteOptions {
        problems_in_response: true,
        validation: "off".into(),
        ..pb::WriteOptions::default()
    };
    let mut request = apply(secrets, options);
    let content = secrets.replace("name: ", "name: x");
    request.files.push(pb::File { name: "more.yaml".into(), content });
    let response = server.grpc().apply(request).await.unwrap().into_inner();
    let place = |problem: &pb::Problem| {
        let pb::Problem { file, document, line, column, resource, field_path, message, .. } =
            problem;
        assert!(message.starts_with("has \"[redacted]\" in place of a secret: "), "{problem:?}");
        format!("{file}:{line}:{column} #{document} {resource} {field_path}")
    };
    let places: Vec<String> = response.problems.iter().map(place).collect();
    let secret = "generic_secret.secret.inline_bytes";
    assert_eq!(
        places,
        [
            format!("web.yaml:3:30 #1 resources[0] Secret \"a\" {secret}"),
            "web.yaml:6:3 #2 resources[0] Cluster \"b\" ".to_owned(),
            "web.yaml:11:3 #2 resources[1] Cluster \"c\" alt_stat_name".to_owned(),
            format!("more.yaml:3:30 #1 resources[0] Secret \"xa\" {secret}"),
            "more.yaml:6:3 #2 resources[0] Cluster \"xb\" ".to_owned(),
            "more.yaml:11:3 #2 resources[1] Cluster \"xc\" alt_stat_name".to_owned(),
        ]
    );

    let content = "static_resources:
  secrets:
  - name: a
    generic_secret: {secret: {inline_bytes: W3JlZGFjdGVkXQ==}}
";
    let file = Some(pb::File { name: "envoy.yaml".into(), content: content.into() });
    let import = pb::ImportRequest { file, ..pb::ImportRequest::default() };
    let refused = server.grpc().import(import).await.unwrap_err();
    let expected =
        format!("envoy.yaml:4:31: static_resources.secrets[0] Secret \"a\": {secret}: has ");
    assert!(refused.message().starts_with(&expected), "{refused:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_calls_return_expected_grpc_codes() {
    let server = Server::start().await;
    let mut client = server.grpc();
    let none = client.apply(pb::ApplyRequest::default()).await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);
    let ahead = pb::WriteOptions { if_revision: Some(7), ..pb::WriteOptions::default() };
    let ahead = client.apply(apply(&clusters(&["a"], "1s"), ahead)).await.unwrap_err();
    assert_eq!(ahead.code(), Code::FailedPrecondition);
    let node = client
        .get_node(pb::GetNodeRequest { id: "n".into(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(node.code(), Code::NotFound);
    let import = client.import(pb::ImportRequest::default()).await.unwrap_err();
    assert_eq!(import.code(), Code::InvalidArgument);
    let large = apply(&"#".repeat(300 << 10), pb::WriteOptions::default());
    let large = client.apply(large).await.unwrap_err();
    assert!(large.message().contains("too large"), "{large:?}");
    server.stop().await;
}

/// XDSTP-03: a release without structured names stored each spelling as plain text. Its resources can be
/// read and deleted under exactly this name, also beside a resource with the canonical name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn structured_name_stored_as_plain_text_can_be_read_and_deleted() {
    let server = Server::start().await;
    let mut client = server.grpc();
    let (old, other) = ("xdstp:/t.T/web?b=2&a=1", "xdstp:/t.T/web?b=2&a=1#entry=x");
    let canonical = "xdstp:///t.T/web?a=1&b=2";
    let upsert = |name: &str| {
        let name = ResourceName::new(name).unwrap();
        let key = ResourceKey { type_url: TypeUrl::from_static(types::CLUSTER), name };
        let draft = ResourceDraft::new(key, Bytes::new());
        Upsert { scope: ScopeName::new("default").unwrap(), draft }
    };
    let upserts = vec![upsert(old), upsert(canonical)];
    let transaction = Transaction { upserts, ..Transaction::default() };
    server.replica.transact(transaction).await.unwrap();

    for (asked, expected) in [(old, old), (canonical, canonical), (other, canonical)] {
        let described = client
            .describe_resource(pb::DescribeResourceRequest {
                r#type: "cds".into(),
                name: asked.into(),
                ..pb::DescribeResourceRequest::default()
            })
            .await;
        assert_eq!(described.unwrap().into_inner().name, expected);
        let list = pb::ListResourcesRequest {
            r#type: "cds".into(),
            name: asked.into(),
            ..pb::ListResourcesRequest::default()
        };
        let mut pieces = client.list_resources(list).await.unwrap().into_inner();
        let found = pieces.message().await.unwrap().unwrap().resources;
        assert_eq!((found.len(), found[0].name.as_str()), (1, expected));
    }
    for rest in [1, 0] {
        let resource =
            pb::ResourceRef { r#type: "cds".into(), name: old.into(), ..Default::default() };
        let request = pb::DeleteRequest { resources: vec![resource], ..Default::default() };
        assert_eq!(client.delete(request).await.unwrap().into_inner().removed, 1);
        let mut pieces =
            client.list_resources(pb::ListResourcesRequest::default()).await.unwrap().into_inner();
        let left = pieces.message().await.unwrap().unwrap().resources;
        assert_eq!(left.len(), rest);
        assert!(left.iter().all(|resource| resource.name == canonical));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_with_one_missing_resource_deletes_nothing() {
    let server = Server::start().await;
    let mut client = server.grpc();
    let request = apply(&clusters(&["a"], "1s"), pb::WriteOptions::default());
    client.apply(request).await.unwrap();
    let reference = |name: &str| pb::ResourceRef {
        r#type: "cds".into(),
        name: name.into(),
        ..pb::ResourceRef::default()
    };
    let request = pb::DeleteRequest {
        resources: vec![reference("a"), reference("b"), reference("c")],
        ..pb::DeleteRequest::default()
    };
    let status = client.delete(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    for missing in ["\"b\"", "\"c\""] {
        assert!(
            status.message().contains(missing),
            "all missing resources are named: {}",
            status.message()
        );
    }
    let mut pieces =
        client.list_resources(pb::ListResourcesRequest::default()).await.unwrap().into_inner();
    let piece = pieces.message().await.unwrap().unwrap();
    assert_eq!((piece.revision, piece.resources.len()), (1, 1));
    assert!(pieces.message().await.unwrap().is_none());
    server.stop().await;
}

/// SVC-27: health is on the admin port, and the health of `xds` follows readiness.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_follows_readiness() {
    let server = Server::start().await;
    let mut client = HealthClient::new(server.router.clone());
    for service in ["", "xds"] {
        let request = HealthCheckRequest { service: service.into() };
        let response = client.check(request).await.unwrap().into_inner();
        assert_eq!(response.status(), ServingStatus::Serving);
    }
    let unknown = client.check(HealthCheckRequest { service: "x".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let request = HealthCheckRequest { service: "xds".into() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    server.drain.cancel();
    let second = watch.message().await.unwrap().unwrap();
    assert_eq!(second.status(), ServingStatus::NotServing);
    assert!(watch.message().await.unwrap().is_none(), "a drain ends the watch");
    server.stop().await;
}

/// SVC-27, CSDS-01: reflection is on the admin port, also of the client status service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_lists_the_services() {
    let server = Server::start().await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(server.router.clone());
    let requests = futures::stream::iter([request]);
    let mut responses = client.server_reflection_info(requests).await.unwrap().into_inner();
    let response = responses.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = response.message_response else {
        panic!("{response:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"chancery.admin.v1.Admin"), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
    assert!(names.contains(&chancery_proto::csds::SERVICE), "{names:?}");
    let symbol = |name: &str| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(name.to_owned())),
    };
    let requests = futures::stream::iter([symbol("envoy.service.status.v3.ClientConfig")]);
    let mut responses = client.server_reflection_info(requests).await.unwrap().into_inner();
    let response = responses.message().await.unwrap().unwrap().message_response;
    assert!(matches!(response, Some(MessageResponse::FileDescriptorResponse(_))), "{response:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_method_is_unimplemented() {
    let server = Server::start().await;
    let request = http::Request::builder()
        .method("POST")
        .version(http::Version::HTTP_2)
        .uri("/chancery.admin.v1.Admin/Nothing")
        .header("content-type", "application/grpc")
        .body(axum::body::Body::empty())
        .unwrap();
    let response = tower::ServiceExt::oneshot(server.router.clone(), request).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "12");
    server.stop().await;
}

/// Building 400,000 empty files took 37 s, and 60 million took 7 GB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_request_are_bounded_before_they_are_built() {
    let server = Server::start().await;
    for (n, told) in [(120_000, "more than 100000 fields"), (20_000, "20000 files")] {
        let request =
            pb::ApplyRequest { files: vec![pb::File::default(); n], ..Default::default() };
        let status = server.grpc().apply(request).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains(told), "{status}");
    }
    server.stop().await;
}
