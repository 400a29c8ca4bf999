//! The protocol as conversations: what goes in, what comes out, in order.
//!
//! A script has a line per event:
//!
//! ```text
//! commit a:CDS/x=1>EDS/x -CDS/y    publishes x in scope a (default `default`), with a child; deletes y
//! scopes default,a                 the node sees these scopes from now on
//! -> CDS *,x @3 v=… nack           SotW request: names, nonce, version, rejection
//! -> CDS +x,y -z @3 irv=x@held,y@old nack      delta request; `irv` names what the client holds
//! ack CDS / nack CDS               answers the last response of the type as a client would
//! wait 5000                        milliseconds pass
//! <- CDS x=1 y=2 -z ~w             a response: resources with their bodies, removals, absent aliases
//! ```
//!
//! After each event every response that can be sent is; those have to be exactly the `<-` lines that
//! follow it.
#![expect(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod ads;
mod children;
mod delta;
mod sotw;
mod world;

pub(crate) use world::check;
