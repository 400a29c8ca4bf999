//! The table from which `cargo xtask dashboards` generates the Grafana dashboards.
//!
//! A query names series without the labels of the target: the generator adds the variables of the board.

mod overview;
mod pushes;
mod security;
mod store;
mod table;

pub(super) use table::{Board, Kind, Panel};

/// All boards.
pub(super) const BOARDS: [&Board; 4] =
    [&overview::BOARD, &pushes::BOARD, &store::BOARD, &security::BOARD];
