//! The overloaded guest: its callers and subscribers, and bringing all of them to rest.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::CreateProbeRequest;
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, PATIENCE};
use tokio::runtime::Runtime;

use super::account::{Terms, check_subscriber, has_everything};
use super::subscriber::{Subscriber, kinds};
use crate::daemon::{DaemonGuest, config, creation};
use crate::fixture::Fixture;

const CONFIG: &str =
    "[tracing]\nbuffer_kib = 64\nbuffer_max_kib = 64\n[spool]\nmax_mib = 8\nsync_interval_ms = 200\n";
/// Processes that call.
const CALLERS: i64 = 3;
/// Numbers of one of them: more than it can call.
const NUMBERS: i64 = 400_000_000;
/// Its first number: even, and no process.
const FIRST: i64 = 1_000_000;

/// The guest, its daemon, and those who read.
pub(super) struct Scene {
    pub(super) guest: DaemonGuest,
    config: String,
    address: SocketAddr,
    runtime: Runtime,
    pub(super) subscribers: Vec<Subscriber>,
}

/// What the callers did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) all: u64,
    /// Of those, the ones with an odd number.
    pub(super) odd: u64,
}

impl Scene {
    /// Three probes on one function, and eight subscribers.
    pub(super) fn new(fixture: &Fixture) -> Result<Self> {
        let config = config(CONFIG);
        let guest = fixture.own_daemon("overload", &config)?;
        let address = guest.machine.address(daemon::PORT).context("no forward")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let mut scene = Self { guest, config, address, runtime, subscribers: Vec::new() };
        let team = |team: &str| HashMap::from([("team".to_owned(), team.to_owned())]);
        for (definition, labels) in [
            ("p:hot __x64_sys_getsid n=+0x70(%di):s32 regs=%di flags=%flags stack=$stack", team("a")),
            ("r:back __x64_sys_getsid ret=$retval", team("b")),
            ("p:picky __x64_sys_getsid n=+0x70(%di):s32", HashMap::new()),
        ] {
            scene.create(definition, labels)?;
        }
        for kind in kinds() {
            scene.subscribers.push(Subscriber::start(&scene.runtime, address, kind, None));
        }
        Ok(scene)
    }

    /// Makes a probe that records. Returns its name.
    pub(super) fn create(&self, definition: &str, labels: HashMap<String, String>) -> Result<String> {
        let request = CreateProbeRequest { labels, ..creation(definition, "") };
        let created = self.guest.wait_for(self.guest.client.create_probe(request))?;
        Ok(created.with_context(|| definition.to_owned())?.name)
    }

    /// Kills a subscriber and puts one of the same kind in its place.
    pub(super) fn kill_subscriber(&mut self, which: usize) {
        let cursor = self.subscribers[which].counts().cursor;
        let kind = self.subscribers.swap_remove(which).kill();
        let cursor = cursor.filter(|_| kind.resumes);
        self.subscribers.push(Subscriber::start(&self.runtime, self.address, kind, cursor));
    }

    /// Subscribes again in the place of those whose stream has ended.
    pub(super) fn replace_ended(&mut self) {
        for subscriber in &mut self.subscribers {
            let counts = subscriber.counts();
            if counts.ended.is_some() {
                let kind = subscriber.kind.clone();
                let cursor = counts.cursor.filter(|_| kind.resumes);
                *subscriber = Subscriber::start(&self.runtime, self.address, kind, cursor);
            }
        }
    }

    fn wait_for_subscribers(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.replace_ended();
            let counts: Vec<_> = self.subscribers.iter().map(Subscriber::counts).collect();
            if counts.iter().all(|counts| counts.id.is_some()) {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "{counts:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the daemon, and starts it again.
    pub(super) fn kill_daemon(&mut self) -> Result<()> {
        self.guest.kill()?;
        self.guest.restart(&self.config)?;
        self.slow_readers()
    }

    /// Takes weight off the readers: for the scheduler they weigh 172 against 1024 for each caller,
    /// and so have 5 in 100 of the CPU at most as long as the callers want the rest. Whatever the
    /// speed of the machine, they read a small part of what is recorded. Everything else in the
    /// daemon runs as always.
    fn slow_readers(&self) -> Result<()> {
        let script = "for t in /proc/$(pidof kprobed)/task/*; do
            case $(cat $t/comm) in kprobed-read-*) renice -n 8 -p ${t##*/} && echo slowed;; esac; done";
        let slowed = self.guest.shell(script)?;
        ensure!(slowed.contains("slowed"), "{slowed}");
        Ok(())
    }

    /// Begins the overload.
    pub(super) fn start_callers(&self) -> Result<()> {
        self.slow_readers()?;
        self.guest.shell("rm -f /tmp/enough /run/log/caller-*")?;
        for caller in 0..CALLERS {
            let numbers = [(FIRST + caller * NUMBERS).to_string(), NUMBERS.to_string()];
            let command =
                Command::new("workload").arg("numbers").args(numbers).args(["--until", "/tmp/enough"]);
            self.guest.machine.spawn(&format!("caller-{caller}"), &command)?;
        }
        Ok(())
    }

    /// Ends the overload.
    pub(super) fn stop_callers(&self) -> Result<Calls> {
        self.guest.shell("touch /tmp/enough")?;
        let mut calls = Calls { all: 0, odd: 0 };
        for caller in 0..CALLERS {
            let name = format!("caller-{caller}");
            ensure!(self.guest.machine.wait(&name, PATIENCE)?.success());
            let next: i64 = self.guest.shell(&format!("cat /run/log/{name}.log"))?.trim().parse()?;
            let made = (next - FIRST - caller * NUMBERS).unsigned_abs();
            calls.all += made;
            calls.odd += made / 2;
        }
        Ok(calls)
    }

    /// Waits until nothing moves, and reads all terms.
    pub(super) fn settle(&mut self) -> Result<Terms> {
        let start = Instant::now();
        loop {
            self.wait_for_subscribers()?;
            // Those too that have just come in the place of one that has ended.
            self.subscribers.iter().for_each(Subscriber::hurry);
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
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Every equation that holds at any moment at which nothing moves.
    pub(super) fn check(&self, terms: &Terms) -> Result<()> {
        terms.check_closes()?;
        for subscriber in &self.subscribers {
            let counts = subscriber.counts();
            let ours =
                terms.subscriber(&counts).with_context(|| format!("{counts:?} is not in the ledger"))?;
            check_subscriber(subscriber, &counts, ours)?;
        }
        Ok(())
    }

    /// For when something went wrong: what the daemon does, thread by thread, and the end of its
    /// log.
    pub(super) fn state_of_daemon(&self) -> String {
        let script =
            "for t in /proc/$(pidof kprobed)/task/*; do cat $t/comm; cut -c1-60 $t/stat; cat $t/stack; done";
        let threads = self.guest.shell(script).unwrap_or_else(|error| format!("{error:#}"));
        format!("threads:\n{threads}\nlog:\n{}", self.guest.log())
    }
}
