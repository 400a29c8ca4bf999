//! The commands that connect to a replica, and the connection.

use clap::Subcommand;

use super::{
    access, analyze, apply, assignments, backup, blame, can_i, client::Servers, cluster,
    conformance, delete, describe, diff, disconnect, drain, explain, export, freeze, get, health,
    history, import, keys, lb_policy, load, loadtest, log, mcp, mirror, node, nodes, quota, read,
    resolve, rollback, settings::Settings, sync, token, version, wait, watch, whoami,
};
use crate::{
    answer::Answer,
    exit,
    failure::Failure,
    help::{examples, no_address, no_output, output_with_wide, write_help},
};

/// The commands that connect to a replica.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Publish manifests in one atomic transaction
    #[command(after_help = write_help(&["apply -f web.yaml --dry-run", "apply -f web.yaml --wait=10s"]))]
    Apply(apply::Apply),
    /// Delete resources in one atomic transaction
    #[command(after_help = write_help(&["delete cluster web cart --wait=10s"]))]
    Delete(delete::Delete),
    /// Write everything to a directory of manifests, one file per scope and type
    ///
    /// Writes resources, assignments, access rules and quotas at one revision. Two exports of the same content are
    /// identical, and `apply --prune -f DIR` of an unchanged export changes nothing. Resources with secrets are
    /// written with their version instead of their secrets, and keep the stored resource when they are applied.
    #[command(after_help = examples(&["export config", "export config --scope edge"]))]
    Export(export::Export),
    /// Apply a directory, such as a git checkout, once or after each change
    ///
    /// Applies the directory like `apply --prune -f DIR`. With --watch, the command also applies it when the
    /// configuration of the cluster was changed by others.
    #[command(after_help = write_help(&[
        "sync --dir config --once --dry-run",
        "sync --dir config --once --label \"$(git rev-parse --short HEAD)\"",
        "sync --dir config --watch --interval 30s -o json",
    ]))]
    Sync(sync::Sync),
    /// Show resources; `-o yaml` prints a manifest
    #[command(arg = output_with_wide())]
    Get(get::Get),
    /// Describe one resource: its scopes, references, connected nodes and rejections
    Describe(describe::Describe),
    /// List the nodes that are connected to any replica, and those that were recently
    ///
    /// The exit code is 4 if a replica did not answer: the list may lack nodes. With --behind, it is 6 if a freeze holds
    /// changes up to REVISION back from clients.
    #[command(after_help = examples(&["nodes --state rejected", "nodes --behind 42", "nodes --watch"]))]
    Nodes(nodes::Nodes),
    /// Show one node: its streams to all replicas, versions and rejections
    Node(node::Node),
    /// End all streams of a node on all replicas; the client reconnects
    ///
    /// The streams end with UNAVAILABLE. The exit code is 1 if no replica has a stream of the node, and 4 if a replica
    /// did not answer.
    #[command(after_help = examples(&["disconnect envoy-1"]))]
    Disconnect(disconnect::Disconnect),
    /// Move the clients of a replica to the others, before work on its machine
    ///
    /// The streams of the replica end one connection after the other, evenly spread over the time, with GOAWAY and
    /// UNAVAILABLE. The replica accepts no streams and no polls, and /readyz fails, until `chancery undrain` or its
    /// restart. Replication, votes and the admin port continue.
    #[command(after_help = examples(&["drain 2", "drain 2 --over 10m"]))]
    Drain(drain::Drain),
    /// Let a drained replica accept streams again
    #[command(after_help = examples(&["undrain 2"]))]
    Undrain(drain::Undrain),
    /// Wait until the sessions of all replicas have acknowledged a revision
    ///
    /// Succeeds if enough sessions have acknowledged everything up to the revision. Unless --for is a number, all replicas
    /// must have answered.
    #[command(after_help = examples(&["wait 42", "wait 42 --for 99% --scope edge --timeout 2m"]))]
    Wait(wait::Wait),
    /// Explain why a node does or does not receive a resource
    ///
    /// Shows the assignments up to the one that matches, its scopes in order, and the node's
    /// subscriptions. With NAME, also shows the references to and from the resource. Without NAME, the
    /// command covers all resources of TYPE; without TYPE, all types.
    #[command(after_help = examples(&["explain envoy-1 cluster web"]))]
    Explain(explain::Explain),
    /// Find unused resources, routes that never match and dangling references
    ///
    /// Analyzes what is stored: resources to which nothing refers, routes that an earlier route covers, and scopes that
    /// no assignment gives. Also finds references to missing resources in the views of nodes. Without --scope, finds
    /// connected nodes with a problem: unassigned, rejecting, silent, behind, with a shared ID, or of an unknown version.
    /// Names only what the caller may read. `docs/references.md` lists the rules.
    #[command(after_help = format!("{}\n\n{}", examples(&[
        "analyze",
        "analyze --scope edge -o json",
    ]), exit::table_of_analyze()))]
    Analyze(analyze::Analyze),
    /// Show revisions and events of clients and members, until you interrupt it
    ///
    /// Resumes after a lost connection, on any of the servers of --server, without losing or repeating a revision.
    /// With `-o json`, each event is one line, and an event without content shows up to which revision all was shown.
    #[command(after_help = examples(&["watch", "watch --kind revisions --after 41 -o json"]))]
    Watch(watch::Watch),
    /// Show where a request to a node ends: its route, cluster and endpoints
    ///
    /// Follows the request through the resources that the node has acknowledged, as Envoy does: listener,
    /// filter chain, virtual host, route, cluster, endpoints. Shows which candidates do not match, and why.
    /// Conditions that depend on more than the request, such as a fraction of the traffic or a Lua filter,
    /// are listed as not decided.
    ///
    /// The exit code is 0 if the request reaches a cluster with endpoints, a redirect or a direct response, and
    /// 1 otherwise.
    #[command(after_help = examples(&[
        "resolve edge-1 --url https://shop.example/cart",
        "resolve edge-1 --url http://shop.example:8080/cart --method POST --header 'x-user: anna'",
        "resolve edge-1 --url http://10.0.0.7/ --header host:shop.example --listener main -o json",
    ]))]
    Resolve(resolve::Resolve),
    /// Publish the static resources of an Envoy bootstrap
    ///
    /// Publishes the clusters, listeners and secrets of `static_resources`. Rejects unknown top-level
    /// keys and values of the wrong type. Notes on standard error name each part of the bootstrap that
    /// is not stored, such as `admin`, with the reason; `-o json` has them in `left_out`.
    #[command(after_help = write_help(&["import envoy.yaml --scope edge"]))]
    Import(import::Import),
    /// Measure how an xDS server behaves with a fleet of many clients
    ///
    /// Connects thin clients to the xDS ports of any server, changes resources at given times, and measures when each client
    /// has each change. At the end, it compares all clients with new ones. The exit code is 0 if every client has exactly
    /// what it should have, no write failed, and the test itself was fast enough.
    ///
    /// With Chancery, the test writes through --server, into a scope of its own that only its own nodes see. It deletes the
    /// scope and its assignment at the end.
    #[command(after_help = examples(&[
        "loadtest --xds 10.0.0.1:18000,10.0.0.2:18000 --clients 1000 --rate 20 --seconds 60",
        "loadtest --xds 10.0.0.1:18000 --scenario storm --report storm.html -o json > storm.json",
        "loadtest --xds 10.0.0.1:18000 --until p99=100ms",
        "loadtest --xds 10.0.0.9:9977 --write-command ./publish.sh",
        "loadtest compare before.json after.json",
    ]))]
    Loadtest(Box<loadtest::LoadTest>),
    /// Keep files for Envoy's path_config_source up to date with the view of a node
    ///
    /// Follows the view over an xDS stream, and reconnects when the stream ends. Replaces a file by
    /// a rename, and only if its content changes. Prints one line for each change. `written` means
    /// that the file is in place; only Envoy's statistics show whether Envoy accepts it.
    #[command(arg = no_address(), arg = no_output(), after_help = examples(&[
        "mirror --node edge-1 --dir /etc/envoy/xds --xds 10.0.0.1:18000,10.0.0.2:18000",
        "mirror --node edge-1 --dir xds --encoding yaml --once",
    ]))]
    Mirror(mirror::Mirror),
    /// Show the load that clients report
    ///
    /// Clients report to the replica to which they are connected. All replicas are asked, and the load is their sum.
    #[command(after_help = examples(&["load", "load --cluster 'web*' --localities"]))]
    Load(load::Load),
    /// Show and change which lines a replica logs
    #[command(subcommand)]
    Log(log::Log),
    /// Show the MCP sources, and confirm deletions that a guard holds
    #[command(subcommand)]
    Mcp(mcp::Mcp),
    /// Convert load balancing policies to gRPC service config (gRFC A52)
    #[command(subcommand)]
    LbPolicy(lb_policy::LbPolicy),
    /// List or delete the rules that assign scopes to nodes
    ///
    /// `chancery apply` creates and changes assignments.
    #[command(subcommand)]
    Assignments(assignments::Assignments),
    /// List, delete and explain access rules
    ///
    /// `chancery apply` creates and changes access rules, under the key `access` of a manifest.
    #[command(subcommand)]
    Access(access::Access),
    /// List the quotas with their use, or delete one
    ///
    /// `chancery apply` creates and changes quotas, under the key `quotas` of a manifest.
    #[command(subcommand)]
    Quota(quota::Quota),
    /// Create, list and delete tokens
    #[command(subcommand)]
    Token(token::Token),
    /// Show and change the keys that encrypt stored secrets
    ///
    /// A sealed resource is encrypted before it is stored and replicated (`[secrets]` in the configuration).
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Show the identity of the caller, and its rights
    Whoami,
    /// Check whether the caller may use an operation
    ///
    /// The exit code is 0 if the caller may use it, and 1 if not. `chancery whoami` lists the verbs that it may use.
    #[command(after_help = examples(&["can-i apply mesh cluster web", "can-i members --as token:ci"]))]
    CanI(can_i::CanI),
    /// Show revisions and what they changed, or check their hashes
    #[command(after_help = examples(&[
        "history -n 5",
        "history --scope edge --author token:ci",
        "history show 42",
        "history --follow",
        "history --verify",
    ]))]
    History(history::History),
    /// Compare two revisions, or manifests with the newest revision
    ///
    /// The exit code is 0 if nothing differs, 2 if something does, and 1 if the comparison failed or `apply` would be
    /// rejected.
    #[command(after_help = examples(&["diff --from 41", "diff --from 41 --to 42 --scope edge", "diff -f web.yaml"]))]
    Diff(diff::Diff),
    /// Show which revision last set each line of a resource
    #[command(after_help = examples(&["blame cluster web --scope edge"]))]
    Blame(blame::Blame),
    /// Restore the content of an earlier revision, in one atomic transaction
    ///
    /// A rollback is a normal write: it makes a new revision, and validation, guards, quotas and access rules apply. It
    /// deletes resources that did not exist at REVISION. The server rejects the rollback if the scopes that it changes,
    /// the assignments or the access rules change before it commits.
    #[command(after_help = write_help(&["rollback edge --to 41 --dry-run", "rollback edge cluster web --to 41", "rollback --all --to 41"]))]
    Rollback(rollback::Rollback),
    /// Undo the changes of one revision, and keep later changes
    ///
    /// The server rejects the undo if a later revision changed the same object, unless the object has its old content
    /// again. The error names up to 20 conflicts.
    #[command(after_help = write_help(&["undo 42 --dry-run", "undo 42 --wait=10s"]))]
    Undo(rollback::Undo),
    /// Hold changes of a scope, or of all scopes, back from clients
    ///
    /// Writes commit, and are held back. Clients keep what they have, also if they reconnect, restart or move to another
    /// replica, and new clients receive the same. `thaw` sends the held changes. A second `freeze` of a scope changes only
    /// its time, end, author and reason. Access rules always take effect.
    #[command(after_help = examples(&["freeze edge --for 1h --reason 'incident 12'", "freeze --all"]))]
    Freeze(freeze::Freeze),
    /// End a freeze: send the held changes to clients, or discard them
    ///
    /// A dry run shows the changes that clients would receive, or with --discard, the changes that would be reverted.
    #[command(after_help = write_help(&["thaw edge --dry-run", "thaw edge --wait=1m", "thaw edge --discard"]))]
    Thaw(freeze::Thaw),
    /// List the freezes and the number of resources that they hold back
    Freezes(read::Read),
    /// Show and change the members of the cluster
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Check the behavior of any xDS server against the requirements of the protocol
    ///
    /// Opens streams and polls as clients do, and compares the responses with the requirements. By default, the
    /// server is Chancery, and --server is the admin port at which the kit publishes resources. Each case has its own
    /// node, scope and resource names, and removes its resources at its end. With --adapter-command, the server may
    /// be any other.
    ///
    /// The exit code is 0 if all selected cases ran, no case failed, and the kit removed what it created. A skipped
    /// case counts as neither passed nor failed.
    #[command(after_help = examples(&[
        "conformance --xds 127.0.0.1:18000 --server 127.0.0.1:18001",
        "conformance --xds 127.0.0.1:9000 --adapter-command './my-adapter' --junit report.xml",
        "conformance --list",
    ]))]
    Conformance(conformance::Conformance),
    /// Check the liveness of a replica, or its readiness
    ///
    /// Requests /healthz or, with --ready, /readyz, which need no token. The exit code is 0 if the answer is
    /// good, and 1 otherwise. Of several servers, one with a good answer suffices.
    #[command(after_help = examples(&["health", "health --ready --server unix:/run/chancery/admin.sock"]))]
    Health(health::Health),
    /// Save the state of the cluster to a file
    #[command(after_help = examples(&["backup chancery.bak", "backup - | gzip > chancery.bak.gz"]))]
    Backup(backup::Backup),
    /// Show the version of this program, and of the server if it is reachable
    Version,
}

