//! The walk through a route table: its virtual hosts, and the routes of the selected one.

use chancery_model::types;
use prost_reflect::DynamicMessage;

use crate::{
    action::{follow_route, summary},
    answer::End,
    headers::{HeaderValue, Seen},
    hosts::{Rank, rank},
    matcher::{Outcome, evaluate},
    matcher_inputs::request_input,
    message::Msg,
    request::split_port,
    routes::check_route,
    verdict::Verdict,
    walk::{Skips, Walk, shown},
};

const ROUTE: &str = "envoy.config.route.v3.Route";
const ROUTE_LIST: &str = "envoy.config.route.v3.RouteList";

/// A route table, and the request for which it is used.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    pub(crate) config: Msg<'a>,
    pub(crate) seen: &'a Seen<'a>,
    /// Whether the node requests virtual hosts when a request needs them.
    pub(crate) is_on_demand: bool,
}

/// Follows a request through a route table.
pub(crate) fn follow_table(walk: &mut Walk<'_>, table: &Table<'_>) -> End {
    note_specifiers(walk, table.config, "route_specifiers");
    let host = match matched_host(walk, table) {
        Ok(host) => host,
        Err(end) => return end,
    };
    let own = table.config.list("virtual_hosts").enumerate();
    let mut best: Option<(Rank, Candidate<'_>)> = None;
    let mut skips = Skips::default();
    let mut consider = |candidate: Candidate<'_>, host_message: Msg<'_>| -> Option<Rank> {
        let ranks = host_message.texts("domains").filter_map(|domain| rank(domain, &host));
        let rank = ranks.max();
        if rank.is_none() {
            let domains: Vec<&str> = host_message.texts("domains").take(5).collect();
            skips.add(candidate.place(host_message), format!("has the domains {domains:?}"));
        }
        rank
    };
    for (index, message) in own {
        let candidate = Candidate::Own(index, message);
        if let Some(rank) = consider(candidate.clone(), message)
            && best.as_ref().is_none_or(|(known, _)| rank > *known)
        {
            best = Some((rank, candidate));
        }
    }
    if table.config.has("vhds") {
        for (name, message) in requested_hosts(walk, table.config) {
            let candidate = Candidate::Requested(name, message.clone());
            if let Some(rank) = consider(candidate.clone(), Msg(&message))
                && best.as_ref().is_none_or(|(known, _)| rank > *known)
            {
                best = Some((rank, candidate));
            }
        }
    }
    match best {
        Some((rank, Candidate::Own(index, message))) => {
            let place = Candidate::Own(index, message).place(message);
            step_host(walk, place, &host, rank, skips);
            follow_host(walk, table, message, &format!("virtual_hosts[{index}]"))
        }
        Some((rank, Candidate::Requested(name, message))) => {
            // The second look notes whether the node may have another version.
            walk.fetch(types::VIRTUAL_HOST, &name);
            let place = shown(types::VIRTUAL_HOST, &name);
            step_host(walk, place.clone(), &host, rank, skips);
            follow_host(walk, table, Msg(&message), &place)
        }
        None => {
            walk.step("virtual host", String::new(), format!("none has the host {host:?}"), skips);
            no_host(table, &host)
        }
    }
}

/// A virtual host.
#[derive(Clone)]
enum Candidate<'a> {
    /// A virtual host of the route table.
    Own(usize, Msg<'a>),
    /// A virtual host that the node has requested by its name (VHDS).
    Requested(String, DynamicMessage),
}

impl Candidate<'_> {
    fn place(&self, message: Msg<'_>) -> String {
        match self {
            Self::Own(index, _) => format!("virtual_hosts[{index}] {:?}", message.text("name")),
            Self::Requested(name, _) => shown(types::VIRTUAL_HOST, name),
        }
    }
}

fn step_host(walk: &mut Walk<'_>, place: String, host: &str, rank: Rank, skips: Skips) {
    let how = match rank {
        Rank::Any => "the domain `*`",
        Rank::Prefix(_) => "the longest prefix wildcard",
        Rank::Suffix(_) => "the longest suffix wildcard",
        Rank::Exact => "the exact domain",
    };
    walk.step("virtual host", place, format!("{how} for the host {host:?}"), skips);
}

fn no_host(table: &Table<'_>, host: &str) -> End {
    if table.config.has("vhds") && table.is_on_demand {
        return End::Missing {
            type_url: types::VIRTUAL_HOST.to_owned(),
            name: format!("{}/{host}", table.config.text("name")),
            effect: "the node requests it when a request needs it, and answers with 404 if it does not exist"
                .to_owned(),
        };
    }
    End::NoRoute { reason: format!("no virtual host has the host {host:?}") }
}

