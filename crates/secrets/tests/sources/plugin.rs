//! A KMS plugin (KMSv2) that XORs with the length of its key ID.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use prost::Message;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

/// All messages of the API have these fields; each message has some of them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

#[derive(Debug, Default)]
struct Inner {
    key_id: Mutex<String>,
    fails: AtomicBool,
    n_encrypted: AtomicUsize,
}

/// A plugin. It serves until its runtime ends.
#[derive(Debug, Clone)]
pub(super) struct Plugin(Arc<Inner>);

impl Plugin {
    pub(super) fn start(socket: &Path, key_id: &str) -> Self {
        let plugin = Self(Arc::default());
        plugin.set_key_id(key_id);
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = tonic::transport::Server::builder().add_service(plugin.clone());
        tokio::spawn(server.serve_with_incoming(incoming));
        plugin
    }

    pub(super) fn set_key_id(&self, key_id: &str) {
        *self.0.key_id.lock().unwrap() = key_id.to_owned();
    }

    pub(super) fn fail(&self, fails: bool) {
        self.0.fails.store(fails, Ordering::Relaxed);
    }

    pub(super) fn n_encrypted(&self) -> usize {
        self.0.n_encrypted.load(Ordering::Relaxed)
    }

    fn key_id(&self) -> String {
        self.0.key_id.lock().unwrap().clone()
    }

    fn check(&self) -> Result<(), Status> {
        if self.0.fails.load(Ordering::Relaxed) {
            Err(Status::internal("the request was …"))
        } else {
            Ok(())
        }
    }
}

fn xor(bytes: &[u8], key_id: &str) -> Vec<u8> {
    let key = key_id.bytes().fold(0x5a, |key: u8, byte| key.wrapping_mul(31) ^ byte);
    bytes.iter().map(|byte| byte ^ key).collect()
}

impl NamedService for Plugin {
    const NAME: &'static str = "v2.KeyManagementService";
}

type Answer<T> = BoxFuture<Response<T>, Status>;

impl UnaryService<()> for Plugin {
    type Response = StatusResponse;
    type Future = Answer<StatusResponse>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let healthz = if self.check().is_ok() { "ok" } else { "broken" }.to_owned();
        let response = StatusResponse { version: "v2beta1".into(), healthz, key_id: self.key_id() };
        Box::pin(async { Ok(Response::new(response)) })
    }
}

impl UnaryService<EncryptRequest> for Plugin {
    type Response = EncryptResponse;
    type Future = Answer<EncryptResponse>;

    fn call(&mut self, request: Request<EncryptRequest>) -> Self::Future {
        let EncryptRequest { plaintext, uid } = request.into_inner();
        assert!(!uid.is_empty() && plaintext.len() == 32);
        self.0.n_encrypted.fetch_add(1, Ordering::Relaxed);
        let (key_id, checked) = (self.key_id(), self.check());
        let annotations = BTreeMap::from([("version.example".to_owned(), b"7".to_vec())]);
        let ciphertext = xor(&plaintext, &key_id);
        let response = EncryptResponse { ciphertext, key_id, annotations };
        Box::pin(async { checked.map(|()| Response::new(response)) })
    }
}

impl UnaryService<DecryptRequest> for Plugin {
    type Response = DecryptResponse;
    type Future = Answer<DecryptResponse>;

    fn call(&mut self, request: Request<DecryptRequest>) -> Self::Future {
        let DecryptRequest { ciphertext, key_id, annotations, .. } = request.into_inner();
        assert_eq!(annotations["version.example"], b"7", "annotations come back unchanged");
        let (checked, plaintext) = (self.check(), xor(&ciphertext, &key_id));
        Box::pin(async { checked.map(|()| Response::new(DecryptResponse { plaintext })) })
    }
}

impl Service<http::Request<Body>> for Plugin {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let plugin = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/v2.KeyManagementService/Status" => {
                    let codec = ProstCodec::<StatusResponse, ()>::default();
                    Grpc::new(codec).unary(plugin, request).await
                }
                "/v2.KeyManagementService/Encrypt" => {
                    let codec = ProstCodec::<EncryptResponse, EncryptRequest>::default();
                    Grpc::new(codec).unary(plugin, request).await
                }
                _ => {
                    let codec = ProstCodec::<DecryptResponse, DecryptRequest>::default();
                    Grpc::new(codec).unary(plugin, request).await
                }
            })
        })
    }
}
