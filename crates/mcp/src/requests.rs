//! The requests of a stream, as the sink sends them. The requests do not depend on the side that connects (MCP-03).

use std::sync::Arc;

use chancery_net::Activity;
use chancery_proto::istio::mcp::v1alpha1::RequestResources;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The number of requests that wait for the source, besides two per collection. A source that reads none of them is
/// disconnected.
const REQUESTS_MAX: usize = 16;

/// The items that a stream sends: requests, and at its end possibly a status. Only a server can send a status.
pub(crate) type Sent = ReceiverStream<Result<RequestResources, Status>>;

/// The sending half of a stream. The stream ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Requests {
    sender: mpsc::Sender<Result<RequestResources, Status>>,
    /// The status with which the stream ends.
    pub(crate) end: Option<Status>,
    /// The connection of a source that has opened the stream.
    connection: Option<Arc<Activity>>,
}

impl Requests {
    /// Creates both halves, for a sink of this number of collections. `connection` is closed with the stream.
    pub(crate) fn new(n_collections: usize, connection: Option<Arc<Activity>>) -> (Self, Sent) {
        let (sender, receiver) = mpsc::channel(2 * n_collections + REQUESTS_MAX);
        let end = Status::unavailable("this replica no longer leads or shuts down; connect again");
        (Self { sender, end: Some(end), connection }, ReceiverStream::new(receiver))
    }

    /// Queues a request. The bound is reached only if the source reads no requests.
    ///
    /// # Errors
    /// If the source has ended the stream, or reads no requests.
    pub(crate) fn send(&self, request: RequestResources) -> Result<(), String> {
        self.sender.try_send(Ok(request)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => "the source reads no requests".to_owned(),
            mpsc::error::TrySendError::Closed(_) => "the source ended the stream".to_owned(),
        })
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            // A source that reads nothing does not learn the status.
            drop(self.sender.try_send(Err(end)));
        }
        // The next attempt needs another connection, so that a load balancer can choose another replica.
        if let Some(connection) = &self.connection {
            connection.evict();
        }
    }
}
