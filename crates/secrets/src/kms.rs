//! A client of Kubernetes KMS plugins (KMSv2): gRPC over a UNIX socket, with the methods `Status`, `Encrypt` and
//! `Decrypt`. Plugins exist for the key services of clouds, and for Vault.
//!
//! The plugin encrypts a random seed, and the seed wraps the key. Only the wrapping binds a key to its purpose, because
//! the plugin takes no associated data.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::{
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use zeroize::Zeroizing;

use crate::{
    cipher::{self, WrapPath},
    error::{KekError, KmsError},
    key::{Key, SealError},
};

/// The time within which a plugin must answer.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct DecryptRequest {
    #[prost(bytes = "bytes", tag = "1")]
    ciphertext: Bytes,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct EncryptResponse {
    #[prost(bytes = "bytes", tag = "1")]
    ciphertext: Bytes,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

/// A key that a seed wraps, with the seed as the plugin encrypted it.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Wrapped {
    #[prost(bytes = "bytes", tag = "1")]
    seed: Bytes,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(bytes = "bytes", tag = "4")]
    key: Bytes,
}

macro_rules! hide {
    ($($message:ty),*) => {$(
        impl std::fmt::Debug for $message {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        }
    )*};
}
hide!(DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, Wrapped);

/// The client of a KMS plugin at this UNIX socket.
#[derive(Debug, Clone)]
pub(crate) struct Plugin(pub(crate) PathBuf);

impl Plugin {
    /// Returns the ID of the key that the plugin uses now.
    pub(crate) async fn key_id(&self) -> Result<String, KmsError> {
        let status: StatusResponse = self.call("Status", StatusRequest {}).await?;
        let StatusResponse { version, healthz, key_id } = status;
        if version.starts_with("v2") && healthz == "ok" {
            Ok(key_id)
        } else {
            Err(KmsError::Unhealthy { path: self.0.clone(), version, healthz })
        }
    }

    /// Wraps a key. Returns its wrapped form and the ID of the plugin's key.
    pub(crate) async fn wrap(
        &self,
        path: WrapPath,
        key: &Key,
    ) -> Result<(String, Bytes), KekError> {
        let seed = Key::random()?;
        let request = EncryptRequest { plaintext: seed.bytes().to_vec(), uid: uid()? };
        let response: EncryptResponse = self.call("Encrypt", request).await?;
        let EncryptResponse { ciphertext, key_id, annotations } = response;
        let key = cipher::wrap(&seed, path, key)?;
        let wrapped = Wrapped { seed: ciphertext, key_id: key_id.clone(), annotations, key };
        Ok((key_id, wrapped.encode_to_vec().into()))
    }

    /// Unwraps a key.
    pub(crate) async fn unwrap(&self, path: WrapPath, bytes: &[u8]) -> Result<Key, KekError> {
        let wrapped = Wrapped::decode(bytes).map_err(|_| SealError::Format)?;
        let Wrapped { seed, key_id, annotations, key } = wrapped;
        let request = DecryptRequest { ciphertext: seed, uid: uid()?, key_id, annotations };
        let response: DecryptResponse = self.call("Decrypt", request).await?;
        let seed = Zeroizing::new(response.plaintext);
        let seed = Key::from_bytes(&seed).ok_or(SealError::Format)?;
        Ok(cipher::unwrap(&seed, path, &key)?)
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, KmsError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let failed = |code| KmsError::Call { path: self.0.clone(), method, code };
        let call = async {
            let channel = connect(&self.0).await;
            let channel =
                channel.map_err(|source| KmsError::Connect { path: self.0.clone(), source })?;
            let mut grpc = Grpc::new(channel);
            grpc.ready().await.map_err(|_| failed(tonic::Code::Unavailable))?;
            let path = match method {
                "Status" => PathAndQuery::from_static("/v2.KeyManagementService/Status"),
                "Encrypt" => PathAndQuery::from_static("/v2.KeyManagementService/Encrypt"),
                _ => PathAndQuery::from_static("/v2.KeyManagementService/Decrypt"),
            };
            let codec = ProstCodec::<Q, A>::default();
            let response = grpc.unary(tonic::Request::new(request), path, codec).await;
            response.map(tonic::Response::into_inner).map_err(|status| failed(status.code()))
        };
        let answered = tokio::time::timeout(TIMEOUT, call).await;
        answered.unwrap_or_else(|_| Err(failed(tonic::Code::DeadlineExceeded)))
    }
}

/// The ID of a call, for the log of the plugin.
fn uid() -> Result<String, SealError> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| SealError::Random)?;
    Ok(hex::encode(bytes))
}

async fn connect(path: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is only the `:authority` of requests, as gRPC sends it for UNIX sockets.
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}
