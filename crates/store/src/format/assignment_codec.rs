//! Conversion of assignments between the model and `chancery.raft.v1`.

use chancery_model::{Assignment, AssignmentOp, Glob, NodeMatcher, ScopeTemplate};
use chancery_raft_proto::v1 as pb;

use crate::format::record::RecordError;

/// Encodes a change of an assignment.
pub(crate) fn assignment_op_to_proto(op: &AssignmentOp) -> pb::AssignmentOp {
    let op = match op {
        AssignmentOp::Put(assignment) => {
            pb::assignment_op::Op::Put(assignment_to_proto(assignment))
        }
        AssignmentOp::Delete(name) => pb::assignment_op::Op::Delete(name.to_string()),
    };
    pb::AssignmentOp { op: Some(op) }
}

/// Decodes a change of an assignment.
pub(crate) fn assignment_op_from_proto(
    message: pb::AssignmentOp,
) -> Result<AssignmentOp, RecordError> {
    match message.op.ok_or_else(|| RecordError::missing("the operation on an assignment"))? {
        pb::assignment_op::Op::Put(assignment) => {
            assignment_from_proto(assignment).map(AssignmentOp::Put)
        }
        pb::assignment_op::Op::Delete(name) => Ok(AssignmentOp::Delete(name.into())),
    }
}

/// Encodes an assignment.
pub(crate) fn assignment_to_proto(assignment: &Assignment) -> pb::Assignment {
    let glob = |glob: &Option<Glob>| glob.as_ref().map(|glob| glob.as_str().to_owned());
    let matcher = &assignment.matcher;
    let metadata = matcher.metadata.iter();
    pb::Assignment {
        name: assignment.name.to_string(),
        priority: assignment.priority,
        matcher: Some(pb::NodeMatcher {
            id: glob(&matcher.id),
            cluster: glob(&matcher.cluster),
            region: glob(&matcher.region),
            zone: glob(&matcher.zone),
            sub_zone: glob(&matcher.sub_zone),
            metadata: metadata
                .map(|(k, v)| pb::Label { key: k.clone(), value: v.as_str().to_owned() })
                .collect(),
        }),
        scopes: assignment.scopes.iter().map(|scope| scope.as_str().to_owned()).collect(),
    }
}

/// Decodes an assignment.
pub(crate) fn assignment_from_proto(message: pb::Assignment) -> Result<Assignment, RecordError> {
    let glob = |text: Option<String>| text.as_deref().map(Glob::new);
    let scope = |text: &String| {
        ScopeTemplate::parse(text)
            .map_err(|error| RecordError::invalid(&format!("assignment {:?}", message.name), error))
    };
    let matcher = message.matcher.unwrap_or_default();
    let metadata = matcher.metadata.into_iter();
    Ok(Assignment {
        priority: message.priority,
        matcher: NodeMatcher {
            id: glob(matcher.id),
            cluster: glob(matcher.cluster),
            region: glob(matcher.region),
            zone: glob(matcher.zone),
            sub_zone: glob(matcher.sub_zone),
            metadata: metadata.map(|label| (label.key, Glob::new(&label.value))).collect(),
        },
        scopes: message.scopes.iter().map(scope).collect::<Result<_, _>>()?,
        name: message.name.into(),
    })
}
