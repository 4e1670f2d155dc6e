//! More than ten times what the daemon carries, and every event accounted for.
//!
//! Three processes hit three probes as fast as they can, through a ring buffer of 64 KiB, while the daemon's readers have next to no weight for
//! the scheduler. Meanwhile eight subscribers of all kinds read, and at random some of them are killed, probes come and go, labels and filters
//! change, and once the daemon is killed. Then everything stops, and all terms have to add up: in the ledger, in the kernel's own counters, in
//! what the workload says it did, and in what each subscriber has counted itself.

mod account;
mod subscriber;

use std::collections::HashMap;
use std::env;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use account::{Terms, check_subscriber, has_everything};
use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CreateProbeRequest, LossCause};
use kprobed_vm::machine::Command;
use kprobed_vm::{daemon, progress};
use subscriber::{Subscriber, kinds};
use tokio::runtime::Runtime;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::differential::random::Random;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] =
    &[("the_ledger_closes_under_everything", the_ledger_closes_under_everything)];

const CONFIG: &str = "[tracing]\nbuffer_kib = 64\n[spool]\nmax_mib = 8\nsync_interval_ms = 200\n";
const SIGKILL: i32 = 9;
/// How much more is produced than read, at least.
const OVERLOAD: u64 = 10;
/// Things that happen in one storm, at least.
const STEPS: usize = 24;
/// How long a storm lasts, at least.
const STORM: Duration = Duration::from_secs(12);
/// Processes that call.
const CALLERS: i64 = 3;
/// Numbers of one process in one run.
const NUMBERS: i64 = 400_000_000;
/// How long everything may take to come to rest.
const PATIENCE: Duration = Duration::from_mins(4);
/// Filters that come and go, and the empty one.
const FILTERS: &[&str] = &["", "n & 1", "n & 6", "comm == \"nobody\"", "n > 500000000"];
const TEAMS: &[&str] = &["a", "b"];

/// One guest, its daemon, and everything around it.
struct Storm {
    guest: DaemonGuest,
    config: String,
    address: SocketAddr,
    runtime: Runtime,
    random: Random,
    subscribers: Vec<Subscriber>,
    /// Probes that came in this storm.
    guests_of_storm: Vec<String>,
    /// Hits of those that have gone again.
    gone_hits: u64,
    /// For names that were not there before.
    last_number: u64,
    /// `kprobectl observe` in the guest.
    observers: Vec<String>,
    deleted: u64,
    killed: u64,
    /// What it does at this moment, for when that fails.
    doing: String,
}

impl Storm {
    fn new(fixture: &Fixture, seed: u64) -> Result<Self> {
        let config = format!("{}\n{CONFIG}", daemon::DEFAULT_CONFIG);
        let guest = fixture.own_daemon("overload", &config)?;
        let address = guest.machine.address(daemon::PORT).context("no forward")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let storm = Self {
            guest,
            config,
            address,
            runtime,
            random: Random::seeded(seed),
            subscribers: Vec::new(),
            guests_of_storm: Vec::new(),
            gone_hits: 0,
            last_number: 0,
            observers: Vec::new(),
            deleted: 0,
            killed: 0,
            doing: String::new(),
        };
        let team = |team: &str| HashMap::from([("team".to_owned(), team.to_owned())]);
        for (definition, labels) in [
            ("p:hot __x64_sys_getsid n=+0x70(%di):s32 regs=%di flags=%flags stack=$stack", team("a")),
            ("r:back __x64_sys_getsid ret=$retval", team("b")),
            ("p:picky __x64_sys_getsid n=+0x70(%di):s32", HashMap::new()),
        ] {
            storm.create(definition, labels)?;
        }
        Ok(storm)
    }

    fn create(&self, definition: &str, labels: HashMap<String, String>) -> Result<String> {
        let request = CreateProbeRequest {
            definition: definition.to_owned(),
            enabled: true,
            labels,
            ..Default::default()
        };
        let created = self.guest.wait_for(self.guest.client.create_probe(request))?;
        Ok(created.with_context(|| definition.to_owned())?.name)
    }

    fn round(&mut self, seed: u64) -> Result<()> {
        let before = self.begin(seed)?;
        self.storm(&before).context("in the storm")?;
        self.storm_with_death().context("in the storm with the death of the daemon")?;
        self.exact().context("in the overload without anything else")
    }

