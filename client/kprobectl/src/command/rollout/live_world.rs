//! The roll-out's interface to real hosts, the state file and the output.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kprobed_client::Client;
use kprobed_client::fleet::{FanOut, Host, Run};
use kprobed_document::Document;

use super::super::Failure;
use super::super::connection::parallel;
use super::super::open_file_limit::raise_for;
use super::host_requests;
use crate::global::Global;
use crate::output::Output;
use crate::rollout::{AnswerHandler, HostQuery, RolloutEvent, State, StateFile, World};

/// The state in the file is at most this old while answers arrive. Later answers may be lost: the
/// queries are in the state, and are repeated.
const WRITE_EACH: Duration = Duration::from_millis(200);

/// How old the figures of `rollout status` may be.
const SHOW_EACH: Duration = Duration::from_secs(10);

pub(super) struct LiveWorld<'a> {
    id: String,
    hosts: Vec<Host>,
    documents: Arc<Vec<Document>>,
    fan_out: FanOut,
    /// Absent: nothing is to outlive the process.
    file: Option<&'a StateFile>,
    written: Cell<Instant>,
    output: RefCell<&'a mut Output>,
}

impl<'a> LiveWorld<'a> {
    /// The hosts are in the order of those in the state.
    pub(super) fn new(
        global: &Global,
        hosts: Vec<Host>,
        documents: Vec<Document>,
        file: Option<&'a StateFile>,
        id: &str,
        output: &'a mut Output,
    ) -> Result<Self, Failure> {
        let default = FanOut::default();
        let fan_out = FanOut {
            parallel: parallel(global)?.unwrap_or(default.parallel),
            deadline: global.timeout,
            fail_fast: false,
        };
        raise_for(&fan_out, hosts.len())?;
        Ok(Self {
            id: id.to_owned(),
            hosts,
            documents: Arc::new(documents),
            fan_out,
            file,
            written: Cell::new(Instant::now()),
            output: RefCell::new(output),
        })
    }
}

impl World for LiveWorld<'_> {
    type Error = Failure;

    async fn ask(
        &self,
        state: &mut State,
        asks: Vec<(usize, HostQuery)>,
        said: &mut AnswerHandler<'_>,
    ) -> Result<(), Failure> {
        let is_kept = asks.iter().any(|(_, ask)| ask.is_kept());
        let hosts: Vec<_> = asks.iter().filter_map(|(index, _)| self.hosts.get(*index).cloned()).collect();
        let indexes: HashMap<_, _> =
            hosts.iter().zip(&asks).map(|(host, (index, _))| (host.name.clone(), *index)).collect();
        let asks: HashMap<_, _> =
            hosts.iter().map(|host| host.name.clone()).zip(asks.into_iter().map(|(_, ask)| ask)).collect();
        let shared = Arc::new((asks, Arc::clone(&self.documents)));
        let operation = move |host: Host, client: Client| {
            let shared = Arc::clone(&shared);
            async move {
                let (asks, documents) = &*shared;
                // Each host of the run has a query.
                let what = asks.get(&host.name).cloned().unwrap_or(HostQuery::Read);
                Box::pin(host_requests::ask(client, what, documents)).await
            }
        };
        let mut run = Run::start(hosts, self.fan_out, operation);
        while let Some(report) = run.next().await {
            let Some(index) = indexes.get(&report.host.name) else { continue };
            said(state, *index, report.result.map_err(host_requests::trouble));
            if is_kept && self.written.get().elapsed() >= WRITE_EACH {
                self.save(state)?;
            }
        }
        Ok(())
    }

    fn save(&self, state: &State) -> Result<(), Failure> {
        if let Some(file) = self.file {
            file.write(state)?;
        }
        self.written.set(Instant::now());
        Ok(())
    }

    fn show(&self, state: &State) -> Result<(), Failure> {
        if self.written.get().elapsed() >= SHOW_EACH { self.save(state) } else { Ok(()) }
    }

    fn tell(&self, happened: &RolloutEvent) -> Result<(), Failure> {
        let mut output = self.output.borrow_mut();
        output.rollout_event(&self.id, happened)?;
        Ok(output.flush()?)
    }

    async fn wait(&self, time: Duration) -> Result<(), Failure> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
