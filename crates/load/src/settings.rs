//! The settings of load reports: which clusters clients report, how often, and in which detail.

use std::time::Duration;

use bytes::Bytes;
use chancery_model::RESOURCE_NAME_BYTES_MAX;
use chancery_proto::lrs::LoadStatsResponse;
use prost::Message;

/// The minimum interval of reports (LRS-03).
pub const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The maximum interval of reports.
pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// The maximum number of clusters in a list.
const CLUSTERS_MAX: usize = 10_000;

/// The maximum size of a list in bytes. Each stream may hold a copy until its client reads it.
const LIST_BYTES_MAX: usize = 256 << 10;

/// The text that stands for all clusters in a list.
const ALL: &str = "*";

/// The clusters that clients report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clusters {
    /// All clusters that a client has.
    All,
    /// The clusters with these names, sorted.
    Named(Vec<String>),
}

/// The settings of load reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The clusters whose load clients report.
    pub clusters: Clusters,
    /// The time between two reports of a client.
    pub interval: Duration,
    /// Whether reports contain the load of each endpoint, if the client supports that (LRS-17).
    pub endpoints: bool,
}

/// The reason why settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The interval is out of range.
    #[error(
        "the interval is {} s; it must be from {} s to {} s",
        .0.as_secs_f64(), INTERVAL_MIN.as_secs(), INTERVAL_MAX.as_secs()
    )]
    Interval(Duration),
    /// The list contains `*` and a name.
    #[error(
        "the list of clusters has \"*\", which means all clusters, and also names; use one of them"
    )]
    AllAndNames,
    /// A name is empty or too long.
    #[error("a cluster name has {0} bytes; it must have from 1 to {RESOURCE_NAME_BYTES_MAX}")]
    Name(usize),
    /// The list has too many names.
    #[error(
        "the list names {0} clusters; at most {CLUSTERS_MAX} are allowed; \"*\" means all clusters"
    )]
    TooMany(usize),
    /// The list has too many bytes.
    #[error("the names of the clusters have {0} bytes; at most {LIST_BYTES_MAX} are allowed")]
    TooLong(usize),
}

impl Default for Settings {
    fn default() -> Self {
        Self { clusters: Clusters::All, interval: Duration::from_secs(10), endpoints: false }
    }
}

impl Clusters {
    /// Reads a list of names. The only item `*` means all clusters.
    ///
    /// # Errors
    /// Fails if the list has `*` and a name, an invalid name, or too many names or bytes.
    pub fn from_list(mut names: Vec<String>) -> Result<Self, SettingsError> {
        if names == [ALL] {
            return Ok(Self::All);
        }
        if names.iter().any(|name| name == ALL) {
            return Err(SettingsError::AllAndNames);
        }
        if names.len() > CLUSTERS_MAX {
            return Err(SettingsError::TooMany(names.len()));
        }
        let allowed = 1..=RESOURCE_NAME_BYTES_MAX;
        if let Some(name) = names.iter().find(|name| !allowed.contains(&name.len())) {
            return Err(SettingsError::Name(name.len()));
        }
        let bytes = names.iter().map(String::len).sum();
        if bytes > LIST_BYTES_MAX {
            return Err(SettingsError::TooLong(bytes));
        }
        names.sort_unstable();
        names.dedup();
        Ok(Self::Named(names))
    }

    /// Returns the list that [`Clusters::from_list`] reads.
    #[must_use]
    pub fn to_list(&self) -> Vec<String> {
        match self {
            Self::All => vec![ALL.to_owned()],
            Self::Named(names) => names.clone(),
        }
    }

    /// Returns whether clients report a cluster.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => {
                names.binary_search_by(|listed| listed.as_str().cmp(name)).is_ok()
            }
        }
    }
}

