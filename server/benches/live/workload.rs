//! Workloads: the events and the filter in the kernel, the same for every side.

use crate::host::{self, DynamicEvent, Tracefs};

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// getppid(2) in a loop: the tracepoints `raw_syscalls/sys_enter` and `sys_exit`, of 68 and 28
    /// bytes.
    Syscalls,
    /// A function of this program in a loop: a uprobe with four arguments, an event of 52 bytes.
    Uprobe,
    /// The same with arguments that are all different in every event: nothing in them can be sent once for all.
    Varied,
    /// getppid(2) in a loop: a kprobe with four arguments on it, an event of 52 bytes.
    Kprobe,
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
}

impl Event {
    /// `GROUP/EVENT` or `GROUP:EVENT`.
    pub(crate) fn path(&self, separator: char) -> String {
        format!("{}{separator}{}", self.group, self.name)
    }
}

/// Group of the event that is defined for the benchmark.
const GROUP: &str = "kpbench";

/// Its name.
const NAME: &str = "four";

/// The function of the kprobe.
const KPROBED: &str = "__x64_sys_getppid";

/// The four arguments: registers, so that both kinds of probes do the same.
pub(crate) const ARGUMENTS: &str = "a=%di:u64 b=%si:u64 c=%dx:u64 d=%cx:u64";

impl Workload {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Syscalls => "syscalls",
            Self::Uprobe => "uprobe",
            Self::Varied => "varied",
            Self::Kprobe => "kprobe",
        }
    }

    pub(crate) fn events(self) -> Vec<Event> {
        match self {
            Self::Syscalls => {
                ["sys_enter", "sys_exit"].map(|name| Event { group: "raw_syscalls", name }).into()
            }
            Self::Uprobe | Self::Varied | Self::Kprobe => vec![Event { group: GROUP, name: NAME }],
        }
    }

    /// Events of one iteration.
    pub(crate) fn events_each(self) -> u64 {
        self.events().len() as u64
    }

    /// Filter that selects the producer's events.
    pub(crate) fn filter(self, producer: u32) -> String {
        match self {
            Self::Syscalls => format!("id == {} && common_pid == {producer}", libc::SYS_getppid),
            Self::Uprobe | Self::Varied | Self::Kprobe => format!("common_pid == {producer}"),
        }
    }

    /// Defines its event, if the kernel does not have it. It is removed when the returned value is
    /// dropped.
    pub(crate) fn define(self, tracefs: &Tracefs) -> anyhow::Result<Option<DynamicEvent>> {
        let (file, place) = match self {
            Self::Syscalls => return Ok(None),
            Self::Uprobe | Self::Varied => {
                let (path, offset) = crate::function::place()?;
                ("uprobe_events", format!("{}:{offset:#x}", path.display()))
            }
            Self::Kprobe => ("kprobe_events", KPROBED.to_owned()),
        };
        let definition = format!("p:{GROUP}/{NAME} {place} {ARGUMENTS}");
        host::define(tracefs, file, &format!("{GROUP}/{NAME}"), &definition).map(Some)
    }

    /// The same events in the language of bpftrace, a line each.
    pub(crate) fn bpftrace(self, producer: u32) -> anyhow::Result<String> {
        let id = libc::SYS_getppid;
        let line = |attach: &str, filter: &str, format: &str, values: &str| {
            format!(
                "{attach} /{filter}/ {{ printf(\"%s-%d [%03d] %llu: {format}\\n\", comm, tid, cpu, nsecs, {values}); }}\n"
            )
        };
        let four = |attach: &str| {
            let values = "arg0, arg1, arg2, arg3";
            line(attach, &format!("tid == {producer}"), "four: a=%llu b=%llu c=%llu d=%llu", values)
        };
        Ok(match self {
            Self::Syscalls => {
                let filter = format!("args->id == {id} && tid == {producer}");
                let [enter, exit] =
                    ["enter", "exit"].map(|name| format!("tracepoint:raw_syscalls:sys_{name}"));
                line(
                    &enter,
                    &filter,
                    "sys_enter: NR %ld (%lx, %lx)",
                    "args->id, args->args[0], args->args[1]",
                ) + &line(&exit, &filter, "sys_exit: NR %ld = %ld", "args->id, args->ret")
            }
            Self::Uprobe | Self::Varied => {
                four(&format!("uprobe:{}:kprobed_bench_four", std::env::current_exe()?.display()))
            }
            Self::Kprobe => four(&format!("kprobe:{KPROBED}")),
        })
    }
}
