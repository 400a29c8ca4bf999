//! The clusters and assignments that `lb-policy` reads: from files, or from a server.

use std::{collections::BTreeMap, path::PathBuf};

use bytes::Bytes;
use chancery_admission::{Manifest, Options, admit};
use chancery_model::{ScopeName, types};
use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use serde_json::{Map, Value, json};
use tonic::transport::Channel;

use crate::cli::{
    failure::Failure,
    remote::{client::refusal, input::read_all, parameters::with_variant},
};

/// The name of the cluster around a `LoadBalancingPolicy` without a cluster.
const POLICY_WITHOUT_CLUSTER: &str = "policy";

/// A source of resources.
pub(super) enum Source {
    /// The resources of files, by type URL and name.
    Files(BTreeMap<(String, String), Bytes>),
    /// The resources of a server.
    Server(Box<Server>),
}

/// The resources of a server that requests select.
pub(super) struct Server {
    pub(super) client: AdminClient<Channel>,
    /// The selection, without type and name.
    pub(super) selection: pb::ListResourcesRequest,
}

impl Source {
    /// Reads manifests. A document may also be a plain `Cluster`, `ClusterLoadAssignment` or
    /// `LoadBalancingPolicy`.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let input = read_all(paths);
        if !input.problems.is_empty() {
            return Err(Failure::lines(input.problems));
        }
        let manifests: Vec<Manifest> = (input.files.into_iter())
            .map(|file| Manifest { content: wrapped(file.content), file: file.name })
            .collect();
        let scope = ScopeName::new("default").map_err(Failure::new)?;
        let transaction = admit(&manifests, &Options::new(scope)).map_err(Failure::lines)?;
        let resources = transaction.upserts.into_iter().map(|upsert| {
            let key = upsert.draft.key;
            ((key.type_url.as_str().to_owned(), key.name.as_str().to_owned()), upsert.draft.body)
        });
        Ok(Self::Files(resources.collect()))
    }

    /// Returns the name of the only cluster of the files.
    pub(super) fn only_cluster(&self) -> Result<String, Failure> {
        let Self::Files(resources) = self else {
            return Err(Failure::new("name a cluster, or give files with -f"));
        };
        let names = resources.keys().filter(|(type_url, _)| type_url == types::CLUSTER);
        let names: Vec<&str> = names.map(|(_, name)| name.as_str()).collect();
        match names.as_slice() {
            [name] => Ok((*name).to_owned()),
            [] => Err(Failure::new("the files contain no cluster and no load balancing policy")),
            _ => Err(Failure::new(format_args!(
                "the files contain {} clusters; name one of them: {}",
                names.len(),
                names.join(", ")
            ))),
        }
    }

    /// Returns the body of a resource.
    pub(super) async fn get(
        &mut self,
        type_url: &str,
        name: &str,
    ) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Files(resources) => {
                Ok(resources.get(&(type_url.to_owned(), name.to_owned())).cloned())
            }
            Self::Server(server) => server.get(type_url, name).await,
        }
    }
}

impl Server {
    async fn get(&mut self, type_url: &str, name: &str) -> Result<Option<Bytes>, Failure> {
        let request = pb::ListResourcesRequest {
            r#type: type_url.to_owned(),
            name: name.to_owned(),
            ..self.selection.clone()
        };
        let response =
            self.client.list_resources(request).await.map_err(|status| refusal(&status))?;
        let mut pieces = response.into_inner();
        let mut found: Vec<pb::Resource> = Vec::new();
        while let Some(piece) = pieces.message().await.map_err(|status| refusal(&status))? {
            found.extend(piece.resources);
        }
        if found.len() > 1 {
            let places: Vec<String> =
                found.iter().map(|it| with_variant(&it.scope, &it.variant)).collect();
            return Err(Failure::new(format_args!(
                "{name:?} exists {} times, in the scopes {}; add --scope, --node or --parameter",
                found.len(),
                places.join(", ")
            )));
        }
        Ok(found.pop().and_then(|resource| resource.body).map(|body| body.value.into()))
    }
}

/// Puts a plain resource or policy into a manifest. Other content stays unchanged.
fn wrapped(content: String) -> String {
    let Ok(Value::Object(mut document)) = serde_saphyr::from_str::<Value>(&content) else {
        return content;
    };
    let is_manifest = ["resources", "scope", "versionInfo", "version_info", "assignments"];
    if is_manifest.iter().any(|key| document.contains_key(*key)) {
        return content;
    }
    let cluster = if document.contains_key("policies") {
        let mut cluster = Map::new();
        document.remove("@type");
        cluster.insert("name".to_owned(), POLICY_WITHOUT_CLUSTER.into());
        cluster.insert("load_balancing_policy".to_owned(), Value::Object(document));
        cluster
    } else {
        document
    };
    let type_url = if cluster.contains_key("cluster_name") || cluster.contains_key("clusterName") {
        types::ENDPOINT
    } else {
        types::CLUSTER
    };
    let mut resource = cluster;
    resource.entry("@type").or_insert_with(|| type_url.into());
    json!({ "resources": [resource] }).to_string()
}
