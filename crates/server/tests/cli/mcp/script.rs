//! A source of MCP whose messages the test chooses. It listens, or it connects.

use std::{net::SocketAddr, pin::Pin};

use chancery_proto::istio::mcp::v1alpha1::{
    self as pb,
    resource_sink_client::ResourceSinkClient,
    resource_source_server::{ResourceSource, ResourceSourceServer},
};
use prost::Message as _;
use tokio::{
    net::TcpListener,
    runtime::{Handle, Runtime},
    sync::mpsc,
    time::timeout,
};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};

use super::SERVICES;
use crate::{cluster::eventually, support::DEADLINE};

/// A running source.
pub(super) struct Script {
    pub(super) address: SocketAddr,
    runtime: Runtime,
    streams: mpsc::Receiver<SinkStream>,
}

/// The stream of one sink. Its end closes the stream.
pub(super) struct SinkStream {
    requests: Streaming<pb::RequestResources>,
    messages: mpsc::Sender<Result<pb::Resources, Status>>,
    runtime: Option<Handle>,
}

/// A source that connects.
pub(super) struct Connecting {
    address: SocketAddr,
    runtime: Runtime,
}

struct Service(mpsc::Sender<SinkStream>);

#[tonic::async_trait]
impl ResourceSource for Service {
    type EstablishResourceStreamStream =
        Pin<Box<dyn Stream<Item = Result<pb::Resources, Status>> + Send>>;

    async fn establish_resource_stream(
        &self,
        request: Request<Streaming<pb::RequestResources>>,
    ) -> Result<Response<Self::EstablishResourceStreamStream>, Status> {
        let (messages, receiver) = mpsc::channel(8);
        let stream = SinkStream { requests: request.into_inner(), messages, runtime: None };
        self.0.send(stream).await.map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

impl Connecting {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, runtime: runtime() }
    }

    /// Opens a stream.
    pub(super) fn open(&self) -> Result<SinkStream, Status> {
        let connected = self.runtime.block_on(self.endpoint().connect());
        self.open_on(connected.map_err(|error| Status::unknown(error.to_string()))?)
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap()
    }

    fn open_on(&self, channel: Channel) -> Result<SinkStream, Status> {
        let opening = async {
            let mut client = ResourceSinkClient::new(channel);
            let (messages, receiver) = mpsc::channel(8);
            let receiver = ReceiverStream::new(receiver).map_while(Result::ok);
            let opened = client.establish_resource_stream(receiver).await?;
            Ok(SinkStream { requests: opened.into_inner(), messages, runtime: None })
        };
        let opened: Result<SinkStream, Status> =
            self.runtime.block_on(async { timeout(DEADLINE, opening).await }).unwrap();
        Ok(SinkStream { runtime: Some(self.runtime.handle().clone()), ..opened? })
    }

    /// Opens a stream as soon as the sink admits one.
    pub(super) fn open_admitted(&self) -> SinkStream {
        eventually("the sink admits a stream", || self.open().ok())
    }

    /// Repeats the call on one channel, which connects again only after its connection has ended.
    pub(super) fn open_admitted_on_one_channel(&self) -> SinkStream {
        let channel = self.runtime.block_on(async { self.endpoint().connect_lazy() });
        eventually("the sink admits a stream", || self.open_on(channel.clone()).ok())
    }
}

impl Script {
    pub(super) fn start() -> Self {
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, streams) = mpsc::channel(8);
        let server = Server::builder().add_service(ResourceSourceServer::new(Service(sender)));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, runtime, streams }
    }

    /// Returns the next stream.
    pub(super) fn accept(&mut self) -> SinkStream {
        let next = async { timeout(DEADLINE, self.streams.recv()).await };
        let stream = self.runtime.block_on(next).unwrap().unwrap();
        SinkStream { runtime: Some(self.runtime.handle().clone()), ..stream }
    }

    /// Returns whether no other stream has been opened.
    pub(super) fn is_idle(&mut self) -> bool {
        self.streams.try_recv().is_err()
    }
}

impl SinkStream {
    fn next(&mut self) -> Result<Option<pb::RequestResources>, Status> {
        let runtime = self.runtime.clone().unwrap();
        runtime.block_on(async { timeout(DEADLINE, self.requests.message()).await }).unwrap()
    }

    pub(super) fn receive(&mut self) -> pb::RequestResources {
        self.next().unwrap().unwrap()
    }

    /// Waits until the sink ends the stream. Returns its status if it is not OK.
    pub(super) fn end_status(mut self) -> Option<Status> {
        loop {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    pub(super) fn wait_end(mut self) {
        assert!(matches!(self.next(), Ok(None) | Err(_)), "the sink ends the stream");
    }

    pub(super) fn send(&mut self, message: pb::Resources) {
        self.messages.blocking_send(Ok(message)).unwrap();
    }

    /// Sends a full state.
    pub(super) fn send_state(&mut self, nonce: &str, resources: &[pb::Resource]) {
        self.send(pb::Resources {
            collection: SERVICES.to_owned(),
            nonce: nonce.to_owned(),
            resources: resources.to_vec(),
            ..pb::Resources::default()
        });
    }
}

/// Returns a resource whose content is a time.
pub(super) fn resource(name: &str, version: &str, seconds: i64) -> pb::Resource {
    let metadata = pb::Metadata {
        name: name.to_owned(),
        version: version.to_owned(),
        ..pb::Metadata::default()
    };
    let body = prost_types::Any {
        type_url: "type.googleapis.com/google.protobuf.Duration".to_owned(),
        value: prost_types::Duration { seconds, nanos: 0 }.encode_to_vec(),
    };
    pb::Resource { metadata: Some(metadata), body: Some(body) }
}
