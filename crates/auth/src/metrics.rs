//! The metrics of authentication.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Gauge, counter, gauge};

use crate::{
    credentials::AuthPort,
    error::{AuthError, Method},
};

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_auth_results_total",
        MetricKind::Counter,
        "Authentications of streams and calls, by port, method and result: ok, or the reason of the refusal. method \
         none: the caller has no credential. bearer: the kind of the token is unknown",
    ),
    Metric::new(
        "chancery_jwks_age_seconds",
        MetricKind::Gauge,
        "Seconds since the keys of an issuer (jwks_file, jwks_url) were last known to be current. +Inf until they are \
         first read",
    ),
    Metric::new(
        "chancery_jwks_fetches_total",
        MetricKind::Counter,
        "Attempts to read the keys of an issuer, by issuer and result. unreachable: there was no answer. refused: the \
         answer has another status than 200. invalid: the set is unusable. After a failure, the previous keys stay in \
         use",
    ),
];

/// Describes the metrics, and shows the results of successful authentications as zero.
pub fn register_metrics() {
    chancery_metrics::describe(METRICS);
    for port in AuthPort::ALL {
        for method in Method::ALL {
            result(port, method, "ok").increment(0);
        }
    }
}

/// Counts an authentication.
pub(crate) fn on_result(port: AuthPort, outcome: Result<Method, &AuthError>) {
    match outcome {
        Ok(method) => result(port, method, "ok").increment(1),
        Err(error) => result(port, error.method(), error.reason()).increment(1),
    }
}

fn result(port: AuthPort, method: Method, result: &'static str) -> Counter {
    counter!("chancery_auth_results_total", "port" => port.label(), "method" => method.label(), "result" => result)
}

/// The result of an attempt to read a key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    Ok,
    Unreachable,
    Refused,
    Invalid,
}

impl Fetched {
    const ALL: [Self; 4] = [Self::Ok, Self::Unreachable, Self::Refused, Self::Invalid];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
        }
    }
}

/// The metrics of the key set of one issuer.
#[derive(Debug)]
pub(crate) struct KeyMetrics {
    pub(crate) age: Gauge,
    /// By [`Fetched`].
    fetches: [Counter; Fetched::ALL.len()],
}

impl KeyMetrics {
    pub(crate) fn new(issuer: &str) -> Self {
        let age = gauge!("chancery_jwks_age_seconds", "issuer" => issuer.to_owned());
        age.set(f64::INFINITY);
        let fetches = Fetched::ALL.map(|fetched| {
            counter!("chancery_jwks_fetches_total", "issuer" => issuer.to_owned(), "result" => fetched.label())
        });
        fetches.iter().for_each(|counter| counter.increment(0));
        Self { age, fetches }
    }

    pub(crate) fn on_fetch(&self, fetched: Fetched) {
        self.fetches[fetched as usize].increment(1);
    }
}
