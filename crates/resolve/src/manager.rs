//! The HTTP connection manager: what the router sees of a request, and where the routes come from.

use chancery_model::types;

use crate::{
    answer::End,
    headers::Seen,
    http_filters::note_http_filters,
    message::Msg,
    path::{with_merged_slashes, without_dot_segments},
    request::split_port,
    route_table::{Table, follow_table},
    scopes::{Scope, select_scope},
    walk::{Skips, Walk, shown},
};

/// The connection of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// The port of the listener.
    pub(crate) port: i64,
    /// Whether the client uses TLS.
    pub(crate) is_tls: bool,
}

/// The value of `KEEP_UNCHANGED` and of the default in `PathWithEscapedSlashesAction`.
const KEEP_ESCAPED_SLASHES: [i64; 2] = [0, 1];

/// Follows a request through a connection manager.
pub(crate) fn follow_manager(walk: &mut Walk<'_>, manager: Msg<'_>, connection: Connection) -> End {
    let path = seen_path(walk, manager);
    let is_edge = manager.wrapped_flag("use_remote_address") == Some(true);
    let n_trusted = manager.number("xff_num_trusted_hops");
    let own = if connection.is_tls { "https" } else { "http" };
    let given = walk.request.header("x-forwarded-proto");
    let forwarded_proto =
        given.filter(|_| !is_edge || n_trusted > 0).unwrap_or_else(|| own.to_owned());
    let overwritten = manager.sub("scheme_header_transformation");
    let overwritten = overwritten.map(|it| it.text("scheme_to_overwrite")).unwrap_or_default();
    let scheme = if overwritten.is_empty() { own } else { overwritten };
    let request = walk.request;
    let seen = Seen {
        request,
        authority: seen_authority(&request.authority, manager, connection.port),
        path,
        scheme: scheme.to_owned(),
        forwarded_proto,
        is_edge,
    };
    for (index, _) in manager.list("early_header_mutation_extensions").enumerate() {
        let place = format!("early_header_mutation_extensions[{index}]");
        walk.doubt(&place, "the extension may change headers before the route is selected", "");
    }
    let is_on_demand = note_http_filters(walk, manager);
    match manager.member("route_specifier").as_deref() {
        Some("route_config") => match manager.sub("route_config") {
            Some(config) => {
                let place = "route_config of the connection manager".to_owned();
                walk.step(
                    "route table",
                    place,
                    "part of the listener".to_owned(),
                    Skips::default(),
                );
                follow_table(walk, &Table { config, seen: &seen, is_on_demand })
            }
            None => End::NoRoute { reason: "the connection manager has no routes".to_owned() },
        },
        Some("rds") => {
            let rds = manager.sub("rds");
            let name = rds.map(|rds| rds.text("route_config_name")).unwrap_or_default();
            follow_rds(walk, name, &seen, is_on_demand, "requested by the connection manager (RDS)")
        }
        Some("scoped_routes") => {
            let scoped = manager.sub("scoped_routes");
            match scoped.map(|scoped| select_scope(walk, scoped, &seen)) {
                Some(Scope::Named(name)) => {
                    follow_rds(walk, &name, &seen, is_on_demand, "named by the scope")
                }
                Some(Scope::Inline(message)) => {
                    let config = Msg(&message).sub("route_configuration");
                    match config {
                        Some(config) => {
                            follow_table(walk, &Table { config, seen: &seen, is_on_demand })
                        }
                        None => End::NoRoute { reason: "the scope has no routes".to_owned() },
                    }
                }
                Some(Scope::End(end)) => end,
                None => End::NoRoute { reason: "the connection manager has no scopes".to_owned() },
            }
        }
        _ => End::NoRoute { reason: "the connection manager has no routes".to_owned() },
    }
}

fn follow_rds(
    walk: &mut Walk<'_>,
    name: &str,
    seen: &Seen<'_>,
    is_on_demand: bool,
    reason: &str,
) -> End {
    match walk.fetch(types::ROUTE, name) {
        Some(config) => {
            walk.step(
                "route table",
                shown(types::ROUTE, name),
                reason.to_owned(),
                Skips::default(),
            );
            follow_table(walk, &Table { config: Msg(&config), seen, is_on_demand })
        }
        None => End::Missing {
            type_url: types::ROUTE.to_owned(),
            name: name.to_owned(),
            effect: "without its routes, the node answers with 404".to_owned(),
        },
    }
}

/// Returns the path after normalization.
fn seen_path(walk: &mut Walk<'_>, manager: Msg<'_>) -> String {
    let mut path = walk.request.path.clone();
    if walk.request.method == "CONNECT" {
        return String::new();
    }
    let bare = path.split('?').next().unwrap_or_default().to_ascii_lowercase();
    let has_escaped_slash = ["%2f", "%5c"].iter().any(|escape| bare.contains(escape));
    let action = manager.number("path_with_escaped_slashes_action");
    if has_escaped_slash && !KEEP_ESCAPED_SLASHES.contains(&action) {
        let reason = "the path has escaped slashes, whose treatment is not evaluated";
        walk.doubt("path_with_escaped_slashes_action", reason, "");
    }
    if manager.wrapped_flag("normalize_path") == Some(true) {
        if bare.contains(['%', '\\']) {
            walk.doubt("normalize_path", "the path has escapes, which are not normalized here", "");
        }
        path = without_dot_segments(&path);
    }
    if manager.flag("merge_slashes") {
        path = with_merged_slashes(&path);
    }
    path
}

/// Returns the authority after the removal of a trailing dot and of the port.
fn seen_authority(given: &str, manager: Msg<'_>, port: i64) -> String {
    let mut authority = given.to_owned();
    if manager.flag("strip_trailing_host_dot") {
        let (host, port) = split_port(&authority);
        let host = host.strip_suffix('.').unwrap_or(host);
        authority = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    }
    let (host, given_port) = split_port(&authority);
    let given_port = given_port.and_then(|port| port.parse::<i64>().ok());
    let is_stripped = match given_port {
        Some(given_port) => {
            manager.flag("strip_any_host_port")
                || manager.flag("strip_matching_host_port") && given_port == port
        }
        None => false,
    };
    if is_stripped { host.to_owned() } else { authority }
}
