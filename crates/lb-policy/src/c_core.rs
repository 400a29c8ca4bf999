//! Rules of C-core that are stricter than gRFC A52.

use crate::{
    config::LbConfig,
    convert::{Context, decode},
    error::ConvertError,
    model::Fields,
    notes::is_known_metric,
    policies::{self, WEIGHT_PERIODS},
    typed_struct::{self, TypeUrl},
};

/// Checks the configuration of `weighted_round_robin`. C-core rejects negative durations, durations
/// without digits before the point, and unknown metrics.
pub(crate) fn weighted_round_robin(fields: &Fields<'_>) -> Result<(), ConvertError> {
    policies::weighted_round_robin(fields)?;
    for key in WEIGHT_PERIODS {
        if fields.is_negative_duration(key)? {
            return Err(fields.error(key, "C-core rejects negative durations"));
        }
        if fields.string(key)?.is_some_and(|text| text.starts_with('.')) {
            return Err(fields.error(key, "C-core expects a digit before the point"));
        }
    }
    let key = "metricNamesForComputingUtilization";
    match fields.strings(key)?.into_iter().find(|metric| !is_known_metric(metric)) {
        Some(metric) => Err(fields.error(key, format!("C-core rejects the metric {metric:?}"))),
        None => Ok(()),
    }
}

/// Checks the configuration of `priority_experimental`. C-core needs both fields.
pub(crate) fn priority(fields: &Fields<'_>) -> Result<(), ConvertError> {
    fields.required("children")?;
    fields.required("priorities")?;
    policies::priority(fields)
}

/// Converts a `TypedStruct`. C-core rejects type URLs without a name behind a `/`.
pub(crate) fn typed_struct(
    bytes: &[u8],
    context: &Context<'_>,
) -> Result<Option<LbConfig>, ConvertError> {
    let TypeUrl { type_url } = decode(bytes, context)?;
    match type_url.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() => typed_struct::convert(bytes, context),
        _ => {
            let rule = format!(
                "C-core expects a name behind a `/`, such as in `type.googleapis.com/a.B`; found {type_url:?}"
            );
            Err(context.invalid("type_url", rule))
        }
    }
}
