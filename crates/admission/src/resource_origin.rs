//! The places of the resources of an input, for findings that come after admission.
//!
//! Some findings, such as dangling references, need the stored state. They name the resource and the field. The
//! origin of the resource names the file, which is read again to find the line and the column.

use crate::{names::Origin, problem::Problem};

/// The entry of an input that has a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceOrigin {
    /// The index of the file.
    pub(crate) file: usize,
    /// The number of the document in the file; `None` for a bootstrap.
    pub(crate) document: Option<u32>,
    /// The path of the list, such as `resources`.
    pub(crate) list: &'static str,
    /// The index in the list.
    pub(crate) index: usize,
}

impl From<Origin<'_>> for ResourceOrigin {
    fn from(origin: Origin<'_>) -> Self {
        let Origin { file_index: file, document, list, index, .. } = origin;
        Self { file, document: Some(document), list, index }
    }
}

impl ResourceOrigin {
    /// Adds the file, the document and the entry of the resource to a problem, in which `resource` is a label.
    pub(crate) fn place(&self, file: &str, problem: Problem) -> Problem {
        let Self { document, list, index, .. } = *self;
        let label = problem.resource.map(|label| format!(" {label}")).unwrap_or_default();
        let resource = Some(format!("{list}[{index}]{label}"));
        Problem { file: file.to_owned(), document, resource, ..problem }
    }
}
