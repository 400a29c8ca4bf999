//! `grpc.health.v1` (SVC-27): the services `""` and `xds` serve while the replica is ready.

use std::{pin::Pin, time::Duration};

use futures::{Stream, stream};
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use crate::service::Service;

/// How often a watcher's answer is worked out anew.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// The services that are known.
const SERVICES: [&str; 2] = ["", "xds"];

/// The health service. It holds no state: each answer is worked out when it is asked for.
#[derive(Clone)]
pub(crate) struct GrpcHealth(pub(crate) Service);

impl GrpcHealth {
    fn status(&self, service: &str) -> ServingStatus {
        match (SERVICES.contains(&service), self.0.readiness()) {
            (false, _) => ServingStatus::ServiceUnknown,
            (true, Ok(())) => ServingStatus::Serving,
            (true, Err(_)) => ServingStatus::NotServing,
        }
    }
}

fn respond(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for GrpcHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match self.status(&service) {
            ServingStatus::ServiceUnknown => {
                Err(Status::not_found(format!("there is no service {service:?}")))
            }
            status => Ok(Response::new(respond(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Answers at once, and then whenever the status has changed. Ends when the replica drains.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let health = self.clone();
        let changes = stream::unfold(None, move |last: Option<ServingStatus>| {
            let (health, service) = (health.clone(), service.clone());
            async move {
                loop {
                    let now = health.status(&service);
                    if last != Some(now) {
                        return Some((Ok(respond(now)), Some(now)));
                    }
                    if health.0.drain.is_cancelled() {
                        return None;
                    }
                    // Either is a reason to look again.
                    drop(tokio::time::timeout(WATCH_INTERVAL, health.0.drain.cancelled()).await);
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
