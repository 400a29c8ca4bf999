//! The policy `outlier_detection_experimental` of a cluster (gRFC A50).

use prost_types::Duration;
use serde_json::{Map, Value};

use crate::{config::LbConfig, duration, error::ConvertError, names, proto::OutlierDetection};

/// Converts the outlier detection of a cluster. Without it, the policy does nothing.
pub(crate) fn config(
    detection: Option<&OutlierDetection>,
    child: &LbConfig,
) -> Result<LbConfig, ConvertError> {
    let mut config = Map::new();
    if let Some(detection) = detection {
        let durations = [
            ("interval", "interval", detection.interval),
            ("base_ejection_time", "baseEjectionTime", detection.base_ejection_time),
            ("max_ejection_time", "maxEjectionTime", detection.max_ejection_time),
        ];
        for (field, key, value) in durations {
            let Some(value) = value else { continue };
            config.insert(key.to_owned(), ejection_time(field, &value)?.into());
        }
        set(&mut config, "maxEjectionPercent", detection.max_ejection_percent);
        if detection.enforcing_success_rate != Some(0) {
            let mut success = Map::new();
            set(&mut success, "stdevFactor", detection.success_rate_stdev_factor);
            set(&mut success, "enforcementPercentage", detection.enforcing_success_rate);
            set(&mut success, "minimumHosts", detection.success_rate_minimum_hosts);
            set(&mut success, "requestVolume", detection.success_rate_request_volume);
            config.insert("successRateEjection".to_owned(), success.into());
        }
        if detection.enforcing_failure_percentage.unwrap_or(0) != 0 {
            let mut failure = Map::new();
            set(&mut failure, "threshold", detection.failure_percentage_threshold);
            set(&mut failure, "enforcementPercentage", detection.enforcing_failure_percentage);
            set(&mut failure, "minimumHosts", detection.failure_percentage_minimum_hosts);
            set(&mut failure, "requestVolume", detection.failure_percentage_request_volume);
            config.insert("failurePercentageEjection".to_owned(), failure.into());
        }
    }
    config.insert("childPolicy".to_owned(), child.to_json());
    Ok(LbConfig::new(names::OUTLIER_DETECTION, Value::Object(config)))
}

fn ejection_time(field: &str, value: &Duration) -> Result<String, ConvertError> {
    let path = format!("outlier_detection.{field}");
    if value.seconds < 0 || value.nanos < 0 {
        return Err(ConvertError::invalid(path, "the duration is negative"));
    }
    duration::format(value).map_err(|rule| ConvertError::invalid(path, rule))
}

fn set(config: &mut Map<String, Value>, key: &str, value: Option<u32>) {
    if let Some(value) = value {
        config.insert(key.to_owned(), value.into());
    }
}
