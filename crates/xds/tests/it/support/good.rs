//! A correct client on a separate connection. It must be served whatever other clients do.

use super::*;

/// A delta client with its own cluster. Other clients may see it, and it sees their clusters.
pub(crate) struct Good {
    client: Delta,
    round: u32,
}

const NAME: &str = "good";

impl Good {
    pub(crate) async fn start(server: &Server) -> Self {
        let client = server.delta(DELTA_ADS).await;
        client
            .send(DeltaDiscoveryRequest {
                type_url: CDS.into(),
                node: node(NAME),
                ..DeltaDiscoveryRequest::default()
            })
            .await;
        let mut good = Self { client, round: 0 };
        let first = good.client.next().await;
        good.client.ack(&first).await;
        good
    }

    /// Checks that the client receives the next change of its cluster.
    pub(crate) async fn is_served(&mut self, server: &Server) {
        assert!(self.try_is_served(server).await, "the stream has ended");
    }

    /// Returns whether the client receives the next change. It does not if its stream ends first.
    pub(crate) async fn try_is_served(&mut self, server: &Server) -> bool {
        self.round += 1;
        let value = format!("{} of {:p}", self.round, self);
        server.put(CDS, &[(NAME, &value)]);
        loop {
            let next = tokio::time::timeout(PATIENCE, self.client.responses.message()).await;
            let Ok(Some(response)) = next.expect("no response in time") else { return false };
            self.client.ack(&response).await;
            let is_it = |resource: &chancery_proto::discovery::Resource| {
                resource.name == NAME
                    && resource.resource.as_ref().is_some_and(|any| any.value == value)
            };
            if response.resources.iter().any(is_it) {
                return true;
            }
        }
    }
}
