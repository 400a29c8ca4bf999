//! The admin API on one port: gRPC `chancery.admin.v1`, health, reflection, and HTTP with JSON.
//!
//! Every operation is one row of a table (`operations`). gRPC and HTTP are two ways to call it. The .proto
//! is the only source of the message shapes ([`json`]).
//!
//! Invariants:
//! - Every request is authenticated (`authenticate`), and the table names the right that each operation needs.
//! - Every write goes through admission, and takes effect as one transaction or not at all.
//! - Secrets are never shown: every body in an answer goes through `chancery_admission::redacted`.
//! - This crate keeps no state of the cluster, and reads never wait for writes. The sums of load reports belong to
//!   `chancery_load`.

// The futures of a gRPC or HTTP call nest deeper than the compiler's default of 128.
#![recursion_limit = "256"]

mod access;
mod access_changes;
mod access_effects;
mod access_messages;
mod analyze;
mod authenticate;
mod backup;
#[doc(hidden)]
pub mod bench;
mod bounds;
mod caller;
mod changed_names;
mod changes;
mod cluster;
mod collection_requests;
mod console;
mod console_paths;
mod create_times;
mod csds;
mod ctx;
mod deletion;
mod deps;
mod describe;
mod disconnect;
mod drain;
mod early;
mod error;
mod explain;
mod external;
mod fleet;
mod fleet_answers;
mod fleet_effects;
mod fleet_messages;
mod fleet_wait;
mod found_node;
mod freeze;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod held_changes;
mod history;
mod http;
mod item_changes;
pub mod json;
mod keys;
mod known_clients;
mod lasting;
mod load;
mod load_sum;
mod log_filter;
mod log_service;
mod mcp;
mod members;
mod metrics;
mod node_counts;
mod node_facts;
mod node_groups;
mod node_list;
mod node_state;
mod node_survey;
mod nodes;
mod openapi;
mod operation_log;
#[macro_use]
mod operation_rows;
mod operations;
mod origin;
mod page;
mod params;
mod past;
mod probes;
mod readiness;
mod recent_nodes;
mod record;
mod redact;
mod references;
mod releases;
mod reply;
mod request_ids;
mod requested;
mod resolve;
mod resources;
mod revisions;
mod rollback;
mod routes;
pub mod time_limits;
mod times;
mod trial;
mod unchanged;
mod unrequested_collections;
mod wait;
mod wait_progress;
mod wait_reasons;
mod watch;
mod web_pages;
mod work;
mod write;
mod write_access;
mod write_check;
mod write_guards;
mod write_input;
mod write_options;
mod write_profiles;
mod write_trace;

use std::sync::Arc;

use axum::Router;
use chancery_admin_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{
        access_service_server::AccessServiceServer, admin_server::AdminServer,
        analysis_service_server::AnalysisServiceServer, backup_service_server::BackupServiceServer,
        history_service_server::HistoryServiceServer, keys_service_server::KeysServiceServer,
        load_service_server::LoadServiceServer, log_service_server::LogServiceServer,
        mcp_service_server::McpServiceServer, resolve_service_server::ResolveServiceServer,
        streams_service_server::StreamsServiceServer, watch_service_server::WatchServiceServer,
    },
};
use chancery_model::{ResourceDraft, ScopeName, types};
use futures::{FutureExt, future::BoxFuture};
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

pub use caller::AdminAccess;
pub use chancery_admission::{canonical_json, secret_values};
pub use console_paths::ConsoleSettings;
pub use deps::AdminDeps;
pub use early::{EarlyDeps, RouteSwitch, early_router};
pub use error::{AdminError, is_surely_not_written, problem_line};
pub use external::settings::{ExternalInput, ExternalValidator};
pub use fleet_wait::Enough;
pub use held_changes::HIDDEN_SCOPE;
#[doc(hidden)]
pub use http::http_paths;
pub use log_filter::{LogFilter, LogFilterState};
pub use metrics::METRICS;
pub use node_state::NODE_STATES;
pub use nodes::unanswered;
pub use probes::{Liveness, RenderMetrics};
pub use readiness::{NotReady, NotReadyReason, Readiness, drained};
pub use recent_nodes::RecentNodesSettings;
pub use references::ReferenceSettings;
pub use write_guards::settings::{ALL_GUARDS, GUARD_NAMES, GuardSettings, guard_name};

