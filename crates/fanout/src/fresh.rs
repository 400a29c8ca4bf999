//! Whether the state that is served is current when a stream begins.
//!
//! A client that moves between replicas must not see an older state than before (design 4.2, SOTW-92). A
//! replica can be behind; so before a stream's first request is handled it applies what the leader had
//! committed by then. If nobody can tell what that is, the stream is served with what there is, unless
//! its client shows that it has seen something newer.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use chancery_model::{Revision, State};
use chancery_protocol::Request;
use tokio::sync::watch;

/// How to find out whether the state is current.
pub trait Fresh: fmt::Debug + Send + Sync {
    /// Returns `true` when the published state has all that had been committed when this was called, or
    /// `false` after a bounded time if that can not be known.
    fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// Of a state that has no other copies.
#[derive(Debug)]
pub(crate) struct AlwaysFresh;

impl Fresh for AlwaysFresh {
    fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(std::future::ready(true))
    }
}

/// The replica is behind what a client has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this replica is at revision {own} and can not reach the leader, but the client has seen revision \
     {seen}; connect to another replica"
)]
pub(crate) struct Behind {
    own: Revision,
    seen: Revision,
}

/// What a stream knows of the state that it is served from.
#[derive(Debug, Clone)]
pub(crate) struct Currency {
    fresh: Arc<dyn Fresh>,
    state: watch::Receiver<Arc<State>>,
    known: Known,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nobody has been asked.
    No,
    /// The state was current after the stream had begun; it never goes back.
    Current,
    /// It could not be found out.
    Unknown,
}

impl Currency {
    pub(crate) fn new(fresh: Arc<dyn Fresh>, state: watch::Receiver<Arc<State>>) -> Self {
        Self { fresh, state, known: Known::No }
    }

    /// The same state, asked about in another way.
    pub(crate) fn of(self, fresh: Arc<dyn Fresh>) -> Self {
        Self { fresh, ..self }
    }

    /// Waits, before the first request, until the state is current; says whether a request can be answered
    /// from it.
    pub(crate) async fn check(&mut self, request: &Request) -> Result<(), Behind> {
        if self.known == Known::No {
            self.known = match self.fresh.confirm().await {
                true => Known::Current,
                false => Known::Unknown,
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

    /// SOTW-92, OPS-02: a replica that may be behind serves new clients, and none that has seen more.
    #[tokio::test]
    async fn a_client_that_has_seen_more_is_sent_away() {
        let state = State { revision: Revision(40), ..State::new(Incarnation(36)) };
        let (_sender, state) = watch::channel(Arc::new(state));
        let delta = |version: &str| {
            let initial_resource_versions = vec![("a".to_owned(), version.to_owned())].into();
            Request::Delta(DeltaRequest { initial_resource_versions, ..DeltaRequest::default() })
        };
        let mut unsure = Currency::new(Arc::new(Never), state.clone());
        for served in [sotw(""), sotw("14-10"), sotw("zz-11"), delta("14-00000001"), delta("x")] {
            assert_eq!(unsure.check(&served).await, Ok(()), "{served:?}");
        }
        for ahead in [sotw("15-10"), delta("15-00000001")] {
            let error = unsure.check(&ahead).await.unwrap_err();
            assert!(error.to_string().contains("has seen revision 41"), "{error}");
        }
        // What is current is what there is: such a version can only be of another cluster.
        let mut sure = Currency::new(Arc::new(AlwaysFresh), state);
        assert_eq!(sure.check(&delta("15-00000001")).await, Ok(()));
    }
}
