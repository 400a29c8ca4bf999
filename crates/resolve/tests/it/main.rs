//! Tests of the walk: each case is a set of resources, requests, and the ends as text.

mod connections;
mod routes;
mod support;
mod tables;