/// Returns the host that is compared with the domains.
fn matched_host(walk: &mut Walk<'_>, table: &Table<'_>) -> Result<String, End> {
    let header = table.config.text("vhost_header");
    let mut host = table.seen.authority.clone();
    if !header.is_empty() {
        host = match table.seen.header(header) {
            HeaderValue::Known(Some(value)) => value,
            HeaderValue::Known(None) => {
                let reason =
                    format!("the request has no header {header:?}, which names the virtual host");
                walk.doubt("vhost_header", &reason, "");
                return Err(End::NoRoute { reason });
            }
            HeaderValue::Unknown => {
                let reason = format!("the node sets the header {header:?} itself");
                walk.doubt("vhost_header", &reason, "");
                return Err(End::Undecided { reason });
            }
        };
    }
    if table.config.flag("ignore_port_in_host_matching") {
        host = split_port(&host).0.to_owned();
    }
    Ok(host.to_ascii_lowercase())
}

/// Returns the virtual hosts of a route table that the node has requested by their names.
fn requested_hosts(walk: &Walk<'_>, config: Msg<'_>) -> Vec<(String, DynamicMessage)> {
    let prefix = format!("{}/", config.text("name"));
    let names = walk.resources.names(types::VIRTUAL_HOST).into_iter();
    let names = names.filter(|name| name.starts_with(&prefix));
    let hosts = names.filter_map(|name| {
        let (message, _) = walk.peek(types::VIRTUAL_HOST, &name)?;
        Some((name, message.ok()?))
    });
    hosts.collect()
}

/// Follows a request through a virtual host.
fn follow_host(walk: &mut Walk<'_>, table: &Table<'_>, host: Msg<'_>, place: &str) -> End {
    note_specifiers(walk, host, &format!("{place}.route_specifiers"));
    let seen = table.seen;
    let location = format!("https://{}{}", seen.authority, seen.path);
    if seen.forwarded_proto != "https" {
        match host.number("require_tls") {
            2 => {
                let reason = "require_tls is ALL, and the client does not use TLS".to_owned();
                walk.step("route", format!("{place}.require_tls"), reason, Skips::default());
                return End::Redirect { status: 301, location };
            }
            1 => {
                let reason = "EXTERNAL_ONLY: the address of the client is not known";
                let otherwise = format!("redirect to {location} (301)");
                walk.doubt(&format!("{place}.require_tls"), reason, &otherwise);
            }
            _ => {}
        }
    }
    if let Some(matcher) = host.sub("matcher") {
        return follow_matcher(walk, table, matcher, &format!("{place}.matcher"));
    }
    follow_routes(walk, table, host.list("routes"), &format!("{place}.routes"))
}

/// Follows a request through the matcher of a virtual host.
fn follow_matcher(walk: &mut Walk<'_>, table: &Table<'_>, matcher: Msg<'_>, place: &str) -> End {
    match evaluate(matcher, &|input| request_input(input, table.seen)) {
        Outcome::Action(action) => match (action.of_type(ROUTE), action.of_type(ROUTE_LIST)) {
            (Some(route), _) => follow_routes(walk, table, std::iter::once(route), place),
            (_, Some(list)) => follow_routes(walk, table, list.list("routes"), place),
            _ => End::Undecided {
                reason: format!("the matcher selects a {}, which is no route", action.short_name()),
            },
        },
        Outcome::None => {
            End::NoRoute { reason: "the matcher of the virtual host selects no route".to_owned() }
        }
        Outcome::Unknown { field, reason } => {
            walk.doubt(&format!("{place}.{field}"), &reason, "");
            End::Undecided { reason: format!("the route depends on a matcher: {reason}") }
        }
    }
}

/// Follows a request through the first route that matches.
fn follow_routes<'a>(
    walk: &mut Walk<'_>,
    table: &Table<'_>,
    routes: impl Iterator<Item = Msg<'a>>,
    place: &str,
) -> End {
    let ignores_parameters = table.config.flag("ignore_path_parameters_in_path_matching");
    let mut skips = Skips::default();
    let mut n_routes = 0_usize;
    for (index, route) in routes.enumerate() {
        n_routes += 1;
        let (verdict, matched) = check_route(route, table.seen, ignores_parameters);
        let bare = format!("{place}[{index}]");
        let named = match route.text("name") {
            "" => bare.clone(),
            name => format!("{bare} {name:?}"),
        };
        match verdict {
            Verdict::Yes => {
                walk.step("route", named, summary(route), skips);
                note_specifiers(walk, route, &format!("{bare}.route_specifiers"));
                return follow_route(walk, route, &bare, &matched, table.seen);
            }
            Verdict::No(reason) => skips.add(named, reason),
            Verdict::Unknown { field, reason } => {
                walk.doubt(&format!("{bare}.{field}"), &reason, &summary(route));
                skips.add(named, format!("not decided: {reason}"));
            }
        }
    }
    walk.step("route", String::new(), "none matches".to_owned(), skips);
    End::NoRoute { reason: format!("none of the {n_routes} routes of the virtual host matches") }
}

fn note_specifiers(walk: &mut Walk<'_>, message: Msg<'_>, place: &str) {
    for (index, _) in message.list("route_specifiers").enumerate() {
        walk.doubt(&format!("{place}[{index}]"), "an extension may select another route", "");
    }
}
