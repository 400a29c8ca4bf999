//! A client of the admin API over gRPC, which publishes resources.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use chancery_admin_proto::v1::{
    ApplyRequest, ClusterStatus, DeleteRequest, File, FreezeRequest, GetClusterRequest,
    ListResourcesRequest, ResourceRef, ThawRequest, WriteOptions, WriteResponse,
    admin_client::AdminClient,
};
use http::Uri;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::resource::{self, Content};

/// The timeout of a request. 1000 resources take seconds in a debug build on a busy machine.
const REQUEST: Duration = Duration::from_secs(60);
/// The number of resources in one transaction of a load. A transaction is one log entry of limited
/// length, and it is built in memory.
const BATCH: usize = 1000;

/// Returns whether a server refused a write without knowing the outcome of an earlier attempt.
pub(crate) fn is_outcome_unknown(status: &Status) -> bool {
    status.message().contains("the outcome of the write is unknown")
}

/// A connection to the admin API. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Author {
    client: AdminClient<Channel>,
}

impl Author {
    pub(crate) async fn connect(admin: SocketAddr) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{admin}"))?
            .connect_timeout(Duration::from_secs(10))
            .timeout(REQUEST)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.with_context(|| format!("connect to {admin}"))?;
        Ok(Self { client: AdminClient::new(channel) })
    }

    /// Connects to a UNIX socket.
    pub(crate) async fn connect_unix(socket: &Path) -> Result<Self> {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is only the authority of the requests.
        let endpoint = Endpoint::from_static("http://localhost").timeout(REQUEST);
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.with_context(|| format!("connect to {}", socket.display()))?;
        Ok(Self { client: AdminClient::new(channel) })
    }

    /// Publishes manifests in one transaction.
    pub(crate) async fn apply(&mut self, manifests: &[Value]) -> Result<WriteResponse, Status> {
        let file = |(n, manifest): (usize, &Value)| File {
            name: format!("manifest {n}"),
            content: manifest.to_string(),
        };
        let request = ApplyRequest {
            files: manifests.iter().enumerate().map(file).collect(),
            options: Some(options()),
            ..ApplyRequest::default()
        };
        Ok(self.client.apply(request).await?.into_inner())
    }

    /// Publishes one manifest, given as text.
    pub(crate) async fn apply_text(&mut self, content: String) -> Result<WriteResponse, Status> {
        let request = ApplyRequest {
            files: vec![File { name: "manifest".to_owned(), content }],
            options: Some(options()),
            ..ApplyRequest::default()
        };
        Ok(self.client.apply(request).await?.into_inner())
    }

    /// Freezes a scope.
    pub(crate) async fn freeze(&mut self, scope: &str) -> Result<WriteResponse, Status> {
        let (scope, options) = (scope.to_owned(), Some(options()));
        let request = FreezeRequest { scope, options, ..FreezeRequest::default() };
        Ok(self.client.freeze(request).await?.into_inner())
    }

    /// Ends the freeze of a scope.
    pub(crate) async fn thaw(&mut self, scope: &str) -> Result<WriteResponse, Status> {
        let (scope, options) = (scope.to_owned(), Some(options()));
        let request = ThawRequest { scope, options, ..ThawRequest::default() };
        Ok(self.client.thaw(request).await?.into_inner())
    }

    /// Deletes clusters of one scope in one transaction.
    pub(crate) async fn delete(
        &mut self,
        scope: &str,
        names: &[&str],
    ) -> Result<WriteResponse, Status> {
        let cluster = |name: &&str| ResourceRef {
            r#type: "cds".into(),
            name: (*name).to_owned(),
            ..ResourceRef::default()
        };
        let request = DeleteRequest {
            resources: names.iter().map(cluster).collect(),
            scope: scope.to_owned(),
            options: Some(options()),
        };
        Ok(self.client.delete(request).await?.into_inner())
    }

    /// Publishes the clusters `from..to` of a load, in transactions of `BATCH` resources.
    pub(crate) async fn load(&mut self, from: usize, to: usize) -> Result<()> {
        self.load_content(Content::Clusters, from, to).await
    }

    /// Publishes the resources `from..to` of a load, in transactions of `BATCH` resources.
    pub(crate) async fn load_content(
        &mut self,
        content: Content,
        from: usize,
        to: usize,
    ) -> Result<()> {
        let mut start = from;
        while start < to {
            let end = (start + BATCH).min(to);
            let resources = (start..end).map(|n| content.resource(n, 0)).collect();
            self.apply(&[resource::manifest(resource::SCOPE, resources)])
                .await
                .with_context(|| format!("publish the resources {start} to {end}"))?;
            start = end;
        }
        Ok(())
    }

    /// Returns the bytes of all resource bodies, and the number of resources.
    pub(crate) async fn payload(&mut self) -> Result<(u64, u64)> {
        let request =
            ListResourcesRequest { without_body: true, ..ListResourcesRequest::default() };
        let mut pieces = self.client.list_resources(request).await?.into_inner();
        let (mut bytes, mut n) = (0, 0);
        while let Some(piece) = pieces.message().await? {
            for resource in piece.resources {
                bytes += resource.bytes;
                n += 1;
            }
        }
        Ok((bytes, n))
    }

    /// Returns the versions of all resources by name.
    pub(crate) async fn versions(&mut self) -> Result<BTreeMap<String, String>> {
        let request =
            ListResourcesRequest { without_body: true, ..ListResourcesRequest::default() };
        let mut pieces = self.client.list_resources(request).await?.into_inner();
        let mut versions = BTreeMap::new();
        while let Some(piece) = pieces.message().await? {
            versions.extend(piece.resources.into_iter().map(|it| (it.name, it.version)));
        }
        Ok(versions)
    }

    /// Returns the generations of the clusters in one scope, by name.
    pub(crate) async fn generations(&mut self, scope: &str) -> Result<BTreeMap<String, u64>> {
        let scope = scope.to_owned();
        let request = ListResourcesRequest { scope, ..ListResourcesRequest::default() };
        let mut pieces = self.client.list_resources(request).await?.into_inner();
        let mut generations = BTreeMap::new();
        while let Some(piece) = pieces.message().await? {
            for resource in piece.resources {
                let body = resource.body.unwrap_or_default().value;
                let generation = resource::generation_of(&body);
                let generation = generation.with_context(|| {
                    format!("resource {} has a body that no author wrote", resource.name)
                })?;
                generations.insert(resource.name, generation);
            }
        }
        Ok(generations)
    }

    /// Returns the state of the replica.
    pub(crate) async fn cluster(&mut self) -> Result<ClusterStatus, Status> {
        Ok(self.client.get_cluster(GetClusterRequest {}).await?.into_inner())
    }
}

fn options() -> WriteOptions {
    WriteOptions {
        author: "loadtest".to_owned(),
        confirm: vec!["all".to_owned()],
        ..WriteOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_too_old_to_be_repeated_is_not_taken_for_a_refusal() {
        let unknown = "the outcome of the write is unknown: an attempt was not answered, and more than 10000 \
                       revisions have come since then";
        assert!(is_outcome_unknown(&Status::failed_precondition(unknown)));
        let refused = "default/a has another version; nothing has been written";
        assert!(!is_outcome_unknown(&Status::failed_precondition(refused)));
    }
}
