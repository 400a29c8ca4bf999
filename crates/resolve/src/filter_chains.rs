//! The selection of a filter chain.
//!
//! Envoy compares the criteria in a fixed order. For each, it keeps the chains with the most specific value, and never
//! returns to the others.

use std::net::IpAddr;

use crate::{
    answer::End,
    matcher::{Outcome, evaluate},
    matcher_inputs::connection_input,
    message::Msg,
    walk::{Skips, Walk},
};

/// The selected filter chain.
pub(crate) enum Selected<'a> {
    /// A chain of the listener.
    Chain(Msg<'a>),
    /// A chain that the listener requests by its name (FCDS).
    Named(String),
    /// No chain.
    End(End),
}

/// A chain that still matches.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    index: usize,
    chain: Msg<'a>,
    criteria: Option<Msg<'a>>,
}

impl Candidate<'_> {
    fn texts(&self, field: &str) -> Vec<String> {
        self.criteria.map(|one| one.texts(field).map(str::to_owned).collect()).unwrap_or_default()
    }

    fn n_items(&self, field: &str) -> usize {
        let Some(criteria) = self.criteria else { return 0 };
        criteria.list(field).count() + criteria.numbers(field).count()
    }
}

/// Selects the chain of a connection to `address` and `port`.
pub(crate) fn select_chain<'a>(
    walk: &mut Walk<'_>,
    listener: Msg<'a>,
    address: &str,
    port: i64,
) -> Selected<'a> {
    if let Some(matcher) = listener.sub("filter_chain_matcher") {
        return select_by_matcher(walk, listener, matcher, port);
    }
    let chains = listener.list("filter_chains").enumerate();
    let all: Vec<Candidate<'a>> = chains
        .map(|(index, chain)| Candidate { index, chain, criteria: chain.sub("filter_chain_match") })
        .collect();
    let mut skips = Skips::default();
    let mut left = all;
    let narrow =
        |left: &mut Vec<Candidate<'a>>, kept: Vec<Candidate<'a>>, skips: &mut Skips, why: &str| {
            for one in left.iter().filter(|one| kept.iter().all(|kept| kept.index != one.index)) {
                skips.add(place(one.index, one.chain), why);
            }
            *left = kept;
        };
    let kept = by_port(&left, port);
    narrow(&mut left, kept, &mut skips, &format!("another destination port than {port}"));
    let kept = by_destination(walk, &left, address);
    narrow(&mut left, kept, &mut skips, "another destination address");
    let kept = by_server_name(&left, walk.request.is_tls().then_some(walk.request.host.as_str()));
    narrow(&mut left, kept, &mut skips, "less specific or other server names");
    let transport = if walk.request.is_tls() { "tls" } else { "raw_buffer" };
    let kept = most_specific(&left, |one| {
        let wanted = one.criteria.map(|it| it.text("transport_protocol")).unwrap_or_default();
        (!wanted.is_empty()).then_some(wanted == transport)
    });
    narrow(&mut left, kept, &mut skips, &format!("another transport protocol than {transport}"));
    let kept = by_application_protocol(&left, listener, walk.request.is_tls());
    narrow(&mut left, kept, &mut skips, "other application protocols than h2 and http/1.1");
    let kept = by_source(walk, &left);
    narrow(&mut left, kept, &mut skips, "depends on the address of the client");
    if let Some(Candidate { index, chain, .. }) = left.first().copied() {
        let reason = "the most specific match of the connection".to_owned();
        walk.step("filter chain", place(index, chain), reason, skips);
        return Selected::Chain(chain);
    }
    match listener.sub("default_filter_chain") {
        Some(chain) => {
            let reason = "no filter chain matches the connection".to_owned();
            walk.step("filter chain", "default_filter_chain".to_owned(), reason, skips);
            Selected::Chain(chain)
        }
        None => {
            walk.step(
                "filter chain",
                String::new(),
                "none matches the connection".to_owned(),
                skips,
            );
            let reason = "no filter chain matches, and the node closes the connection".to_owned();
            Selected::End(End::NoConnection { reason })
        }
    }
}

