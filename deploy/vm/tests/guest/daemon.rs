//! A guest with a running daemon, for tests: a client, the guest's own view of tracefs, and
//! workloads.

mod clean;
mod ctl;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
pub(crate) use ctl::{OwnProgram, Running, Said, events, events_among_others, kprobectl, objects};
use kprobed_client::api::{
    Arming, CodeInstruction, CreateProbeRequest, DeleteProbeRequest, GetLedgerResponse, HostCheck, Probe,
    ProbeKind, ProbeLedger, SubscriberLedger, UpdateProbeRequest, Verdict,
};
use kprobed_client::event::{EventStream, Loss, StreamItem, StreamRequest};
use kprobed_client::{Client, ConnectOptions, Error, RpcError};
use kprobed_vm::daemon;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::{Command, Machine, MachineError, PATIENCE, Signal};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::fixture::Fixture;
use crate::report;

/// Where tracefs is in guests.
pub(crate) const TRACEFS: &str = "/sys/kernel/tracing";

/// Where a daemon with the usual configuration looks for files that declare probes.
pub(crate) const DECLARATIONS: &str = "/etc/kprobed/probes.d";

/// The filter of a probe as the kernel has it, if it compares the first field, which is read from memory: it lets no
/// event pass whose field could not be read.
pub(crate) fn filter_in_kernel(filter: &str, fixture: &Fixture) -> String {
    if fixture.proves_reads() { format!("{filter}{READ}") } else { filter.to_owned() }
}

/// What holds of an event whose first field was read.
pub(crate) const READ: &str = " && !__kpd_g0 ~ \"*\u{1}\"";

/// A probe of the calls that [`DaemonGuest::call`] makes: `getsid` is called by nothing else in the guest, and `di` of
/// its registers is its argument.
pub(crate) const NUMBERS: &str = "p:numbers __x64_sys_getsid n=+0x70(%di):s32";

/// The first number of such calls: no process has such an id.
pub(crate) const FIRST: i64 = 1_000_000;

/// The usual configuration, with more settings behind it.
pub(crate) fn config(settings: &str) -> String {
    format!("{}\n{settings}\n", daemon::DEFAULT_CONFIG)
}

/// The usual configuration, with other roles.
pub(crate) fn config_with_roles(roles: &str) -> String {
    let (_, settings) = daemon::DEFAULT_CONFIG.split_once("[listen]").unwrap_or_default();
    format!("{roles}[listen]{settings}")
}

/// The usual configuration, with so many milliseconds between two looks at the probes.
pub(crate) fn config_looking_every(interval_ms: u32) -> String {
    daemon::DEFAULT_CONFIG.replace("interval_ms = 0", &format!("interval_ms = {interval_ms}"))
}

/// The request for a probe that records what passes a filter, or everything if that is empty.
pub(crate) fn creation(definition: &str, filter: &str) -> CreateProbeRequest {
    CreateProbeRequest {
        definition: definition.to_owned(),
        filter: filter.to_owned(),
        enabled: true,
        ..Default::default()
    }
}

/// The request that changes nothing of a probe.
pub(crate) fn update(name: &str) -> UpdateProbeRequest {
    UpdateProbeRequest { name: name.to_owned(), ..Default::default() }
}

/// The request that switches a probe.
pub(crate) fn switch(name: &str, enabled: bool) -> UpdateProbeRequest {
    UpdateProbeRequest { enabled: Some(enabled), ..update(name) }
}

/// The request that deletes a probe.
pub(crate) fn deletion(name: &str) -> DeleteProbeRequest {
    DeleteProbeRequest { name: name.to_owned(), ..Default::default() }
}

/// Asks until there is an answer. `missing` says what is, if there is none within `limit`.
pub(crate) fn wait<T>(
    limit: Duration,
    missing: impl Fn() -> String,
    ask: impl Fn() -> Result<Option<T>>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        ensure!(begun.elapsed() < limit, "not within {limit:?}: {}", missing());
        // What is looked at may cost an emulated guest as much as what it is to do.
        thread::sleep(Duration::from_millis(100));
    }
}

