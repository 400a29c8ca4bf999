//! The rows of the tables of cases.

use std::sync::Arc;

use crate::{
    case::{Basis, Case, Running},
    ctx::Ctx,
    kind::Kind,
    stream::Door,
};

/// A row of a table of cases.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) requirements: &'static [&'static str],
    pub(super) basis: Basis,
    pub(super) shows: &'static str,
    pub(super) doors: &'static [Door],
    pub(super) check: fn(Ctx) -> Running,
}

/// Creates a row: name, requirements, basis, doors, sentence, function.
macro_rules! row {
    ($name:literal, $basis:ident, $doors:expr, [$($id:literal),+], $shows:literal, $check:expr) => {
        crate::cases::row::Row {
            name: $name,
            requirements: &[$($id),+],
            basis: crate::case::Basis::$basis,
            shows: $shows,
            doors: $doors,
            check: |ctx| Box::pin($check(ctx)),
        }
    };
}
pub(super) use row;

pub(super) const BOTH: &[Door] = &Door::BOTH;
pub(super) const ADS: &[Door] = &[Door::Ads];
pub(super) const OWN: &[Door] = &[Door::Own];

/// Returns the cases of a table, one for each service on which it runs.
pub(super) fn of(area: &str, rows: &[Row]) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows {
        for door in row.doors {
            let door_part =
                if row.doors.len() > 1 { format!("/{}", door.name()) } else { String::new() };
            cases.push(Case {
                name: format!("{area}{door_part}/{}", row.name),
                requirements: row.requirements,
                basis: row.basis,
                shows: row.shows,
                door: *door,
                check: Arc::new(row.check),
            });
        }
    }
    cases
}

/// Returns words for a name: `cds`.
pub(super) fn word(kind: Kind) -> String {
    kind.label().to_lowercase()
}