fn place(index: usize, chain: Msg<'_>) -> String {
    match chain.text("name") {
        "" => format!("filter_chains[{index}]"),
        name => format!("filter_chains[{index}] {name:?}"),
    }
}

/// Keeps the candidates for which the criterion holds. If it holds for none, keeps those without the criterion.
fn most_specific<'a>(
    left: &[Candidate<'a>],
    holds: impl Fn(&Candidate<'a>) -> Option<bool>,
) -> Vec<Candidate<'a>> {
    let keep =
        |wanted: Option<bool>| left.iter().copied().filter(|one| holds(one) == wanted).collect();
    let matching: Vec<Candidate<'a>> = keep(Some(true));
    if matching.is_empty() { keep(None) } else { matching }
}

fn by_port<'a>(left: &[Candidate<'a>], port: i64) -> Vec<Candidate<'a>> {
    most_specific(left, |one| Some(one.criteria?.wrapped("destination_port")? == port))
}

fn by_destination<'a>(
    walk: &mut Walk<'_>,
    left: &[Candidate<'a>],
    address: &str,
) -> Vec<Candidate<'a>> {
    if left.iter().all(|one| one.n_items("prefix_ranges") == 0) {
        return left.to_vec();
    }
    let host = walk.request.host.parse::<IpAddr>().ok();
    let own = address.parse::<IpAddr>().ok().filter(|own| !own.is_unspecified());
    let Some(ip) = own.or(host) else {
        let reason = "the address to which the client connects is not known";
        walk.doubt("filter_chain_match.prefix_ranges", reason, "another filter chain");
        return left.iter().copied().filter(|one| one.n_items("prefix_ranges") == 0).collect();
    };
    let longest = |one: &Candidate<'a>| {
        let ranges = one.criteria.into_iter().flat_map(|it| it.list("prefix_ranges"));
        ranges.filter_map(|range| contains(range, ip)).max()
    };
    match left.iter().filter_map(longest).max() {
        Some(best) => left.iter().copied().filter(|one| longest(one) == Some(best)).collect(),
        None => left.iter().copied().filter(|one| one.n_items("prefix_ranges") == 0).collect(),
    }
}

/// Returns the length of the prefix, if the range contains the address.
fn contains(range: Msg<'_>, ip: IpAddr) -> Option<u32> {
    let prefix = range.text("address_prefix").parse::<IpAddr>().ok()?;
    let length = u32::try_from(range.wrapped("prefix_len").unwrap_or_default()).ok()?;
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let ((own, own_max), (other, other_max)) = (bits(prefix), bits(ip));
    let shift = 128_u32.checked_sub(length)?;
    let is_equal = (own ^ other).checked_shr(shift).unwrap_or_default() == 0;
    (own_max == other_max && length <= own_max && is_equal).then_some(length)
}

/// Keeps the chains with the server name, then those with the longest wildcard, then those without names.
fn by_server_name<'a>(left: &[Candidate<'a>], name: Option<&str>) -> Vec<Candidate<'a>> {
    let mut wanted = Vec::new();
    if let Some(name) = name {
        wanted.push(name.to_owned());
        let dots = name.match_indices('.').map(|(at, _)| format!("*{}", &name[at..]));
        wanted.extend(dots);
    }
    for wanted in wanted {
        let has = |one: &Candidate<'a>| {
            one.texts("server_names").iter().any(|known| known.eq_ignore_ascii_case(&wanted))
        };
        let matching: Vec<Candidate<'a>> = left.iter().copied().filter(has).collect();
        if !matching.is_empty() {
            return matching;
        }
    }
    let is_open = |one: &Candidate<'a>| {
        let names = one.texts("server_names");
        names.is_empty() || names.iter().any(|name| name == "*")
    };
    left.iter().copied().filter(is_open).collect()
}

