//! The events of two kernels merged in one order of time, while one of their daemons is killed and
//! returns.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::ConnectOptions;
use kprobed_client::event::{StreamRequest, Value};
use kprobed_client::fleet::{Host, Outcome};
use kprobed_client::merge::{HostState, MergeOptions, MergedItem, MergedStream};
use kprobed_vm::daemon;
use kprobed_vm::lab::GuestOptions;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        two_kernels_are_in_one_order_while_one_is_killed,
    }
};

/// No other program calls `getsid`.
const PROBE: &str = "p:numbers __x64_sys_getsid n=+0x70(%di):s32";

/// How long the other host waits. Emulated guests are slow.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// An event: its host, its number, when it happened by the clock here, and whether it was late.
#[derive(Clone, Debug)]
struct Seen {
    host: String,
    number: i64,
    at_ns: i64,
    late: bool,
}

/// What was read so far.
#[derive(Default)]
struct Log {
    events: Vec<Seen>,
    states: Vec<(String, HostState)>,
    /// The error bounds of all clocks together, in nanoseconds.
    bounds_ns: u64,
    uncertain: Vec<String>,
}

impl Log {
    fn take(&mut self, item: MergedItem<'_>) -> Result<()> {
        match item {
            MergedItem::Event(event) => {
                let number = event.row.fields().find_map(|(name, value)| match value {
                    Value::Signed { value, .. } if name == "n" => Some(value),
                    _ => None,
                });
                self.events.push(Seen {
                    host: event.host.to_owned(),
                    number: number.context("no number")?,
                    at_ns: event.corrected_ns,
                    late: event.late,
                });
            }
            MergedItem::State(change) => {
                if let Some(clock) = &change.clock {
                    self.bounds_ns += clock.error_bound_ns;
                }
                self.states.push((change.host.to_owned(), change.state));
            }
            MergedItem::Loss { host, loss } => self.uncertain.push(format!("{host}: {loss:?}")),
            MergedItem::MayMiss { host, cursor } => self.uncertain.push(format!("{host}: {cursor}")),
            _ => {}
        }
        Ok(())
    }

    fn numbers(&self) -> Vec<i64> {
        self.events.iter().map(|event| event.number).collect()
    }
}

fn host(name: &str, guest: &DaemonGuest) -> Result<Host> {
    let address = guest.machine.address(daemon::PORT).context("the machine forwards no port")?;
    let target = format!("tcp://{address}").parse()?;
    Ok(Host { name: name.to_owned(), target, options: ConnectOptions::default() })
}

/// Reads until it is as a test wants it.
fn read(
    guest: &DaemonGuest,
    merged: &mut MergedStream,
    log: &mut Log,
    wanted: impl Fn(&Log) -> bool,
) -> Result<()> {
    while !wanted(log) {
        let item = guest.wait_for(async { merged.next().await.map(|item| log.take(item)) });
        item.with_context(|| format!("{:?} {:?}", log.events, log.states))?.context("it ended")??;
    }
    Ok(())
}

fn call(guest: &DaemonGuest, number: i64) -> Result<()> {
    guest.call(number, 1)
}

fn two_kernels_are_in_one_order_while_one_is_killed(fixture: &Fixture) -> Result<()> {
    let config = daemon::DEFAULT_CONFIG;
    let one = fixture.daemon()?;
    let lab = fixture.lab()?;
    let disk = lab.disk(&fixture.disk_name("merge-other"), true)?;
    let options = GuestOptions { kernel: fixture.other_kernel()?, disk: Some(disk), ..fixture.options()? };
    let mut other = DaemonGuest::over(lab.boot(&options)?, config)?;
    for guest in [&*one, &other] {
        guest.add(PROBE)?;
    }
    let kernels = [&*one, &other].map(|guest| guest.wait_for(guest.client.host()));
    let [Ok(Ok(here)), Ok(Ok(there))] = kernels else { anyhow::bail!("{kernels:?}") };
    ensure!(here.kernel_release != there.kernel_release, "{}", here.kernel_release);

    let hosts = vec![host("one", &one)?, host("other", &other)?];
    let merge = MergeOptions { max_wait: MAX_WAIT, ..MergeOptions::default() };
    let request = StreamRequest::new().probe("kprobes/numbers");
    let mut merged = one.wait_for(async { MergedStream::open(hosts, request, merge) })?;
    let mut log = Log::default();
    let live = |log: &Log| log.states.iter().filter(|(_, state)| *state == HostState::Live).count();
    read(&one, &mut merged, &mut log, |log| live(log) == 2)?;

    // Of two hosts to which nothing happens, both say so: for three times as long as one may be
    // silent, none is late.
    let idle = one.wait_for(async {
        tokio::time::timeout(3 * MAX_WAIT, async { merged.next().await.map(|item| format!("{item:?}")) })
            .await
    })?;
    ensure!(idle.is_err(), "nothing happens, and there is {idle:?}");

    // In turn: each call has ended before the next one begins, on the other kernel.
    for number in 0..20 {
        call(if number % 2 == 0 { &one } else { &other }, number)?;
    }
    read(&one, &mut merged, &mut log, |log| log.events.len() == 20)?;
    ensure!(log.numbers() == (0..20).collect::<Vec<_>>(), "±{} ns: {:?}", log.bounds_ns, log.events);
    for (index, event) in log.events.iter().enumerate() {
        ensure!(!event.late && event.host == ["one", "other"][index % 2], "{event:?}");
    }
    ensure!(log.events.is_sorted_by_key(|event| event.at_ns), "{:?}", log.events);

    other.kill()?;
    call(&one, 20)?;
    read(&one, &mut merged, &mut log, |log| log.events.len() == 21)?;
    let last = |log: &Log| log.states.iter().rfind(|(host, _)| host == "other").map(|(_, state)| *state);
    ensure!(last(&log) == Some(HostState::Late), "it goes on without the other one: {:?}", log.states);
    other.restart(config)?;
    read(&one, &mut merged, &mut log, |log| last(log) == Some(HostState::Back))?;
    for number in 21..31 {
        call(if number % 2 == 0 { &one } else { &other }, number)?;
    }
    read(&one, &mut merged, &mut log, |log| log.events.len() == 31)?;
    ensure!(log.numbers() == (0..31).collect::<Vec<_>>(), "±{} ns: {:?}", log.bounds_ns, log.events);
    // It was killed: the possible gap in its history is reported once.
    ensure!(log.uncertain.len() == 1 && log.uncertain[0].starts_with("other: "), "{:?}", log.uncertain);

    one.wait_for(async { merged.finish() })?;
    for account in merged.accounts() {
        ensure!(account.closes() && account.waiting == 0, "{account:?}");
        ensure!(account.outcome == Outcome::Answered, "{account:?}");
        let given = log.events.iter().filter(|event| event.host == account.host).count();
        ensure!(account.given == given as u64, "{account:?}");
    }
    Ok(())
}
