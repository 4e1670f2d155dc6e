//! Refusals: the daemon gives the kernel's own error, and the kernel never receives the definition.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::RpcError;
use kprobed_client::api::{CheckProbeResponse, RefusedBy, Verdict};
use kprobed_lang::definition::Code;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::differential::{Compared, ask_both, kernel_answers};
use crate::fixture::{Fixture, cpus};

#[allow(dead_code, clippy::allow_attributes, reason = "the pages have more of it")]
#[path = "../../../../server/fixtures/stricter.rs"]
mod stricter;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        bad_definitions_get_the_kernels_message_position_and_errno,
        names_that_are_taken_are_judged_as_the_kernel_does,
        probes_of_others_are_left_alone,
    }
    Daemon {
        the_host_is_described,
        what_only_kprobed_refuses_is_listed,
        the_middle_of_an_instruction_is_refused_without_a_write,
    }
};

/// Definitions that the kernel refuses, a kind each. The group and the event are named, so that
/// none of them meets another.
const BAD: &[&str] = &[
    "r1a111:g/e vfs_read",
    "r100000:g/e vfs_read",
    "p:g/e non_exist_func",
    "p:g/e hoge-fuga",
    "p:/bar vfs_read",
    "p:foo.1/bar vfs_read",
    "p: vfs_read",
    "p:g/bar.1 vfs_read",
    "p:g/e vfs_read $retval",
    "p:g/e vfs_read $stack10000",
    "p:g/e vfs_read $none_var",
    "p:g/e vfs_read %none_reg",
    "p:g/e vfs_read @12345678abcde",
    "p:g/e vfs_read @+10",
    "p:g/e vfs_read arg1=\\x",
    "p:g/e vfs_read arg1=\\\"abcd",
    "p:g/e vfs_read +0@0)",
    "p:g/e vfs_read +0ab1(@0)",
    "p:g/e vfs_read +0(+0(@0)",
    "p:g/e vfs_read +0($comm)",
    "p:g/e vfs_read &1",
    "p:g/e vfs_read +0(@11):u8[10",
    "p:g/e vfs_read +0(@11):u8[10]a",
    "p:g/e vfs_read +0(@11):u8[10a]",
    "p:g/e vfs_read +0(@11):u8[256]",
    "p:g/e vfs_read @11:unknown_type",
    "p:g/e vfs_read $stack0:string",
    "p:g/e vfs_read @11:b10@a/16",
    "p:g/e vfs_read argument_name_that_is_much_too_long_=@11",
    "p:g/e vfs_read =@11",
    "p:g/e vfs_read var.1=@11",
    "p:g/e vfs_read var1=@11 var1=@12",
    "p:g/e vfs_read arg1=",
    "p:g/e vfs_read%hoge",
    "p:g/e vfs_read+3",
    "r:g/e vfs_read+10",
];

