//! A guest with a running daemon, for tests: a client, the guest's own view of tracefs, and
//! workloads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::{CreateProbeRequest, DeleteProbeRequest, GetLedgerResponse, Probe, ProbeLedger};
use kprobed_client::event::{EventStream, Loss, StreamItem, StreamRequest};
use kprobed_client::{Client, ConnectOptions, RpcError};
use kprobed_vm::daemon;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::{Command, Machine, MachineError, Signal};
use kprobed_vm::protocol::Status;
use tokio::runtime::Runtime;

use crate::fixture::Fixture;
use crate::report;

/// Where tracefs is in guests.
pub(crate) const TRACEFS: &str = "/sys/kernel/tracing";

/// How long an emulated guest may take for anything: it may have a part of a CPU only, and its
/// daemon a part of that.
const PATIENCE: Duration = Duration::from_mins(2);

/// A machine in which the daemon answers.
pub(crate) struct DaemonGuest {
    pub(crate) machine: OwnMachine,
    pub(crate) client: Client,
    runtime: Runtime,
}

/// A machine whose logs are kept when it is given up: its trial may have failed.
pub(crate) struct OwnMachine(Option<Machine>);

impl OwnMachine {
    pub(crate) const fn new(machine: Machine) -> Self {
        Self(Some(machine))
    }

    /// See [`Machine::power_off`].
    pub(crate) fn power_off(mut self) -> Result<(), MachineError> {
        self.0.take().map_or(Ok(()), Machine::power_off)
    }

    /// See [`Machine::power_cut`].
    pub(crate) fn power_cut(mut self) {
        if let Some(machine) = self.0.take() {
            machine.power_cut();
        }
    }
}

impl Deref for OwnMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        let Some(machine) = &self.0 else { unreachable!("it is only taken by what consumes this") };
        machine
    }
}

impl Drop for OwnMachine {
    fn drop(&mut self) {
        self.0.iter().for_each(report::keep_last_words);
    }
}

/// One event, as text.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) probe: String,
    pub(crate) comm: String,
    pub(crate) location: String,
    pub(crate) return_location: Option<String>,
    pub(crate) wall_ns: u64,
    fields: BTreeMap<String, String>,
}

impl Event {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("(absent)", String::as_str)
    }
}

/// Everything that a stream delivered.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) events: Vec<Event>,
    pub(crate) losses: Vec<Loss>,
}

impl Recording {
    /// The events of one probe that a task of that name caused.
    pub(crate) fn of<'a>(&'a self, probe: &'a str, comm: &'a str) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |event| event.probe == probe && event.comm == comm)
    }
}

impl AsRef<Machine> for DaemonGuest {
    fn as_ref(&self) -> &Machine {
        &self.machine
    }
}

impl DaemonGuest {
    /// Boots a machine with the disk of an earlier one and starts the daemon in it.
    pub(crate) fn boot(fixture: &Fixture, disk: &str, config: &str) -> Result<Self> {
        let lab = fixture.lab()?;
        let options = GuestOptions { disk: Some(lab.disk(disk, false)?), ..fixture.options()? };
        Self::over(lab.boot(&options)?, config)
    }

    /// The same with another kernel than the fixture's.
    pub(crate) fn boot_other(fixture: &Fixture, disk: &str, config: &str) -> Result<Self> {
        let lab = fixture.lab()?;
        let kernel = fixture.other_kernel()?;
        let options = GuestOptions { kernel, disk: Some(lab.disk(disk, false)?), ..fixture.options()? };
        Self::over(lab.boot(&options)?, config)
    }

    /// Starts the daemon in a machine that runs.
    pub(crate) fn over(machine: Machine, config: &str) -> Result<Self> {
        daemon::start(&machine, config)?;
        Self::in_service(machine)
    }

    /// Connects to the daemon that runs in a machine.
    pub(crate) fn in_service(machine: Machine) -> Result<Self> {
        let address = daemon::ready(&machine)?;
        // A thread of its own answers the daemon's keep-alive, whatever the trial does meanwhile.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(connect(address))?;
        Ok(Self { machine: OwnMachine::new(machine), client, runtime })
    }