    /// For when something went wrong: what the daemon does, thread by thread, and the end of its log.
    fn state_of_daemon(&self) -> String {
        let script =
            "for t in /proc/$(pidof kprobed)/task/*; do cat $t/comm; cut -c1-60 $t/stat; cat $t/stack; done";
        let threads = self.guest.shell(script).unwrap_or_else(|error| format!("{error:#}"));
        format!("threads:\n{threads}\nlog:\n{}", self.guest.log())
    }

    /// Begins a round: nothing is left of the one before.
    fn begin(&mut self, seed: u64) -> Result<Terms> {
        progress::note(format_args!("KPROBED_VM_SEED={seed}"));
        self.random = Random::seeded(seed);
        for name in std::mem::take(&mut self.guests_of_storm) {
            self.guest.delete(&name)?;
        }
        let terms = self.settle()?;
        for subscriber in &self.subscribers {
            subscriber.calm();
        }
        Ok(terms)
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Subscribes again in the place of those that are no more.
    fn replace_ended(&mut self) {
        for subscriber in &mut self.subscribers {
            let counts = subscriber.counts();
            if counts.ended.is_some() {
                let kind = subscriber.kind.clone();
                let cursor = counts.cursor.filter(|_| kind.resumes);
                *subscriber = Subscriber::start(&self.runtime, self.address, kind, cursor);
            }
        }
    }

    /// Waits until all subscribers are in the ledger.
    fn wait_for_subscribers(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.replace_ended();
            if self.subscribers.iter().all(|subscriber| subscriber.counts().id.is_some()) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "{:?}",
                self.subscribers.iter().map(Subscriber::counts).collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Takes weight off the readers: for the scheduler they weigh 110 against 1024 for each caller, and so have some 3 in 100 of the CPU as long as
    /// the callers want the rest. Whatever the speed of the machine, they read a small part of what is recorded. Everything else in the daemon
    /// runs as always.
    fn slow_readers(&self) -> Result<()> {
        let script = "for t in /proc/$(pidof kprobed)/task/*; do
            case $(cat $t/comm) in kprobed-read-*) renice -n 10 -p ${t##*/} && echo slowed;; esac; done";
        let slowed = self.guest.shell(script)?;
        ensure!(slowed.contains("slowed"), "{slowed}");
        Ok(())
    }

    fn start_callers(&self) -> Result<()> {
        self.guest.shell("rm -f /tmp/enough /run/log/caller-*")?;
        for caller in 0..CALLERS {
            let numbers = [(1_000_000 + caller * NUMBERS).to_string(), NUMBERS.to_string()];
            let command =
                Command::new("workload").arg("numbers").args(numbers).args(["--until", "/tmp/enough"]);
            self.guest.machine.spawn(&format!("caller-{caller}"), &command)?;
        }
        Ok(())
    }

    /// Ends the callers. Answers how many calls they made, and how many of those with an odd number.
    fn stop_callers(&self) -> Result<(u64, u64)> {
        self.guest.shell("touch /tmp/enough")?;
        let (mut calls, mut odd) = (0, 0);
        for caller in 0..CALLERS {
            let name = format!("caller-{caller}");
            ensure!(self.guest.machine.wait(&name, Some(PATIENCE))?.success());
            let next: i64 = self.guest.shell(&format!("cat /run/log/{name}.log"))?.trim().parse()?;
            let first = 1_000_000 + caller * NUMBERS;
            calls += (next - first).unsigned_abs();
            // They begin with an even one.
            odd += ((next - first) / 2).unsigned_abs();
        }
        Ok((calls, odd))
    }

    /// Something happens.
    fn step(&mut self) -> Result<()> {
        let choice = self.random.below(9);
        self.doing = format!("choice {choice}");
        match choice {
            0 | 1 => {
                let which = self.random.below(self.subscribers.len());
                let cursor = self.subscribers[which].counts().cursor;
                let victim = self.subscribers.swap_remove(which);
                let kind = victim.kill();
                self.killed += 1;
                let cursor = cursor.filter(|_| kind.resumes);
                self.subscribers.push(Subscriber::start(&self.runtime, self.address, kind, cursor));
            }
            2 => {
                let name = format!("observer-{}", self.number());
                let observe = "exec kprobectl observe -q -o json --last 1000 -f > /dev/null";
                self.guest.machine.spawn(&name, &Command::shell(observe))?;
                self.observers.push(name);
            }
            3 => {
                if let Some(name) = self.observers.pop() {
                    self.guest.machine.kill(&name, SIGKILL)?;
                    self.killed += 1;
                }
            }
            4 => {
                let definition = format!("p:guest_{} __x64_sys_getsid ip=%ip", self.number());
                let name = self.create(&definition, HashMap::new())?;
                self.guests_of_storm.push(name);
            }
            5 => {
                if !self.guests_of_storm.is_empty() {
                    let which = self.random.below(self.guests_of_storm.len());
                    let name = self.guests_of_storm.swap_remove(which);
                    // Off first: only then its last hits are its last.
                    self.guest.wait_for(self.guest.client.set_enabled(&name, false))??;
                    self.gone_hits += self.guest.delete(&name)?.context("no last hits")?.hits;
                    self.deleted += 1;
                }
            }
            6 => {
                let (name, team) = (*self.random.pick(&["hot", "back", "picky"]), *self.random.pick(TEAMS));
                let set = HashMap::from([("team".to_owned(), team.to_owned())]);
                self.guest.wait_for(self.guest.client.change_labels(name, set, Vec::new()))??;
            }
            7 => {
                let filter = *self.random.pick(FILTERS);
                self.guest.wait_for(self.guest.client.set_filter("picky", filter))??;
            }
            _ => {
                let ledger = self.guest.ledger()?;
                let buffers = ledger.buffers.iter();
                ensure!(buffers.map(|buffer| buffer.undecodable).sum::<u64>() == 0, "{ledger:?}");
            }
        }
        self.replace_ended();
        std::thread::sleep(Duration::from_millis(self.random.below(300) as u64));
        Ok(())
    }

    /// Waits until nothing moves, and reads all terms.
    fn settle(&mut self) -> Result<Terms> {
        for name in self.observers.drain(..) {
            self.guest.machine.kill(&name, SIGKILL)?;
        }
        for subscriber in &self.subscribers {
            subscriber.hurry();
        }
        let start = Instant::now();
        loop {
            self.wait_for_subscribers()?;
            let ledger = self.guest.ledger()?;
            let terms = Terms::read(&self.guest, ledger)?;
            let waits = |subscriber: &&Subscriber| {
                let counts = subscriber.counts();
                terms.subscriber(&counts).is_none_or(|ours| !has_everything(&counts, ours))
            };
            let Some(waiting) = self.subscribers.iter().find(waits) else { return Ok(terms) };
            let counts = waiting.counts();
            ensure!(
                start.elapsed() < PATIENCE,
                "{} does not come to rest: {counts:?} {:?}",
                waiting.kind.name,
                terms.subscriber(&counts)
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn check(&self, terms: &Terms) -> Result<()> {
        terms.check_closes()?;
        for subscriber in &self.subscribers {
            let counts = subscriber.counts();
            let ours =
                terms.subscriber(&counts).with_context(|| format!("{counts:?} is not in the ledger"))?;
            check_subscriber(subscriber, &counts, ours)?;
        }
        Ok(())
    }

    /// A storm without an end of the daemon: nothing of it is unexplained.
    fn storm(&mut self, before: &Terms) -> Result<Terms> {
        (self.gone_hits, self.deleted, self.killed) = (0, 0, 0);
        self.slow_readers()?;
        self.start_callers()?;
        let start = Instant::now();
        let mut steps = 0;
        while steps < STEPS || start.elapsed() < STORM {
            self.step()?;
            steps += 1;
        }
        let (calls, _) = self.stop_callers()?;
        let after = self.settle()?;
        self.check(&after)?;
        for name in ["kprobes/hot", "kprobes/back"] {
            let (now, then) = (after.probe(name)?, before.probe(name)?);
            let hits = now.hits.zip(then.hits).map(|(now, then)| now - then);
            ensure!(
                hits.map(|hits| hits + now.misses - then.misses) == Some(calls),
                "{calls} calls, {now:?} {then:?}"
            );
        }
        let buffers = after.buffers().since(before.buffers());
        let produced = after.hits() + self.gone_hits - before.hits();
        let of_picky =
            |terms: &Terms| Ok::<_, anyhow::Error>(terms.probe("kprobes/picky")?.hits.unwrap_or(0));
        let filtered_at_most = of_picky(&after)? - of_picky(before)?;
        let unexplained = produced.checked_sub(buffers.all()).context("more was recorded than was hit")?;
        progress::note(format_args!(
            "{calls} calls, {produced} hits in {steps} steps: {} read ({} times less), {} overrun, {} refused, {unexplained} held back by filters ({filtered_at_most} at \
             most) or by deletions; {} deleted, {} clients killed",
            buffers.read,
            produced / buffers.read.max(1),
            buffers.overrun,
            buffers.refused,
            self.deleted,
            self.killed,
        ));
        ensure!(
            self.deleted > 0 || unexplained <= filtered_at_most,
            "{unexplained} hits are unexplained, {buffers:?}"
        );
        ensure!(produced >= OVERLOAD * buffers.read, "this is no overload: {produced} hits, {buffers:?}");
        Ok(after)
    }

    /// A storm in the middle of which the daemon is killed.
    fn storm_with_death(&mut self) -> Result<Terms> {
        self.slow_readers()?;
        self.start_callers()?;
        for step in 0..STEPS {
            if step == STEPS / 2 {
                self.guest.machine.kill(daemon::NAME, SIGKILL)?;
                self.guest.machine.wait(daemon::NAME, Some(PATIENCE))?;
                let config = self.config.clone();
                self.guest.restart(&config)?;
                self.slow_readers()?;
            }
            self.step()?;
        }
        self.stop_callers()?;
        let after = self.settle()?;
        self.check(&after)?;
        Ok(after)
    }

    /// An overload without anything else: every term is known to the last event.
    fn exact(&mut self) -> Result<()> {
        self.guest.wait_for(self.guest.client.set_filter("picky", "n & 1"))??;
        let before = self.settle()?;
        let told_before: Vec<_> = self.subscribers.iter().map(Subscriber::counts).collect();
        self.slow_readers()?;
        self.start_callers()?;
        std::thread::sleep(STORM / 3);
        let (calls, odd) = self.stop_callers()?;
        let after = self.settle()?;
        self.check(&after)?;
        let misses = |terms: &Terms| terms.probe("kprobes/picky").map(|probe| probe.misses);
        ensure!(misses(&after)? == misses(&before)?, "picky has missed some");
        let buffers = after.check_since(&before, calls - odd)?;
        for (subscriber, before) in self.subscribers.iter().zip(told_before) {
            let counts = subscriber.counts();
            // Those that have come back were not there all the time.
            if counts.id != before.id {
                continue;
            }
            let told = counts.lost(LossCause::Overrun) - before.lost(LossCause::Overrun);
            ensure!(
                told == buffers.overrun && counts.uncounted == before.uncounted,
                "{} was told of {told} overruns: {buffers:?} {counts:?}",
                subscriber.kind.name
            );
        }
        progress::note(format_args!(
            "exact: {calls} calls, {} read, {} overrun, {} refused, {} filtered",
            buffers.read,
            buffers.overrun,
            buffers.refused,
            calls - odd
        ));
        Ok(())
    }
}

fn the_ledger_closes_under_everything(fixture: &Fixture) -> Result<()> {
    let new_seed: u64 = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos().into();
    let seed =
        env::var("KPROBED_VM_SEED").map_or(Ok(new_seed), |seed| seed.parse().context("KPROBED_VM_SEED"))?;
    let minutes = env::var("KPROBED_VM_SOAK_MINUTES")
        .map_or(Ok(0), |minutes| minutes.parse().context("KPROBED_VM_SOAK_MINUTES"))?;
    let mut storm = Storm::new(fixture, seed)?;
    for kind in kinds() {
        storm.subscribers.push(Subscriber::start(&storm.runtime, storm.address, kind, None));
    }
    let start = Instant::now();
    for round in 0.. {
        let seed = seed.wrapping_add(round);
        storm.round(seed).map_err(|error| {
            error.context(format!("seed {seed}, at step: {}; {}", storm.doing, storm.state_of_daemon()))
        })?;
        let memory =
            storm.guest.shell("grep -E 'VmHWM|VmRSS' /proc/$(pidof kprobed)/status | tr -s '\\n\\t' ' '")?;
        progress::note(format_args!("round {}, {:.0?}: {memory}", round + 1, start.elapsed()));
        if start.elapsed() >= Duration::from_mins(minutes) {
            break;
        }
    }
    storm.guest.machine.power_off().map_err(Into::into)
}
