//! Checks resources that are published again, from an earlier revision: the rules and the clients may have changed since.

use chancery_model::Upsert;

use crate::{
    conflicts::Conflicts,
    draft::label,
    mode::Validation,
    problem::{Place, Problem, Report},
    validate,
};

/// Checks resources as if a manifest published them. Returns the warnings.
///
/// # Errors
/// Returns the errors.
pub fn check_again(
    upserts: &[Upsert],
    validation: &Validation,
) -> Result<Vec<Problem>, Vec<Problem>> {
    let (mut report, mut warnings) = (Report::default(), Report::default());
    let mut conflicts = Conflicts::default();
    for Upsert { scope, draft } in upserts {
        let (mut errors, mut warned) = validate::findings(validation, scope, draft);
        conflicts.check((scope, draft), validation, &mut errors, &mut warned);
        let name = draft.key.name.base();
        let resource = Some(label(draft.key.type_url.as_str(), Some(name)));
        let place = Place { resource, ..Place::default() };
        warnings.add_findings(&place, scope, warned);
        report.add_findings(&place, scope, errors);
    }
    report.finish(warnings.into_problems())
}
