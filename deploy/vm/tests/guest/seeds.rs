//! The examples of the documents that the project started from, with today's function names and the
//! registers of x86-64, compared with system calls made with known arguments.

use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{HitSeries, ProbeState};

use crate::Test;
use crate::daemon::{DaemonGuest, deletion, filter_in_kernel, refused};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        fork_probe_records_its_arguments,
        fork_return_probe_records_the_child,
        open_probe_records_its_arguments,
        open_return_probes_record_results,
        a_probe_is_switched_on_and_off,
        a_filter_selects_events,
        the_profile_counts_every_call,
        lines_that_delete_delete,
        the_format_is_what_was_defined,
    }
};

/// What `posix_spawn` asks for: CLONE_VM and CLONE_VFORK.
const SPAWN_FLAGS: &str = "0x4100";

/// 'p:doforkprobe _do_fork clone_flags=%ax stack_start=%dx regs=%cx parent_tidptr=+4($stack)
/// child_tidptr=+8($stack)'.
///
/// `kernel_clone` takes one pointer, to a `struct kernel_clone_args`: the flags are its first
/// member, the addresses of the thread ids its third and fourth.
const FORK: &str =
    "p:doforkprobe kernel_clone clone_flags=+0(%di):x64 child_tidptr=+16(%di):x64 parent_tidptr=+24(%di):x64";

fn fork_probe_records_its_arguments(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let probe = guest.add(FORK)?;
    ensure!(probe.name == "kprobes/doforkprobe" && probe.state() == ProbeState::Armed, "{probe:?}");
    let recording = guest.record(|| guest.workload(&["spawn", "5"]).map(drop))?;
    let events: Vec<_> = recording.of("kprobes/doforkprobe", "workload").collect();
    ensure!(events.len() == 5, "{recording:?}\n{}", guest.log());
    for event in events {
        ensure!(event.field("clone_flags") == SPAWN_FLAGS, "{event:?}");
        ensure!(event.field("child_tidptr") == "0x0" && event.field("parent_tidptr") == "0x0", "{event:?}");
        ensure!(event.location.starts_with("kernel_clone+0x"), "{event:?}");
        ensure!(event.return_location.is_none(), "{event:?}");
    }
    Ok(())
}

/// 'r:fork_retprobe _do_fork $retval'.
fn fork_return_probe_records_the_child(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("r:fork_retprobe kernel_clone child=$retval:s32")?;
    let mut children = Vec::new();
    let recording = guest.record(|| {
        children = guest.workload(&["spawn", "4"])?;
        Ok(())
    })?;
    let events: Vec<_> = recording.of("kprobes/fork_retprobe", "workload").collect();
    let recorded: Vec<_> = events.iter().map(|event| event.field("child").to_owned()).collect();
    ensure!(recorded == children, "{recorded:?} is not {children:?}: {recording:?}");
    for event in events {
        ensure!(event.location.starts_with("kernel_clone+0x"), "{event:?}");
        ensure!(event.return_location.as_ref().is_some_and(|caller| caller.contains("sys")), "{event:?}");
    }
    Ok(())
}

/// 'p:myprobe do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)'.
///
/// `do_sys_openat2` takes flags and mode in a `struct open_how`.
const OPEN: &str =
    "p:myprobe do_sys_openat2 dfd=%di:s32 filename=+0(%si):string flags=+0(%dx):x64 mode=+8(%dx):x64";

fn open_probe_records_its_arguments(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(OPEN)?;
    let recording = guest.record(|| {
        // O_CREAT | O_WRONLY | O_CLOEXEC, 0640; the kernel adds O_LARGEFILE.
        guest.workload(&["open", "/tmp/known-arguments", "524353", "416", "3"]).map(drop)
    })?;
    let events: Vec<_> = recording
        .of("kprobes/myprobe", "workload")
        .filter(|event| event.field("filename") == "\"/tmp/known-arguments\"")
        .collect();
    ensure!(events.len() == 3, "{recording:?}");
    for event in events {
        ensure!(event.field("dfd") == "-100", "AT_FDCWD: {event:?}");
        ensure!(event.field("flags") == "0x88041", "{event:?}");
        ensure!(event.field("mode") == "0x1a0", "{event:?}");
    }
    Ok(())
}

