//! The xDS transport protocol in its SotW (state of the world) and delta variants, as pure code.
//!
//! A [`DecodedRequest`] is a request that was decoded within limits, possibly in steps ([`RequestDecoder`]).
//!
//! A [`Session`] is the protocol state of one stream. It takes requests and marks of changed
//! resources. [`Session::poll`] returns responses. It builds each response from the newest view
//! when the stream can send it, so that changes in the meantime coalesce. There is no async, clock,
//! randomness or I/O.
//!
//! A session remembers what it *sent*, not what the client acknowledged. After a NACK, it does not
//! send the same content again until the content changes. A change back to the earlier content
//! counts as a change (SOTW-23, -24, DELTA-16 to -18). A wildcard subscription keeps a pointer to
//! the view that it last sent. A named subscription keeps a small entry per name.
//!
//! Resources may have a lifetime, which the session renews by heartbeats ([`Session::renew`]).
//!
//! Invariants:
//! - A session never sends an older state after a newer one.
//! - While a response is unacknowledged, changes only mark the subscription. The next response is
//!   the difference to the newest state.
//! - Subscription changes take effect at once, even while a response is unacknowledged.
//! - After `ack_timeout`, the session sends the newest state without waiting for the ACK. It also
//!   does so before a dependent type whose own wait has ended, because the order of types takes
//!   precedence (ADS-06).
//! - Every wait is bounded, with one exception: a removal is held back while the client rejects a
//!   type that may refer to the resource (ADS-09).

mod config;
mod contents;
mod decoder;
mod encoding;
mod error;
mod lifetime;
mod list;
mod plan;
mod poll_names;
mod poll_response;
mod receipt;
mod request;
mod resource_error;
mod response;
mod session;
mod spelling;
mod status;
mod subscription;
mod visible;

pub use config::Config;
pub use contents::{ContentsPage, ContentsReader, ResourceState, ResourceStatus};
pub use decoder::{DecodeError, DecodeLimits, DecodedRequest, RequestDecoder};
pub use error::{ErrorKind, ProtocolError};
pub use lifetime::LifetimeSupport;
pub use list::{NameList, VersionList};
pub use poll_names::PollNames;
pub use poll_response::{PollContent, PollResponse};
pub use receipt::{InterestChange, Receipt, RequestKind, Verdict};
pub use request::{
    DeltaRequest, ErrorDetail, McpRequest, Protocol, Request, SotwRequest, StreamKind,
};
pub use resource_error::{NOT_FOUND, NOT_FOUND_TEXT};
pub use response::{Message, PREFIX_BYTES_MAX, Response};
pub use session::{Overdue, Session};
pub use status::{Nack, SubscriptionStatus, SyncState, Synchronization};
pub use subscription::{Acceptance, ResumeState};
pub use visible::EndpointLists;
