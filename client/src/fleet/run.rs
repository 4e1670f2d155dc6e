//! Run of one request over many hosts.
//!
//! Owns the order of hosts, how many are asked at once, and the deadline of each. No host waits for
//! a dead or slow one, unless such hosts use up `parallel`.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tonic::Code;

use super::ledger::{HostLedger, Outcome};
use crate::client::Client;
use crate::connect::ConnectOptions;
use crate::error::Error;
use crate::target::Target;

/// A host of a fleet.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name. Names of a run are distinct.
    pub name: String,
    /// Address of its daemon.
    pub target: Target,
    /// How to connect to it. The deadline of the run bounds both timeouts.
    pub options: ConnectOptions,
}

impl Host {
    /// Connects to its daemon.
    ///
    /// # Errors
    /// [`Error::Connect`] when the daemon cannot be reached.
    pub async fn connect(&self) -> Result<Client, Error> {
        Client::connect(self.target.clone(), self.options.clone()).await
    }
}

/// Limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct FanOut {
    /// How many hosts are asked at the same time.
    pub parallel: NonZeroUsize,
    /// How long one host may take, from the connection to its answer.
    pub deadline: Duration,
    /// Whether no further host is tried after the first that did not answer. Those that are being
    /// asked are waited for.
    pub fail_fast: bool,
}

impl Default for FanOut {
    fn default() -> Self {
        Self {
            parallel: NonZeroUsize::MIN.saturating_add(63),
            deadline: Duration::from_secs(30),
            fail_fast: false,
        }
    }
}

/// Why a host gave no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NoAnswer<E> {
    /// No connection.
    #[error("{}", .0.without_target())]
    Unreachable(#[source] Error),
    /// The operation ended with an error.
    #[error("{0}")]
    Operation(E),
    /// The deadline passed. The request may have been carried out.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The run was interrupted while the host was asked. The request may have been carried out.
    #[error("interrupted before it answered")]
    Interrupted,
    /// The operation ended by a fault of the program.
    #[error("the operation broke: {0}")]
    Broken(String),
    /// The run ended before the host was tried.
    #[error("not tried: the run had ended")]
    NotTried,
}

impl<E: Operation> NoAnswer<E> {
    /// The class of the host.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Unreachable(_) => Outcome::Unreachable,
            Self::Operation(error) => error.outcome(),
            Self::TimedOut(_) => Outcome::TimedOut,
            Self::Interrupted | Self::Broken(_) => Outcome::Failed,
            Self::NotTried => Outcome::NotTried,
        }
    }
}

/// An error of an operation that has an outcome for the host.
pub trait Operation {
    /// The class of the host whose operation ended so. The connection was there before.
    fn outcome(&self) -> Outcome;
}

impl Operation for Error {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Connect { .. } | Self::CertificateRefused(_) => Outcome::Unreachable,
            Self::Timeout { .. } => Outcome::TimedOut,
            Self::Rpc(error) => match error.code {
                Code::InvalidArgument
                | Code::NotFound
                | Code::AlreadyExists
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::FailedPrecondition
                | Code::OutOfRange
                | Code::Unimplemented
                | Code::ResourceExhausted
                | Code::Aborted => Outcome::Refused,
                Code::DeadlineExceeded => Outcome::TimedOut,
                // Nothing was carried out: the daemon is starting, stopping, or gone.
                Code::Unavailable => Outcome::Unreachable,
                Code::Ok | Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
                    Outcome::Failed
                }
            },
            Self::Disconnected { .. } | Self::Malformed(_) | Self::Incomplete(_) => Outcome::Failed,
        }
    }
}

/// Answer of one host.
#[derive(Debug)]
pub struct Report<T, E> {
    /// The host.
    pub host: Host,
    /// Its answer, or why there is none.
    pub result: Result<T, NoAnswer<E>>,
}

