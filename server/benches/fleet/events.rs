//! The events of all hosts: a fixed number a second on each, with consecutive numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kprobed_host::kernel::{ClockMapping, trace_clock_ns};
use kprobed_host::tracefs::format::Format;
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::decode::{CompileOptions, CompiledFormat};
use kprobed_trace::pipeline::{Draft, EventSource, Group, Hub};

/// How long a round over all hosts takes.
const ROUND: Duration = Duration::from_millis(100);

const FORMAT: &str = "name: open_00\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
\tfield:u64 number;\toffset:16;\tsize:8;\tsigned:0;\n\n\
print fmt: \"(%lx) number=%Lu\", REC->__probe_ip, REC->number\n";

/// Publishes until it is stopped.
pub(crate) struct Publisher {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Publisher {
    pub(crate) fn start(hubs: Vec<Arc<Hub>>, rate: usize) -> anyhow::Result<Self> {
        let plan = CompiledFormat::compile(&Format::parse(FORMAT)?, &CompileOptions::default())?;
        let name: ProbeName = "kprobes/open_00".parse()?;
        let source = EventSource::new(1, ProbeUid(1), name, plan);
        let stopping = Arc::new(AtomicBool::new(false));
        let is_stopping = Arc::clone(&stopping);
        let thread = std::thread::Builder::new()
            .name("publisher".to_owned())
            .spawn(move || publish(&hubs, rate, &source, &is_stopping))
            .context("cannot start a thread")?;
        Ok(Self { stopping, thread })
    }

    /// # Panics
    /// When it did.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Relaxed);
        assert!(self.thread.join().is_ok(), "the publisher panicked");
    }
}

fn publish(hubs: &[Arc<Hub>], rate: usize, source: &EventSource, stopping: &AtomicBool) {
    let begun = Instant::now();
    let mut numbers = vec![0_u64; hubs.len()];
    let mut round = 0;
    while !stopping.load(Ordering::Relaxed) {
        let due = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX) * rate as u64 / 1000;
        let clock = ClockMapping::sample();
        for (hub, number) in hubs.iter().zip(&mut numbers) {
            let mut columns = source.plan.columns();
            while *number < due {
                let mut record = [0_u8; 24];
                record[0] = 7;
                record[16..].copy_from_slice(&number.to_le_bytes());
                *number += 1;
                let decoded = source.plan.decode(&record, trace_clock_ns(), &mut columns);
                assert!(decoded.is_ok(), "{decoded:?}");
            }
            let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
            hub.publish(&Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock });
        }
        round += 1;
        std::thread::sleep((begun + ROUND * round).saturating_duration_since(Instant::now()));
    }
}
