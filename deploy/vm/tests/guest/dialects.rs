//! The other languages of definitions, compared with system calls made with known arguments: the older dialects, and
//! what people type.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ProbeState;
use serde_json::Value;

use crate::Test;
use crate::daemon::{DaemonGuest, events, objects};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        the_words_of_2009_read_arguments,
        prototypes_read_arguments,
        what_people_mistype_is_explained,
    }
    Daemon {
        what_people_type_is_traced,
        a_short_form_is_kept_as_its_line,
    }
};

const PATH: &str = "\"/tmp/dialects\"";

/// 'p:myprobe do_sys_open dfd=a0 filename=a1 flags=a2 mode=a3', 'r:myretprobe do_sys_open rv ra'.
fn the_words_of_2009_read_arguments(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let probe =
        guest.add("p:myprobe do_sys_openat2 dfd=a0 filename=+0(a1):string flags=+0(a2) # dialect: 2009")?;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
    guest.add("r:myretprobe do_sys_openat2 rv ra # dialect: 2009")?;
    let mut opened = Vec::new();
    let recording = guest.record(|| {
        opened = guest.workload(&["open", "/tmp/dialects", "524353", "416", "2"])?;
        Ok(())
    })?;
    let entries: Vec<_> =
        recording.of("kprobes/myprobe", "workload").filter(|event| event.field("filename") == PATH).collect();
    ensure!(entries.len() == 2, "{recording:?}");
    for event in entries {
        ensure!(event.field("dfd").ends_with("ffffff9c") && event.field("flags") == "0x88041", "{event:?}");
    }
    for fd in opened {
        let number: u64 = fd.parse()?;
        let returned = |event: &&crate::daemon::Event| {
            (event.field("rv") == fd || event.field("rv") == format!("{number:#x}"))
                && event.return_location.is_some()
        };
        ensure!(
            recording.of("kprobes/myretprobe", "workload").any(|event| returned(&event)),
            "{fd}: {recording:?}"
        );
    }
    Ok(())
}

/// 'SyS_openat(int dfd, string path, x32 flags, x16 mode)'.
fn prototypes_read_arguments(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Flags and mode are members of the third argument today: 64-bit words 0 and 1 of what it
    // points to.
    let probe = guest.add("do_sys_openat2(int dfd, string path, x64 flags[0] | x64 mode[1])")?;
    ensure!(probe.name == "functions/do_sys_openat2" && probe.state() == ProbeState::Armed, "{probe:?}");
    let recording =
        guest.record(|| guest.workload(&["open", "/tmp/dialects", "524353", "416", "2"]).map(drop))?;
    let events: Vec<_> = recording
        .of("functions/do_sys_openat2", "workload")
        .filter(|event| event.field("path") == PATH)
        .collect();
    ensure!(events.len() == 2, "{recording:?}");
    for event in events {
        ensure!(event.field("dfd") == "-100" && event.field("flags") == "0x88041", "{event:?}");
        ensure!(event.field("mode") == "0x1a0", "{event:?}");
    }
    Ok(())
}

/// What the programs of [`traced`] open.
const OPENED: &str = "/tmp/people";

/// The events that `kprobectl trace` shows, in the guest, of programs that open and read files.
fn traced(guest: &DaemonGuest, text: &str) -> Result<Vec<Value>> {
    let script = format!(
        "kprobectl trace -q -o json --for 90s '{text}' -- \
         sh -c 'cat /proc/uptime > /dev/null; workload open {OPENED} 0 0 3 > /dev/null' \
         2> /tmp/said || {{ cat /tmp/said >&2; exit 1; }}"
    );
    let printed = guest.shell(&script).with_context(|| text.to_owned())?;
    events(&printed).with_context(|| text.to_owned())
}

/// The spellings that users of bpftrace, perf probe and trace-cmd know.
fn what_people_type_is_traced(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let code = objects(&guest.ctl("describe vfs_read --code -o json")?)?;
    let inside = code.iter().find(|one| one["probeable"] == true && one["offset"].as_u64() > Some(4));
    let offset = inside.and_then(|one| one["offset"].as_u64()).context("no place inside of vfs_read")?;
    for (text, probe, field) in [
        ("vfs_read", "kprobes/p_vfs_read_0", "count"),
        (format!("vfs_read+{offset:#x}").as_str(), "kprobes/p_vfs_read_", ""),
        ("vfs_read%return", "kprobes/r_vfs_read_0", "retval"),
        ("vfs_r*", "kprobes/p_vfs_read_0", "count"),
        ("vfs_read,vfs_write", "kprobes/p_vfs_write_0", "count"),
        ("mine=vfs_read args->count", "kprobes/mine", "count"),
        ("do_sys_openat2 filename:ustring", "kprobes/p_do_sys_openat2_0", "filename"),
        ("do_sys_openat2 filename", "kprobes/p_do_sys_openat2_0", "filename"),
        ("do_sys_openat2 $arg*", "kprobes/p_do_sys_openat2_0", "how"),
        ("kprobe:vfs_read", "kprobes/p_vfs_read_0", "count"),
        ("kretprobe:vfs_read", "kprobes/r_vfs_read_0", "retval"),
        ("sched:sched_switch", "sched/sched_switch", "prev_comm"),
        ("tracepoint:syscalls:sys_enter_openat", "syscalls/sys_enter_openat", "filename"),
        ("openat", "kprobes/p___x64_sys_openat_0", "filename"),
        ("openat str(filename) arg0", "kprobes/p___x64_sys_openat_0", "dfd"),
        ("sys_enter_openat", "syscalls/sys_enter_openat", "dfd"),
    ] {
        let events = traced(&guest, text)?;
        let is_it = |event: &&Value| {
            let name = event["probe"].as_str().unwrap_or_default();
            name.starts_with(probe) && (field.is_empty() || !event["fields"][field].is_null())
        };
        ensure!(events.iter().any(|event| is_it(&event)), "{text}: {events:?}");
        if text.contains("openat") && !text.contains("sys_") || text.contains(":ustring") {
            let names: Vec<_> = events.iter().map(|event| event["fields"]["filename"].clone()).collect();
            ensure!(names.iter().any(|name| name == OPENED), "{text}: {names:?}");
        }
    }
    Ok(())
}