fn bad_definitions_get_the_kernels_message_position_and_errno(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let long = format!("p:g/e vfs_read a=+0({}%di{})", "+1111(".repeat(9), ")".repeat(9));
    // Of these, only the errno is compared.
    let more = [long.as_str(), "p:g/e vfs_read -+8(%di)"];
    let lines: Vec<_> = BAD.iter().copied().chain(more).map(str::to_owned).collect();
    let mut wrong = Vec::new();
    let refusals = lines.iter().map(|line| guest.refusal(line)).collect::<Result<Vec<_>>>()?;
    let log = guest.tracefs("error_log")?;
    ensure!(!log.contains("trace_kprobe"), "the kernel heard of one: {log}");
    let answers = kernel_answers(&guest, &lines)?;
    for ((line, refusal), answer) in lines.iter().zip(refusals).zip(answers) {
        let checked = check(&guest, line)?;
        ensure!((checked.errno, checked.by()) == (answer.errno, RefusedBy::Kernel), "{line}: {checked:?}");
        let of_create = (metadata(&refusal, "errno"), metadata(&refusal, "by"));
        ensure!(of_create == (answer.errno.to_string().as_str(), "kernel"), "{line}: {answer:?} {refusal:?}");
        if !BAD.contains(&line.as_str()) {
            continue;
        }
        let (text, caret) = answer.said.with_context(|| line.clone())?;
        let found = refusal.diagnostics.as_ref().and_then(|found| found.diagnostics.first());
        let found = found.with_context(|| format!("{line}: no diagnostic in {refusal:?}"))?;
        let known = Code::from_kernel_text(&text);
        let same_code = known.is_some_and(|code| code.name() == found.code)
            // The kernel has one message for everything that its core refuses; the daemon says
            // which rule it was.
            || text == "Failed to register probe event";
        if !same_code || found.span_start as usize != caret {
            wrong.push(format!(
                "`{line}`: kernel `{text}` at {caret}, daemon {} at {}",
                found.code, found.span_start
            ));
        }
        if found.hint.is_empty() {
            wrong.push(format!("`{line}`: no hint for {}", found.code));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn check(guest: &DaemonGuest, definition: &str) -> Result<CheckProbeResponse> {
    Ok(guest.wait_for(guest.client.check_probe(definition))??)
}

fn the_middle_of_an_instruction_is_refused_without_a_write(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // The second byte of the first long instruction after the entry, wherever this kernel's
    // compiler has put that.
    let around = check(&guest, "p:mid do_sys_openat2")?;
    let long =
        around.listing.iter().find(|shown| shown.offset >= 5 && shown.probeable && shown.code.len() > 2);
    let long = long.with_context(|| format!("no long instruction: {around:?}"))?;
    let middle = format!("p:mid do_sys_openat2+{}", long.offset + 1);
    let middle = middle.as_str();
    let verdict = check(&guest, middle)?;
    ensure!(verdict.nearest_before == Some(long.offset), "{verdict:?}");
    let first_after = verdict.nearest_after.context("nothing behind it works")?;
    ensure!(verdict.verdict() == Verdict::Refused && verdict.rule == "BAD_INSN_BNDRY", "{verdict:?}");
    ensure!(verdict.errno_name == "EILSEQ" && !verdict.listing.is_empty(), "{verdict:?}");
    let refusal = guest.refusal(middle)?;
    ensure!(refusal.reason == "BAD_INSN_BNDRY", "{refusal:?}");
    // A definition that the kernel had refused would be in its log, and one that it had accepted in
    // its list.
    ensure!(!guest.tracefs("error_log")?.contains("trace_kprobe"), "{}", guest.tracefs("error_log")?);
    ensure!(guest.tracefs("kprobe_events")?.is_empty());
    ensure!(guest.probes()?.is_empty());
    // The offsets that it offers do work.
    for offset in [verdict.nearest_before, Some(first_after)].into_iter().flatten() {
        guest.add(&format!("p:offered_{offset} do_sys_openat2+{offset}"))?;
    }
    let recording = guest.record(|| guest.workload(&["open", "/etc/passwd", "0", "0", "1"]).map(drop))?;
    let hits = |offset| recording.of(&format!("kprobes/offered_{offset}"), "workload").count();
    ensure!(hits(first_after) > 0 && hits(first_after) == hits(long.offset), "{recording:?}");
    Ok(())
}

/// The value of a key in the reason of a refusal.
fn metadata<'a>(refusal: &'a RpcError, key: &str) -> &'a str {
    let found = refusal.metadata.iter().find(|(name, _)| name == key);
    found.map_or("", |(_, value)| value.as_str())
}

/// Names that are taken, in the kernel's order: after what it parses, and before its checks about
/// the place.
const TAKEN: &[&str] = &[
    "p:sched/sched_switch vfs_read",
    "p:sched/sched_switch vfs_read+3",
    "p:sched/sched_switch vfs_read a=%none",
    "r:theirs/one vfs_read",
    "p:theirs/one vfs_read",
    "p:theirs/one vfs_read a=%di b=%si",
    "p:theirs/one vfs_read b=%di",
    "p:theirs/one vfs_read a=%di:u32",
    "p:theirs/one vfs_read a=%di",
    "p:theirs/one vfs_read+3 a=%di:u8",
    "p:theirs/one vfs_read+3 a=%di",
    "p:theirs/one no_such_function a=%di",
    "p:theirs/back vfs_read r=%di",
    "r:theirs/back vfs_read r=$retval:u64",
    "r:theirs/back vfs_read+10 r=$retval:u64",
    "r:mine/one vfs_read",
    "p:mine/one vfs_read",
    "p:mine/one vfs_read a=%di:u16",
    "p:mine/one vfs_read a=%di",
];

fn names_that_are_taken_are_judged_as_the_kernel_does(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    for line in ["p:theirs/one vfs_read a=%di", "r:theirs/back vfs_read r=$retval:u64"] {
        guest.shell(&format!("echo '{line}' >> {TRACEFS}/kprobe_events"))?;
    }
    guest.add("p:mine/one vfs_read a=%di")?;
    let lines: Vec<_> = TAKEN.iter().map(|line| (*line).to_owned()).collect();
    let mut wrong = Vec::new();
    for one in ask_both(&guest, lines)? {
        let Compared { line, ours, kernel } = one;
        let said = kernel.said.as_ref().and_then(|(text, _)| Code::from_kernel_text(text)).map(Code::name);
        let added = guest.refusal(&line)?;
        let same_verdict = (ours.by(), ours.errno, Some(ours.kernel_reason.as_str()))
            == (RefusedBy::Kernel, kernel.errno, said.or(Some("")));
        let same_caret = kernel.said.as_ref().is_none_or(|(_, caret)| {
            // The kernel's caret is one after the end for an argument that is missing.
            ours.diagnostics
                .first()
                .is_some_and(|found| found.span_start as usize == (*caret).min(line.len()))
        });
        if !same_verdict || !same_caret || metadata(&added, "errno") != ours.errno.to_string() {
            wrong.push(format!("{line}\n  kernel {kernel:?}\n  check {ours:?}\n  add {added:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The kernel would make these second places of the events.
    for line in ["p:theirs/one vfs_write a=%si", "p:mine/one vfs_write a=%si"] {
        let (verdict, added) = (check(&guest, line)?, guest.refusal(line)?);
        ensure!((verdict.by(), verdict.rule.as_str()) == (RefusedBy::Kprobed, "WOULD_APPEND"), "{verdict:?}");
        ensure!(
            metadata(&added, "rule") == "WOULD_APPEND" && metadata(&added, "by") == "kprobed",
            "{added:?}"
        );
    }
    let appended = kernel_answers(&guest, &["p:theirs/one vfs_write a=%si".to_owned()])?;
    ensure!(appended.iter().all(|answer| answer.errno == 0), "{appended:?}");
    Ok(())
}

/// Each example of the list in the documentation: the kernel takes it, and the daemon says that
/// only it minds.
fn what_only_kprobed_refuses_is_listed(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    for (code, line) in stricter::examples() {
        let kernel = kernel_answers(&guest, &[line.to_owned()])?;
        if fixture.is_older_than(6, 1) && kernel.iter().any(|answer| answer.errno != 0) {
            // This kernel refuses it too.
            ensure!(check(&guest, line)?.rule == code, "{line}");
            continue;
        }
        ensure!(kernel.iter().all(|answer| answer.errno == 0), "{code}: {line}: {kernel:?}");
        let (verdict, added) = (check(&guest, line)?, guest.refusal(line)?);
        ensure!((verdict.by(), verdict.rule.as_str()) == (RefusedBy::Kprobed, code), "{line}: {verdict:?}");
        ensure!(added.reason == code && metadata(&added, "by") == "kprobed", "{line}: {added:?}");
    }
    Ok(())
}

fn probes_of_others_are_left_alone(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.shell(&format!("echo 'p:kprobes/foreign __x64_sys_getppid' >> {TRACEFS}/kprobe_events"))?;
    guest
        .shell(&format!("echo 1 > {TRACEFS}/events/kprobes/foreign/enable; echo 1 > {TRACEFS}/tracing_on"))?;
    let foreign = || -> Result<Vec<String>> {
        let host = guest.wait_for(guest.client.host())??;
        Ok(host.foreign_probes.into_iter().map(|probe| probe.name).collect())
    };
    ensure!(foreign()? == ["kprobes/foreign"], "{:?}", foreign()?);
    ensure!(guest.refusal("p:foreign vfs_write")?.reason == "FOREIGN_EVENT_EXISTS");
    guest.add("p:ours vfs_write")?;
    guest.workload(&["getppid", "25"])?;
    let before = guest.shell(&format!("grep -c 'workload-.*foreign:' {TRACEFS}/trace"))?;
    guest.delete("ours")?;
    let refused = guest.delete("kprobes/foreign").err().context("it was deleted")?;
    ensure!(refused.to_string().contains("kprobes/foreign"), "{refused}");
    ensure!(guest.tracefs("kprobe_events")?.lines().count() == 1, "{}", guest.tracefs("kprobe_events")?);
    ensure!(guest.tracefs("events/kprobes/foreign/enable")?.trim() == "1");
    // What it had recorded is still there.
    let after = guest
        .shell(&format!("echo 0 > {TRACEFS}/tracing_on; grep -c 'workload-.*foreign:' {TRACEFS}/trace"))?;
    ensure!(before.trim() == "25" && after == before, "{before} became {after}");
    guest
        .shell(&format!("echo 0 > {TRACEFS}/events/kprobes/foreign/enable; echo 1 > {TRACEFS}/tracing_on"))?;
    Ok(())
}

fn the_host_is_described(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let host = guest.wait_for(guest.client.host())??;
    ensure!(host.kernel_release == fixture.kernel()?.release && host.tracefs == TRACEFS, "{host:?}");
    // Kernels before 6.8 have pages and nothing else.
    let sub_buffer_bytes = if fixture.is_older_than(6, 8) { 4096 } else { 64 << 10 };
    ensure!(
        host.trace_clock == "boot"
            && u64::from(host.sub_buffer_bytes) == sub_buffer_bytes
            && host.cpus == cpus()?,
        "{host:?}"
    );
    let failed = |host: &kprobed_client::api::GetHostResponse| -> Vec<String> {
        let failed = host.checks.iter().filter(|check| check.status != 1);
        failed.map(|check| check.id.clone()).collect()
    };
    let without: &[&str] = if fixture.restricts_files() { &[] } else { &["files"] };
    ensure!(failed(&host) == without, "{host:?}");
    // What is wrong is found, with the way to mend it, and a probe that would never fire is
    // refused.
    guest.shell("echo 0 > /proc/sys/kernel/ftrace_enabled")?;
    let broken = guest.wait_for(guest.client.host())??;
    let refusal = guest.refusal("p:silent vfs_read");
    guest.shell("echo 1 > /proc/sys/kernel/ftrace_enabled")?;
    ensure!(failed(&broken) == [&["ftrace_enabled"], without].concat(), "{broken:?}");
    ensure!(broken.checks.iter().any(|check| check.fix.contains("sysctl")), "{broken:?}");
    ensure!(refusal?.reason == "FTRACE_DISABLED");
    Ok(())
}
