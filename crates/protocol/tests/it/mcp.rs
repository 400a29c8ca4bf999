//! A source of MCP: the requests of a sink, and the responses to them.

mod model;
mod rules;
mod world;
