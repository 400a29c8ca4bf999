//! Access logs that change statistics.

use crate::validate::{findings::Findings, tree::Message};

/// A gauge changes with logs of known and different types.
pub(super) fn gauge<'m>(gauge: &'m Message<'_>, findings: &mut Findings<'m>) {
    let missing = "is required, but missing";
    if let Some(set) = gauge.message("set")
        && set.bits("log_type") == 0
    {
        findings.field("set", |findings| {
            findings.field("log_type", |f| f.refuse("stats_log.operation", missing));
        });
    }
    let Some(pair) = gauge.message("add_subtract") else { return };
    findings.field("add_subtract", |findings| {
        for field in ["add_log_type", "sub_log_type"] {
            if pair.bits(field) == 0 {
                findings.field(field, |f| f.refuse("stats_log.operation", missing));
            }
        }
        let (add, subtract) = (pair.bits("add_log_type"), pair.bits("sub_log_type"));
        if add == subtract && add != 0 {
            findings.field("sub_log_type", |findings| {
                findings.refuse("stats_log.operation", "is also the add_log_type");
            });
        }
    });
}
