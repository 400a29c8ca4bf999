//! Everything that an export writes, read from a server at one revision.
//!
//! The list of resources is one stream, which the server reads from one state, a piece at a time. The assignments, the
//! access rules and the quotas are other lists. If a write comes between, all lists are read again.

use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1::{
    self as pb, access_service_client::AccessServiceClient, admin_client::AdminClient,
};
use chancery_store::RequestId;
use serde_json::Value;
use tonic::{Status, Streaming};

use super::super::{
    access,
    client::{Servers, admin, refusal},
    connector::Channel,
    quota,
};
use crate::failure::Failure;

/// The maximum number of attempts to read all lists at one revision.
const ATTEMPTS_MAX: usize = 10;
/// The number of items of a page.
const PAGE: u32 = 1000;

/// The lists that belong to no scope, as in manifests.
pub(super) struct Rules {
    pub(super) assignments: Value,
    pub(super) access: Value,
    pub(super) quotas: Value,
}

/// The content of a cluster at one revision.
pub(super) struct Source {
    pub(super) revision: u64,
    /// `None` if only one scope is exported.
    pub(super) rules: Option<Rules>,
    first: Option<pb::ListResourcesResponse>,
    pieces: Streaming<pb::ListResourcesResponse>,
}

/// Fails if the server would hide resources from the caller: an export without them would remove their files. A scope
/// with a random name stands for all scopes.
async fn check_rights(channel: &Channel, scope: Option<&str>) -> Result<(), Failure> {
    let random = RequestId::random()
        .map_err(|error| Failure::new(format_args!("cannot generate a random name: {error}")))?;
    let every = format!("export-{random}");
    let request = pb::CheckAccessRequest {
        verb: "get".to_owned(),
        scope: scope.unwrap_or(&every).to_owned(),
        ..pb::CheckAccessRequest::default()
    };
    let response = access::client(channel.clone()).check_access(request).await;
    let response = response.map_err(|status| refusal(&status))?.into_inner();
    if response.allowed {
        return Ok(());
    }
    let what = scope.map_or_else(|| "all scopes".to_owned(), |scope| format!("scope {scope:?}"));
    Err(Failure::new(format_args!(
        "cannot export {what}: {} has no right to get all resources of {what}; an export without them would remove their files",
        response.identity
    )))
}

impl Source {
    /// Opens all lists at one revision.
    pub(super) async fn open(servers: &Servers, scope: Option<&str>) -> Result<Self, Failure> {
        let channel = servers.any_channel().await?;
        check_rights(&channel, scope).await?;
        let mut moved = None;
        for _ in 0..ATTEMPTS_MAX {
            let rules = match scope {
                None => Some(rules(&channel).await?),
                Some(_) => None,
            };
            let request = pb::ListResourcesRequest {
                scope: scope.unwrap_or_default().to_owned(),
                ..pb::ListResourcesRequest::default()
            };
            let response = admin(channel.clone()).list_resources(request).await;
            let mut pieces = response.map_err(|status| refusal(&status))?.into_inner();
            let first = pieces.message().await.map_err(|status| refusal(&status))?;
            let revision = first.as_ref().map(|first| first.revision).unwrap_or_default();
            match rules {
                None => return Ok(Self { revision, rules: None, first, pieces }),
                Some(Some((before, rules))) if before == revision => {
                    return Ok(Self { revision, rules: Some(rules), first, pieces });
                }
                Some(before) => moved = Some((before.map(|(before, _)| before), revision)),
            }
        }
        let from = moved.and_then(|(before, _)| before).map_or_else(
            || "while the command read a list".to_owned(),
            |before| format!("from {before} to {}", moved.map(|(_, to)| to).unwrap_or_default()),
        );
        Err(Failure::new(format_args!(
            "cannot export everything at one revision: the revision moved {from} in the last of {ATTEMPTS_MAX} attempts; \
             try again, or export each scope with --scope"
        )))
    }

