//! Commands for aggregations: create, delete, read and list.
//!
//! Owns the requests and the calls that send them to the control thread. Never touches the kernel.

use std::sync::Arc;
use std::time::Duration;

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;

use crate::control::command::{Command, ControlHandle, Reply};
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

pub(in crate::control) enum AggregationCommand {
    Create(CreateAggregation, Reply<Arc<v1::Aggregation>>),
    Delete(String, Reply<Option<v1::AggregationSnapshot>>),
    Read(String, Reply<v1::AggregationSnapshot>),
    List(Reply<Vec<Arc<v1::Aggregation>>>),
}

impl AggregationCommand {
    /// Whether the caller has gone.
    pub(in crate::control) fn is_abandoned(&self) -> bool {
        match self {
            Self::Create(_, reply) => reply.is_closed(),
            Self::Delete(_, reply) => reply.is_closed(),
            Self::Read(_, reply) => reply.is_closed(),
            Self::List(reply) => reply.is_closed(),
        }
    }
}

impl ControlHandle {
    /// Begins to count.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_aggregation(
        &self,
        request: CreateAggregation,
    ) -> Result<Arc<v1::Aggregation>, Error> {
        self.ask(|reply| Command::Aggregation(AggregationCommand::Create(request, reply))).await
    }

    /// Stops counting. Returns what was counted until then, if the kernel's table could be read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_aggregation(&self, name: String) -> Result<Option<v1::AggregationSnapshot>, Error> {
        self.ask(|reply| Command::Aggregation(AggregationCommand::Delete(name, reply))).await
    }

    /// Reads what was counted.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read_aggregation(&self, name: String) -> Result<v1::AggregationSnapshot, Error> {
        self.ask(|reply| Command::Aggregation(AggregationCommand::Read(name, reply))).await
    }

    /// All aggregations by name.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn aggregations(&self) -> Result<Vec<Arc<v1::Aggregation>>, Error> {
        self.ask(|reply| Command::Aggregation(AggregationCommand::List(reply))).await
    }
}