/// Reads the descriptors of the Envoy API, so that the first request does not have to. This takes
/// most of a second on a slow machine.
pub fn warm_up() {
    let manifest = chancery_admission::Manifest {
        file: String::new(),
        content: format!("resources: [{{'@type': {}, name: x}}]", types::CLUSTER),
    };
    let Ok(scope) = ScopeName::new("default") else { return };
    let options = chancery_admission::Options {
        validation: chancery_admission::Validation::default(),
        ..chancery_admission::Options::new(scope)
    };
    let admitted = chancery_admission::admit(&[manifest], &options);
    for upsert in admitted.iter().flat_map(|transaction| &transaction.upserts) {
        let ResourceDraft { key, body, .. } = &upsert.draft;
        drop(chancery_admission::redacted(&key.type_url, body));
        drop(chancery_admission::body_to_json(&key.type_url, body));
    }
}

/// Returns the routes of the admin port, and a task that ends when the replica drains. The task keeps the index of
/// references up to date. Without it, a request that needs the index may take long. It also lets this replica answer
/// the questions of others, on the runtime of the task and while the routes exist.
pub fn router(deps: &AdminDeps) -> (Router, BoxFuture<'static, ()>) {
    let service = deps::Deps::new(deps, fleet_answers::answerer);
    let background = Arc::clone(&service);
    let background = async move {
        background.replica.answer_with(Arc::downgrade(&background.answerer));
        // Without a time to keep nodes, the list of recent ones has nothing to do.
        let nodes = async {
            let recent = background.recent_nodes.clone().run(background.fanout.clone());
            let ends = freeze::end_freezes(&background);
            tokio::join!(recent, node_counts::run(background.fanout.clone()), ends);
        };
        tokio::select! {
            () = write_check::update_references(&background) => {}
            () = nodes => {}
        }
        background.recent_nodes.finish(&background.fanout).await;
    };
    let request_bytes_max = usize::try_from(deps.request_bytes_max).unwrap_or(usize::MAX);
    let operations = operations::Grpc(Arc::clone(&service));
    let admin = AdminServer::new(operations.clone())
        .max_decoding_message_size(request_bytes_max)
        .max_encoding_message_size(usize::MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_file_descriptor_set(csds::descriptors())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    const READABLE: &str = "the build wrote the descriptors, and a test reads them";
    let routes = Routes::new(admin)
        .add_service(AccessServiceServer::new(operations.clone()))
        .add_service(AnalysisServiceServer::new(operations.clone()))
        .add_service(HistoryServiceServer::new(operations.clone()))
        .add_service(BackupServiceServer::new(operations.clone()))
        .add_service(KeysServiceServer::new(operations.clone()))
        .add_service(csds::GrpcCsds(Arc::clone(&service)))
        .add_service(
            LoadServiceServer::new(operations.clone()).max_encoding_message_size(usize::MAX),
        )
        .add_service(LogServiceServer::new(operations.clone()))
        .add_service(McpServiceServer::new(operations.clone()))
        .add_service(StreamsServiceServer::new(operations.clone()))
        .add_service(WatchServiceServer::new(operations.clone()))
        .add_service(ResolveServiceServer::new(operations).max_encoding_message_size(usize::MAX))
        .add_service(HealthServer::new(health::GrpcHealth(Arc::clone(&service))))
        .add_service(reflection().build_v1().expect(READABLE))
        .add_service(reflection().build_v1alpha().expect(READABLE));
    (http::add_routes(routes.prepare().into_axum_router(), &service, deps), background.boxed())
}
