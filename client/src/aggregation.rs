//! Aggregations: counts that the kernel makes.
//!
//! Owns the stream of snapshots. It never formats counts.

mod sum;

pub use sum::{add_marks, add_snapshots};

use std::time::Duration;

use tonic::Streaming;

use crate::api::stream_aggregation_request::Source;
use crate::api::stream_aggregation_response::Message;
use crate::api::{Aggregation, AggregationSnapshot, StreamAggregationRequest, StreamAggregationResponse};
use crate::client::Client;
use crate::error::Error;

/// Snapshots of one aggregation. When it was made for the stream, dropping this deletes it.
#[derive(Debug)]
pub struct AggregationStream {
    aggregation: Aggregation,
    inner: Streaming<StreamAggregationResponse>,
}

impl AggregationStream {
    /// The aggregation, with the columns of its rows.
    pub fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    /// The next snapshot; `None` when the daemon has ended the stream.
    ///
    /// # Errors
    /// When the aggregation cannot be read any more, or the daemon is gone.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<AggregationSnapshot>, Error> {
        while let Some(response) = self.inner.message().await? {
            if let Some(Message::Snapshot(snapshot)) = response.message {
                return Ok(Some(snapshot));
            }
        }
        Ok(None)
    }
}

impl Client {
    /// Reads an aggregation, and the counts so far.
    pub async fn read_aggregation(&self, name: &str) -> Result<(Aggregation, AggregationSnapshot), Error> {
        let source = Some(Source::Name(name.to_owned()));
        let request = StreamAggregationRequest { source, once: true, ..Default::default() };
        let reading = async {
            let mut stream = self.begin_aggregation(request).await?;
            let snapshot = stream.next().await?.ok_or(Error::Incomplete("snapshot"))?;
            Ok((stream.aggregation, snapshot))
        };
        Box::pin(self.within_timeout::<_, Error>(reading)).await
    }

    /// Reads an aggregation again and again (`Source::Name`), or one that is made for the stream
    /// and deleted with it (`Source::Spec`). `deltas`: each snapshot holds what was counted since
    /// the one before it.
    pub async fn stream_aggregation(
        &self,
        source: Source,
        interval: Duration,
        deltas: bool,
    ) -> Result<AggregationStream, Error> {
        let interval = Some(to_proto_duration(interval));
        let source = Some(source);
        self.begin_aggregation(StreamAggregationRequest { source, interval, deltas, once: false }).await
    }

    async fn begin_aggregation(&self, request: StreamAggregationRequest) -> Result<AggregationStream, Error> {
        let (first, inner) = self
            .begin_with_first(request, async |request| self.counting().stream_aggregation(request).await)
            .await?;
        match first.message {
            Some(Message::Started(aggregation)) => Ok(AggregationStream { aggregation, inner }),
            _ => Err(Error::Incomplete("started")),
        }
    }
}

/// A duration as a message of the API. Durations that it cannot hold do not occur.
pub(crate) fn to_proto_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or_default()
}
