//! The parts of a shard that its sessions share.

use std::{net::SocketAddr, sync::Arc};

use chancery_model::TypeUrl;
use chancery_view::Differ;

use tracing::warn;

use super::unanswered::UnansweredClients;
use crate::{
    Config,
    log_limit::{RateLimitedLog, RefusalLog, logged_name},
    messages::{client_log::ClientLog, status::NackRecord},
    metrics::ShardMetrics,
    replica::contact::Contact,
    stream::memory::SubscriptionMemory,
    turn::clock::Now,
};

/// The parts that sessions use without a change. Most of them belong to all shards of a replica.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    pub(crate) protocol: Arc<chancery_protocol::Config>,
    pub(crate) differ: Arc<Differ>,
    pub(crate) memory: Arc<SubscriptionMemory>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) metrics: ShardMetrics,
    pub(crate) refusal_log: Arc<RefusalLog>,
    pub(crate) client_log: Arc<ClientLog>,
}

/// The counts and the log limits of a shard's clients.
#[derive(Debug, Default)]
pub(crate) struct ClientCounts {
    pub(crate) unanswered: UnansweredClients,
    /// The limit for log lines about rejections.
    rejection_log: RateLimitedLog,
    /// The limit for log lines about clients that do not answer.
    silence_log: RateLimitedLog,
}

impl ClientCounts {
    /// Logs that the client of a node has rejected a response.
    pub(crate) fn log_rejection(
        &mut self,
        node: &str,
        peer: SocketAddr,
        nack: &NackRecord,
        now: Now,
    ) {
        let Some(left_out) = self.rejection_log.take(now.second()) else { return };
        let (node, type_url) = (logged_name(node), logged_name(nack.type_url.as_str()));
        let NackRecord { version, code, message, .. } = nack;
        warn!(node = &*node, %peer, type_url = &*type_url, %version, code, text = message.as_str(), left_out, "client rejected a response");
    }

    /// Logs that a stream ends because the client of a node does not answer.
    pub(crate) fn log_silence(
        &mut self,
        node: &str,
        peer: SocketAddr,
        type_url: &TypeUrl,
        silent_ms: u64,
        now: Now,
    ) {
        let Some(left_out) = self.silence_log.take(now.second()) else { return };
        let (node, type_url) = (logged_name(node), logged_name(type_url.as_str()));
        warn!(node = &*node, %peer, type_url = &*type_url, silent_ms, left_out, "closing a stream whose client does not answer");
    }
}