fn what_people_mistype_is_explained(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    for (text, hint) in [
        ("vfs_raed", "did you mean `vfs_read`"),
        ("sched_swtich", "did you mean `sched/sched_switch`"),
        ("sched:sched_swtich", "did you mean `sched/sched_switch`"),
        ("nosuch:func", "write `p nosuch:func`"),
        ("zzz_nothing_*", "kprobectl functions 'zzz_nothing_*'"),
        ("uprobe:x", "write `kprobe:FUNCTION`"),
        ("profile:hz:99", "write `kprobe:FUNCTION`"),
        ("'k:vfs_read { @[comm] = count(); }'", "write `kprobectl hist vfs_read --by comm`"),
        ("'vfs_read /count > 7/'", "write `kprobectl trace vfs_read --filter 'count > 7'`"),
        ("'vfs_read ((struct file *)arg0)->f_flags'", "write `vfs_read file->f_flags`"),
        ("'do_sys_openat2 str(filename)'", "`filename:ustring` for the memory of a program"),
        ("'p:e6 do_sys_openat2 f=+0():ustring'", "single quotes"),
        ("syscall:opnat", "the kernel has no system call `opnat`"),
    ] {
        let said = guest.ctl_says(&format!("check {text}"))?;
        ensure!(said.code == 1 && said.all().contains(hint), "{text}: {said:?}");
    }
    guest.add("p:reads vfs_read")?;
    for command in
        ["get raeds", "delete raeds", "disable raeds", "update raeds --filter x", "label raeds a=b"]
    {
        let said = guest.ctl_says(command)?;
        ensure!(
            said.code != 0 && said.all().contains("did you mean `kprobes/reads`?"),
            "{command}: {said:?}"
        );
    }
    for (name, hint) in
        [("reads", "`kprobectl get reads`"), ("task_struct", "`struct task_struct` is a type")]
    {
        let said = guest.ctl_says(&format!("describe {name}"))?;
        ensure!(said.code == 1 && said.all().contains(hint), "{name}: {said:?}");
    }
    let taken = guest.ctl_says("add 'p:reads vfs_write'")?;
    ensure!(taken.code != 0 && taken.all().contains("leave the name out"), "{taken:?}");
    Ok(())
}

fn a_short_form_is_kept_as_its_line(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let probe = guest.add("openat filename")?;
    let line = "p __x64_sys_openat filename=+0(regs->si):ustring";
    ensure!(probe.definition == line && probe.state() == ProbeState::Armed, "{probe:?}");
    // Where a kernel does not show failed reads (5.10), a warning names a part of the line that is kept.
    let probe = guest.add("openat dfd flags")?;
    let named = |said: &str| said.ends_with("the same holds for `regs->dx`");
    ensure!(probe.warnings.iter().all(|warning| named(&warning.message)), "{probe:?}");
    let probe = guest.add("vfs_write")?;
    ensure!(probe.definition == "p vfs_write $arg*", "{probe:?}");
    // Several are made together, and shown before.
    let said = guest.ctl_says("check 'vfs_*dir'")?;
    ensure!(said.code == 0 && said.stdout.contains("accepted kprobes/p_vfs_rmdir_0"), "{said:?}");
    let said = guest.ctl_says("add 'vfs_*dir' --disabled")?;
    ensure!(said.code == 0 && guest.probe("kprobes/p_vfs_rmdir_0").is_ok(), "{said:?}");
    let refused = guest.add("vfs_*dir");
    ensure!(format!("{refused:?}").contains("stands for"), "{refused:?}");
    let many = guest.ctl_says("add '*'")?;
    ensure!(many.code != 0 && many.all().contains("one request makes 1000"), "{many:?}");
    // The same text in a document is no difference.
    guest.write_for_ctl("d.yaml", "probe: kprobes/doc\ndefinition: openat filename\n")?;
    guest.ctl("apply -f d.yaml")?;
    let same = guest.ctl_says("diff -f d.yaml")?;
    ensure!(same.code == 0, "{same:?}");
    for (name, shown) in [("openat", "a probe of `openat` is"), ("sched:sched_switch", "prev_comm")] {
        let said = guest.ctl_says(&format!("describe {name}"))?;
        ensure!(said.code == 0 && said.all().contains(shown), "{name}: {said:?}");
    }
    Ok(())
}