    /// Returns the next resources, ordered by scope, type and name.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<pb::Resource>>, Failure> {
        let piece = match self.first.take() {
            Some(first) => Some(first),
            None => self.pieces.message().await.map_err(|status| refusal(&status))?,
        };
        match piece {
            Some(piece) if piece.revision != self.revision => Err(Failure::new(format_args!(
                "the revision moved from {} to {} during the export; try again",
                self.revision, piece.revision
            ))),
            piece => Ok(piece.map(|piece| piece.resources)),
        }
    }
}

/// Returns the lists that belong to no scope, with their revision. `None` means that the revision moved.
async fn rules(channel: &Channel) -> Result<Option<(u64, Rules)>, Failure> {
    let admin_client = admin(channel.clone());
    let assignments = |cursor| page_of_assignments(admin_client.clone(), cursor);
    let Some((revision, assignments)) = all(assignments).await? else { return Ok(None) };
    let client = access::client(channel.clone());
    let Some((of_access, access)) = all(|cursor| page_of_access(client.clone(), cursor)).await?
    else {
        return Ok(None);
    };
    let Some((of_quotas, quotas)) = all(|cursor| page_of_quotas(client.clone(), cursor)).await?
    else {
        return Ok(None);
    };
    let rules = Rules {
        assignments: assignments.iter().map(JsonMessage::to_json).collect(),
        access: access.iter().map(access::manifest).collect(),
        quotas: quotas.iter().map(quota::manifest).collect(),
    };
    Ok((of_access == revision && of_quotas == revision).then_some((revision, rules)))
}

/// A page of a list: its revision, its items, and the cursor of the next page.
type PageOf<T> = Result<(u64, Vec<T>, String), Status>;

/// Returns all items of a list, with their revision. `None` means that the revision moved between two pages.
async fn all<T, F: Future<Output = PageOf<T>>>(
    page: impl Fn(String) -> F,
) -> Result<Option<(u64, Vec<T>)>, Failure> {
    let (mut items, mut cursor, mut revision) = (Vec::new(), String::new(), None);
    loop {
        let (at, mut more, next) = page(cursor).await.map_err(|status| refusal(&status))?;
        if *revision.get_or_insert(at) != at {
            return Ok(None);
        }
        items.append(&mut more);
        if next.is_empty() {
            return Ok(Some((at, items)));
        }
        cursor = next;
    }
}

async fn page_of_assignments(
    mut client: AdminClient<Channel>,
    cursor: String,
) -> PageOf<pb::Assignment> {
    let request = pb::ListAssignmentsRequest { limit: PAGE, cursor, stale: false };
    let list = client.list_assignments(request).await?.into_inner();
    Ok((list.revision, list.assignments, list.next))
}

async fn page_of_access(
    mut client: AccessServiceClient<Channel>,
    cursor: String,
) -> PageOf<pb::AccessRule> {
    let request = pb::ListAccessRequest { limit: PAGE, cursor, stale: false };
    let list = client.list_access(request).await?.into_inner();
    Ok((list.revision, list.rules, list.next))
}

async fn page_of_quotas(
    mut client: AccessServiceClient<Channel>,
    cursor: String,
) -> PageOf<pb::QuotaStatus> {
    let request = pb::ListQuotasRequest { limit: PAGE, cursor, stale: false };
    let list = client.list_quotas(request).await?.into_inner();
    Ok((list.revision, list.quotas, list.next))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn items(pages: &[(u64, &[u8], &str)]) -> Result<Option<(u64, Vec<u8>)>, Failure> {
        let page = |cursor: String| {
            let index = cursor.parse().unwrap_or(0);
            let (revision, items, next): (u64, &[u8], &str) = pages[index];
            std::future::ready(Ok((revision, items.to_vec(), next.to_owned())))
        };
        all(page).await
    }

    #[tokio::test]
    async fn pages_of_one_revision_are_joined_and_others_are_read_again() {
        assert_eq!(items(&[(7, &[], "")]).await, Ok(Some((7, vec![]))));
        assert_eq!(items(&[(7, &[1], "1"), (7, &[2, 3], "")]).await, Ok(Some((7, vec![1, 2, 3]))));
        assert_eq!(items(&[(7, &[1], "1"), (8, &[2, 3], "")]).await, Ok(None));
    }
}
