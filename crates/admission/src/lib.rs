//! From manifests to canonical resources, or a refusal that says what is wrong and where.
//!
//! Admission comes before replication: what it lets through always applies. It checks structure
//! (known fields, types, enum values, names, duplicates), not the validation rules of the proto files
//! (SVC-23).
//!
//! Invariants:
//! - The same content gives the same bytes, whatever the order of keys, the process or the release
//!   (design 4.12); bytes that an author has encoded are kept as they are (SVC-18).
//! - No input makes it panic, and none makes it take memory out of proportion to its size.
//! - Every problem names the file, the document, the resource, the field and the rule; all are
//!   reported, not only the first.

mod assignments;
mod bootstrap;
mod draft;
mod encode;
mod inspect;
mod manifest;
mod node;
mod problem;
mod render;
mod resource;
mod scalar;
mod source;
mod time;
mod wellknown;
mod wire;

pub use bootstrap::import_bootstrap;
pub use draft::draft_from_body;
pub use manifest::{Manifest, Options, Prune, admit};
pub use problem::Problem;
pub use render::body_to_json;
