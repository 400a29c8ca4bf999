//! Routes that never match, because an earlier route of their virtual host matches all their requests.
//!
//! A client takes the first route that matches. An earlier route covers a later one if its path covers that of the
//! later one. The later one must also have all its other conditions. A random fraction of requests covers nothing. The
//! prefix `/` covers every path. Requests without a path (`CONNECT`) are an exception.

use chancery_model::{ResourceKey, types};

use crate::wire::{Raw, Reader, last, last_text, last_varint};

/// A message on the way to the virtual hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Listener,
    FilterChain,
    ApiListener,
    Filter,
    /// An `Any` that may have a connection manager.
    Any,
    Config,
    Host,
}

/// The fields that lead to virtual hosts: the message, its name, the number and name of the field, and the next message.
/// A test compares them with the descriptors.
const FIELDS: &[(Place, &str, u32, &str, Place)] = &[
    (Place::Listener, "envoy.config.listener.v3.Listener", 3, "filter_chains", Place::FilterChain),
    (
        Place::Listener,
        "envoy.config.listener.v3.Listener",
        25,
        "default_filter_chain",
        Place::FilterChain,
    ),
    (Place::Listener, "envoy.config.listener.v3.Listener", 19, "api_listener", Place::ApiListener),
    (Place::FilterChain, "envoy.config.listener.v3.FilterChain", 3, "filters", Place::Filter),
    (Place::ApiListener, "envoy.config.listener.v3.ApiListener", 1, "api_listener", Place::Any),
    (Place::Filter, "envoy.config.listener.v3.Filter", 4, "typed_config", Place::Any),
    (Place::Any, MANAGER, 4, "route_config", Place::Config),
    (Place::Config, "envoy.config.route.v3.RouteConfiguration", 2, "virtual_hosts", Place::Host),
];

const MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// The numbers of fields of a virtual host, a route and its criteria.
const ROUTES: u32 = 3;
const MATCH: u32 = 1;
const PREFIX: u32 = 1;
const PATH: u32 = 2;
const CASE_SENSITIVE: u32 = 4;
const RUNTIME_FRACTION: u32 = 9;
const SAFE_REGEX: u32 = 10;
const CONNECT_MATCHER: u32 = 12;
const PATH_SEPARATED_PREFIX: u32 = 14;
const PATH_MATCH_POLICY: u32 = 15;
/// The number of `RegexMatcher.regex`.
const REGEX: u32 = 2;

/// A route that never matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachableRoute {
    /// The path of the route: `virtual_hosts[0].routes[3]`.
    pub field: String,
    /// The path of the earlier route that matches all its requests.
    pub earlier: String,
}

/// The limited work of a search for unreachable routes.
#[derive(Debug)]
pub struct RouteComparisons {
    /// The number of further comparisons of two routes.
    left: usize,
    /// The number of routes that were not compared with all earlier ones.
    pub n_unchecked: usize,
}

impl RouteComparisons {
    /// Limits the number of comparisons of two routes.
    #[must_use]
    pub fn at_most(n: usize) -> Self {
        Self { left: n, n_unchecked: 0 }
    }
}

/// Returns whether resources of a type may have routes.
#[must_use]
pub fn may_have_routes(type_url: &str) -> bool {
    place_of(type_url).is_some()
}

fn place_of(type_url: &str) -> Option<Place> {
    Some(match type_url {
        types::LISTENER => Place::Listener,
        types::FILTER_CHAIN => Place::FilterChain,
        types::ROUTE => Place::Config,
        types::VIRTUAL_HOST => Place::Host,
        _ => return None,
    })
}

/// Calls `found` with each route of a resource that never matches.
pub fn for_each_unreachable_route(
    key: &ResourceKey,
    body: &[u8],
    comparisons: &mut RouteComparisons,
    mut found: impl FnMut(UnreachableRoute),
) {
    if let Some(place) = place_of(key.type_url.as_str()) {
        walk(place, body, &mut String::new(), comparisons, &mut found);
    }
}

/// Walks to the virtual hosts of a message. `path` is that of the message, and is unchanged afterwards.
fn walk(
    place: Place,
    body: &[u8],
    path: &mut String,
    comparisons: &mut RouteComparisons,
    found: &mut dyn FnMut(UnreachableRoute),
) {
    let body = match place {
        Place::Host => return host(body, path, comparisons, found),
        Place::Any => match last_text(body, 1).and_then(|url| url.rsplit('/').next()) {
            Some(MANAGER) => last(body, 2).unwrap_or_default(),
            _ => return,
        },
        _ => body,
    };
    for (_, _, number, name, next) in FIELDS.iter().filter(|(from, ..)| *from == place) {
        let is_list = matches!(*name, "filter_chains" | "filters" | "virtual_hosts");
        for (index, content) in messages(body, *number).enumerate() {
            let length = path.len();
            let dot = if path.is_empty() { "" } else { "." };
            path.extend([dot, name]);
            if is_list {
                path.push_str(&format!("[{index}]"));
            }
            walk(*next, content, path, comparisons, found);
            path.truncate(length);
        }
    }
}

