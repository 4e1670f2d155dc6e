//! Commands for aggregations: create, find, delete, read and list.
//!
//! Owns the requests and the calls that send them to the control thread. Never touches the kernel.

use std::sync::Arc;
use std::time::Duration;

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;

use crate::auth::Caller;
use crate::command::ControlHandle;
use crate::controller::Controller;
use crate::error::Error;

/// What the log calls these commands.
const KIND: &str = "aggregation";

/// Begin to count.
#[derive(Clone, Debug)]
pub struct CreateAggregation {
    /// Its name; if empty, the daemon chooses one.
    pub name: String,
    /// What to count.
    pub spec: Spec,
    /// How long it lives.
    pub ttl: Option<Duration>,
    /// Whether a stream will delete it.
    pub bound_to_stream: bool,
}

/// An aggregation, and what tells it from others that had its name, or will have it.
#[derive(Clone, Debug)]
pub struct NumberedAggregation {
    /// Counts the aggregations of this run of the daemon, from 1.
    pub number: u64,
    /// The aggregation.
    pub aggregation: Arc<v1::Aggregation>,
}

impl ControlHandle {
    /// Begins to count, if the caller may observe the probes.
    pub async fn create_aggregation(
        &self,
        caller: &Caller,
        request: CreateAggregation,
    ) -> Result<NumberedAggregation, Error> {
        let by = caller.clone();
        let act = async move |controller: &mut Controller| controller.create_aggregation(&by, request).await;
        self.act(KIND, Some(caller), act).await
    }

    /// The aggregation that has a name now, if the caller may observe its probes.
    pub async fn aggregation(&self, caller: &Caller, name: String) -> Result<NumberedAggregation, Error> {
        let by = caller.clone();
        self.act(KIND, Some(caller), async move |controller| controller.find_aggregation(&by, &name)).await
    }

    /// Stops counting, for the one who made the aggregation or who administers the daemon. Returns what was counted
    /// until then, if the kernel's table could be read and the caller may observe the probes.
    pub async fn delete_aggregation(
        &self,
        caller: &Caller,
        name: String,
    ) -> Result<Option<v1::AggregationSnapshot>, Error> {
        let by = caller.clone();
        let act =
            async move |controller: &mut Controller| controller.delete_aggregation_for(&by, &name).await;
        self.act(KIND, Some(caller), act).await
    }

    /// Stops counting what was counted for a stream that has ended. Another aggregation of its name stays.
    pub async fn end_aggregation(&self, number: u64) -> Result<(), Error> {
        self.act(KIND, None, async move |controller| controller.end_aggregation_of_stream(number).await).await
    }

    /// Reads what this aggregation has counted, if the caller may observe its probes now.
    ///
    /// # Errors
    /// See [`Error`]: also if it is gone, whatever has its name.
    pub async fn read_aggregation(
        &self,
        caller: &Caller,
        which: &NumberedAggregation,
    ) -> Result<v1::AggregationSnapshot, Error> {
        let (by, which) = (caller.clone(), which.clone());
        self.act(KIND, Some(caller), async move |controller| controller.read_aggregation_for(&by, &which))
            .await
    }

    /// All aggregations of probes that the caller may observe, by name.
    pub async fn aggregations(&self, caller: &Caller) -> Result<Vec<Arc<v1::Aggregation>>, Error> {
        let by = caller.clone();
        self.act(KIND, Some(caller), async move |controller| Ok(controller.shown_aggregations(&by))).await
    }
}
