//! The adapter for Chancery: its admin API.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chancery_admin_proto::v1::{
    self as pb, access_service_client::AccessServiceClient, admin_client::AdminClient,
};
use serde_json::json;
use tonic::{
    Code,
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

/// The number of attempts to remove something at the end.
const ATTEMPTS: u32 = 3;
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// Publishes through Chancery's admin API.
///
/// Each node has a scope of its own. One assignment gives each node of the run its scope. No other scope or assignment
/// is touched.
#[derive(Debug)]
pub struct Chancery<T> {
    admin: T,
    run: String,
    /// The state of this run that the server may hold.
    left: Mutex<Left>,
}

/// The state of a run that the server may hold. A write without an answer may have taken effect.
#[derive(Debug, Default)]
struct Left {
    has_assignment: bool,
    scopes: BTreeSet<String>,
}

/// Returns the scope of a node, which no other run uses: each run generates unique node IDs. The scopes of all runs
/// have the same first segment, so that an access rule can permit all of them.
fn scope(node: &str) -> String {
    format!("conformance/{node}")
}

impl<T: Connection> Chancery<T> {
    /// Creates the adapter. The IDs of the nodes begin with `run`.
    pub fn new(admin: T, run: &str) -> Self {
        Self { admin, run: run.to_owned(), left: Mutex::default() }
    }

    fn client(&self) -> AdminClient<T> {
        AdminClient::new(self.admin.clone())
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if the caller may not publish, or may not remove what it publishes.
    async fn check_rights(&self) -> Result<(), String> {
        let scope = scope(&format!("{}-0", self.run));
        // Removing a resource needs `prune`, and confirming guards needs `force`.
        let needed = [("assign", ""), ("apply", &scope), ("prune", &scope), ("force", &scope)];
        for (verb, scope) in needed {
            let request = pb::CheckAccessRequest {
                verb: verb.to_owned(),
                scope: scope.to_owned(),
                ..pb::CheckAccessRequest::default()
            };
            let checked = AccessServiceClient::new(self.admin.clone()).check_access(request).await;
            let place = if scope.is_empty() { "" } else { " in the scopes of this run" };
            match checked {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    if answer.enforced && !answer.allowed {
                        return Err(format!(
                            "{} may not use the verb `{verb}`{place}, so that the kit could not publish its resources \
                             and remove them; nothing was written",
                            answer.identity
                        ));
                    }
                }
                // A server without access rules checks nothing.
                Err(status) if status.code() == Code::Unimplemented => return Ok(()),
                Err(status) => {
                    return Err(format!(
                        "the admin port refuses the kit: {}; nothing was written",
                        status.message()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Creates the assignment of the run.
    async fn assign(&self) -> Result<(), String> {
        let manifest = json!({"assignments": [{
            "name": self.run,
            // No other assignment of the server decides for these nodes.
            "priority": i64::MAX,
            "match": {"id": format!("{}-*", self.run)},
            "scopes": [scope("{node.id}")],
        }]});
        self.left().has_assignment = true;
        self.apply(manifest.to_string(), String::new()).await
    }

    async fn remove_assignment(&self) -> Result<(), String> {
        let confirm = vec!["all".into()];
        let options = Some(pb::WriteOptions { confirm, ..pb::WriteOptions::default() });
        let request = pb::DeleteAssignmentRequest { name: self.run.clone(), options };
        match self.client().delete_assignment(request).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(status.message().to_owned()),
        }
    }

    /// Removes everything that the server may hold of this run. The error names everything that may remain.
    async fn remove_all(&self) -> Result<(), String> {
        let scopes: Vec<String> = self.left().scopes.iter().cloned().collect();
        let mut first_error = None;
        for scope in scopes {
            let nothing = json!({"scope": scope, "resources": []}).to_string();
            match self.apply(nothing, scope.clone()).await {
                Ok(()) => {
                    self.left().scopes.remove(&scope);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let has_assignment = self.left().has_assignment;
        if has_assignment {
            match self.remove_assignment().await {
                Ok(()) => self.left().has_assignment = false,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            None => Ok(()),
            Some(error) => Err(format!("{error}; left on the server: {}", self.names_left())),
        }
    }

    /// Returns the assignment and the scopes that the server may hold.
    fn names_left(&self) -> String {
        let left = self.left();
        let assignment = left.has_assignment.then(|| format!("assignment {}", self.run));
        let scopes = left.scopes.iter().map(|scope| format!("scope {scope}"));
        assignment.into_iter().chain(scopes).collect::<Vec<_>>().join(", ")
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
        let answer = self.client().apply(request).await;
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
        let (scope, resources) = (scope(state.node()), state.resources());
        let is_empty = resources.is_empty();
        let manifest = json!({"scope": scope, "resources": resources}).to_string();
        Box::pin(async move {
            self.left().scopes.insert(scope.clone());
            self.apply(manifest, scope.clone()).await?;
            if is_empty {
                self.left().scopes.remove(&scope);
            }
            Ok(())
        })
    }

    fn start(&self) -> Publishing<'_> {
        Box::pin(async move {
            self.check_rights().await?;
            self.assign().await
        })
    }

    fn finish(&self) -> Publishing<'_> {
        Box::pin(async move {
            let mut removed = self.remove_all().await;
            for _ in 1..ATTEMPTS {
                if removed.is_ok() {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
                removed = self.remove_all().await;
            }
            removed
        })
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    #[tokio::test]
    async fn failed_removal_names_everything_that_is_left() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let admin = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        let adapter = Chancery::new(admin, "run");
        assert!(adapter.assign().await.is_err());
        for node in ["run-1", "run-2"] {
            let state = State::new(node.to_owned(), format!("{node}-"));
            assert!(adapter.publish(&state).await.is_err());
        }
        let error = adapter.remove_all().await.unwrap_err();
        let left = "assignment run, scope conformance/run-1, scope conformance/run-2";
        assert!(error.ends_with(&format!("; left on the server: {left}")), "{error}");
    }
}
