//! The freshness check at the start of a stream.
//!
//! A client that moves between replicas must not see an older state than before (SOTW-92). A replica
//! can be behind. Before it handles a stream's first request, it therefore applies everything that the
//! leader had committed when it asked. If the leader cannot be asked, the stream receives the local
//! state, unless its client has demonstrably seen a newer one.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use chancery_model::{Revision, State};
use chancery_protocol::Request;
use tokio::sync::watch;

/// A way to confirm that the published state is current.
pub trait Fresh: fmt::Debug + Send + Sync {
    /// Returns `true` once the published state contains everything that was committed at the time of
    /// the call. Returns `false` after a bounded time if that cannot be confirmed.
    fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// The check for a state without other copies.
#[derive(Debug)]
pub(crate) struct AlwaysFresh;

impl Fresh for AlwaysFresh {
    fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(std::future::ready(true))
    }
}

/// An error: the replica is behind the state that a client has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this replica is at revision {own} and cannot reach the leader, but the client has seen revision \
     {seen}; connect to another replica"
)]
pub struct Behind {
    own: Revision,
    seen: Revision,
}

/// The freshness check of one stream.
#[derive(Debug, Clone)]
pub(crate) struct ReadFreshness {
    fresh: Arc<dyn Fresh>,
    state: watch::Receiver<Arc<State>>,
    known: Known,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// The check has not run.
    No,
    /// The state was current after the stream started, and revisions never decrease.
    Current,
    /// The check could not confirm that the state is current.
    Unknown,
}

impl ReadFreshness {
    pub(crate) fn new(fresh: Arc<dyn Fresh>, state: watch::Receiver<Arc<State>>) -> Self {
        Self { fresh, state, known: Known::No }
    }

    /// Replaces the way to confirm the state.
    pub(crate) fn of(self, fresh: Arc<dyn Fresh>) -> Self {
        Self { fresh, ..self }
    }

    /// Returns a receiver of the state.
    pub(crate) fn state(&self) -> watch::Receiver<Arc<State>> {
        self.state.clone()
    }

    /// Waits, before the first request, until the state is confirmed. Returns an error if the client
    /// has seen a newer state than the replica can confirm.
    pub(crate) async fn check(&mut self, request: &Request) -> Result<(), Behind> {
        self.check_within(Duration::MAX, request).await
    }

    /// Does the same, and waits at most for `limit`.
    pub(crate) async fn check_within(
        &mut self,
        limit: Duration,
        request: &Request,
    ) -> Result<(), Behind> {
        if self.known == Known::No {
            let confirmed = tokio::time::timeout(limit, self.fresh.confirm()).await;
            self.known = match confirmed {
                Ok(true) => Known::Current,
                Ok(false) | Err(_) => Known::Unknown,
            };
        }
        if self.known == Known::Current {
            return Ok(());
        }
        let (own, incarnation) = {
            let state = self.state.borrow();
            (state.revision, state.incarnation)
        };
        match request.newest_seen(incarnation) {
            Some(seen) if seen > own => Err(Behind { own, seen }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::Incarnation;
    use chancery_protocol::{DeltaRequest, SotwRequest};

    use super::*;

    #[derive(Debug)]
    struct Never;

    impl Fresh for Never {
        fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
            Box::pin(std::future::ready(false))
        }
    }

    fn sotw(version: &str) -> Request {
        Request::Sotw(SotwRequest { version_info: version.into(), ..SotwRequest::default() })
    }

    /// SOTW-92, OPS-02: a replica that may be behind serves new clients, but no client that has seen a
    /// newer state.
    #[tokio::test]
    async fn client_with_newer_state_is_rejected_by_stale_replica() {
        let state = State { revision: Revision(40), ..State::new(Incarnation(36)) };
        let (_sender, state) = watch::channel(Arc::new(state));
        let delta = |version: &str| {
            let initial_resource_versions = vec![("a".to_owned(), version.to_owned())].into();
            Request::Delta(DeltaRequest { initial_resource_versions, ..DeltaRequest::default() })
        };
        let mut unsure = ReadFreshness::new(Arc::new(Never), state.clone());
        for served in [sotw(""), sotw("14-10"), sotw("zz-11"), delta("14-00000001"), delta("x")] {
            assert_eq!(unsure.check(&served).await, Ok(()), "{served:?}");
        }
        for ahead in [sotw("15-10"), delta("15-00000001")] {
            let error = unsure.check(&ahead).await.unwrap_err();
            assert!(error.to_string().contains("has seen revision 41"), "{error}");
        }
        // The state is confirmed, so such a version can only come from another cluster.
        let mut sure = ReadFreshness::new(Arc::new(AlwaysFresh), state);
        assert_eq!(sure.check(&delta("15-00000001")).await, Ok(()));
    }
}
