//! The conditions of a route.

use crate::{
    headers::{HeaderValue, Seen, check_cookie, check_header, check_query_parameter},
    message::Msg,
    path::check_path,
    verdict::Verdict,
};

/// Returns whether a route matches, and the part of the path that a prefix rewrite replaces.
pub(crate) fn check_route(
    route: Msg<'_>,
    seen: &Seen<'_>,
    ignores_parameters: bool,
) -> (Verdict, String) {
    let Some(matcher) = route.sub("match") else {
        return (Verdict::unknown("match", "the route has no condition"), String::new());
    };
    let (path, matched) = check_path(matcher, seen, ignores_parameters);
    let conditions = [
        ("headers", check_header as fn(Msg<'_>, &Seen<'_>) -> Verdict),
        ("query_parameters", check_query_parameter),
        ("cookies", check_cookie),
    ];
    let lists = conditions.into_iter().flat_map(|(field, check)| {
        let items = matcher.list(field).enumerate();
        items.map(move |(index, item)| check(item, seen).within(&format!("{field}[{index}]")))
    });
    let verdict = Verdict::all(
        std::iter::once(path)
            .chain(std::iter::once_with(|| check_grpc(matcher, seen)))
            .chain(lists)
            .chain(std::iter::once_with(|| check_tls_context(matcher, seen)))
            .chain(std::iter::once_with(|| check_unknowable(matcher)))
            .chain(std::iter::once_with(|| check_fraction(matcher))),
    );
    (verdict.within("match"), matched)
}

fn check_grpc(matcher: Msg<'_>, seen: &Seen<'_>) -> Verdict {
    if !matcher.has("grpc") {
        return Verdict::Yes;
    }
    let content_type = match seen.header("content-type") {
        HeaderValue::Known(value) => value.unwrap_or_default(),
        HeaderValue::Unknown => String::new(),
    };
    let rest = content_type.strip_prefix("application/grpc");
    let holds = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'));
    Verdict::of(holds, || format!("content-type {content_type:?} is not gRPC"))
}

fn check_tls_context(matcher: Msg<'_>, seen: &Seen<'_>) -> Verdict {
    let Some(context) = matcher.sub("tls_context") else { return Verdict::Yes };
    let conditions = ["presented", "validated"].into_iter().filter_map(|field| {
        let wanted = context.wrapped_flag(field)?;
        if seen.request.is_tls() {
            let reason = "the certificate of the client is not known";
            return Some(Verdict::unknown(&format!("tls_context.{field}"), reason));
        }
        Some(Verdict::of(!wanted, || "the client has no certificate".to_owned()))
    });
    Verdict::all(conditions)
}

/// Returns a verdict on conditions that depend on the filters before the router.
fn check_unknowable(matcher: Msg<'_>) -> Verdict {
    for (field, reason) in [
        ("dynamic_metadata", "filters set the metadata of a request"),
        ("filter_state", "filters set the filter state of a request"),
    ] {
        if matcher.list(field).next().is_some() {
            return Verdict::unknown(field, reason);
        }
    }
    Verdict::Yes
}

/// Returns a verdict on a fraction of the requests.
fn check_fraction(matcher: Msg<'_>) -> Verdict {
    let Some(fraction) = matcher.sub("runtime_fraction") else { return Verdict::Yes };
    let Some(share) = fraction.sub("default_value") else {
        return Verdict::unknown("runtime_fraction", "the fraction is set by the runtime");
    };
    let numerator = share.number("numerator");
    let denominator = match share.number("denominator") {
        0 => 100,
        1 => 10_000,
        _ => 1_000_000,
    };
    match numerator {
        0 => Verdict::No("runtime_fraction is 0".to_owned()),
        numerator if numerator >= denominator => Verdict::Yes,
        _ => {
            let key = match fraction.text("runtime_key") {
                "" => String::new(),
                key => format!(" (runtime key {key:?})"),
            };
            let reason = format!("it holds for {numerator} of {denominator} requests{key}");
            Verdict::unknown("runtime_fraction", reason)
        }
    }
}