impl<T, E: Operation> Report<T, E> {
    /// The class of the host.
    pub fn outcome(&self) -> Outcome {
        self.result.as_ref().map_or_else(NoAnswer::outcome, |_answer| Outcome::Answered)
    }
}

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A request to many hosts in progress. If dropped, it asks no more hosts and waits for none.
pub struct Run<T, E> {
    operation: Arc<dyn Fn(Host, Client) -> Answer<T, E> + Send + Sync>,
    fan_out: FanOut,
    waiting: VecDeque<Host>,
    asked: HashMap<Id, Host>,
    tasks: JoinSet<Result<T, NoAnswer<E>>>,
    ended: bool,
    ledger: HostLedger,
}

impl<T: Send + 'static, E: Operation + Send + 'static> Run<T, E> {
    /// Prepares the run. Hosts are asked while [`Run::next`] is waited for.
    pub fn start<F, A>(hosts: Vec<Host>, fan_out: FanOut, operation: F) -> Self
    where
        F: Fn(Host, Client) -> A + Send + Sync + 'static,
        A: Future<Output = Result<T, E>> + Send + 'static,
    {
        Self {
            operation: Arc::new(move |host, client| Box::pin(operation(host, client))),
            fan_out,
            ledger: HostLedger::new(hosts.len() as u64),
            waiting: hosts.into(),
            asked: HashMap::new(),
            tasks: JoinSet::new(),
            ended: false,
        }
    }

    /// The next answer, in the order of arrival. None: every host is accounted for. Cancel-safe.
    pub async fn next(&mut self) -> Option<Report<T, E>> {
        while !self.ended && self.tasks.len() < self.fan_out.parallel.get() {
            let Some(host) = self.waiting.pop_front() else { break };
            self.ask(host);
        }
        let report = match self.tasks.join_next_with_id().await {
            Some(joined) => self.joined(joined)?,
            // Only a run that has ended has hosts left when nothing is asked any more.
            None => Report { host: self.waiting.pop_front()?, result: Err(NoAnswer::NotTried) },
        };
        self.ledger.record(report.outcome());
        if self.fan_out.fail_fast && report.outcome() != Outcome::Answered {
            self.ended = true;
        }
        Some(report)
    }

    /// Ends the run: hosts that are being asked are given up, the others are not tried.
    /// [`Run::next`] reports all of them.
    pub fn interrupt(&mut self) {
        self.ended = true;
        self.tasks.abort_all();
    }

    /// The account until now. It closes when [`Run::next`] has returned none.
    pub fn ledger(&self) -> HostLedger {
        self.ledger
    }

    fn ask(&mut self, mut host: Host) {
        let deadline = self.fan_out.deadline;
        host.options.connect_timeout = host.options.connect_timeout.min(deadline);
        host.options.request_timeout = host.options.request_timeout.min(deadline);
        let (operation, asked) = (Arc::clone(&self.operation), host.clone());
        let task = self.tasks.spawn(async move {
            let end = Instant::now() + deadline;
            // Connecting has a limit of its own, so that a host that cannot be reached never counts
            // as one that did not answer.
            let client = asked.connect().await.map_err(NoAnswer::Unreachable)?;
            match tokio::time::timeout_at(end, operation(asked, client)).await {
                Ok(done) => done.map_err(NoAnswer::Operation),
                Err(_elapsed) => Err(NoAnswer::TimedOut(deadline)),
            }
        });
        self.asked.insert(task.id(), host);
    }

    fn joined(
        &mut self,
        joined: Result<(Id, Result<T, NoAnswer<E>>), tokio::task::JoinError>,
    ) -> Option<Report<T, E>> {
        let (id, result) = match joined {
            Ok(done) => done,
            Err(error) if error.is_cancelled() => (error.id(), Err(NoAnswer::Interrupted)),
            Err(error) => (error.id(), Err(NoAnswer::Broken(error.to_string()))),
        };
        let host = self.asked.remove(&id)?;
        Some(Report { host, result })
    }
}