impl Settings {
    /// Checks the rules.
    ///
    /// # Errors
    /// Fails if the interval is out of range. [`Clusters::from_list`] checks the clusters.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if (INTERVAL_MIN..=INTERVAL_MAX).contains(&self.interval) {
            Ok(())
        } else {
            Err(SettingsError::Interval(self.interval))
        }
    }

    /// Returns whether a response must list the clusters that the client has. `supports_all` says
    /// whether the client supports `send_all_clusters` (LRS-05).
    #[must_use]
    pub fn needs_names(&self, supports_all: bool) -> bool {
        self.clusters == Clusters::All && !supports_all
    }

    /// Returns the encoded response with these settings. `names` are the clusters of a client that
    /// [`Settings::needs_names`]. The response names as many of them as fit.
    #[must_use]
    pub fn response<'n>(&self, supports_all: bool, names: impl Iterator<Item = &'n str>) -> Bytes {
        let clusters = match &self.clusters {
            Clusters::Named(names) => names.clone(),
            Clusters::All if supports_all => Vec::new(),
            Clusters::All => {
                let mut left = LIST_BYTES_MAX;
                let mut fits = |name: &&str| {
                    let rest = left.checked_sub(name.len());
                    left = rest.unwrap_or_default();
                    rest.is_some()
                };
                names.take(CLUSTERS_MAX).take_while(|name| fits(name)).map(str::to_owned).collect()
            }
        };
        let interval = self.interval.max(INTERVAL_MIN);
        let response = LoadStatsResponse {
            send_all_clusters: self.clusters == Clusters::All && supports_all,
            clusters,
            load_reporting_interval: prost_types::Duration::try_from(interval).ok(),
            report_endpoint_granularity: self.endpoints,
        };
        response.encode_to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(settings: &Settings, supports_all: bool, names: &[&str]) -> LoadStatsResponse {
        LoadStatsResponse::decode(settings.response(supports_all, names.iter().copied())).unwrap()
    }

    /// LRS-05: `send_all_clusters` is for clients that support it. Others receive their own clusters.
    #[test]
    fn all_clusters_are_named_for_clients_without_the_feature() {
        let all = Settings::default();
        assert!(!all.needs_names(true) && all.needs_names(false));
        let supported = response(&all, true, &[]);
        assert_eq!((supported.send_all_clusters, supported.clusters.len()), (true, 0));
        let named = response(&all, false, &["a", "b"]);
        assert_eq!(
            (named.send_all_clusters, &named.clusters[..]),
            (false, &["a", "b"].map(String::from)[..])
        );
        let long = "x".repeat(LIST_BYTES_MAX / 2);
        assert_eq!(response(&all, false, &[&long, &long, "c", "d"]).clusters.len(), 2);
    }

    /// LRS-02, LRS-03: a response has the listed clusters, a positive interval and the granularity.
    #[test]
    fn response_has_all_settings() {
        let clusters = Clusters::from_list(vec!["b".into(), "a".into(), "b".into()]).unwrap();
        let settings =
            Settings { clusters, interval: Duration::from_millis(2500), endpoints: true };
        for supports_all in [true, false] {
            let response = response(&settings, supports_all, &["other"]);
            assert_eq!(response.clusters, ["a", "b"]);
            assert!(!response.send_all_clusters && response.report_endpoint_granularity);
            let interval = response.load_reporting_interval.unwrap();
            assert_eq!((interval.seconds, interval.nanos), (2, 500_000_000));
        }
        let zero = Settings { interval: Duration::ZERO, ..settings };
        assert_eq!(zero.validate(), Err(SettingsError::Interval(Duration::ZERO)));
        assert_eq!(response(&zero, true, &[]).load_reporting_interval.unwrap().seconds, 1);
    }

    #[test]
    fn list_of_clusters_is_checked() {
        let list =
            |names: &[&str]| Clusters::from_list(names.iter().map(|n| (*n).into()).collect());
        assert_eq!(list(&["*"]), Ok(Clusters::All));
        assert_eq!(list(&[]), Ok(Clusters::Named(vec![])));
        assert_eq!(list(&["*", "a"]), Err(SettingsError::AllAndNames));
        assert_eq!(list(&["a", ""]), Err(SettingsError::Name(0)));
        assert_eq!(list(&["a"; 10_001]), Err(SettingsError::TooMany(10_001)));
        let long = "x".repeat(4096);
        assert_eq!(list(&[long.as_str(); 65]), Err(SettingsError::TooLong(65 * 4096)));
        assert_eq!(list(&["b", "a"]).unwrap().to_list(), ["a", "b"]);
        assert!(list(&["b", "a"]).unwrap().has("b") && !list(&["b"]).unwrap().has("a"));
    }
}
