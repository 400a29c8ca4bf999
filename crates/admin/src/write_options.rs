//! The options of a write, checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1 as pb;
use chancery_admission::ValidationMode;
use chancery_audit::duration_text;
use chancery_model::{AccessOp, Revision, Transaction, TransactionMeta};
use chancery_store::RequestId;
use tokio::time::Instant;

use crate::{
    AdminError,
    changes::Effect,
    deps::Freshness,
    time_limits::WAIT,
    times::millis,
    write_guards::settings::{Guard, guards},
};

const LABEL_BYTES_MAX: usize = 64;
/// The maximum number of labels of a revision.
const LABELS_MAX: usize = 16;
const LABEL_VALUE_BYTES_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 4096;
/// The maximum time of a wait.
pub(crate) const WAIT_MAX: Duration = *WAIT.end();

/// Valid options of a write.
pub(crate) struct Checked {
    /// The time at which the request arrived.
    pub(crate) started: Instant,
    pub(crate) effect: Effect,
    pub(crate) wait: Option<Duration>,
    pub(crate) if_revision: Option<Revision>,
    pub(crate) meta: TransactionMeta,
    pub(crate) request_id: RequestId,
    /// Whether the author chose the request ID, and may have sent the request before.
    pub(crate) may_be_repeated: bool,
    /// The encoded request if its transaction depends on the state. It identifies a retry.
    pub(crate) content: Option<Vec<u8>>,
    pub(crate) freshness: Freshness,
    /// The guards that the write may trip.
    pub(crate) confirmed: BTreeSet<Guard>,
    pub(crate) validation: Option<ValidationMode>,
    /// Whether clients receive the write although its scopes are frozen.
    pub(crate) override_freeze: bool,
}

/// Checks the options of a write. `source` is the address of its author.
pub(crate) fn check(
    options: Option<pb::WriteOptions>,
    source: String,
) -> Result<Checked, AdminError> {
    let refuse = |text: String| Err(AdminError::Parameter(text));
    let options = options.unwrap_or_default();
    if options.dry_run && options.wait_ms.is_some() {
        return refuse("a dry run cannot wait for clients, because it writes nothing".to_owned());
    }
    if options.stale && !options.dry_run {
        return refuse("only a dry run can start from a stale state".to_owned());
    }
    let may_be_repeated = !options.request_id.is_empty() && !options.dry_run;
    let request_id = request_id(&options.request_id)?;
    let label = options.label;
    if label.len() > LABEL_BYTES_MAX {
        let len = label.len();
        return refuse(format!("the label has {len} bytes, at most {LABEL_BYTES_MAX} are allowed"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(c) = label.chars().find(|c| !allowed(*c)) {
        return refuse(format!(
            "the label {label:?} contains the character {c:?}; only letters, digits, '.', '_' and '-' are allowed"
        ));
    }
    for (what, text) in [("author", &options.author), ("reason", &options.reason)] {
        if text.len() > TEXT_BYTES_MAX {
            let len = text.len();
            return refuse(format!(
                "the {what} has {len} bytes, at most {TEXT_BYTES_MAX} are allowed"
            ));
        }
    }
    check_labels(&options.labels)?;
    let validation = match options.validation.as_str() {
        "" => None,
        mode => Some(
            mode.parse()
                .map_err(|error: String| AdminError::Parameter(format!("validation: {error}")))?,
        ),
    };
    let wait = options.wait_ms.map(Duration::from_millis);
    if let Some(wait) = wait.filter(|wait| *wait > WAIT_MAX) {
        let [wait, max] = [wait, WAIT_MAX].map(duration_text);
        return refuse(format!("the wait of {wait} exceeds the maximum of {max}"));
    }
    let confirmed = guards(&options.confirm).map_err(AdminError::Parameter)?;
    Ok(Checked {
        started: Instant::now(),
        confirmed,
        effect: if options.dry_run { Effect::DryRun } else { Effect::Committed },
        wait,
        if_revision: options.if_revision.map(Revision),
        request_id,
        may_be_repeated,
        content: None,
        freshness: Freshness::of(options.stale || !options.dry_run),
        validation,
        override_freeze: options.override_freeze,
        meta: TransactionMeta {
            label: (!label.is_empty()).then(|| label.into()),
            author: options.author,
            reason: options.reason,
            time_ms: millis(SystemTime::now()),
            validation: options.validation,
            confirmed: Vec::new(),
            source,
            labels: options.labels,
        },
    })
}

/// Checks the labels of a revision.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), AdminError> {
    let refuse = |text: String| Err(AdminError::Parameter(text));
    if labels.len() > LABELS_MAX {
        let n = labels.len();
        return refuse(format!("the write has {n} labels, at most {LABELS_MAX} are allowed"));
    }
    let in_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let in_value = |c: char| matches!(c, ' '..='~') && c != ',';
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_BYTES_MAX || !key.chars().all(in_key) {
            return refuse(format!(
                "the label key {key:?} is not allowed; a key has 1 to {LABEL_BYTES_MAX} letters, digits, '.', '_', '-' and '/'"
            ));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX || !value.chars().all(in_value) {
            return refuse(format!(
                "the value {value:?} of the label {key:?} is not allowed; a value has at most {LABEL_VALUE_BYTES_MAX} printable ASCII characters without commas"
            ));
        }
    }
    Ok(())
}

impl Checked {
    /// Marks a transaction if clients are to receive it although its scopes are frozen.
    pub(crate) fn mark(&self, transaction: &mut Transaction) {
        let is_marked = transaction.access.contains(&AccessOp::OverrideFreezes);
        if self.override_freeze && !is_marked {
            transaction.access.push(AccessOp::OverrideFreezes);
        }
    }

    /// Returns whether the author overrides guards or validation.
    pub(crate) fn is_forced(&self) -> bool {
        !self.confirmed.is_empty()
            || matches!(self.validation, Some(ValidationMode::Off | ValidationMode::Warn))
    }
}

/// Returns the ID of a request, or a random one if the request has none.
pub(crate) fn request_id(text: &str) -> Result<RequestId, AdminError> {
    if text.is_empty() {
        return RequestId::random().map_err(|error| AdminError::Internal(error.to_string()));
    }
    text.parse().map_err(|error: chancery_store::RequestIdError| {
        AdminError::Parameter(format!("request_id is {text:?}: {error}"))
    })
}
