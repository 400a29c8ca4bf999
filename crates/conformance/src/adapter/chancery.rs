//! The adapter for Chancery: its admin API.

use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use serde_json::json;
use tonic::{
    body::Body,
    client::GrpcService,
    codegen::{Body as HttpBody, Bytes, StdError},
};

use super::{Adapter, Publishing};
use crate::state::State;

/// A connection to Chancery's admin port, which may add credentials to the requests.
pub trait Connection:
    GrpcService<
        Body,
        ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
        Future: Send,
        Error: Into<StdError>,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Connection for T where
    T: GrpcService<
            Body,
            ResponseBody: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
            Future: Send,
            Error: Into<StdError>,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Publishes through Chancery's admin API.
///
/// Each node has a scope of its own. One assignment gives each node of the run its scope. No other scope or assignment
/// is touched.
#[derive(Debug)]
pub struct Chancery<T> {
    admin: AdminClient<T>,
    run: String,
}

impl<T: Connection> Chancery<T> {
    /// Creates the assignment of the run. The ids of its nodes begin with `run`.
    ///
    /// # Errors
    /// Fails if the server rejects the assignment.
    pub async fn start(admin: T, run: &str) -> Result<Self, String> {
        let this = Self { admin: AdminClient::new(admin), run: run.to_owned() };
        let manifest = json!({"assignments": [{
            "name": run,
            // No other assignment of the server decides for these nodes.
            "priority": i64::MAX,
            "match": {"id": format!("{run}-*")},
            "scopes": [this.scope("{node.id}")],
        }]});
        this.apply(manifest.to_string(), String::new()).await?;
        Ok(this)
    }

    fn scope(&self, node: &str) -> String {
        format!("{}/{node}", self.run)
    }

    /// Replaces the content of a scope.
    async fn apply(&self, content: String, scope: String) -> Result<(), String> {
        let request = pb::ApplyRequest {
            files: vec![pb::File { name: "conformance".into(), content }],
            prune: !scope.is_empty(),
            scope,
            options: Some(pb::WriteOptions {
                author: "chancery conformance".into(),
                problems_in_response: true,
                // The cases take away what their clients use.
                confirm: vec!["all".into()],
                ..pb::WriteOptions::default()
            }),
            ..pb::ApplyRequest::default()
        };
        let answer = self.admin.clone().apply(request).await;
        let problems = answer.map_err(|status| status.message().to_owned())?.into_inner().problems;
        match problems.first() {
            Some(problem) => {
                Err(format!("the server rejects a sample resource: {}", problem.message))
            }
            None => Ok(()),
        }
    }
}

impl<T: Connection> Adapter for Chancery<T> {
    fn publish<'a>(&'a self, state: &'a State) -> Publishing<'a> {
        let scope = self.scope(state.node());
        let manifest = json!({"scope": scope, "resources": state.resources()}).to_string();
        Box::pin(self.apply(manifest, scope))
    }

    fn finish(&self) -> Publishing<'_> {
        Box::pin(async move {
            let confirm = vec!["all".into()];
            let options = Some(pb::WriteOptions { confirm, ..pb::WriteOptions::default() });
            let request = pb::DeleteAssignmentRequest { name: self.run.clone(), options };
            let deleted = self.admin.clone().delete_assignment(request).await;
            deleted.map(drop).map_err(|status| status.message().to_owned())
        })
    }
}
