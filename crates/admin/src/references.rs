//! References between resources: which ones a write leaves dangling, and what refers to a resource.
//!
//! `chancery_admission` knows the fields with references. Each replica keeps the index of its state, beside
//! the path on which committed entries are applied.

mod addresses;
mod check;
mod index;
mod reference_view;
mod replaced;
mod report;
mod settings;
mod show;

use std::{sync::Arc, time::Duration};

use chancery_model::State;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

pub(crate) use addresses::{SharedAddresses, is_checked};
pub(crate) use check::Suspects;
pub(crate) use index::{ReferenceIndex, SharedIndex};
pub(crate) use reference_view::{ReferenceView, label, names_of};
pub(crate) use replaced::{changes_secret, replaced};
pub(crate) use report::{Finding, Findings, findings, shorten};
pub use settings::ReferenceSettings;
pub(crate) use show::{ScopeViews, Shown, of_scope, of_view};

use crate::work::{Size, Work};

/// The pause between two updates of the index that no request needs.
const UPDATE_PAUSE: Duration = Duration::from_secs(1);

/// Keeps the index up to date until the replica drains, so that requests find few changes. An index that is
/// behind would also keep an old state in memory.
pub(crate) async fn update(
    index: Arc<SharedIndex>,
    mut states: watch::Receiver<Arc<State>>,
    work: Work,
    drain: CancellationToken,
) {
    let run = async {
        loop {
            let state = Arc::clone(&states.borrow_and_update());
            let index = Arc::clone(&index);
            // After an update that fails, the next request computes the index.
            drop(work.run(Size::Large, move || drop(index.at(&state))).await);
            if states.changed().await.is_err() {
                return;
            }
            sleep(UPDATE_PAUSE).await;
        }
    };
    tokio::select! {
        () = drain.cancelled() => {}
        () = run => {}
    }
}