/// Why a call was refused.
pub(crate) fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Result<RpcError> {
    match outcome {
        Err(Error::Rpc(error)) => Ok(*error),
        Err(error) => Err(error.into()),
        Ok(accepted) => bail!("{accepted:?} was not refused"),
    }
}

/// A machine in which the daemon answers. Dropping it kills the machine.
pub(crate) struct DaemonGuest {
    pub(crate) machine: OwnMachine,
    pub(crate) client: Client,
    runtime: Runtime,
    /// The configuration with which the daemon was started last.
    started_with: String,
    /// Whether a trial has taken the database from the daemon, which says so until it has another one.
    has_lost_database: bool,
    /// What the guest shows when no trial has left anything.
    clean: OnceCell<Vec<String>>,
    /// Where `kprobectl` on the host keeps what it remembers.
    home: TempDir,
}

/// A machine whose logs are kept when it is given up, because its trial may have failed, and that is
/// killed when the trial's time is over.
///
/// What its kernel reports meanwhile is a failure of the trial.
pub(crate) struct OwnMachine {
    machine: Option<Arc<Machine>>,
    /// What its kernel had reported before the trial. Absent if the machine had failed by then.
    reported_before: Cell<Option<usize>>,
}

impl OwnMachine {
    pub(crate) fn new(machine: Machine) -> Self {
        let own = Self { machine: Some(Arc::new(machine)), reported_before: Cell::new(Some(0)) };
        own.machine.iter().for_each(report::uses);
        own
    }

    /// The trial of this thread uses it, after others.
    pub(crate) fn is_used(&self) {
        if let Some(machine) = &self.machine {
            report::uses(machine);
            let before = machine.failure().is_none().then(|| machine.console_problems().len());
            self.reported_before.set(before);
        }
    }

    /// The trial of this thread gives it up.
    pub(crate) fn is_given_up(&self) {
        if let (Some(machine), Some(before)) = (&self.machine, self.reported_before.get()) {
            report::keep_problems(machine, before);
        }
    }

    /// Runs a shell script; its standard output.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        self.run(&Command::shell(script))
    }

    fn run(&self, command: &Command) -> Result<String> {
        let output = self.exec(command)?;
        ensure!(output.status.success(), "`{command}`: {output:?}");
        Ok(output.stdout_text())
    }

    /// Kills a background process, and waits until it has ended.
    pub(crate) fn kill_process(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::SIGKILL)?;
        let status = self.wait(name, PATIENCE)?;
        ensure!(status.is_signal(Signal::SIGKILL), "{name}: {status:?}");
        Ok(())
    }

    /// See [`Machine::power_off`].
    pub(crate) fn power_off(mut self) -> Result<(), MachineError> {
        self.is_given_up();
        self.machine.take().and_then(Arc::into_inner).map_or(Ok(()), Machine::power_off)
    }

    /// See [`Machine::power_cut`].
    pub(crate) fn power_cut(mut self) {
        self.is_given_up();
        if let Some(machine) = self.machine.take() {
            machine.kill();
        }
    }
}

impl Deref for OwnMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        let Some(machine) = &self.machine else { unreachable!("it is only taken by what consumes this") };
        machine
    }
}

impl Drop for OwnMachine {
    fn drop(&mut self) {
        self.is_given_up();
        self.machine.iter().for_each(|machine| report::keep_last_words(machine));
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
        Self::in_service(machine, config)
    }

    /// Connects to the daemon that runs in a machine, with this configuration.
    pub(crate) fn in_service(machine: Machine, config: &str) -> Result<Self> {
        let address = daemon::ready(&machine)?;
        // A thread of its own answers the daemon's keep-alive, whatever the trial does meanwhile.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(connect(address))?;
        Ok(Self {
            machine: OwnMachine::new(machine),
            client,
            runtime,
            started_with: config.to_owned(),
            has_lost_database: false,
            clean: OnceCell::new(),
            home: tempfile::tempdir()?,
        })
    }

