//! Finds the place where a request ends, in the resources of one node: listener, filter chain, virtual host, route,
//! cluster and endpoints.
//!
//! The crate has no I/O. [`resolve`] takes a [`Request`] and the [`Resources`] of a node, and matches as Envoy does. Its
//! answer lists the steps, with the candidates that did not match and the reasons. Conditions that depend on more
//! than the request, such as a fraction of the traffic or the address of the client, are [`Undecided`]: the walk
//! continues as if they did not hold, and the answer names each with its place.
//!
//! ```
//! use chancery_resolve::{Request, Resource, Resources, resolve};
//!
//! struct Nothing;
//! impl Resources for Nothing {
//!     fn get(&self, _type_url: &str, _name: &str) -> Option<Resource> {
//!         None
//!     }
//!     fn names(&self, _type_url: &str) -> Vec<String> {
//!         Vec::new()
//!     }
//! }
//!
//! let request = Request::parse("https://shop.example/cart?x=1", "GET", &["x-user: anna".to_owned()])?;
//! let answer = resolve(&Nothing, &request, None);
//! assert!(!answer.resolutions[0].end.is_served());
//! # Ok::<(), String>(())
//! ```

mod action;
mod answer;
mod clusters;
mod endpoints;
mod filter_chains;
mod filters;
mod headers;
mod hosts;
mod http_filters;
mod listeners;
mod manager;
mod matcher;
mod matcher_inputs;
mod message;
mod path;
mod redirect;
mod regexes;
mod request;
mod resources;
mod route_table;
mod routes;
mod scopes;
mod strings;
mod uri_template;
mod verdict;
mod walk;

pub use answer::{
    Answer, ClusterChoice, End, Endpoint, Locality, Resolution, Skipped, Step, Undecided,
};
pub use listeners::resolve;
pub use request::Request;
pub use resources::{Resource, Resources};
