//! Converts manifests to canonical resources, or reports every problem with its place.
//!
//! Admission comes before replication, so that every committed transaction applies. It checks the
//! structure (known fields, types, enum values, names, duplicates). Unless the mode of the scope or of the
//! call is `off`, it also checks the rules by which clients reject resources (`validate`).
//!
//! Invariants:
//! - Equal content gives equal bytes in every process and release, regardless of the order of keys (design
//!   4.12). Bytes that an author encoded stay unchanged (SVC-18).
//! - No input makes admission panic, or use memory out of proportion to the length of the input.
//! - Every problem names the file, the document, the resource, the field and the rule. Admission reports
//!   all problems, not only the first one.
//!
//! ```
//! use chancery_admission::{Manifest, Options, admit};
//! use chancery_model::ScopeName;
//!
//! let manifest = Manifest {
//!     file: "web.yaml".to_owned(),
//!     content: "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, nmae: web}]".to_owned(),
//! };
//! let options = Options::new(ScopeName::new("default")?);
//! let problems = admit(&[manifest], &options).unwrap_err();
//! assert_eq!(
//!     problems[1].to_string(),
//!     "web.yaml:1:76: document 1: resources[0] Cluster: nmae: Cluster has no such field; did you mean \"name\"?"
//! );
//! # Ok::<(), chancery_model::NameError>(())
//! ```

#![expect(clippy::result_large_err, reason = "a problem is rare, and its parts are for people")]

mod access;
mod assignments;
mod bootstrap;
mod client_kind;
mod clients;
mod cluster_choice;
mod collection;
mod conflicts;
mod constraints;
mod credentials;
mod discovery_read;
mod discovery_write;
mod dns_caches;
mod draft;
mod encode;
mod encoder;
mod file_encoding;
#[doc(hidden)]
pub mod fuzz;
mod generated_name;
mod inspect;
mod keys;
mod listener_address;
mod manifest;
mod mode;
mod names;
mod node;
mod omitted;
mod positions;
mod problem;
mod profile;
mod published_again;
mod quotas;
mod references;
mod render;
mod resource;
mod resource_origin;
mod response_keys;
mod scalar;
mod secret_kind;
mod sensitive;
mod source;
mod text_format;
mod time;
mod type_suggestion;
mod unchanged;
mod unreachable_routes;
mod validate;
mod wellknown;
mod wire;
mod yaml_scalars;

pub use bootstrap::{Imported, import_bootstrap};
pub use cluster_choice::cluster_choice;
pub use constraints::{constraints_any, constraints_to_json};
pub use discovery_read::{DISCOVERY_FILE_BYTES_MAX, manifest_of_file};
pub use discovery_write::write_discovery_response;
pub use draft::{BODY_BYTES_MAX, draft_from_body};
pub use file_encoding::FileEncoding;
pub use listener_address::{ListenerAddress, listener_addresses, reuses_ports};
pub use manifest::{Admitted, Manifest, Options, Prune, admit, admit_unless, lint, locate};
pub use mode::{Validation, ValidationMode};
pub use omitted::Omitted;
pub use problem::{Problem, Severity};
pub use profile::{
    ClientKind, ClientProfile, ClientVersion, ConnectedClient, ConnectedClients, ProfileSource,
    Profiles,
};
pub use published_again::check_again;
pub use references::{FieldPath, Reference, for_each_reference, may_refer};
pub use render::{body_to_json, canonical_json};
pub use resource_origin::ResourceOrigin;
pub use secret_kind::{needed_secret_kind, secret_kind};
pub use sensitive::{KEY_MARK, MARK, redacted, secret_values};
pub use unchanged::{Unchanged, is_shown_in_part};
pub use unreachable_routes::{
    RouteComparisons, UnreachableRoute, for_each_unreachable_route, may_have_routes,
};
