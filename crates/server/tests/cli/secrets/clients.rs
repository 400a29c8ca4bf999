//! An xDS client of delta streams, for one type or for all.

use std::collections::BTreeMap;

use chancery_model::types::SECRET;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::support::DEADLINE;

const ALL: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SECRETS: &str = "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets";

/// The end of a stream.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: tonic::Code,
    pub(crate) message: String,
}

/// A client that acknowledges every response.
pub(crate) struct Client {
    runtime: Runtime,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: mpsc::Receiver<Result<DeltaDiscoveryResponse, tonic::Status>>,
    /// The responses that were received while another type was awaited.
    early: BTreeMap<String, Vec<Vec<u8>>>,
    last_nonce: String,
    n_removed: usize,
}

impl Client {
    /// Opens a stream for secrets, or for all types.
    pub(crate) fn open(address: &str, type_url: Option<&str>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (requests, receiver) = mpsc::channel(64);
        let (sender, responses) = mpsc::channel(64);
        let address = format!("http://{address}");
        let path = if type_url == Some(SECRET) { SECRETS } else { ALL };
        runtime.spawn(async move {
            let channel = Channel::from_shared(address).unwrap().connect_lazy();
            let mut grpc = tonic::client::Grpc::new(channel);
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::default();
            let stream = tonic::Request::new(ReceiverStream::new(receiver));
            let opened = grpc.streaming(stream, PathAndQuery::from_static(path), codec).await;
            let mut responses = match opened {
                Ok(opened) => opened.into_inner(),
                Err(status) => return drop(sender.send(Err(status)).await),
            };
            while let Some(response) = responses.message().await.transpose() {
                if sender.send(response).await.is_err() {
                    break;
                }
            }
        });
        let (early, last_nonce) = (BTreeMap::new(), String::new());
        Self { runtime, requests, responses, early, last_nonce, n_removed: 0 }
    }

    fn send(&self, request: DeltaDiscoveryRequest) {
        self.runtime.block_on(self.requests.send(request)).unwrap();
    }

    /// Subscribes to names; to the wildcard without names.
    pub(crate) fn subscribe(&self, type_url: &str, names: &[&str]) {
        let node = chancery_proto::node::Node { id: "n".into(), ..Default::default() };
        self.send(DeltaDiscoveryRequest {
            node: Some(node.encode_to_vec().into()),
            type_url: type_url.into(),
            resource_names_subscribe: names.iter().map(|name| (*name).into()).collect(),
            ..Default::default()
        });
    }

    fn answer(&self, type_url: &str, error_detail: Option<Status>) {
        let (type_url, response_nonce) = (type_url.into(), self.last_nonce.clone());
        self.send(DeltaDiscoveryRequest {
            type_url,
            response_nonce,
            error_detail,
            ..Default::default()
        });
    }

    /// Rejects the last response.
    pub(crate) fn reject(&self, type_url: &str, message: &str) {
        let error = Status { code: 3, message: message.into(), ..Default::default() };
        self.answer(type_url, Some(error));
    }

    /// Returns the bytes of the resources in the next response of a type.
    pub(crate) fn next(&mut self, type_url: &str) -> Result<Vec<u8>, Ended> {
        if let Some(early) = self.early.get_mut(type_url).and_then(Vec::pop) {
            return Ok(early);
        }
        loop {
            let next = async { tokio::time::timeout(DEADLINE, self.responses.recv()).await };
            let next = self.runtime.block_on(next).expect("no response in time");
            let response = match next.expect("the stream has no end") {
                Ok(response) => response,
                Err(status) => {
                    let (code, message) = (status.code(), status.message().to_owned());
                    return Err(Ended { code, message });
                }
            };
            self.n_removed += response.removed_resources.len();
            self.last_nonce = response.nonce.to_string();
            let received = response.type_url.to_string();
            let bytes = response.encode_to_vec();
            if received == type_url {
                self.answer(type_url, None);
                return Ok(bytes);
            }
            self.answer(&received, None);
            self.early.entry(received).or_default().insert(0, bytes);
        }
    }

    /// Subscribes to one name and returns the next response.
    pub(crate) fn get(&mut self, type_url: &str, name: &str) -> Vec<u8> {
        self.subscribe(type_url, &[name]);
        self.next(type_url).unwrap()
    }

    /// Returns the number of responses of a type that were not awaited.
    pub(crate) fn n_early(&self, type_url: &str) -> usize {
        self.early.get(type_url).map_or(0, Vec::len)
    }

    /// Returns the number of removals that the client has received.
    pub(crate) fn n_removed(&self) -> usize {
        self.n_removed
    }
}