/// Keeps the chains for the first protocol that the client offers: h2 or http/1.1. Without TLS, the protocol is known only
/// with an HTTP inspector.
fn by_application_protocol<'a>(
    left: &[Candidate<'a>],
    listener: Msg<'a>,
    is_tls: bool,
) -> Vec<Candidate<'a>> {
    const INSPECTOR: &str = "http_inspector";
    let has_inspector = listener.list("listener_filters").any(|filter| {
        filter.any("typed_config").is_some_and(|content| content.type_name.contains(INSPECTOR))
    });
    let offered: &[&str] = match (is_tls, has_inspector) {
        (true, _) => &["h2", "http/1.1"],
        (false, true) => &["http/1.1"],
        (false, false) => &[],
    };
    for protocol in offered {
        let has = |one: &Candidate<'a>| {
            one.texts("application_protocols").iter().any(|known| known == protocol)
        };
        let matching: Vec<Candidate<'a>> = left.iter().copied().filter(has).collect();
        if !matching.is_empty() {
            return matching;
        }
    }
    left.iter().copied().filter(|one| one.texts("application_protocols").is_empty()).collect()
}

/// Keeps the chains that do not depend on the client. If all depend on it, keeps the first one.
fn by_source<'a>(walk: &mut Walk<'_>, left: &[Candidate<'a>]) -> Vec<Candidate<'a>> {
    const LISTS: [&str; 3] =
        ["direct_source_prefix_ranges", "source_prefix_ranges", "source_ports"];
    let depends = |one: &Candidate<'a>| {
        LISTS.iter().any(|field| one.n_items(field) > 0)
            || one.criteria.is_some_and(|criteria| criteria.number("source_type") != 0)
    };
    for one in left.iter().filter(|one| depends(one)) {
        let place = format!("{}.filter_chain_match", place(one.index, one.chain));
        walk.doubt(&place, "the address of the client is not known", "this filter chain");
    }
    let free: Vec<Candidate<'a>> = left.iter().copied().filter(|one| !depends(one)).collect();
    if free.is_empty() { left.iter().copied().take(1).collect() } else { free }
}

/// Selects the chain that a matcher names.
fn select_by_matcher<'a>(
    walk: &mut Walk<'_>,
    listener: Msg<'a>,
    matcher: Msg<'_>,
    port: i64,
) -> Selected<'a> {
    let request = walk.request;
    let outcome = evaluate(matcher, &|input| connection_input(input, request, port));
    let name = match outcome {
        Outcome::Action(action) => action.message().map(|it| it.text("value").to_owned()),
        Outcome::None => None,
        Outcome::Unknown { field, reason } => {
            walk.doubt(&format!("filter_chain_matcher.{field}"), &reason, "");
            return Selected::End(End::Undecided {
                reason: format!("the filter chain depends on filter_chain_matcher: {reason}"),
            });
        }
    };
    let Some(name) = name else {
        return match listener.sub("default_filter_chain") {
            Some(chain) => {
                let reason = "filter_chain_matcher selects no chain".to_owned();
                walk.step(
                    "filter chain",
                    "default_filter_chain".to_owned(),
                    reason,
                    Skips::default(),
                );
                Selected::Chain(chain)
            }
            None => Selected::End(End::NoConnection {
                reason: "filter_chain_matcher selects no filter chain".to_owned(),
            }),
        };
    };
    let mut chains = listener.list("filter_chains").enumerate();
    let own = chains.find(|(_, chain)| chain.text("name") == name);
    let place =
        own.map_or_else(|| format!("filter chain {name:?}"), |(index, chain)| place(index, chain));
    walk.step("filter chain", place, "named by filter_chain_matcher".to_owned(), Skips::default());
    match own {
        Some((_, chain)) => Selected::Chain(chain),
        None if listener.has("fcds_config") => Selected::Named(name),
        None => Selected::End(End::NoConnection {
            reason: format!("the listener has no filter chain {name:?}"),
        }),
    }
}