    /// Connects to a daemon that another program has started at the same place.
    pub(crate) fn connect_again(&mut self) -> Result<()> {
        let address = self.machine.address(daemon::PORT).context("the machine forwards no port")?;
        self.client = self.runtime.block_on(connect(address))?;
        Ok(())
    }

    /// Asks the daemon to stop, and waits until it has.
    pub(crate) fn stop(&self) -> Result<Status> {
        daemon::stop(&self.machine)
    }

    /// Kills the daemon (SIGKILL), and waits until it has ended.
    pub(crate) fn kill(&self) -> Result<()> {
        self.machine.signal(daemon::NAME, Signal::SIGKILL)?;
        let status = self.machine.wait(daemon::NAME, Some(PATIENCE))?;
        ensure!(status.is_signal(Signal::SIGKILL), "{status:?}");
        Ok(())
    }

    /// Starts the daemon again after it has ended.
    pub(crate) fn restart(&mut self, config: &str) -> Result<()> {
        let address = daemon::start(&self.machine, config)?;
        self.client = self.runtime.block_on(connect(address))?;
        Ok(())
    }

    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await }).context("no answer")
    }

    /// Deletes all probes, detaches all events, and removes what a test before this one left to
    /// other tools.
    pub(crate) fn reset(&self) -> Result<()> {
        let probes = self.probes()?.into_iter();
        let requests = probes.map(|probe| DeleteProbeRequest { name: probe.name, ..Default::default() });
        for requests in requests.collect::<Vec<_>>().chunks(Client::CHANGES_AT_ONCE) {
            self.wait_for(self.client.delete_probes(requests.to_vec()))??
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
        }
        for event in self.wait_for(self.client.attached_events())?? {
            self.wait_for(self.client.detach_event(&event.name))??;
        }
        self.shell(&format!("echo > {TRACEFS}/error_log; echo > {TRACEFS}/kprobe_events"))?;
        Ok(())
    }

    pub(crate) fn probes(&self) -> Result<Vec<Probe>> {
        Ok(self.wait_for(self.client.list_probes(""))??)
    }

    /// Makes a probe that records.
    pub(crate) fn add(&self, definition: &str) -> Result<Probe> {
        let request =
            CreateProbeRequest { definition: definition.to_owned(), enabled: true, ..Default::default() };
        self.wait_for(self.client.create_probe(request))?.with_context(|| definition.to_owned())
    }

    /// Why the daemon refuses a definition.
    pub(crate) fn refusal(&self, definition: &str) -> Result<RpcError> {
        let request =
            CreateProbeRequest { definition: definition.to_owned(), enabled: true, ..Default::default() };
        match self.wait_for(self.client.create_probe(request))? {
            Err(kprobed_client::Error::Rpc(error)) => Ok(*error),
            Err(error) => bail!("{definition}: {error}"),
            Ok(probe) => bail!("{definition} was accepted as {}", probe.name),
        }
    }

    pub(crate) fn delete(&self, name: &str) -> Result<Option<kprobed_client::api::HitProfile>> {
        let request = DeleteProbeRequest { name: name.to_owned(), ..Default::default() };
        Ok(self.wait_for(self.client.delete_probe(request))??)
    }

    pub(crate) fn ledger(&self) -> Result<GetLedgerResponse> {
        Ok(self.wait_for(self.client.ledger())??)
    }

    /// One probe's part of the ledger.
    pub(crate) fn ledger_of(&self, name: &str) -> Result<ProbeLedger> {
        let found = self.ledger()?.probes.into_iter().find(|probe| probe.probe == name);
        found.with_context(|| format!("{name} is not in the ledger"))
    }

    /// Runs `work` and answers everything that the probes recorded meanwhile.
    pub(crate) fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Recording> {
        let mut stream = self.subscribe(StreamRequest::new())?;
        let id = self.started(&mut stream)?;
        work()?;
        let ledger = self.ledger()?;
        let ours = ledger.subscribers.iter().find(|subscriber| subscriber.subscriber_id == id);
        let ours = ours.context("this subscriber is not in the ledger")?;
        let mut missing = ours.delivered + ours.queued;
        let mut recording = Recording::default();
        while missing > 0 {
            match self.next(&mut stream)? {
                StreamItem::Batch(batch) => {
                    missing = missing.saturating_sub(batch.len() as u64);
                    recording.events.extend(batch.rows().map(|row| {
                        Event {
                            probe: row.probe().to_owned(),
                            comm: row
                                .comm()
                                .map(|comm| String::from_utf8_lossy(comm).into_owned())
                                .unwrap_or_default(),
                            location: row.location().map(|location| location.to_string()).unwrap_or_default(),
                            return_location: row.return_location().map(|location| location.to_string()),
                            wall_ns: row.wall_ns(),
                            fields: row
                                .fields()
                                .map(|(name, value)| (name.to_owned(), value.to_string()))
                                .collect(),
                        }
                    }));
                }
                StreamItem::Loss(loss) => recording.losses.push(loss),
                _ => {}
            }
        }
        Ok(recording)
    }

    pub(crate) fn subscribe(&self, request: StreamRequest) -> Result<EventStream> {
        Ok(self.wait_for(self.client.stream_events(request))??)
    }

    /// The subscriber's id, from the first message of its stream.
    pub(crate) fn started(&self, stream: &mut EventStream) -> Result<u64> {
        match self.next(stream)? {
            StreamItem::Started(started) => Ok(started.subscriber_id),
            other => bail!("the stream begins with {other:?}"),
        }
    }

    pub(crate) fn next(&self, stream: &mut EventStream) -> Result<StreamItem> {
        self.wait_for(stream.next())??.context("the stream has ended")
    }

    /// What `kprobectl observe` prints with these arguments, until it ends, while `work` is done:
    /// that begins when it is subscribed.
    pub(crate) fn observe(&self, arguments: &str, work: impl FnOnce() -> Result<()>) -> Result<String> {
        let subscribers = |guest: &Self| Ok::<_, anyhow::Error>(guest.ledger()?.subscribers.len());
        let before = subscribers(self)?;
        let observe = format!("exec kprobectl observe {arguments} > /tmp/observed 2> /tmp/observer");
        self.machine.spawn("observer", &Command::shell(observe))?;
        while subscribers(self)? == before {
            let status = self.machine.wait("observer", Some(Duration::from_millis(50)))?;
            ensure!(status == Status::TimedOut, "{status:?}: {}", self.shell("cat /tmp/observer")?);
        }
        work()?;
        let status = self.machine.wait("observer", Some(PATIENCE))?;
        ensure!(status.success(), "{status:?}: {}", self.shell("cat /tmp/observer")?);
        self.shell("cat /tmp/observed")
    }

    /// Runs a shell script in the guest; its standard output.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        self.run(&Command::shell(script))
    }

    /// Makes system calls; the lines that the workload prints.
    pub(crate) fn workload(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let output = self.run(&Command::new("workload").args(arguments.iter().copied()))?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    fn run(&self, command: &Command) -> Result<String> {
        let output = self.machine.exec(command)?;
        ensure!(output.status.success(), "{command:?}: {output:?}");
        Ok(output.stdout_text())
    }

    /// The directory of the instance that the daemon records into now: deleting a probe while
    /// others record makes it another one.
    pub(crate) fn instance(&self) -> Result<String> {
        Ok(self.wait_for(self.client.host())??.instance)
    }

    /// A file of that instance.
    pub(crate) fn in_instance(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.machine.get(&format!("{}/{path}", self.instance()?))?).into_owned())
    }

    /// A file below tracefs.
    pub(crate) fn tracefs(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.machine.get(&format!("{TRACEFS}/{path}"))?).into_owned())
    }

    /// The daemon's log, for when something went wrong.
    pub(crate) fn log(&self) -> String {
        daemon::log_tail(&self.machine)
    }
}

async fn connect(address: SocketAddr) -> Result<Client> {
    let target = format!("tcp://{address}").parse()?;
    let options = ConnectOptions { request_timeout: PATIENCE, ..ConnectOptions::default() };
    Ok(Client::connect(target, options).await?)
}
