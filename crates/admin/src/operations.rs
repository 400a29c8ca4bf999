//! The operations of the admin API: one row per operation.
//!
//! From the rows come the functions that run operations, the gRPC services, the HTTP routes, and their description. A
//! row without `needs` does not compile, and an operation runs only with a [`Ctx`](crate::ctx::Ctx), which the check of
//! the right creates.

use std::{convert::identity, sync::Arc};

use axum::routing::MethodFilter;
use chancery_admin_proto::v1::{
    self as pb, access_service_server, admin_server, analysis_service_server,
    backup_service_server, history_service_server, keys_service_server, load_service_server,
    log_service_server, mcp_service_server, resolve_service_server, streams_service_server,
    watch_service_server,
};
use chancery_model::Verb;
use tonic::{Request, Response, Status};

use crate::{
    AdminError, access, analyze,
    backup::{self, BackupPieces},
    cluster,
    ctx::{
        Access::{self, AnyWrite, Cluster, Open, Somewhere},
        Call, Needs,
    },
    deps::Deps,
    describe, disconnect, drain, explain, fleet_wait, freeze, history, keys, load, log_service,
    mcp, members,
    node_list::{self, NodePages},
    nodes,
    record::{Operation, Record},
    reply::{HttpReply, Reply, problems_in},
    resolve,
    resources::{self, Listing},
    revisions, rollback,
    routes::{self, Input, Routes},
    watch::{self, WatchEvents},
    write,
};

/// The description of an operation over HTTP.
pub(crate) struct Described {
    pub(crate) id: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) needs: Access,
    pub(crate) reads_body: bool,
    /// The name and the kind of each parameter: a method of [`Params`](crate::params::Params).
    pub(crate) parameters: &'static [(&'static str, &'static str)],
    /// The full name of the message of the answer, or of each event of a stream.
    pub(crate) reply: &'static str,
    /// The content type of the answer.
    pub(crate) content_type: &'static str,
}

/// The gRPC services of the operations.
#[derive(Clone)]
pub(crate) struct Grpc(pub(crate) Arc<Deps>);