/// 'r:myretprobe do_sys_open $retval', 'r:do_dentry_openprobe do_dentry_open $retval'.
fn open_return_probes_record_results(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // A `long`, and an `int` on newer kernels.
    guest.add("r:myretprobe do_sys_openat2 ret=$retval:s32")?;
    guest.add("r:do_dentry_openprobe do_dentry_open ret=$retval:s32")?;
    let mut results = Vec::new();
    let recording = guest.record(|| {
        results = guest.workload(&["open", "/etc/passwd", "0", "0", "2"])?;
        results.extend(guest.workload(&["open", "/nothing/here", "0", "0", "1"])?);
        Ok(())
    })?;
    ensure!(results.len() == 3 && results[2] == "-2", "{results:?}");
    let recorded: Vec<_> =
        recording.of("kprobes/myretprobe", "workload").map(|event| event.field("ret")).collect();
    for result in &results {
        ensure!(recorded.contains(&result.as_str()), "{result} is not among {recorded:?}");
    }
    ensure!(recording.of("kprobes/do_dentry_openprobe", "workload").any(|event| event.field("ret") == "0"));
    Ok(())
}

/// 'echo 1 > events/kprobes/myprobe/enable', and 0.
fn a_probe_is_switched_on_and_off(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:switched do_sys_openat2 filename=+0(%si):string")?;
    let open = || guest.workload(&["open", "/etc/switched", "0", "0", "4"]).map(drop);
    let count = |guest: &DaemonGuest| -> Result<usize> {
        let recording = guest.record(open)?;
        Ok(recording.events.iter().filter(|event| event.field("filename") == "\"/etc/switched\"").count())
    };
    ensure!(count(&guest)? == 4);
    let probe = guest.wait_for(guest.client.set_enabled("switched", false))??;
    ensure!(probe.state() == ProbeState::Disabled && !probe.enabled, "{probe:?}");
    ensure!(guest.in_instance("events/kprobes/switched/enable")?.trim() == "0");
    ensure!(count(&guest)? == 0);
    guest.wait_for(guest.client.set_enabled("kprobes/switched", true))??;
    ensure!(count(&guest)? == 4);
    Ok(())
}

/// 'events/kprobes/<EVENT>/filter'.
fn a_filter_selects_events(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:filtered do_sys_openat2 mode=+8(%dx):u64 filename=+0(%si):string")?;
    let open = || {
        guest.workload(&["open", "/tmp/filter-a", "65", "384", "2"])?;
        guest.workload(&["open", "/tmp/filter-b", "65", "448", "3"]).map(drop)
    };
    let probe = guest.wait_for(guest.client.set_filter("filtered", "mode == 448"))??;
    ensure!(probe.filter == "mode == 448", "{probe:?}");
    let recording = guest.record(open)?;
    ensure!(recording.events.len() == 3, "{recording:?}");
    ensure!(
        recording.events.iter().all(|event| event.field("filename") == "\"/tmp/filter-b\""),
        "{recording:?}"
    );

    // A filter that the kernel refuses leaves the one before in force, and says what and where.
    let rpc = refused(guest.wait_for(guest.client.set_filter("filtered", "mode == 448 && nosuch == 1"))?)?;
    let finding = rpc.diagnostics.as_ref().and_then(|found| found.diagnostics.first());
    ensure!(rpc.reason == "BAD_FILTER" && finding.is_some_and(|finding| finding.span_start >= 12), "{rpc:?}");
    let filter = guest.in_instance("events/kprobes/filtered/filter")?;
    ensure!(filter.trim() == filter_in_kernel("mode == 448", fixture), "{filter}");
    ensure!(
        guest.tracefs("events/kprobes/filtered/filter")?.trim() == "none",
        "nothing is left where it was tried"
    );
    ensure!(guest.record(open)?.events.len() == 3);

    guest.wait_for(guest.client.set_filter("filtered", ""))??;
    let everything = guest.record(open)?;
    let ours = everything
        .events
        .iter()
        .filter(|event| event.field("filename").starts_with("\"/tmp/filter-"))
        .count();
    ensure!(ours == 5, "{everything:?}");
    Ok(())
}

