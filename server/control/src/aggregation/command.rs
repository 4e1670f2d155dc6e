//! Commands for aggregations: create, find, delete, read and list.
//!
//! Owns the requests and the calls that send them to the control thread. Never touches the kernel.

use std::sync::Arc;
use std::time::Duration;

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;

use crate::auth::Caller;
use crate::command::{Command, ControlHandle, Reply};
use crate::error::Error;

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

#[derive(Debug)]
pub(crate) enum AggregationCommand {
    Create(Caller, CreateAggregation, Reply<NumberedAggregation>),
    Find(Caller, String, Reply<NumberedAggregation>),
    Delete(Caller, String, Reply<Option<v1::AggregationSnapshot>>),
    /// The stream that it was made for has ended.
    End(u64, Reply<()>),
    Read(Caller, NumberedAggregation, Reply<v1::AggregationSnapshot>),
    List(Caller, Reply<Vec<Arc<v1::Aggregation>>>),
}

impl AggregationCommand {
    /// Whether the caller has gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Create(_, _, reply) | Self::Find(_, _, reply) => reply.is_closed(),
            Self::Delete(_, _, reply) => reply.is_closed(),
            Self::End(_, reply) => reply.is_closed(),
            Self::Read(_, _, reply) => reply.is_closed(),
            Self::List(_, reply) => reply.is_closed(),
        }
    }

    /// Who asks.
    pub(crate) const fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Create(caller, ..)
            | Self::Find(caller, ..)
            | Self::Delete(caller, ..)
            | Self::Read(caller, ..)
            | Self::List(caller, _) => Some(caller),
            Self::End(..) => None,
        }
    }
}

impl ControlHandle {
    async fn ask_aggregations<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> AggregationCommand,
    ) -> Result<T, Error> {
        self.ask(|reply| Command::Aggregation(command(reply))).await
    }

    /// Begins to count, if the caller may observe the probes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_aggregation(
        &self,
        caller: &Caller,
        request: CreateAggregation,
    ) -> Result<NumberedAggregation, Error> {
        self.ask_aggregations(|reply| AggregationCommand::Create(caller.clone(), request, reply)).await
    }

    /// The aggregation that has a name now, if the caller may observe its probes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn aggregation(&self, caller: &Caller, name: String) -> Result<NumberedAggregation, Error> {
        self.ask_aggregations(|reply| AggregationCommand::Find(caller.clone(), name, reply)).await
    }

    /// Stops counting, for the one who made the aggregation or who administers the daemon. Returns what was counted
    /// until then, if the kernel's table could be read and the caller may observe the probes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_aggregation(
        &self,
        caller: &Caller,
        name: String,
    ) -> Result<Option<v1::AggregationSnapshot>, Error> {
        self.ask_aggregations(|reply| AggregationCommand::Delete(caller.clone(), name, reply)).await
    }

    /// Stops counting what was counted for a stream that has ended. Another aggregation of its name stays.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn end_aggregation(&self, number: u64) -> Result<(), Error> {
        self.ask_aggregations(|reply| AggregationCommand::End(number, reply)).await
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
        self.ask_aggregations(|reply| AggregationCommand::Read(caller.clone(), which.clone(), reply)).await
    }

    /// All aggregations of probes that the caller may observe, by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn aggregations(&self, caller: &Caller) -> Result<Vec<Arc<v1::Aggregation>>, Error> {
        self.ask_aggregations(|reply| AggregationCommand::List(caller.clone(), reply)).await
    }
}