operations! {
    service Admin in admin_server {
        /// Publishes manifests.
        apply(ctx, request: ApplyRequest) -> pb::WriteResponse {
            needs: AnyWrite,
            record: write(write::record_apply(&request)),
            http: POST "/v1/apply" (
                routes::read_apply, true, ["scope" given_text, "prune" flag, "name" text, "" options]
            ),
            problems_in_answer: request.options.as_ref().is_some_and(|all| all.problems_in_response),
            run: write::apply(ctx, request).await,
        }

        /// Publishes the static resources of an Envoy bootstrap.
        import(ctx, request: ImportRequest) -> pb::WriteResponse {
            needs: Somewhere(Verb::Apply),
            record: write(write::record_import(&request)),
            http: POST "/v1/import" (routes::read_import, true, ["scope" given_text, "name" text, "" options]),
            problems_in_answer: request.options.as_ref().is_some_and(|all| all.problems_in_response),
            run: write::import(ctx, request).await,
        }

        /// Deletes existing resources.
        delete(ctx, request: DeleteRequest) -> pb::WriteResponse {
            needs: Somewhere(Verb::Delete),
            record: write(write::record_delete(&request)),
            http: DELETE "/v1/resources" (routes::read_delete, false, [
                "type" text, "name" list, "scope" given_text, "if_version" text, "parameter" pairs, "" options,
            ]),
            run: write::delete(ctx, request).await,
        }

        /// Returns resources of scopes, or of the view of a node, in pieces.
        list_resources(ctx, request: ListResourcesRequest) -> Listing, as ListResourcesStream {
            needs: Somewhere(Verb::Get),
            record: read,
            http: GET "/v1/resources" {
                r#type: given_text("type"),
                name: text("name"),
                scope: given_text("scope"),
                view_of_node: text("view_of_node"),
                without_body: flag("without_body"),
                stale: flag("stale"),
                dynamic_parameters: pairs("parameter"),
                limit: limit("limit"),
                cursor: text("cursor"),
                revision: number("revision"),
            },
            run: resources::list_resources(ctx, request).await,
        }

        /// Returns a resource in each scope, and who has it.
        describe_resource(ctx, request: DescribeResourceRequest) -> pb::DescribeResourceResponse {
            needs: Somewhere(Verb::Get),
            record: read,
            http: GET "/v1/describe" {
                r#type: required_text("type"),
                name: text("name"),
                scope: given_text("scope"),
                stale: flag("stale"),
                local: flag("local"),
                dynamic_parameters: pairs("parameter"),
            },
            run: describe::describe_resource(ctx, request).await,
        }

        /// Returns the connected nodes in pieces.
        list_nodes(ctx, request: ListNodesRequest) -> NodePages, as ListNodesStream {
            needs: Cluster(Verb::Nodes),
            record: read,
            http: GET "/v1/nodes" {
                id: text("id"),
                state: text("state"),
                local: flag("local"),
                limit: limit("limit"),
                cursor: text("cursor"),
                behind: number("behind"),
                ids: texts("node"),
                count: flag("count"),
            },
            run: node_list::list_nodes(ctx, request).await,
        }

        /// Returns one connected node.
        get_node(ctx, request: GetNodeRequest) -> pb::NodeStatus {
            needs: Cluster(Verb::Nodes),
            record: read,
            http: GET "/v1/nodes/{*id}" { id: path("id"), local: flag("local") },
            run: nodes::get_node(ctx, request).await,
        }

        /// Waits until sessions of all replicas have acknowledged a revision.
        wait(ctx, request: WaitRequest) -> pb::WaitResult {
            needs: Somewhere(Verb::Get),
            record: read,
            http: GET "/v1/wait" {
                revision: required_number("revision"),
                wait_ms: millis("timeout"),
                scope: given_text("scope"),
                r#for: text("for"),
            },
            run: fleet_wait::wait(ctx, request).await,
        }

        /// Explains what a node sees of a resource, and why.
        explain(ctx, request: ExplainRequest) -> pb::ExplainResponse {
            needs: Cluster(Verb::Nodes),
            record: read,
            http: GET "/v1/explain" {
                node: text("node"),
                r#type: given_text("type"),
                name: text("name"),
                stale: flag("stale"),
                local: flag("local"),
                dynamic_parameters: pairs("parameter"),
            },
            run: explain::explain_node(ctx, request).await,
        }

        /// Returns the assignments.
        list_assignments(ctx, request: ListAssignmentsRequest) -> pb::ListAssignmentsResponse {
            needs: Cluster(Verb::Assignments),
            record: read,
            http: GET "/v1/assignments" { stale: flag("stale"), limit: limit("limit"), cursor: text("cursor") },
            run: cluster::list_assignments(ctx, request).await,
        }

        /// Deletes an existing assignment.
        delete_assignment(ctx, request: DeleteAssignmentRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::Assign),
            record: write(write::record_delete_assignment(&request)),
            http: DELETE "/v1/assignments" { name: text("name"), options: options() },
            run: write::delete_assignment(ctx, request).await,
        }

        /// Returns the members of the cluster and their status.
        get_cluster(ctx, _request: GetClusterRequest) -> pb::ClusterStatus {
            needs: Cluster(Verb::Cluster),
            record: read,
            http: GET "/v1/cluster" {},
            run: cluster::get_cluster(ctx).await,
        }

        /// Adds a replica to the cluster.
        add_member(ctx, request: AddMemberRequest) -> pb::ChangeResponse {
            needs: Cluster(Verb::Members),
            record: act(members::record_add(&request)),
            http: POST "/v1/cluster/members" {
                replica_id: required_number("id"),
                address: text("address"),
                learner: flag("learner"),
            },
            run: members::add_member(ctx, request).await,
        }

        /// Makes a learner a voter.
        promote_member(ctx, request: PromoteMemberRequest) -> pb::ChangeResponse {
            needs: Cluster(Verb::Members),
            record: act(members::record("member.promote", request.replica_id)),
            http: POST "/v1/cluster/promote" { replica_id: required_number("id") },
            run: members::promote_member(ctx, request).await,
        }

        /// Removes a member.
        remove_member(ctx, request: RemoveMemberRequest) -> pb::ChangeResponse {
            needs: Cluster(Verb::Members),
            record: act(members::record("member.remove", request.replica_id)),
            http: DELETE "/v1/cluster/members" { replica_id: required_number("id") },
            run: members::remove_member(ctx, request).await,
        }

        /// Transfers leadership to another voter.
        transfer_leader(ctx, request: TransferLeaderRequest) -> pb::ChangeResponse {
            needs: Cluster(Verb::Members),
            record: act(members::record("leader.transfer", request.replica_id)),
            http: POST "/v1/cluster/transfer-leader" { replica_id: number("id") },
            run: members::transfer_leader(ctx, request).await,
        }

        /// Takes a snapshot on this replica.
        take_snapshot(ctx, _request: TakeSnapshotRequest) -> pb::TakeSnapshotResponse {
            needs: Cluster(Verb::Members),
            record: act(Operation::new("snapshot.take")),
            http: POST "/v1/cluster/snapshot" {},
            run: members::take_snapshot(ctx).await,
        }

        /// Returns the newest entries of the history.
        list_history(ctx, request: ListHistoryRequest) -> pb::ListHistoryResponse {
            needs: Cluster(Verb::History),
            record: read,
            http: GET "/v1/history" {
                limit: limit("limit"),
                stale: flag("stale"),
                cursor: text("cursor"),
                scope: given_text("scope"),
                r#type: given_text("type"),
                name: text("name"),
                author: text("author"),
                since_ms: number_or_zero("since_ms"),
                request_id: text("request_id"),
                label: text("label"),
                names: capped("names"),
            },
            run: history::list_history(ctx, request).await,
        }

        /// Restores a resource, a scope or everything from an earlier revision.
        rollback(ctx, request: RollbackRequest) -> pb::WriteResponse {
            needs: AnyWrite,
            record: write(rollback::record_rollback(&request)),
            http: POST "/v1/rollback" {
                to: number("to"),
                scope: given_text("scope"),
                all: flag("all"),
                r#type: given_text("type"),
                name: given_text("name"),
                options: options(),
            },
            run: rollback::rollback(ctx, request).await,
        }

        /// Undoes the changes of one revision.
        undo(ctx, request: UndoRequest) -> pb::WriteResponse {
            needs: AnyWrite,
            record: write(rollback::record_undo(&request)),
            http: POST "/v1/undo" { revision: required_number("revision"), options: options() },
            run: rollback::undo(ctx, request).await,
        }

        /// Freezes a scope, or all scopes and the assignments: clients keep what they have.
        freeze(ctx, request: FreezeRequest) -> pb::WriteResponse {
            needs: AnyWrite,
            record: write(freeze::record_freeze(&request)),
            http: POST "/v1/freeze" {
                scope: given_text("scope"),
                all: flag("all"),
                for_ms: millis("for"),
                options: options(),
            },
            run: freeze::freeze(ctx, request).await,
        }

        /// Ends a freeze. Clients receive the held changes, or the server discards the changes.
        thaw(ctx, request: ThawRequest) -> pb::WriteResponse {
            needs: AnyWrite,
            record: write(freeze::record_thaw(&request)),
            http: POST "/v1/thaw" {
                scope: given_text("scope"),
                all: flag("all"),
                discard: flag("discard"),
                options: options(),
            },
            run: freeze::thaw(ctx, request).await,
        }

        /// Lists the freezes.
        list_freezes(ctx, request: ListFreezesRequest) -> pb::ListFreezesResponse {
            needs: Open,
            record: read,
            http: GET "/v1/freezes" {
                stale: flag("stale"),
                limit: limit("limit"),
                cursor: text("cursor"),
            },
            run: freeze::list_freezes(ctx, request).await,
        }

        /// Returns the version of the program.
        get_version(ctx, _request: GetVersionRequest) -> pb::VersionInfo {
            needs: Open,
            record: read,
            http: GET "/v1/version" {},
            run: Ok(cluster::version(ctx)),
        }
    }

    service HistoryService in history_service_server {
        /// Returns a revision and what it changed.
        get_revision(ctx, request: GetRevisionRequest) -> pb::RevisionChanges {
            needs: Cluster(Verb::History),
            record: read,
            http: GET "/v1/history/{revision}" {
                revision: path_number("revision"),
                limit: limit("limit"),
                cursor: text("cursor"),
                stale: flag("stale"),
            },
            run: revisions::get_revision(ctx, request).await,
        }

        /// Compares the content at two revisions.
        compare_revisions(ctx, request: CompareRevisionsRequest) -> pb::RevisionComparison {
            needs: Cluster(Verb::History),
            record: read,
            http: GET "/v1/diff" {
                from: number("from"),
                to: number("to"),
                scope: given_text("scope"),
                r#type: given_text("type"),
                name: text("name"),
                limit: limit("limit"),
                cursor: text("cursor"),
                stale: flag("stale"),
            },
            run: revisions::compare_revisions(ctx, request).await,
        }

        /// Says which revision last set each line of a resource.
        blame(ctx, request: BlameRequest) -> pb::BlameResponse {
            needs: Cluster(Verb::History),
            record: read,
            http: GET "/v1/blame" {
                r#type: required_text("type"),
                name: text("name"),
                scope: given_text("scope"),
                stale: flag("stale"),
            },
            run: revisions::blame(ctx, request).await,
        }
    }

    service AccessService in access_service_server {
        /// Returns the identity and the rights of the caller.
        who_am_i(ctx, _request: WhoAmIRequest) -> pb::WhoAmIResponse {
            needs: Open,
            record: read,
            http: GET "/v1/whoami" {},
            run: Ok(access::who_am_i(ctx)),
        }

        /// Returns whether an identity may use an operation. About others, the caller needs the right to read rules.
        check_access(ctx, request: CheckAccessRequest) -> pb::CheckAccessResponse {
            needs: Open,
            record: read,
            http: GET "/v1/access/check" {
                verb: text("verb"),
                scope: given_text("scope"),
                r#type: given_text("type"),
                name: text("name"),
                identity: text("identity"),
            },
            run: access::check_access(ctx, &request),
        }

        /// Returns the access rules.
        list_access(ctx, request: ListAccessRequest) -> pb::ListAccessResponse {
            needs: Cluster(Verb::AccessRead),
            record: read,
            http: GET "/v1/access" { stale: flag("stale"), limit: limit("limit"), cursor: text("cursor") },
            run: access::list_access(ctx, request).await,
        }

        /// Deletes an access rule.
        delete_access(ctx, request: DeleteAccessRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::AccessWrite),
            record: write(access::record_delete_access(&request)),
            http: DELETE "/v1/access" { name: text("name"), options: options() },
            run: access::delete_access(ctx, request).await,
        }

        /// Explains the decision about a client.
        explain_access(ctx, request: ExplainAccessRequest) -> pb::ExplainAccessResponse {
            needs: Cluster(Verb::AccessRead),
            record: read,
            http: GET "/v1/access/explain" { identity: text("identity"), node: text("node") },
            run: access::explain_access(ctx, request).await,
        }

        /// Creates a token.
        create_token(ctx, request: CreateTokenRequest) -> pb::CreateTokenResponse {
            needs: Cluster(Verb::Tokens),
            record: act(access::record_token("token.create", &request.name)),
            http: POST "/v1/tokens" {
                name: text("name"),
                valid_seconds: number_or_zero("valid_seconds"),
            },
            run: access::create_token(ctx, request).await,
        }

        /// Returns the tokens.
        list_tokens(ctx, request: ListTokensRequest) -> pb::ListTokensResponse {
            needs: Cluster(Verb::Tokens),
            record: read,
            http: GET "/v1/tokens" { stale: flag("stale"), limit: limit("limit"), cursor: text("cursor") },
            run: access::list_tokens(ctx, request).await,
        }

        /// Deletes tokens.
        delete_token(ctx, request: DeleteTokenRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::Tokens),
            record: write(access::record_token("token.delete", &request.name)),
            http: DELETE "/v1/tokens" { name: text("name"), id: text("id") },
            run: access::delete_token(ctx, request).await,
        }

        /// Returns the quotas and their use.
        list_quotas(ctx, request: ListQuotasRequest) -> pb::ListQuotasResponse {
            needs: Cluster(Verb::AccessRead),
            record: read,
            http: GET "/v1/quotas" { stale: flag("stale"), limit: limit("limit"), cursor: text("cursor") },
            run: access::list_quotas(ctx, request).await,
        }

        /// Deletes a quota.
        delete_quota(ctx, request: DeleteQuotaRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::AccessWrite),
            record: write(access::record_delete_quota(&request)),
            http: DELETE "/v1/quotas" { name: text("name"), options: options() },
            run: access::delete_quota(ctx, request).await,
        }
    }

    service AnalysisService in analysis_service_server {
        /// Returns the findings about what is stored.
        analyze(ctx, request: AnalyzeRequest) -> pb::AnalyzeResponse {
            needs: Somewhere(Verb::Get),
            record: read,
            http: GET "/v1/analyze" {
                scope: given_text("scope"),
                stale: flag("stale"),
                limit: limit("limit"),
                cursor: text("cursor"),
            },
            run: analyze::analyze(ctx, request).await,
        }
    }

    service BackupService in backup_service_server {
        /// Returns the state as the bytes of a backup file.
        backup(ctx, request: BackupRequest) -> BackupPieces, as BackupStream {
            needs: Cluster(Verb::Backup),
            record: act(backup::record(&request)),
            run: backup::backup(ctx, request).await,
        }
    }

    service KeysService in keys_service_server {
        /// Returns the keys with which secrets are sealed.
        keys_status(ctx, request: KeysStatusRequest) -> pb::KeysStatusResponse {
            needs: Cluster(Verb::KeysRead),
            record: read,
            run: keys::keys_status(ctx, request).await,
        }

        /// Adds a key that seals new secrets.
        rotate_keys(ctx, request: RotateKeysRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::KeysWrite),
            record: write(Operation::write("keys.rotate", "", request.options.as_ref())),
            run: keys::rotate_keys(ctx, request).await,
        }

        /// Wraps the keys with the present key of their source.
        rewrap_keys(ctx, request: RewrapKeysRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::KeysWrite),
            record: write(Operation::write("keys.rewrap", "", request.options.as_ref())),
            run: keys::rewrap_keys(ctx, request).await,
        }

        /// Removes a key that seals nothing.
        retire_key(ctx, request: RetireKeyRequest) -> pb::WriteResponse {
            needs: Cluster(Verb::KeysWrite),
            record: write(
                Operation::write("keys.retire", "", request.options.as_ref())
                    .target("key", request.id.to_string())
            ),
            run: keys::retire_key(ctx, request).await,
        }

        /// Seals some resources again. There is one record for all calls of a pass.
        reseal_secrets(ctx, request: ResealSecretsRequest) -> pb::ResealSecretsResponse {
            needs: Cluster(Verb::KeysWrite),
            record: act(keys::record_reseal(&request)),
            run: keys::reseal_secrets(ctx, request).await,
        }
    }

    service LoadService in load_service_server {
        /// Returns the load that clients have reported.
        get_load(ctx, request: GetLoadRequest) -> pb::LoadStatus {
            needs: Cluster(Verb::LoadRead),
            record: read,
            http: GET "/v1/load" {
                cluster: text("cluster"),
                endpoints: flag("endpoints"),
                limit: limit("limit"),
                local: flag("local"),
                cursor: text("cursor"),
            },
            run: load::get_load(ctx, request).await,
        }

        /// Changes what clients report to this replica.
        set_load_settings(ctx, request: SetLoadSettingsRequest) -> pb::LoadSettings {
            needs: Cluster(Verb::LoadWrite),
            record: act(Operation::new("load.set")),
            http: POST "/v1/load/settings" (routes::read_load_settings, false, [
                "cluster" list, "interval" millis, "endpoints" flag,
            ]),
            run: load::set_load_settings(ctx, request),
        }
    }

    service LogService in log_service_server {
        /// Returns the filter of the log.
        get_log_filter(ctx, _request: GetLogFilterRequest) -> pb::LogFilter {
            needs: Cluster(Verb::Cluster),
            record: read,
            run: log_service::get_log_filter(ctx),
        }

        /// Changes the filter of the log.
        set_log_filter(ctx, request: SetLogFilterRequest) -> pb::LogFilter {
            needs: Cluster(Verb::LogWrite),
            record: act(log_service::record(&request)),
            run: log_service::set_log_filter(ctx, request),
        }
    }

    service McpService in mcp_service_server {
        /// Returns the status of all sources of MCP.
        get_mcp_status(ctx, request: GetMcpStatusRequest) -> pb::McpStatus {
            needs: Cluster(Verb::McpRead),
            record: read,
            http: GET "/v1/mcp" {
                local: flag("local"),
                limit: limit("limit"),
                cursor: text("cursor"),
            },
            run: mcp::get_mcp_status(ctx, request).await,
        }

        /// Allows a held deletion of a source of MCP.
        confirm_mcp_deletion(ctx, request: ConfirmMcpDeletionRequest) -> pb::McpStatus {
            needs: Cluster(Verb::McpWrite),
            record: act(mcp::record(&request)),
            http: POST "/v1/mcp/confirm" {
                source: text("source"),
                collection: text("collection"),
                token: text("token"),
            },
            run: mcp::confirm_mcp_deletion(ctx, request).await,
        }
    }

    service StreamsService in streams_service_server {
        /// Ends all streams of a node, on all replicas.
        disconnect_node(ctx, request: DisconnectNodeRequest) -> pb::DisconnectNodeResponse {
            needs: Cluster(Verb::NodesDisconnect),
            record: act(disconnect::record(&request)),
            http: POST "/v1/disconnect" { node: text("node") },
            run: disconnect::disconnect_node(ctx, request).await,
        }

        /// Ends the streams of a replica over a time, and lets it accept no new ones.
        drain_replica(ctx, request: DrainReplicaRequest) -> pb::DrainStatus {
            needs: Cluster(Verb::ReplicasDrain),
            record: act(drain::record("replica.drain", request.replica_id)),
            http: POST "/v1/drain" { replica_id: required_number("id"), over_ms: millis("over") },
            run: drain::drain_replica(ctx, request).await,
        }

        /// Lets a drained replica accept streams again.
        undrain_replica(ctx, request: UndrainReplicaRequest) -> pb::DrainStatus {
            needs: Cluster(Verb::ReplicasDrain),
            record: act(drain::record("replica.undrain", request.replica_id)),
            http: POST "/v1/undrain" { replica_id: required_number("id") },
            run: drain::undrain_replica(ctx, request).await,
        }
    }

    service WatchService in watch_service_server {
        /// Streams what happens in the cluster, as server-sent events.
        watch(ctx, request: WatchRequest) -> WatchEvents, as WatchStream {
            needs: Cluster(Verb::History),
            record: read,
            http: GET "/v1/watch" (routes::read_watch, false, [
                "after_revision" number, "kind" list, "scope" given_text, "local" flag,
            ]),
            run: watch::watch(ctx, request).await,
        }
    }

    service ResolveService in resolve_service_server {
        /// Returns where a request to a node ends: its route, cluster and endpoints.
        resolve(ctx, request: ResolveRequest) -> pb::ResolveResponse {
            needs: Cluster(Verb::Nodes),
            record: read,
            http: GET "/v1/resolve" (routes::read_resolve, false, [
                "node" text, "url" text, "method" text, "header" list, "listener" text, "local" flag,
            ]),
            run: resolve::resolve_request(ctx, request).await,
        }
    }
}
