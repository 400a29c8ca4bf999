//! `grpc.health.v1` (SVC-27): the services `""` and `xds` serve while the replica is ready.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, stream};
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use crate::deps::Deps;

/// The interval at which a watch computes the status again.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// The known services.
const SERVICES: [&str; 2] = ["", "xds"];

/// The health service. It keeps no state, and computes each answer on request.
#[derive(Clone)]
pub(crate) struct GrpcHealth(pub(crate) Arc<Deps>);

impl GrpcHealth {
    fn status(&self, service: &str) -> ServingStatus {
        match (SERVICES.contains(&service), self.0.readiness.check()) {
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
                Err(Status::not_found(format!("unknown service {service:?}")))
            }
            status => Ok(Response::new(respond(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Answers at once, and after each change of the status. Ends when the replica drains.
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
                    // The status is computed again after the interval, or when the replica drains.
                    drop(tokio::time::timeout(WATCH_INTERVAL, health.0.drain.cancelled()).await);
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
