//! The load that clients report (LRS), and the settings of their reports.
//!
//! Reports are not replicated (LRS-19). An answer covers the clients of this replica, and says how complete
//! it is.

use std::time::Duration;

use chancery_admin_proto::v1 as pb;
use chancery_load::{Clusters, LoadReports, Query, SettingsError};

use crate::{AdminError, ctx::Ctx, nodes};

/// The default number of clusters in an answer.
const CLUSTERS_DEFAULT: u32 = 1000;
/// The maximum number of clusters in an answer.
const CLUSTERS_MAX: u32 = 10_000;

/// Returns the load that clients have reported to this replica.
pub(crate) async fn get_load(
    ctx: &Ctx,
    request: pb::GetLoadRequest,
) -> Result<pb::LoadStatus, AdminError> {
    let reports = reports_of(ctx)?;
    let limit = match request.limit {
        0 => CLUSTERS_DEFAULT,
        limit if limit > CLUSTERS_MAX => {
            let text = format!("the limit is {limit}; at most {CLUSTERS_MAX} clusters are shown");
            return Err(AdminError::Parameter(text));
        }
        limit => limit,
    };
    let query = Query {
        cluster: request.cluster,
        endpoints: request.endpoints,
        clusters_max: usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let mut status = reports.show(query).await;
    status.replica_id = ctx.deps.replica.status().replica_id;
    status.replicas_not_asked = nodes::replicas_not_asked(&ctx.deps);
    status.complete =
        status.replicas_not_asked == 0 && status.clusters_omitted == 0 && status.omitted.is_empty();
    Ok(status)
}

/// Changes what clients report to this replica.
pub(crate) fn set_load_settings(
    ctx: &Ctx,
    request: pb::SetLoadSettingsRequest,
) -> Result<pb::LoadSettings, AdminError> {
    let reports = reports_of(ctx)?;
    let clusters = request.clusters.map(|clusters| Clusters::from_list(clusters.names));
    let clusters = clusters.transpose()?;
    let settings = reports.change(|settings| {
        if let Some(clusters) = clusters {
            settings.clusters = clusters;
        }
        if let Some(ms) = request.interval_ms {
            settings.interval = Duration::from_millis(ms);
        }
        if let Some(endpoints) = request.endpoints {
            settings.endpoints = endpoints;
        }
    })?;
    let settings = chancery_load::show_settings(&settings);
    tracing::info!(?settings, "the settings of load reports were changed");
    Ok(settings)
}

fn reports_of(ctx: &Ctx) -> Result<&LoadReports, AdminError> {
    ctx.deps.load_reports.as_ref().ok_or_else(|| {
        let text = "this replica does not serve load reports (load_reports.enabled is false)";
        AdminError::Precondition(text.to_owned())
    })
}

impl From<SettingsError> for AdminError {
    fn from(error: SettingsError) -> Self {
        Self::Parameter(error.to_string())
    }
}
