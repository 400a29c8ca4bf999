//! The xDS transport protocol, state of the world and delta, as pure code.
//!
//! A [`Session`] is the protocol state of one stream. Requests and marks of change go in; responses
//! come out of [`Session::poll`], which builds each one when it can be sent, from the newest view
//! (late binding: what has changed meanwhile folds into it). No async, clock, randomness or I/O.
//!
//! What is remembered is what was *sent*, never what was acknowledged: after a NACK the same content
//! is not sent again until it changes, and if it changes back that is a change (SOTW-23, -24,
//! DELTA-16 to -18). A wildcard subscription remembers the view it was last sent, a pointer; a named
//! one a small entry for each name.
//!
//! Invariants:
//! - A session is never sent an older state after a newer one.
//! - While a response is unacknowledged, changes are not queued: they only mark the subscription, and
//!   the next response is the difference to what is newest then (design 4.6). Subscription changes
//!   are honored at once all the same. After `ack_timeout` the newest state goes out anyway. It also goes out before
//!   a type that depends on it and that waits no longer: order comes before pace (ADS-06).
//! - Whatever waits for something else waits for a bounded time, with one exception: a removal is
//!   held back while what refers to the resource is rejected (ADS-09).

mod config;
mod error;
mod list;
mod plan;
mod remains;
mod removals;
mod request;
mod response;
mod session;
mod status;
mod subscription;

pub use config::Config;
pub use error::{ErrorCode, ProtocolError};
pub use list::{NameList, VersionList};
pub use remains::Remains;
pub use request::{DeltaRequest, ErrorDetail, Protocol, Request, SotwRequest, StreamKind};
pub use response::{Message, Response};
pub use session::{Interest, Overdue, Receipt, RequestKind, Session, Verdict};
pub use status::{Nack, SubscriptionStatus, SyncState};
