//! The rows of the tables of cases.

use std::sync::Arc;

use crate::{
    case::{Basis, Case, Running},
    ctx::Ctx,
    kind::Kind,
    stream::StreamService,
};

/// A row of a table of cases.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) requirements: &'static [&'static str],
    pub(super) basis: Basis,
    pub(super) shows: &'static str,
    pub(super) services: &'static [StreamService],
    pub(super) check: fn(Ctx) -> Running,
}

/// Creates a row: name, requirements, basis, services, sentence, function.
macro_rules! row {
    ($name:literal, $basis:ident, $services:expr, [$($id:literal),+], $shows:literal, $check:expr) => {
        crate::cases::row::Row {
            name: $name,
            requirements: &[$($id),+],
            basis: crate::case::Basis::$basis,
            shows: $shows,
            services: $services,
            check: |ctx| Box::pin($check(ctx)),
        }
    };
}
pub(super) use row;

pub(super) const BOTH: &[StreamService] = &StreamService::BOTH;
pub(super) const ADS: &[StreamService] = &[StreamService::Ads];
pub(super) const OWN: &[StreamService] = &[StreamService::Own];

/// Returns the cases of a table, one for each service on which it runs.
pub(super) fn of(area: &str, rows: &[Row]) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows {
        for service in row.services {
            let door_part =
                if row.services.len() > 1 { format!("/{}", service.name()) } else { String::new() };
            cases.push(Case {
                name: format!("{area}{door_part}/{}", row.name),
                requirements: row.requirements,
                basis: row.basis,
                shows: row.shows,
                service: *service,
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
