//! `LeaseService`: holds, which last as long as their streams.
//!
//! Owns the stream of a hold, and the connection that it counts for. Never deletes a probe.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use kprobed_proto::v1;
use kprobed_proto::v1::lease_service_server::LeaseService;
use tonic::{Request, Response, Status};

use super::access::ConnectionId;
use super::events::Responses;
use kprobed_control::Holds;

/// The service.
#[derive(Debug)]
pub(super) struct LeaseServer {
    /// All holds.
    pub(super) holds: Arc<Holds>,
    /// Time after which a client that does not answer counts as gone.
    pub(super) vanished_after: Duration,
}

#[tonic::async_trait]
impl LeaseService for LeaseServer {
    /// The hold ends when it is dropped: with the response, or with the call if there is none yet.
    type HoldProbesStream = Responses<v1::HoldProbesResponse>;

    async fn hold_probes(
        &self,
        request: Request<v1::HoldProbesRequest>,
    ) -> Result<Response<Self::HoldProbesStream>, Status> {
        // Calls without a connection of their own share the limit of one connection.
        let connection = request.extensions().get::<ConnectionId>().map_or(0, |id| id.0);
        let hold = self.holds.begin(connection)?;
        let first = v1::HoldProbesResponse {
            holder: hold.key().to_owned(),
            vanished_after: prost_types::Duration::try_from(self.vanished_after).ok(),
        };
        let stream = stream::unfold((hold, Some(first)), async |(hold, first)| {
            if first.is_none() {
                hold.ended().await;
            }
            Some((Ok(first?), (hold, None)))
        });
        Ok(Response::new(Box::pin(stream) as Self::HoldProbesStream))
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    fn request(connection: u64) -> Request<v1::HoldProbesRequest> {
        let mut request = Request::new(v1::HoldProbesRequest {});
        request.extensions_mut().insert(ConnectionId(connection));
        request
    }

    #[tokio::test]
    async fn a_hold_lasts_as_long_as_its_stream() {
        let holds = Arc::<Holds>::default();
        let server = LeaseServer { holds: Arc::clone(&holds), vanished_after: Duration::from_secs(30) };
        let mut stream = server.hold_probes(request(1)).await.unwrap().into_inner();
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(first.vanished_after.map(|time| time.seconds), Some(30));
        let name = holds.name_of(&first.holder).unwrap();
        assert!(first.holder.starts_with(&format!("{name}-")));
        drop(stream);
        assert_eq!(holds.name_of(&first.holder), None);
        // A hold whose first message the client never read ends as well.
        let unread = server.hold_probes(request(1)).await.unwrap();
        drop(unread);
        let mut greedy = Vec::new();
        let refused = loop {
            match server.hold_probes(request(2)).await {
                Ok(response) => greedy.push(response),
                Err(status) => break status,
            }
        };
        assert_eq!((refused.code(), greedy.len()), (tonic::Code::ResourceExhausted, 64));
        assert!(server.hold_probes(request(3)).await.is_ok(), "others have theirs");
    }
}