/// 'kprobe_profile'.
fn the_profile_counts_every_call(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:counted __x64_sys_getppid")?;
    guest.add("r:counted_return __x64_sys_getppid")?;
    guest.workload(&["getppid", "12345"])?;
    for name in ["counted", "counted_return"] {
        let profiles = guest.wait_for(guest.client.hits(name))??;
        ensure!(profiles.len() == 1 && profiles[0].hits == 12345 && profiles[0].nmissed == 0, "{profiles:?}");
    }
    // The last counts are kept when the probe goes.
    let last = guest.delete("counted")?.ok_or_else(|| anyhow::anyhow!("no last profile"))?;
    ensure!(last.hits == 12345, "{last:?}");
    let request = kprobed_client::api::ListHitsRequest {
        start_time: Some(SystemTime::UNIX_EPOCH.into()),
        step_seconds: 86_400,
        name_glob: "kprobes/counted".into(),
        ..Default::default()
    };
    let history = guest.wait_for(guest.client.hits_over_time(request))??.series;
    let boot_id = guest.shell("cat /proc/sys/kernel/random/boot_id")?;
    let series = history.iter().rev().find(|series| series.probe_uid == last.probe_uid);
    let hits = |series: &HitSeries| series.points.iter().map(|point| point.hits).sum::<u64>();
    ensure!(
        series.is_some_and(|series| hits(series) == 12345 && series.boot_id == boot_id.trim()),
        "{history:?}"
    );
    Ok(())
}

/// '-:doforkprobe', '-:GRP/EVENT', '-:GRP/': the command says what deletes, and that does.
fn lines_that_delete_delete(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    for line in ["p:doforkprobe kernel_clone", "p:mine/one vfs_read", "p:mine/two vfs_write", "r vfs_read"] {
        ensure!(guest.add(line)?.state() == ProbeState::Armed, "{line}");
    }
    let names =
        || -> Result<Vec<String>> { Ok(guest.probes()?.into_iter().map(|probe| probe.name).collect()) };
    ensure!(
        names()? == ["kprobes/doforkprobe", "kprobes/r_vfs_read_0", "mine/one", "mine/two"],
        "{:?}",
        names()?
    );
    let delete = |line: &str| -> Result<()> {
        let said = guest.ctl_says(&format!("add '{line}'"))?.all();
        let command = said.split('`').nth(1).and_then(|command| command.strip_prefix("kprobectl "));
        guest.ctl(command.with_context(|| said.clone())?).map(drop)
    };
    delete("-:doforkprobe")?;
    ensure!(names()? == ["kprobes/r_vfs_read_0", "mine/one", "mine/two"], "{:?}", names()?);
    delete("-:kprobes/r_vfs_read_0")?;
    ensure!(names()? == ["mine/one", "mine/two"], "{:?}", names()?);
    delete("-:mine/")?;
    ensure!(names()?.is_empty());
    let error = refused(guest.wait_for(guest.client.delete_probe(deletion("doforkprobe")))?)?;
    ensure!(error.reason == "NO_SUCH_PROBE", "{error:?}");
    ensure!(guest.tracefs("kprobe_events")?.is_empty());
    Ok(())
}

/// 'events/kprobes/myprobe/format'.
fn the_format_is_what_was_defined(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let probe = guest.add(OPEN)?;
    let schema = probe.schema.ok_or_else(|| anyhow::anyhow!("no schema"))?;
    let fields: Vec<_> =
        schema.fields.iter().map(|field| (field.name.as_str(), field.width, field.fault_detected)).collect();
    let proven = fixture.proves_reads();
    ensure!(
        fields == [("dfd", 4, true), ("filename", 0, true), ("flags", 8, proven), ("mode", 8, proven)],
        "{fields:?}"
    );
    let format = guest.tracefs("events/kprobes/myprobe/format")?;
    ensure!(
        format.contains("field:s32 dfd;") && format.contains("field:__data_loc char[] filename;"),
        "{format}"
    );
    Ok(())
}