/// Compares the routes of a virtual host.
fn host(
    body: &[u8],
    path: &str,
    comparisons: &mut RouteComparisons,
    found: &mut dyn FnMut(UnreachableRoute),
) {
    let name = |index: usize| {
        let dot = if path.is_empty() { "" } else { "." };
        format!("{path}{dot}routes[{index}]")
    };
    let mut earlier: Vec<(usize, Criteria<'_>)> = Vec::new();
    for (index, route) in messages(body, ROUTES).enumerate() {
        let Some(criteria) = Criteria::of(last(route, MATCH).unwrap_or_default()) else { continue };
        if comparisons.left < earlier.len() {
            comparisons.n_unchecked += 1;
            continue;
        }
        comparisons.left -= earlier.len();
        match earlier.iter().find(|(_, first)| first.covers(&criteria)) {
            Some((first, _)) => {
                found(UnreachableRoute { field: name(index), earlier: name(*first) })
            }
            // Whatever an unreachable route covers, the earlier route covers, too.
            None if !criteria.is_random => earlier.push((index, criteria)),
            None => {}
        }
    }
}

/// Iterates over the values of a field with messages.
fn messages(body: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader(body);
    // A stored body has passed admission, so that it parses.
    let fields = std::iter::from_fn(move || reader.next().ok().flatten());
    fields.filter_map(move |(found, raw)| match raw {
        Raw::Len(content) if found == number => Some(content),
        _ => None,
    })
}

/// The condition on the path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path<'a> {
    Prefix(&'a str),
    Exact(&'a str),
    /// The path itself, and all paths below it.
    Separated(&'a str),
    Regex(&'a str),
    /// A template of an extension, as bytes.
    Policy(&'a [u8]),
    Connect,
}

/// The conditions of a route. All of them must hold.
#[derive(Debug)]
struct Criteria<'a> {
    path: Path<'a>,
    ignores_case: bool,
    /// The numbers and contents of all further conditions.
    others: Vec<(u32, &'a [u8])>,
    /// Whether the route takes a random fraction of the requests.
    is_random: bool,
}

impl<'a> Criteria<'a> {
    /// Reads a `RouteMatch`. Returns `None` if it has a condition of an unknown form, or none on the path.
    fn of(body: &'a [u8]) -> Option<Self> {
        let (mut path, mut ignores_case, mut is_random) = (None, false, false);
        let mut others = Vec::new();
        let mut reader = Reader(body);
        while let Some((number, raw)) = reader.next().ok()? {
            let Raw::Len(content) = raw else { return None };
            let text = || std::str::from_utf8(content).ok();
            match number {
                PREFIX => path = Some(Path::Prefix(text()?)),
                PATH => path = Some(Path::Exact(text()?)),
                PATH_SEPARATED_PREFIX => path = Some(Path::Separated(text()?)),
                SAFE_REGEX => path = Some(regex(last_text(content, REGEX)?)),
                PATH_MATCH_POLICY => path = Some(Path::Policy(content)),
                CONNECT_MATCHER => path = Some(Path::Connect),
                CASE_SENSITIVE => ignores_case = last_varint(content, 1) != Some(1),
                RUNTIME_FRACTION => is_random = true,
                _ => others.push((number, content)),
            }
        }
        Some(Self { path: path?, ignores_case, others, is_random })
    }

    /// Returns whether these conditions hold for every request for which the later ones hold.
    fn covers(&self, later: &Self) -> bool {
        self.covers_path(later) && self.others.iter().all(|one| later.others.contains(one))
    }

    fn covers_path(&self, later: &Self) -> bool {
        let (first, second) = (self.path, later.path);
        let starts = |text: &str, start: &str| self.starts(later.ignores_case, text, start);
        let equals = |a: &str, b: &str| a.len() == b.len() && self.starts(later.ignores_case, a, b);
        // `/a` covers `/a` and `/a/b`, but not `/ab`.
        let below = |text: &str, start: &str| {
            starts(text, start)
                && (text.len() == start.len() || text.as_bytes().get(start.len()) == Some(&b'/'))
        };
        match (first, second) {
            (_, Path::Connect) => first == second,
            (Path::Prefix("" | "/"), _) => true,
            (
                Path::Prefix(start),
                Path::Prefix(text) | Path::Exact(text) | Path::Separated(text),
            ) => starts(text, start),
            (Path::Exact(a), Path::Exact(b)) => equals(b, a),
            (Path::Separated(start), Path::Exact(text) | Path::Separated(text)) => {
                below(text, start)
            }
            (Path::Separated(start), Path::Prefix(text)) => {
                below(text, start) && text.len() > start.len()
            }
            (Path::Regex(a), Path::Regex(b)) => a == b,
            (Path::Policy(a), Path::Policy(b)) => a == b,
            _ => false,
        }
    }

    /// Returns whether `text` begins with `start`, in every case of letters that the later conditions accept.
    fn starts(&self, later_ignores_case: bool, text: &str, start: &str) -> bool {
        let Some(text) = text.as_bytes().get(..start.len()) else { return false };
        match (self.ignores_case, later_ignores_case) {
            (true, _) => text.eq_ignore_ascii_case(start.as_bytes()),
            (false, false) => text == start.as_bytes(),
            (false, true) => text == start.as_bytes() && !text.iter().any(u8::is_ascii_alphabetic),
        }
    }
}

/// Returns the condition of a regular expression. Two common ones accept every path.
fn regex(text: &str) -> Path<'_> {
    match text {
        ".*" | "/.*" => Path::Prefix("/"),
        _ => Path::Regex(text),
    }
}

#[cfg(test)]
mod tests;
