//! Sessions of all protocols: conversations, encoded bytes, and random events against models.

#![expect(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

mod exclusion;
mod mcp;
mod model;
mod transcript;
mod variants;
mod wire;