    /// Connects to a daemon that another program has started at the same place.
    pub(crate) fn connect_again(&mut self) -> Result<()> {
        let address = self.machine.address(daemon::PORT).context("the machine forwards no port")?;
        self.client = self.runtime.block_on(connect(address))?;
        Ok(())
    }

    /// Asks the daemon to stop, and waits until it has, with success.
    pub(crate) fn stop(&self) -> Result<()> {
        let status = daemon::stop(&self.machine)?;
        ensure!(status.success(), "{status:?}\n{}", self.log());
        Ok(())
    }

    /// Kills the daemon (SIGKILL), and waits until it has ended.
    pub(crate) fn kill(&self) -> Result<()> {
        self.machine.kill_process(daemon::NAME)
    }

    /// Kills the daemon, and damages or removes its database with a script, which runs in its directory.
    pub(crate) fn lose_database(&mut self, script: &str) -> Result<()> {
        self.has_lost_database = true;
        self.kill()?;
        self.shell(&format!("cd /var/lib/kprobed && {script}")).map(drop)
    }

    /// Kills the daemon, and starts it with the configuration that it was started with before.
    pub(crate) fn kill_and_restart(&mut self) -> Result<()> {
        self.kill()?;
        self.restart(&self.started_with.clone())
    }

    /// The same after a stop.
    pub(crate) fn stop_and_restart(&mut self) -> Result<()> {
        self.stop()?;
        self.restart(&self.started_with.clone())
    }

    /// Starts the daemon again after it has ended.
    pub(crate) fn restart(&mut self, config: &str) -> Result<()> {
        config.clone_into(&mut self.started_with);
        let address = daemon::start(&self.machine, config)?;
        self.client = self.runtime.block_on(connect(address))?;
        Ok(())
    }

    /// Has the daemon read a configuration (SIGHUP), and waits until it has: the roles of it are in
    /// force. The connection of a client that has other roles then is ended.
    pub(crate) fn reload(&self, config: &str) -> Result<()> {
        let reloads =
            || Ok::<_, anyhow::Error>(self.whole_log()?.matches("the configuration is reloaded").count());
        let before = reloads()?;
        self.machine.put(daemon::CONFIG_PATH, 0o644, config.as_bytes())?;
        self.machine.signal(daemon::NAME, Signal::SIGHUP)?;
        self.until("the configuration is reloaded", || Ok(reloads()? > before))?;
        // A connection ends whose principal has other roles now: this call can meet that end, and the next one is on
        // another connection.
        self.wait_for(self.client.host())?.ok();
        Ok(())
    }

