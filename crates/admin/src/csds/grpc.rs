//! `envoy.service.status.v3.ClientStatusDiscoveryService` as gRPC methods.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use chancery_model::Verb;
use chancery_proto::{
    csds::{ClientStatusRequest, ClientStatusResponse, SERVICE},
    envoy_pool,
};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use prost_reflect::{FileDescriptor, prost_types::FileDescriptorSet};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::{BoxFuture, Service as TowerService, StdError},
    metadata::MetadataValue,
    server::{Grpc, NamedService, StreamingService, UnaryService},
};
use tonic_prost::ProstCodec;

use super::{
    ClientStatus, Coverage, LOCAL_HEADER, REQUEST_BYTES_MAX, client_status, covered,
    parts::{check_unary, split},
};
use crate::{
    AdminError,
    ctx::{Access, Call, Ctx},
    deps::Deps,
    lasting::right_ends,
    nodes::unanswered,
    record::Record,
};

/// The service. Its messages have no generated code.
#[derive(Clone)]
pub(crate) struct GrpcCsds(pub(crate) Arc<Deps>);

impl NamedService for GrpcCsds {
    const NAME: &'static str = SERVICE;
}

impl GrpcCsds {
    fn permit(&self, extensions: &http::Extensions) -> Result<Ctx, AdminError> {
        Record::new(&Call::of(&self.0, extensions), None).permit(Access::Cluster(Verb::Nodes))
    }
}

/// Returns a response whose metadata says what it covers (CSDS-13).
fn respond<T>(message: T, coverage: &Coverage) -> Response<T> {
    let mut response = Response::new(message);
    for (name, value) in coverage.headers() {
        if let Ok(value) = MetadataValue::try_from(value) {
            response.metadata_mut().insert(name, value);
        }
    }
    response
}

/// Returns whether a call asks only for the streams of this replica.
fn is_local<T>(request: &Request<T>) -> bool {
    request.metadata().get(LOCAL_HEADER).is_some_and(|value| value == "true")
}

impl UnaryService<ClientStatusRequest> for GrpcCsds {
    type Response = ClientStatusResponse;
    type Future = BoxFuture<Response<Self::Response>, Status>;

    fn call(&mut self, request: Request<ClientStatusRequest>) -> Self::Future {
        let ctx = self.permit(request.extensions());
        Box::pin(async move {
            let (ctx, is_local) = (ctx?, is_local(&request));
            let status = client_status(&ctx, request.into_inner(), is_local, |config| config);
            let ClientStatus { clients, coverage } = status.await?;
            let response = ClientStatusResponse { config: clients };
            check_unary(&response)?;
            Ok(respond(response, &coverage))
        })
    }
}

impl StreamingService<ClientStatusRequest> for GrpcCsds {
    type Response = ClientStatusResponse;
    type ResponseStream = BoxStream<'static, Result<ClientStatusResponse, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<ClientStatusRequest>>) -> Self::Future {
        let ctx = self.permit(request.extensions());
        Box::pin(async move {
            let (ctx, is_local) = (ctx?, is_local(&request));
            let coverage = covered(&ctx, is_local).await;
            let missing = coverage.not_asked.iter().map(|one| one.replica_id).collect();
            let answers = answers(ctx.clone(), is_local, missing, request.into_inner());
            let answers = answers.take_until(end(ctx.clone())).boxed();
            Ok(respond(answers, &coverage))
        })
    }
}

async fn end(ctx: Ctx) {
    right_ends(&ctx, &[Verb::Nodes]).await;
}

/// Answers each request (CSDS-02) with one response, or with several parts if it is large. Ends the stream after an
/// answer that lacks a replica which is not among the `missing` ones of the metadata.
fn answers(
    ctx: Ctx,
    is_local: bool,
    missing: BTreeSet<u64>,
    requests: Streaming<ClientStatusRequest>,
) -> impl Stream<Item = Result<ClientStatusResponse, Status>> {
    let parts = requests.enumerate().then(move |(at, request)| {
        let (ctx, missing) = (ctx.clone(), missing.clone());
        async move {
            let request = request?;
            if at > 0 {
                ctx.call().count_message()?;
            }
            let status = client_status(&ctx, request, is_local, |config| config).await?;
            let mut further = status.coverage.not_asked;
            further.retain(|one| !missing.contains(&one.replica_id));
            let end = (!further.is_empty()).then(|| {
                let replicas = unanswered(&further);
                Status::unavailable(format!(
                    "the answer lacks the clients of a further replica: {replicas}; open the stream again"
                ))
            });
            Ok((split(status.clients), end))
        }
    });
    parts.flat_map(|parts: Result<_, Status>| match parts {
        Ok((parts, end)) => {
            let parts = parts.into_iter().map(Ok).chain(end.map(Err));
            stream::iter(parts.collect::<Vec<_>>()).left_stream()
        }
        Err(status) => stream::iter([Err(status)]).right_stream(),
    })
}

impl<B> TowerService<http::Request<B>> for GrpcCsds
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default())
                .apply_max_message_size_config(Some(REQUEST_BYTES_MAX), Some(usize::MAX));
            Ok(match method.as_str() {
                "FetchClientStatus" => grpc.unary(service, request).await,
                "StreamClientStatus" => grpc.streaming(service, request).await,
                _ => Status::unimplemented("").into_http(),
            })
        })
    }
}

/// Returns the descriptors of the service for reflection: its file and all files that it imports.
pub(crate) fn descriptors() -> FileDescriptorSet {
    let mut files: Vec<FileDescriptor> = Vec::new();
    let mut open: Vec<FileDescriptor> =
        envoy_pool().get_service_by_name(SERVICE).iter().map(|s| s.parent_file()).collect();
    while let Some(file) = open.pop() {
        if !files.contains(&file) {
            open.extend(file.dependencies());
            files.push(file);
        }
    }
    FileDescriptorSet { file: files.iter().map(|f| f.file_descriptor_proto().clone()).collect() }
}
