//! The check of a write by the guards.

use std::{collections::BTreeSet, sync::Arc};

use chancery_fanout::StreamStatus;
use chancery_model::State;
use chancery_proto::admin::v1 as pb;
use chancery_protocol::Protocol;

use crate::{
    AdminError,
    nodes::INLINE_STREAMS_MAX,
    service::Service,
    work::Size,
    write_guards::{self, Client, Suspects, Tried, settings::Guard},
};

impl Service {
    /// Returns the guards that a write trips. A write without suspicious parts costs nothing here.
    pub(crate) async fn tripped_guards(
        &self,
        before: &Arc<State>,
        after: &State,
        suspects: Suspects,
        confirmed: BTreeSet<Guard>,
    ) -> Result<Vec<pb::GuardFinding>, AdminError> {
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let n_other_replicas = self.replica.n_members().saturating_sub(1);
        let streams = self.fanout.nodes().await;
        let (before, after, settings) =
            (Arc::clone(before), after.clone(), Arc::clone(&self.guards));
        let size = Size::of(streams.len() <= INLINE_STREAMS_MAX);
        let find = move || {
            let tried = Tried {
                before: &before,
                after: &after,
                suspects: &suspects,
                settings: &settings,
                n_other_replicas,
            };
            let clients: Vec<Client> = streams.iter().map(client).collect();
            write_guards::findings(&tried, &clients)
        };
        let findings = self.work.run(size, find).await?;
        let show = |finding| write_guards::show(finding, &confirmed, n_other_replicas);
        Ok(findings.into_iter().map(show).collect())
    }
}

fn client(stream: &StreamStatus) -> Client {
    let types = stream.subscriptions.iter().map(|one| one.type_url.clone());
    let sotw_types = match stream.protocol {
        Protocol::Sotw => types.collect(),
        Protocol::Delta => Vec::new(),
    };
    Client { node: Arc::clone(&stream.node), sotw_types }
}
