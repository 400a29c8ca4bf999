//! Tests of the protocol as scripts: events and the expected outcomes, in order.
//!
//! A script has a line per event:
//!
//! ```text
//! commit a:CDS/x=1>EDS/x -CDS/y    publishes x in scope a (default `default`), with a child; deletes y
//! commit CDS/x=1;ttl=3000          publishes x with a lifetime in milliseconds
//! commit EDS/x=1;stale=4           publishes endpoints that are stale after some seconds
//! commit SRDS/x=1;key=a            publishes a scope with a key (VHDS: domains, LDS: addresses), separated by `,`
//! features a b / agent envoy       the client reports these features, or this user agent
//! node n1                          the client reports this ID
//! cost 10                          a poll after the last commit visits at most this number of names
//! renewals off                     no lifetimes are renewed from now on, until `renewals on`
//! scopes default,a                 the node sees these scopes from now on
//! -> CDS *,x @3 v=… nack           SotW request: names, nonce, version, rejection
//! -> CDS +x,y -z @3 irv=x@held,y@old nack      delta request; `irv` names what the client holds
//! ack CDS / nack CDS 3             answers the last response of the type as a client would, with a code
//! wait 5000                        milliseconds pass
//! open CDS                         replaces the stream by a new one, for one type or for all
//! resume                           the same, at the replica of the old stream: the new one has its resume state
//! status CDS                       asks the session for the status of a type
//! contents CDS                     asks the session for the resources of a type
//! ```
//!
//! and, after the event, its outcomes:
//!
//! ```text
//! <- CDS x=1 y=2 -z ~w v=X @A      a response: resources with their bodies, removals, absent aliases
//! <- CDS -z ?z                     a response with the error that `z` does not exist
//! <- CDS x=1;ttl=3000 y;ttl=3000   a resource with its lifetime, and a heartbeat without a body
//! = CDS nacked sent=X acked=W nack=13 text     the status
//! = CDS:accepted RDS:unknown       the acceptance of the last commit
//! = CDS x=1:synced@X y:unknown     the resources: name, body, state, and in SotW the version
//! ! text                           the stream ends with this error
//! ```
//!
//! `v=X` and `@A` in a response assign names to its version and its nonce. Later lines may use
//! these names, as in the protocol documents. A name has one value, and two names never have the
//! same value. A word and a colon before an event or an outcome (`b: -> EDS x`) mean another stream
//! of the same node.
//!
//! After each event, the test takes every response that can be sent. These responses must be
//! exactly the outcomes that follow the event.

mod ads;
mod children;
mod contents;
mod delta;
mod diagrams;
mod drains;
mod endpoint_wait;
mod envoy;
mod exclusion;
mod first_state;
mod globs;
mod grpc;
mod lifetimes;
mod node_parameters;
mod on_demand;
mod references;
mod regressions;
mod resource_errors;
mod rules;
mod slow_clients;
mod sotw;
mod sotw_names;
mod stale_endpoints;
mod structured_names;
mod world;

pub(crate) use world::{check, check_with};