    /// Waits until something is so. Returns how long that took.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<Duration> {
        let begun = Instant::now();
        wait(PATIENCE, || format!("{what}\n{}", self.log()), || Ok(is_so()?.then_some(())))?;
        Ok(begun.elapsed())
    }

    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await }).context("no answer")
    }

    pub(crate) fn probes(&self) -> Result<Vec<Probe>> {
        Ok(self.wait_for(self.client.list_probes(""))??)
    }

    pub(crate) fn probe(&self, name: &str) -> Result<Probe> {
        Ok(self.wait_for(self.client.get_probe(name))??)
    }

    /// Makes a probe that records.
    pub(crate) fn add(&self, definition: &str) -> Result<Probe> {
        self.record_filtered(definition, "")
    }

    /// The same with a filter of the kernel.
    pub(crate) fn record_filtered(&self, definition: &str, filter: &str) -> Result<Probe> {
        let made = self.wait_for(self.client.create_probe(creation(definition, filter)))?;
        made.with_context(|| definition.to_owned())
    }

    /// Why the daemon refuses a definition.
    pub(crate) fn refusal(&self, definition: &str) -> Result<RpcError> {
        let outcome = self.wait_for(self.client.create_probe(creation(definition, "")))?;
        refused(outcome).with_context(|| definition.to_owned())
    }

    pub(crate) fn delete(&self, name: &str) -> Result<Option<kprobed_client::api::HitProfile>> {
        Ok(self.wait_for(self.client.delete_probe(deletion(name)))??)
    }

    pub(crate) fn ledger(&self) -> Result<GetLedgerResponse> {
        Ok(self.wait_for(self.client.ledger())??)
    }

    /// One probe's part of the ledger.
    pub(crate) fn ledger_of(&self, name: &str) -> Result<ProbeLedger> {
        let found = self.ledger()?.probes.into_iter().find(|probe| probe.probe == name);
        found.with_context(|| format!("{name} is not in the ledger"))
    }

    /// A subscriber's part of the ledger.
    pub(crate) fn subscriber(&self, id: u64) -> Result<SubscriberLedger> {
        let found = self.ledger()?.subscribers.into_iter().find(|one| one.subscriber_id == id);
        found.with_context(|| format!("the ledger has no subscriber {id}"))
    }

    /// What the daemon's check of this name has found.
    pub(crate) fn host_check(&self, id: &str) -> Result<HostCheck> {
        let checks = self.wait_for(self.client.host())??.checks;
        checks.into_iter().find(|check| check.id == id).with_context(|| format!("no check `{id}`"))
    }

    /// Whether the kernel has this feature of probes.
    pub(crate) fn has_feature(&self, id: &str) -> Result<bool> {
        let features = self.wait_for(self.client.host())??.features;
        Ok(features.iter().any(|feature| feature.id == id && feature.available))
    }

    /// The first place of a function from this offset on that a probe can have, as it is written.
    pub(crate) fn place_from(&self, function: &str, offset: u64) -> Result<String> {
        let place = format!("{function}+{offset}");
        let checked = self.wait_for(self.client.check_probe(format!("p {place}")))??;
        if checked.verdict() == Verdict::Accepted {
            return Ok(place);
        }
        let near = checked.nearest_after.with_context(|| format!("{checked:?}"))?;
        Ok(format!("{function}+{near}"))
    }

    /// Where, in bytes from its beginning, the kernel arms a probe inside of a function by a jump.
    pub(crate) fn place_of_jump(&self, function: &str) -> Result<u32> {
        let code = self.wait_for(self.client.disassemble_function(function, ProbeKind::Entry))??;
        let jump = |one: &&CodeInstruction| one.probeable && !one.entry && one.arming() == Arming::Optimised;
        let place = code.instructions.iter().find(jump);
        Ok(place.with_context(|| format!("no place of {function} gets a jump"))?.offset)
    }

    /// Runs `work` and answers everything that the probes recorded meanwhile.
    pub(crate) fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Recording> {
        let mut stream = self.subscribe(StreamRequest::new())?;
        let id = self.started(&mut stream)?;
        work()?;
        let ours = self.subscriber(id)?;
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

    /// Reads a stream until it has had at least so many events, and no loss. How many it has had.
    pub(crate) fn receive(&self, stream: &mut EventStream, events: u64) -> Result<u64> {
        let mut received = 0;
        while received < events {
            match self.next(stream)? {
                StreamItem::Batch(batch) => received += batch.len() as u64,
                StreamItem::Loss(loss) => bail!("{loss:?}"),
                _ => {}
            }
        }
        Ok(received)
    }

    /// Runs a shell script in the guest; its standard output.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        self.machine.shell(script)
    }

    /// Makes system calls; the lines that the workload prints.
    pub(crate) fn workload(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let output = self.machine.run(&Command::new("workload").args(arguments.iter().copied()))?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// Makes calls of `getsid`, which no other program makes, with so many numbers from the first on.
    pub(crate) fn call(&self, first: i64, count: i64) -> Result<()> {
        self.workload(&["numbers", &first.to_string(), &count.to_string()]).map(drop)
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

    /// All that daemons have logged in this guest.
    pub(crate) fn whole_log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.machine.get(daemon::LOG_PATH)?).into_owned())
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
