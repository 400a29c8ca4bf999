//! The load that clients report (LRS), and the settings of their reports.
//!
//! Reports are not replicated (LRS-19). Each replica answers for its clients, and the answer for the caller is the sum.
//! It says how complete it is.

use std::time::Duration;

use chancery_admin_proto::v1 as pb;
use chancery_load::{Clusters, LoadReports, Query, SettingsError};

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    load_sum,
    page::{LIMIT_MAX, Page},
};

/// The default number of clusters in an answer.
const CLUSTERS_DEFAULT: usize = 1000;

/// Returns the load that clients have reported to all replicas.
pub(crate) async fn get_load(
    ctx: &Ctx,
    request: pb::GetLoadRequest,
) -> Result<pb::LoadStatus, AdminError> {
    reports_of(ctx)?;
    let page = page(&request)?;
    let is_local = request.local;
    let limit = u32::try_from(page.limit()).unwrap_or(u32::MAX);
    let request = pb::GetLoadRequest { local: true, limit, ..request };
    let here = load_here(ctx, request.clone());
    let (here, there) = tokio::join!(here, fleet::ask_unless(is_local, ctx, &request));
    let (n_answered, n_not_asked) = (there.n_answered(), there.n_not_asked);
    let not_asked = there.not_asked.clone();
    let mut status = here?;
    let mut end = load_sum::end(&status);
    for mut reply in there.into_replies() {
        // A replica of an older release lists the clusters from the first one.
        reply.clusters.retain(|one| page.after().is_none_or(|after| load_sum::key(one) > *after));
        end = end.into_iter().chain(load_sum::end(&reply)).min();
        load_sum::add(&mut status, reply);
    }
    load_sum::limit(&mut status, end.as_ref(), page.limit());
    if status.clusters_omitted > 0
        && let Some(last) = status.clusters.last()
    {
        status.next = page.cursor(&load_sum::key(last));
    }
    status.replicas = n_answered + 1;
    status.replicas_not_asked = n_not_asked;
    status.not_asked = not_asked;
    status.complete = n_not_asked == 0 && status.clusters_omitted == 0 && status.omitted.is_empty();
    Ok(status)
}

impl FleetRequest for pb::GetLoadRequest {
    const NAME: &'static str = "chancery.admin.v1.GetLoadRequest";
    type Reply = pb::LoadStatus;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::LoadStatus, AdminError> {
        let limit = self.limit.clamp(1, LIMIT_MAX);
        load_here(ctx, Self { limit, ..self }).await
    }
}

/// Returns the page of clusters that a request asks for.
fn page(request: &pb::GetLoadRequest) -> Result<Page<load_sum::Key>, AdminError> {
    Page::parse("load", request.limit, &request.cursor, CLUSTERS_DEFAULT)
}

/// Returns the load that clients have reported to this replica.
async fn load_here(ctx: &Ctx, request: pb::GetLoadRequest) -> Result<pb::LoadStatus, AdminError> {
    let reports = reports_of(ctx)?;
    let page = page(&request)?;
    let query = Query {
        cluster: request.cluster,
        endpoints: request.endpoints,
        clusters_max: page.limit(),
        after: page.after().cloned(),
    };
    let mut status = reports.show(query).await;
    status.replica_id = ctx.deps.replica.id();
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
