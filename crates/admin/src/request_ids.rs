//! The request IDs under which the store keeps writes.

use aws_lc_rs::digest::{SHA256, digest};
use chancery_store::RequestId;

use crate::{
    caller::{Caller, Rights},
    write_options::Checked,
};

/// Returns the ID under which the store keeps a write of a caller.
///
/// If access rules apply, the ID depends on the caller. An author that repeats the ID of another author's write
/// therefore makes a write of its own. It receives neither the result of the other write nor an error about it. It
/// cannot prevent the other write.
pub(crate) fn stored_id(checked: &Checked, caller: &Caller) -> RequestId {
    stored_id_of(checked.request_id, caller)
}

/// Returns the same for a request ID.
pub(crate) fn stored_id_of(request_id: RequestId, caller: &Caller) -> RequestId {
    if caller.rights == Rights::NotEnforced {
        return request_id;
    }
    // The request ID has a fixed length, so that the text is different for each pair.
    let text = format!("{request_id} {}", caller.identity.principal);
    let mut id = [0; 16];
    let digest = digest(&SHA256, text.as_bytes());
    id.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    RequestId(id)
}