impl Command {
    /// Runs the command. It uses the first server of the settings that is ready.
    pub(crate) fn run(self, settings: &Settings, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(
            |error| Failure::new(format_args!("cannot start the async runtime: {error}")),
        )?;
        let servers = Servers::new(&settings.server, settings.security());
        let result = runtime.block_on(self.connect_and_run(&servers, answer));
        // A failed wait has shown the revision of the write before.
        answer.out.flush()?;
        result.map_err(|failure| servers.named(failure))
    }

    async fn connect_and_run(
        self,
        servers: &Servers,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        let connect = servers.connect_any();
        match self {
            Self::Apply(apply) => apply::run(apply, servers, answer).await,
            Self::Delete(delete) => delete::run(delete, servers, answer).await,
            Self::Export(export) => export::run(export, servers, answer).await,
            Self::Sync(sync) => sync::run(sync, servers, answer).await,
            Self::Get(get) => get::run(get, connect.await?, answer).await,
            Self::Describe(describe) => describe::run(describe, connect.await?, answer).await,
            Self::Nodes(nodes) => nodes::run(nodes, servers, answer).await,
            Self::Node(node) => node::run(node, connect.await?, answer).await,
            Self::Disconnect(node) => {
                disconnect::run(node, servers.any_channel().await?, answer).await
            }
            Self::Drain(drain) => drain.run(servers.any_channel().await?, answer).await,
            Self::Undrain(undrain) => undrain.run(servers.any_channel().await?, answer).await,
            Self::Watch(watch) => watch::run(watch, servers, answer).await,
            Self::Wait(wait) => wait::run(wait, connect.await?, answer).await,
            Self::Explain(explain) => explain::run(explain, connect.await?, answer).await,
            Self::Analyze(analyze) => {
                analyze::run(analyze, servers.any_channel().await?, answer).await
            }
            Self::Resolve(resolve) => {
                resolve::run(resolve, servers.any_channel().await?, answer).await
            }
            Self::Import(import) => import::run(import, servers, answer).await,
            Self::Mirror(mirror) => mirror::run(mirror, servers.security(), answer).await,
            Self::Loadtest(test) => test.run(servers, answer).await,
            Self::Load(load) => load::run(load, servers.any_channel().await?, answer).await,
            Self::Log(command) => log::run(command, servers.any_channel().await?, answer).await,
            Self::Mcp(command) => mcp::run(command, servers.any_channel().await?, answer).await,
            Self::LbPolicy(command) => lb_policy::run(command, servers, answer).await,
            Self::Assignments(command) => assignments::run(command, servers, answer).await,
            Self::Access(command) => {
                access::run(command, servers.any_channel().await?, answer).await
            }
            Self::Quota(command) => quota::run(command, servers.any_channel().await?, answer).await,
            Self::Token(command) => token::run(command, servers.any_channel().await?, answer).await,
            Self::Keys(command) => keys::run(command, servers.any_channel().await?, answer).await,
            Self::Whoami => whoami::run(servers.any_channel().await?, answer).await,
            Self::CanI(question) => {
                can_i::run(question, servers.any_channel().await?, answer).await
            }
            Self::History(history) => history::run(history, servers, answer).await,
            Self::Diff(diff) => diff::run(diff, servers, answer).await,
            Self::Blame(blame) => blame::run(blame, servers, answer).await,
            Self::Rollback(args) => rollback::rollback(args, servers, answer).await,
            Self::Undo(args) => rollback::undo(args, servers, answer).await,
            Self::Freeze(args) => freeze::freeze(args, servers, answer).await,
            Self::Thaw(args) => freeze::thaw(args, servers, answer).await,
            Self::Freezes(read) => freeze::list(&read, connect.await?, answer).await,
            Self::Cluster(command) => cluster::run(command, connect.await?, answer).await,
            Self::Conformance(kit) => conformance::run(kit, servers, answer).await,
            Self::Health(health) => health::run(&health, servers, answer).await,
            Self::Backup(backup) => backup::run(&backup, servers, answer).await,
            Self::Version => version::run(connect.await.ok(), answer).await,
        }
    }
}
