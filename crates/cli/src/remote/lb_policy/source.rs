//! The clusters and assignments that `lb-policy` reads: from files, or from a server.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use bytes::Bytes;
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use chancery_admission::{
    Admitted, Manifest, Options, Problem, ResourceOrigin, admit_unless, locate,
};
use chancery_model::{ScopeName, Upsert, types};
use serde_json::{Map, Value, json};

use crate::{
    failure::Failure,
    remote::{client::refusal, connector::Channel, input::read_all, parameters::with_variant},
};

/// The name of the cluster around a `LoadBalancingPolicy` without a cluster.
const POLICY_WITHOUT_CLUSTER: &str = "policy";

/// A source of resources.
pub(super) enum Source {
    /// The resources of files.
    Files(Files),
    /// The resources of a server.
    Server(Box<Server>),
}

/// The files, their resources, and the origin of each resource.
pub(super) struct Files {
    manifests: Vec<Manifest>,
    upserts: Vec<Upsert>,
    origins: Vec<ResourceOrigin>,
    /// The names of files with a plain resource. Their manifest is generated, so positions in it are meaningless.
    wrapped: BTreeSet<String>,
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
        let mut wrapped = BTreeSet::new();
        let manifests: Vec<Manifest> = (input.files.into_iter())
            .map(|file| match manifest_around(&file.content) {
                None => Manifest { content: file.content, file: file.name },
                Some(content) => {
                    wrapped.insert(file.name.clone());
                    Manifest { content, file: file.name }
                }
            })
            .collect();
        let scope = ScopeName::new("default").map_err(Failure::new)?;
        let admitted = admit_unless(&manifests, &Options::new(scope), &Arc::default());
        let Admitted { transaction, origins, .. } = admitted.map_err(Failure::lines)?;
        Ok(Self::Files(Files { manifests, upserts: transaction.upserts, origins, wrapped }))
    }

    /// Returns the name of the only cluster of the files.
    pub(super) fn only_cluster(&self) -> Result<String, Failure> {
        let Self::Files(files) = self else {
            return Err(Failure::new("name a cluster, or give files with -f"));
        };
        let keys = files.upserts.iter().map(|upsert| &upsert.draft.key);
        let keys = keys.filter(|key| key.type_url.as_str() == types::CLUSTER);
        let names: BTreeSet<&str> = keys.map(|key| key.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
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
            Self::Files(files) => files.get(type_url, name),
            Self::Server(server) => server.get(type_url, name).await,
        }
    }
}

impl Files {
    /// Returns the body of a resource. Fails if several scopes of the files have a resource of this name.
    fn get(&self, type_url: &str, name: &str) -> Result<Option<Bytes>, Failure> {
        let all = self.upserts.iter().zip(&self.origins).filter(|(upsert, _)| {
            let key = &upsert.draft.key;
            key.type_url.as_str() == type_url && key.name.as_str() == name
        });
        let found: Vec<_> = all.collect();
        if let [] | [_] = found.as_slice() {
            return Ok(found.first().map(|(upsert, _)| upsert.draft.body.clone()));
        }
        let problem = |(upsert, origin): &(&Upsert, &ResourceOrigin)| {
            let (scope, n) = (upsert.scope.as_str(), found.len());
            let message = upsert.draft.key.type_url.short_name();
            let rule = format!("exists {n} times in the files, here in scope {scope:?}");
            let fix = "give -f input that has it in only one scope".to_owned();
            let resource = Some(format!("{message} {name:?}"));
            (Some(**origin), Problem { resource, rule, fix, ..Problem::default() })
        };
        let mut problems = locate(&self.manifests, Vec::new(), found.iter().map(problem).collect());
        for problem in problems.iter_mut().filter(|one| self.wrapped.contains(&one.file)) {
            problem.position = None;
        }
        Err(Failure::lines(problems))
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

/// Returns a manifest with a plain resource or policy; `None` for other content.
fn manifest_around(content: &str) -> Option<String> {
    let Ok(Value::Object(mut document)) = serde_saphyr::from_str::<Value>(content) else {
        return None;
    };
    let is_manifest = ["resources", "scope", "versionInfo", "version_info", "assignments"];
    if is_manifest.iter().any(|key| document.contains_key(*key)) {
        return None;
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
    Some(json!({ "resources": [resource] }).to_string())
}
