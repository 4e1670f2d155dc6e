//! The process that makes the events: a tight loop on a CPU of its own.
//!
//! It is this program, started again. A line on its standard input asks for a run; the answer is
//! the time that the run took.

use std::hint::black_box;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::time::{ClockId, clock_gettime};

use crate::function::kprobed_bench_four;
use crate::host;
use crate::workload::Workload;

/// The option that makes this program a producer.
pub(crate) const OPTION: &str = "--produce";

/// A producer that waits for orders.
#[derive(Debug)]
pub(crate) struct Producer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Duration of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// From its first iteration to its last.
    pub(crate) elapsed: Duration,
    /// Processor time of the producer, what the kernel did in its name included.
    pub(crate) cpu: Duration,
}

impl Producer {
    pub(crate) fn start(workload: Workload) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(OPTION).arg(workload.name()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the producer")?;
        let orders = child.stdin.take().context("the producer's input")?;
        let answers = BufReader::new(child.stdout.take().context("the producer's output")?);
        Ok(Self { child, orders, answers })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it make events, as many iterations a second as asked for; 0: as many as it can. Waits
    /// until it has.
    pub(crate) fn run(&mut self, iterations: u64, per_second: u64) -> anyhow::Result<Run> {
        writeln!(self.orders, "{iterations} {per_second}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let (elapsed, cpu) = answer.trim_end().split_once(' ').context("the producer has failed")?;
        let [elapsed, cpu] = [elapsed, cpu].map(|nanos| nanos.parse().map(Duration::from_nanos));
        Ok(Run { elapsed: elapsed?, cpu: cpu? })
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The process itself.
pub(crate) fn main(workload: Workload) -> anyhow::Result<()> {
    host::pin(host::PRODUCER_CPU)?;
    for order in io::stdin().lock().lines() {
        let order = order?;
        let (iterations, per_second) = order.split_once(' ').context("an order")?;
        let (iterations, per_second) = (iterations.parse()?, per_second.parse()?);
        let (start, cpu) = (Instant::now(), cpu_time()?);
        match workload {
            Workload::Syscalls | Workload::Kprobe => paced(iterations, per_second, |_| {
                black_box(nix::unistd::getppid());
            }),
            Workload::Uprobe => paced(iterations, per_second, |index| {
                kprobed_bench_four(black_box(index), 1 << 40, 2, 3);
            }),
            Workload::Varied => paced(iterations, per_second, |index| {
                let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                kprobed_bench_four(black_box(index), mixed, !mixed, mixed.rotate_left(32));
            }),
        }
        let (elapsed, cpu) = (start.elapsed(), cpu_time()?.saturating_sub(cpu));
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{} {}", elapsed.as_nanos(), cpu.as_nanos())?;
        stdout.flush()?;
    }
    Ok(())
}

/// Runs something so many times. The clock is looked at every ten microseconds at most: it costs a
/// fraction of what an event costs.
fn paced(iterations: u64, per_second: u64, mut run: impl FnMut(u64)) {
    if per_second == 0 {
        return (0..iterations).for_each(run);
    }
    let chunk = (per_second / 100_000).max(1);
    let start = Instant::now();
    let mut done = 0;
    while done < iterations {
        let due = Duration::from_nanos(done * 1_000_000_000 / per_second);
        while start.elapsed() < due {
            std::hint::spin_loop();
        }
        let end = iterations.min(done + chunk);
        (done..end).for_each(&mut run);
        done = end;
    }
}

fn cpu_time() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from)
}
