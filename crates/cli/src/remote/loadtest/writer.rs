//! Writes of a load test through the admin API, into a scope of its own.

use chancery_admin_proto::v1::{
    ApplyRequest, DeleteAssignmentRequest, File, WriteOptions, admin_client::AdminClient,
};
use chancery_fleet_load::Writer;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::super::connector::Channel;

/// The priority of the assignment of the test. Its pattern matches only nodes of the test.
const PRIORITY: i64 = 1_000_000;
/// The guards that protect fleets from what the end of a test does to its own scope.
const CONFIRMED: [&str; 4] = ["mass-deletion", "empty-endpoints", "cluster-in-use", "view-change"];

/// Writes the resources of a run.
pub(super) struct AdminWriter {
    client: AdminClient<Channel>,
    /// The ID of the run, which names the scope and the assignment too.
    run: String,
}

impl AdminWriter {
    pub(super) fn new(client: AdminClient<Channel>, run: &str) -> Self {
        Self { client, run: run.to_owned() }
    }

    async fn apply(&self, manifest: Value, prune: bool, confirm: &[&str]) -> Result<(), Status> {
        let options = WriteOptions {
            author: "chancery loadtest".to_owned(),
            reason: self.run.clone(),
            confirm: confirm.iter().map(|guard| (*guard).to_owned()).collect(),
            ..WriteOptions::default()
        };
        let request = ApplyRequest {
            files: vec![File { name: "load test".to_owned(), content: manifest.to_string() }],
            scope: self.run.clone(),
            prune,
            options: Some(options),
            ..ApplyRequest::default()
        };
        self.client.clone().apply(request).await.map(drop)
    }

    async fn delete_all(&self) -> Result<(), Status> {
        self.apply(json!({"resources": []}), true, &CONFIRMED).await?;
        let options = WriteOptions {
            author: "chancery loadtest".to_owned(),
            confirm: CONFIRMED.map(str::to_owned).to_vec(),
            ..WriteOptions::default()
        };
        let request = DeleteAssignmentRequest { name: self.run.clone(), options: Some(options) };
        match self.client.clone().delete_assignment(request).await {
            // The first write has failed.
            Err(status) if status.code() == Code::NotFound => Ok(()),
            answer => answer.map(drop),
        }
    }
}

impl Writer for AdminWriter {
    fn prepare(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>> {
        let assignment = json!({
            "name": self.run,
            "priority": PRIORITY,
            "match": {"id": format!("{}-*", self.run)},
            "scopes": [self.run],
        });
        let manifest = json!({"assignments": [assignment], "resources": resources});
        Box::pin(
            async move { self.apply(manifest, false, &[]).await.map_err(|error| words(&error)) },
        )
    }

    fn write(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>> {
        let manifest = json!({"resources": resources});
        Box::pin(
            async move { self.apply(manifest, false, &[]).await.map_err(|error| words(&error)) },
        )
    }

    fn clean_up(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.delete_all().await.map_err(|error| words(&error)) })
    }
}

fn words(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
