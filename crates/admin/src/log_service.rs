//! The log service: an operator may change the filter of the log while the replica runs.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use chancery_model::{Target, Verb};
use chancery_proto::admin::v1::{self as pb, log_service_server::LogService};
use tonic::{Request, Response, Status};

use crate::{
    AdminError,
    audited::Operation,
    log_filter::{LogFilter, LogFilterState},
    service::Service,
};

/// The time that a temporary filter may last.
const LASTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);

/// The log service.
#[derive(Clone)]
pub(crate) struct GrpcLog(pub(crate) Service);

#[tonic::async_trait]
impl LogService for GrpcLog {
    async fn get_log_filter(
        &self,
        request: Request<pb::GetLogFilterRequest>,
    ) -> Result<Response<pb::LogFilter>, Status> {
        let service = self.0.of(request.extensions());
        Ok(Response::new(service.get_log_filter()?))
    }

    async fn set_log_filter(
        &self,
        request: Request<pb::SetLogFilterRequest>,
    ) -> Result<Response<pb::LogFilter>, Status> {
        let service = self.0.of(request.extensions());
        Ok(Response::new(service.set_log_filter(request.into_inner()).await?))
    }
}

impl Service {
    fn get_log_filter(&self) -> Result<pb::LogFilter, AdminError> {
        self.authorize(Verb::Cluster, Target::Cluster)?;
        Ok(self.show_log_filter(self.log()?.state()))
    }

    async fn set_log_filter(
        &self,
        request: pb::SetLogFilterRequest,
    ) -> Result<pb::LogFilter, AdminError> {
        let operation = Operation::new("log.set").detail("filter", request.filter.as_str());
        let operation = match request.for_ms {
            Some(ms) => operation.detail("for_ms", ms),
            None => operation,
        };
        self.audited(operation, async { self.try_set_log_filter(request) }).await
    }

    fn try_set_log_filter(
        &self,
        request: pb::SetLogFilterRequest,
    ) -> Result<pb::LogFilter, AdminError> {
        self.authorize(Verb::LogWrite, Target::Cluster)?;
        let lasts = request.for_ms.map(Duration::from_millis);
        if lasts.is_some_and(|lasts| !LASTS.contains(&lasts)) {
            let text = "the time of a log filter must be from 1s to 24h".to_owned();
            return Err(AdminError::Parameter(text));
        }
        let state = self.log()?.set(&request.filter, lasts).map_err(|reason| {
            AdminError::Parameter(format!("the log filter is not valid: {reason}"))
        })?;
        Ok(self.show_log_filter(state))
    }

    fn log(&self) -> Result<&Arc<dyn LogFilter>, AdminError> {
        self.log.as_ref().ok_or_else(|| {
            AdminError::Precondition("the log of this process has no filter".to_owned())
        })
    }

    fn show_log_filter(&self, state: LogFilterState) -> pb::LogFilter {
        let LogFilterState { filter, configured, returns_in } = state;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        pb::LogFilter {
            replica_id: self.replica.status().replica_id,
            filter,
            configured,
            returns_in_ms: returns_in.map(millis),
        }
    }
}
