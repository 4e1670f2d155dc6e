//! Probes with filters in a guest, without the daemon.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use kprobed_host::ring::{Page, PageLayout};
use kprobed_host::tracefs::format::Format;
use kprobed_trace::decode::{Columns, CompileOptions, CompiledFormat, Schema};
use kprobed_vm::lab::GuestOptions;

use crate::daemon::{OwnMachine, TRACEFS};
use crate::fixture::Fixture;

/// The first bytes of the path are `/tmp/`; what follows is what typed arguments look at.
const ARGUMENTS: &str = "u8=+5(%si):u8 u16=+6(%si):u16 u32=+7(%si):u32 u64=+5(%si):u64 s8=+6(%si):s8 s16=+5(%si):s16 s32=+9(%si):s32 \
     s64=+8(%si):s64 x8=+7(%si):x8 x32=+5(%si):x32 bits=+5(%si):b4@4/8 text=+0(%si):string sym=+6(%si):symbol ret=$stack0:x64 task=$comm \
     four=+5(%si):u8[4] pair=+6(%si):s16[2] three=+5(%si):u8[3] one=+5(%si):x64[1]";

/// CPUs that lists may name. Only the first runs.
const CPUS: u32 = 64;

/// A guest with one probe for each filter, and one without.
pub(super) struct Probes {
    machine: OwnMachine,
    layout: PageLayout,
    /// Of the first probe; the others differ in their number.
    format: Format,
    /// The kernel's error for each filter; absent if it accepts it.
    verdicts: Vec<Option<String>>,
}

/// What one probe recorded.
pub(super) struct Recorded {
    pub(super) id: u16,
    pub(super) columns: Columns,
}

impl Probes {
    /// Boots a guest that has room for lists of CPUs, with the first probe in an instance of its
    /// own.
    pub(super) fn boot(fixture: &Fixture) -> Result<Self> {
        let options = GuestOptions { cpus_possible: CPUS, ..GuestOptions::new(fixture.kernel()?) };
        let machine = OwnMachine::new(fixture.lab()?.boot(&options)?);
        let format = machine.shell(&format!(
            "mkdir -p {TRACEFS}; mountpoint -q {TRACEFS} || mount -t tracefs tracefs {TRACEFS}; cd {TRACEFS} \
             && echo 'p:ft/e0 do_sys_openat2 {ARGUMENTS}' > kprobe_events \
             && mkdir instances/ft && cd instances/ft && echo 65536 > buffer_size_kb && cat events/ft/e0/format"
        ))?;
        let header = machine.shell(&format!("cat {TRACEFS}/events/header_page"))?;
        let (layout, format) = (PageLayout::parse(&header)?, Format::parse(&format)?);
        Ok(Self { machine, layout, format, verdicts: Vec::new() })
    }

    /// Makes the other probes, and sets all filters.
    pub(super) fn set(&mut self, filters: &[String]) -> Result<()> {
        let mut lines = String::new();
        for number in 1..=filters.len() {
            writeln!(lines, "p:ft/e{number} do_sys_openat2 {ARGUMENTS}")?;
        }
        self.machine.put("/tmp/lines", 0o600, lines.as_bytes())?;
        self.machine.put("/tmp/filters", 0o600, format!("{}\n", filters.join("\n")).as_bytes())?;
        let answers = self.machine.shell(
            // Line by line: the kernel takes the end of each write for the end of a line.
            "cd /sys/kernel/tracing && while IFS= read -r line; do echo \"$line\" >> kprobe_events || exit 1; done < /tmp/lines; \
             cd instances/ft/events/ft; number=0; while IFS= read -r text; do \
             if echo \"$text\" 2>/dev/null > e$number/filter; then echo taken; else tail -n 1 e$number/filter; fi; \
             number=$((number + 1)); done < /tmp/filters 2>/dev/null",
        )?;
        self.verdicts = answers.lines().map(|line| (line != "taken").then(|| line.to_owned())).collect();
        ensure!(
            self.verdicts.len() == filters.len(),
            "{} answers to {} filters",
            self.verdicts.len(),
            filters.len()
        );
        Ok(())
    }

    /// What all probes record.
    pub(super) fn schema(&self) -> Result<Arc<Schema>> {
        Ok(Arc::clone(CompiledFormat::compile(&self.format, &CompileOptions::default())?.columns().schema()))
    }

    pub(super) fn verdicts(&self) -> &[Option<String>] {
        &self.verdicts
    }

    pub(super) fn kallsyms(&self) -> Result<String> {
        self.machine.shell("cat /proc/kallsyms")
    }

    /// Opens all paths, most of them from a shell and some from a program, and reads what every
    /// probe recorded. Those that the kernel has left without a filter, because it refused it, are
    /// not switched on.
    pub(super) fn record(&self, paths: &[Vec<u8>]) -> Result<Vec<Recorded>> {
        self.machine.put("/tmp/paths", 0o600, &[paths.join(&b'\n'), vec![b'\n']].concat())?;
        let mut on = String::new();
        for number in 0..=self.verdicts.len() {
            if self.verdicts.get(number).is_none_or(Option::is_none) {
                writeln!(on, "e{number}")?;
            }
        }
        self.machine.put("/tmp/on", 0o600, on.as_bytes())?;
        self.machine.shell(
            "cd /sys/kernel/tracing/instances/ft && echo 0 > tracing_on; while read -r event; do echo 1 > events/ft/$event/enable || exit 1; done < /tmp/on; echo 1 > tracing_on; \
             number=0; while IFS= read -r path; do number=$((number + 1)); \
             if [ $((number % 5)) = 0 ]; then cat \"$path\"; else true < \"$path\"; fi; done < /tmp/paths 2>/dev/null; \
             echo 0 > tracing_on; timeout 20 dd if=per_cpu/cpu0/trace_pipe_raw of=/tmp/raw bs=4096 2>/dev/null & \
             reader=$!; while ! grep -q '^entries: 0$' per_cpu/cpu0/stats; do sleep 0.2; done; kill $reader; \
             grep -q '^overrun: 0$' per_cpu/cpu0/stats || exit 1; grep -H '' events/ft/e*/id > /tmp/ids",
        )?;
        let ids = self.machine.shell("cat /tmp/ids")?;
        let raw = self.machine.get("/tmp/raw")?;
        self.decode(&ids, &raw)
    }

    fn decode(&self, ids: &str, raw: &[u8]) -> Result<Vec<Recorded>> {
        let mut plans = Vec::new();
        let mut recorded = Vec::new();
        for number in 0..=self.verdicts.len() {
            let name = format!("events/ft/e{number}/id:");
            let id = ids
                .lines()
                .find_map(|line| line.strip_prefix(&name))
                .context(name.clone())?
                .trim()
                .parse()?;
            let plan =
                CompiledFormat::compile(&Format { id, ..self.format.clone() }, &CompileOptions::default())?;
            recorded.push(Recorded { id, columns: plan.columns() });
            plans.push(plan);
        }
        for page in raw.chunks(4096) {
            for record in Page::parse(page, &self.layout)?.records() {
                let record = record?;
                let id = record.payload.first_chunk().map_or(0, |id| u16::from_le_bytes(*id));
                if let Some(index) = recorded.iter().position(|one| one.id == id) {
                    plans[index].decode(record.payload, record.timestamp_ns, &mut recorded[index].columns)?;
                }
            }
        }
        Ok(recorded)
    }
}
