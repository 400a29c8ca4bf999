//! The section `[trace]`: traces of writes.

use std::{collections::BTreeMap, env};

use super::{bounds::count, section::section};

/// The standard variables. The first one that is set is used.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
const DISABLED: &str = "OTEL_SDK_DISABLED";

section! {
    /// The section `[trace]`.
    pub struct Trace {
        /// The OTLP receiver (gRPC) of the traces of writes, as http://HOST:PORT. If it is empty,
        /// the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used, or else
        /// OTEL_EXPORTER_OTLP_ENDPOINT. If all three are empty, no write is traced.
        otlp_endpoint: String;
        /// The percentage of writes that are traced. If a write has a header traceparent, its
        /// sampling flag decides instead.
        sample_percent: u8 = 100, count(0, 100);
    }
}

impl Trace {
    /// Returns the rule that the receiver breaks.
    pub(crate) fn rules(&self) -> Option<String> {
        endpoint_rule(&self.otlp_endpoint).filter(|_| !self.otlp_endpoint.is_empty())
    }

    /// Returns the settings of traces; `None` if nothing is traced.
    pub fn settings(&self, replica_id: u64) -> Option<chancery_trace::Settings> {
        self.settings_with(replica_id, |name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn settings_with(
        &self,
        replica_id: u64,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<chancery_trace::Settings> {
        let is_disabled =
            variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let own = Some(self.otlp_endpoint.clone()).filter(|endpoint| !endpoint.is_empty());
        let endpoint = own.or_else(|| ENDPOINTS.into_iter().find_map(&variable))?;
        let mut resource = BTreeMap::from([
            ("service.name".to_owned(), "chancery".to_owned()),
            ("service.instance.id".to_owned(), replica_id.to_string()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ]);
        resource.extend(attributes(&variable(RESOURCE_ATTRIBUTES).unwrap_or_default()));
        // The name has precedence over the attribute.
        resource.extend(variable(SERVICE_NAME).map(|name| ("service.name".to_owned(), name)));
        (!is_disabled).then(|| chancery_trace::Settings {
            endpoint,
            sample_percent: self.sample_percent,
            resource: resource.into_iter().collect(),
        })
    }
}

/// Parses `key=value,key=value`. Drops everything if a pair is invalid, as the specification demands.
fn attributes(text: &str) -> BTreeMap<String, String> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((key.trim().to_owned(), percent_decoded(value.trim())?))
    };
    let pairs = text.split(',').filter(|part| !part.trim().is_empty());
    pairs.map(pair).collect::<Option<_>>().unwrap_or_default()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex =
            |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(match byte {
            b'%' => 16 * hex(rest.next()?)? + hex(rest.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Returns the rule that the address of a receiver breaks.
pub fn endpoint_rule(endpoint: &str) -> Option<String> {
    let address = endpoint.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let is_valid = address.is_some_and(|address| chancery_store::check_address(address).is_ok());
    (!is_valid).then(|| {
        "must be http://HOST:PORT; the connection is not encrypted, so use an OpenTelemetry Collector on the same host \
         or network"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_variables_count_where_the_key_is_empty() {
        let mut section = Trace::default();
        let with = |section: &Trace, variables: &[(&str, &str)]| {
            let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
            section.settings_with(1, |name| variables.get(name).map(|value| (*value).to_owned()))
        };
        assert_eq!(with(&section, &[("OTEL_SERVICE_NAME", "x")]), None);
        let all = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
            ("OTEL_SERVICE_NAME", "mesh"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,team=a%2Cb"),
        ];
        let settings = with(&section, &all).unwrap();
        assert_eq!(
            (settings.endpoint.as_str(), settings.sample_percent),
            ("http://collector:4317", 100)
        );
        let value = |key: &str| {
            let found = settings.resource.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!((value("service.name"), value("team")), (Some("mesh"), Some("a,b")));
        assert_eq!(value("service.instance.id"), Some("1"));
        let disabled = [all.as_slice(), &[("OTEL_SDK_DISABLED", "TRUE")]].concat();
        assert_eq!(with(&section, &disabled), None);
        section.otlp_endpoint = "http://127.0.0.1:4317".to_owned();
        assert_eq!(with(&section, &all).unwrap().endpoint, "http://127.0.0.1:4317");
        assert_eq!(attributes("a=1,b"), BTreeMap::new());
    }

    #[test]
    fn receiver_is_a_plain_address() {
        for endpoint in ["http://collector:4317", "http://127.0.0.1:4317/", "http://[::1]:4317"] {
            assert_eq!(endpoint_rule(endpoint), None, "{endpoint}");
        }
        for endpoint in
            ["https://collector:4317", "collector:4317", "http://collector", "http://a:1/v1"]
        {
            assert!(endpoint_rule(endpoint).is_some(), "{endpoint}");
        }
    }
}
