//! Every fetch type of the kernel's probe language with known values; and faults, which are never
//! values.

use anyhow::{Context as _, Result, ensure};

use crate::Test;
use crate::daemon::{DaemonGuest, Event};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        every_type_has_its_value,
        kernel_memory_is_read_by_symbol,
        a_fault_is_never_a_value,
        strings_end_where_they_end,
        stack_registers_and_immediates,
        names_and_members_from_btf,
        event_times_are_wall_clock_times,
    }
    Daemon {
        filters_compare_with_what_is_shown,
    }
    Seldom {
        numbers_are_shown_as_people_write_them,
    }
};

/// What the workload opens: its bytes are the memory that typed arguments look at.
const PATH: &str = "/tmp/ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The one event that opening [`PATH`] causes on the only probe.
fn opened(guest: &DaemonGuest) -> Result<Event> {
    let recording = guest.record(|| guest.workload(&["open", PATH, "0", "0", "1"]).map(drop))?;
    let mut events = recording.events.iter().filter(|event| event.field("path") == format!("{PATH:?}"));
    let event = events.next().cloned();
    event.ok_or_else(|| anyhow::anyhow!("no event: {recording:?}\n{}", guest.log()))
}

/// Adds a probe on `do_sys_openat2` with these arguments, and compares what it records.
fn compare(guest: &DaemonGuest, arguments: &[(&str, &str)]) -> Result<()> {
    let fetches: Vec<_> =
        arguments.iter().enumerate().map(|(i, (fetch, _))| format!("a{i}={fetch}")).collect();
    guest.add(&format!("p:typed do_sys_openat2 path=+0(%si):string {}", fetches.join(" ")))?;
    let event = opened(guest)?;
    for (index, (fetch, expected)) in arguments.iter().enumerate() {
        let value = event.field(&format!("a{index}"));
        ensure!(value == *expected, "{fetch} is {value}, not {expected}");
    }
    guest.delete("typed").map(drop)
}

fn every_type_has_its_value(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // "ABCDEFGH" at +5: 0x4847464544434241.
    compare(
        &guest,
        &[
            ("+5(%si):u8", "65"),
            ("+5(%si):u16", "16961"),
            ("+5(%si):u32", "1145258561"),
            ("+5(%si):u64", "5208208757389214273"),
            ("+5(%si):s8", "65"),
            ("+5(%si):s16", "16961"),
            ("+5(%si):s32", "1145258561"),
            ("+5(%si):s64", "5208208757389214273"),
            ("+5(%si):x8", "0x41"),
            ("+5(%si):x16", "0x4241"),
            ("+5(%si):x32", "0x44434241"),
            ("+5(%si):x64", "0x4847464544434241"),
            ("+5(%si)", "0x4847464544434241"),
        ],
    )?;
    compare(
        &guest,
        &[
            ("+u5(%si):x32", "0x44434241"),
            ("+u0(%si):ustring", "\"/tmp/ABCDEFGHIJKLMNOPQRSTUVWXYZ\""),
            ("+5(%si):string", "\"ABCDEFGHIJKLMNOPQRSTUVWXYZ\""),
            ("+5(%si):u8[4]", "{65,66,67,68}"),
            ("+5(%si):x16[2]", "{0x4241,0x4443}"),
            ("+5(%si):x64[2]", "{0x4847464544434241,0x504f4e4d4c4b4a49}"),
            ("+5(%si):s32[3]", "{1145258561,1212630597,1280002633}"),
            // Bits 4 to 7 of 0x41, and bits 4 to 11 of 0x4241.
            ("+5(%si):b4@4/8", "4"),
            ("+5(%si):b8@4/16", "36"),
            ("$comm", "\"workload\""),
        ],
    )?;
    if guest.has_feature("char")? {
        compare(&guest, &[("+5(%si):char", "'A'"), ("+5(%si):char[3]", "{'A','B','C'}")])?;
    }
    Ok(())
}

fn kernel_memory_is_read_by_symbol(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // The banner is a format on some kernels and a text on others; `/proc/version` begins with the
    // same words on all.
    guest.add("p:banner do_sys_openat2 path=+0(%si):string banner=@linux_banner:string symbol=%ip:symbol")?;
    let event = opened(&guest)?;
    let version = guest.shell("cat /proc/version")?;
    let expected = format!("\"{}\\n\"", version.trim_end());
    ensure!(event.field("banner") == expected, "{} is not {expected}", event.field("banner"));
    ensure!(event.field("symbol").starts_with("do_sys_openat2+0x"), "{event:?}");
    Ok(())
}

fn a_fault_is_never_a_value(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Stale bytes in the ring would show up as values: fill it with some first.
    guest.add("p:filler do_sys_openat2 a=+0(%si):x64[8] b=+0(%si):x64[8] c=+0(%si):string")?;
    guest.workload(&["open", PATH, "0", "0", "500"])?;
    guest.wait_for(guest.client.set_enabled("filler", false))??;

    let unreadable = "\\0xdead000000000000";
    let definition = format!(
        "p:faulty do_sys_openat2 path=+0(%si):string good=+5(%si):x32 bad8=+0({unreadable}):u8 bad32=+8({unreadable}):s32 \
         bad64=+0(\\0x10):x64 array=+0({unreadable}):x64[4] bits=+0({unreadable}):b4@4/16 user=+u0({unreadable}):x16 \
         text=+0({unreadable}):string deep=+0(+0({unreadable})):string deeper=+0(+0({unreadable})):u32 zero=+0(%dx):x64 last=%di:s32"
    );
    let probe = guest.add(&definition)?;
    let schema = probe.schema.ok_or_else(|| anyhow::anyhow!("no schema"))?;
    let numbers = ["good", "bad8", "bad32", "bad64", "array", "bits", "user", "deeper", "zero"];
    for field in &schema.fields {
        // What is not proven is marked; texts always are, and what is not read from memory.
        let proven = fixture.proves_reads() || !numbers.contains(&field.name.as_str());
        ensure!(field.fault_detected == proven, "{field:?}");
    }
    let event = opened(&guest)?;
    for name in ["text", "deep"] {
        ensure!(event.field(name) == "(fault)", "{name}: {event:?}");
    }
    if fixture.proves_reads() {
        for name in ["bad8", "bad32", "bad64", "bits", "user", "deeper"] {
            ensure!(event.field(name) == "(fault)", "{name}: {event:?}");
        }
        ensure!(event.field("array") == "{(fault),(fault),(fault),(fault)}", "{event:?}");
    }
    ensure!(event.field("good") == "0x44434241", "{event:?}");
    ensure!(event.field("zero") == "0x8000", "O_LARGEFILE, and readable: {event:?}");
    ensure!(event.field("last") == "-100", "{event:?}");
    Ok(())
}

fn strings_end_where_they_end(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    ensure!(
        guest.has_feature("symstr")? || fixture.is_older_than(6, 1),
        "{:?}",
        guest.wait_for(guest.client.host())
    );
    // A symstr never says where it ends, and an intermediate fault leaves the next string's bytes
    // behind. Before the fixes of 2023, which 5.10 does not show, an array of strings harms the
    // host.
    let (sym, list) = if fixture.proves_reads() {
        ("sym=%ip:symstr", "list=+0(\\0x10):string[2]")
    } else {
        ("sym=%ip:symbol", "list=+0(\\0x10):string")
    };
    guest.add(&format!(
        "p:strings do_sys_openat2 path=+0(%si):string {sym} gone=+0(+0(\\0x10)):string after=\\\"tail\" {list} end=\\\"end\""
    ))?;
    let event = opened(&guest)?;
    let symbol = event.field("sym").trim_matches('"');
    ensure!(symbol.starts_with("do_sys_openat2+0x") && !symbol.contains("tail"), "{event:?}");
    ensure!(event.field("gone") == "(fault)", "{event:?}");
    ensure!(event.field("after") == "\"tail\"", "{event:?}");
    let faults = if fixture.proves_reads() { "{(fault),(fault)}" } else { "(fault)" };
    ensure!(event.field("list") == faults, "{event:?}");
    ensure!(event.field("end") == "\"end\"", "{event:?}");
    Ok(())
}

fn stack_registers_and_immediates(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let definition = "p:places do_sys_openat2 path=+0(%si):string top=$stack word=$stack0 same=+0(%sp) number=\\-5:s64 text=\\\"abc\" \
                      first=$arg1:s32 second=$arg2 si=%si";
    guest.add(definition)?;
    let event = opened(&guest)?;
    ensure!(event.field("word") == event.field("same") && event.field("word") != "0x0", "{event:?}");
    ensure!(event.field("top").starts_with("0xff"), "{event:?}");
    ensure!(event.field("number") == "-5" && event.field("text") == "\"abc\"", "{event:?}");
    ensure!(event.field("first") == "-100" && event.field("second") == event.field("si"), "{event:?}");
    Ok(())
}

fn names_and_members_from_btf(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let probe =
        guest.add("p:named do_sys_openat2 path=+0(%si):string dfd flags=how->flags mode=how->mode:x16")?;
    let event = opened(&guest)?;
    ensure!(event.field("dfd") == "-100" && event.field("mode") == "0x0", "{event:?}");
    ensure!(event.field("flags") == "32768", "O_LARGEFILE, by BTF an unsigned integer: {event:?}");
    let schema = probe.schema.context("no schema")?;
    ensure!(!fixture.proves_reads() || schema.fields.iter().all(|field| field.fault_detected), "{schema:?}");
    guest.add("p:all do_sys_openat2 $arg*")?;
    let recording = guest.record(|| guest.workload(&["open", PATH, "0", "0", "1"]).map(drop))?;
    ensure!(
        recording.of("kprobes/all", "workload").any(|event| event.field("dfd") == "-100"),
        "{recording:?}"
    );
    Ok(())
}

fn event_times_are_wall_clock_times(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:timed do_sys_openat2 path=+0(%si):string")?;
    let seconds = || -> Result<u64> { Ok(guest.shell("date +%s")?.trim().parse()?) };
    let before = seconds()?;
    let event = opened(&guest)?;
    let after = seconds()? + 1;
    let time = event.wall_ns / 1_000_000_000;
    ensure!((before..=after).contains(&time), "{time} is not within {before}..={after}");
    Ok(())
}

/// What people see of the events of a probe that a task of this name caused.
fn shown(guest: &DaemonGuest, probe: &str, comm: &str) -> Result<String> {
    guest.ledger()?;
    let of_task = if comm.is_empty() { String::new() } else { format!("--filter 'comm == \"{comm}\"'") };
    guest.ctl(&format!("observe {probe} -q --no-headers --last 4000 {of_task}"))
}

/// Connections to closed ports of the guest itself.
fn connect(guest: &DaemonGuest, ports: &[u16]) -> Result<()> {
    for port in ports {
        guest.shell(&format!("wget -q -O- http://127.0.0.1:{port}/ || true"))?;
    }
    guest.ledger().map(drop)
}

fn numbers_are_shown_as_people_write_them(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    let name = if fixture.is_older_than(6, 18) { "d_iname" } else { "d_shortname.string" };
    let name = format!("file->f_path.dentry->{name}");
    let read = format!("p:read vfs_read file->f_op->read first={name}[0]:x8 third={name}[2]:x8");
    for definition in [
        "r:failed do_sys_openat2 fd=$retval:s32",
        // Its type is that of the function, on every kernel with types.
        "r:bare do_sys_openat2 fd=$retval",
        // On every kernel the port lies there, and the second time nothing names it.
        "p:connected tcp_connect sk->__sk_common.skc_dport sk->__sk_common.skc_daddr raw=+12($arg1):u16",
        "p:signalled do_send_sig_info type",
        "p:opened vfs_open path->dentry->d_sb->s_dev path->dentry->d_inode->i_mode",
        &read,
        "p:how do_sys_openat2 how->flags",
        "p:call __x64_sys_openat flags=regs->dx:x32",
        "syscalls/sys_enter_openat",
        "syscalls/sys_exit_openat",
    ] {
        guest.add(definition)?;
    }
    let act = |guest: &DaemonGuest| -> Result<()> {
        guest.workload(&["open", "/tmp/nosuch", "0", "0", "3"])?;
        guest.shell("echo x > /tmp/people && chmod 640 /tmp/people && cat /tmp/people /dev/null")?;
        guest.shell("sleep 100 & kill $!; wait $! || true")?;
        connect(guest, &[9])
    };
    // Where the daemon cannot tell what was read, it says so behind each value.
    let unmarked = |guest: &DaemonGuest, probe: &str, comm: &str| -> Result<String> {
        let text = shown(guest, probe, comm)?;
        Ok(if fixture.proves_reads() { text } else { text.replace("(?)", "") })
    };
    let see = |guest: &DaemonGuest| -> Result<()> {
        for (probe, comm, expected) in [
            ("failed", "workload", " fd=-2 (ENOENT)"),
            ("bare", "workload", " fd=-2 (ENOENT)"),
            ("connected", "wget", " skc_dport=9 skc_daddr=2130706433 raw=9"),
            ("signalled", "sh", " type=1 (PIDTYPE_TGID)"),
            // The name of a task that has just begun can be that of its parent.
            ("opened", "", " i_mode=0100640"),
            ("read", "", " read=read_null+0x0/"),
            ("read", "", " first=0x6e third=0x6c"),
            ("syscalls/sys_enter_openat", "workload", " dfd=-100 filename=0x"),
            ("syscalls/sys_enter_openat", "workload", " flags=0x80000 (O_RDONLY|O_CLOEXEC) mode=0"),
            ("how", "workload", " flags=557056 (O_RDONLY|O_LARGEFILE|O_CLOEXEC)"),
            ("call", "workload", " flags=0x80000 (O_RDONLY|O_CLOEXEC)"),
            ("syscalls/sys_exit_openat", "workload", " ret=-2 (ENOENT)"),
        ] {
            let text = unmarked(guest, probe, comm)?;
            ensure!(text.lines().any(|line| line.contains(expected)), "{probe}: no{expected} in {text}");
        }
        Ok(())
    };
    act(&guest)?;
    see(&guest)?;
    let opened = unmarked(&guest, "opened", "cat")?;
    let devices = guest.shell("cat /proc/self/mountinfo")?;
    let devices: Vec<_> = devices.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let on_device = |line: &str| devices.iter().any(|device| line.contains(&format!(" s_dev={device} ")));
    ensure!(opened.lines().all(on_device), "{devices:?}: {opened}");
    let json = guest.ctl("observe connected -q -o json --last 100 --filter 'skc_dport == 9'")?;
    // Lines of the history's epochs can stand before the events.
    let line = json.lines().find(|line| line.contains("\"fields\"")).context("no event")?;
    let event: serde_json::Value = serde_json::from_str(line)?;
    ensure!(event["fields"]["skc_dport"] == 2304 && event["names"]["skc_dport"] == "9", "{event}");
    // After a restart the daemon knows the types anew, of events that the kernel has kept.
    guest.kill_and_restart()?;
    act(&guest)?;
    see(&guest)
}

/// The filters of a subscription and those that the kernel applies.
fn filters_compare_with_what_is_shown(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let port = "tcp_connect sk->__sk_common.skc_dport";
    guest.add(&format!("p:all {port}"))?;
    guest.ctl(&format!("add 'p:some {port}' --filter 'skc_dport == 9'"))?;
    guest.ctl("add syscalls/sys_enter_openat --filter 'dfd == -100'")?;
    guest.ctl("add 'r:errors do_sys_openat2 fd=$retval:s32' --filter 'fd == -ENOENT'")?;
    let made = "p:made do_sys_openat2 path=+0($arg2):ustring how->flags";
    guest.ctl(&format!("add '{made}' --filter 'flags & O_CREAT && path ~ \"/tmp/made*\"'"))?;
    guest.shell("echo x > /tmp/made && cat /tmp/made")?;
    connect(&guest, &[9, 10, 9])?;
    guest.workload(&["open", "/tmp/nosuch", "0", "0", "3"])?;
    guest.workload(&["open", "/etc/passwd", "0", "0", "3"])?;
    let count = |arguments: &str| -> Result<usize> {
        guest.ledger()?;
        Ok(guest.ctl(&format!("observe {arguments} -q --no-headers --last 4000"))?.lines().count())
    };
    ensure!(count("some")? == 2, "the kernel selects port 9");
    let failed = guest.ctl("observe errors --comm workload -q --no-headers --last 4000")?;
    let of_error = guest.in_instance("events/kprobes/errors/filter")?;
    // The loader of the program fails to open files too.
    let is_error = |line: &str| line.contains(" fd=-2 (ENOENT)");
    ensure!(failed.lines().count() >= 3 && failed.lines().all(is_error), "{of_error}: {failed}");
    ensure!(count("syscalls/sys_enter_openat --comm workload")? >= 6, "the kernel selects AT_FDCWD");
    let made = guest.ctl("observe made -q --no-headers --last 4000")?;
    let is_made = |line: &str| line.contains("|O_CREAT|") && line.contains("path=\"/tmp/made\"");
    ensure!(made.lines().count() == 1 && made.lines().all(is_made), "{made}");
    ensure!(count("made --filter 'flags & O_TRUNC'")? == 1);
    ensure!(count("made --filter 'flags & O_EXCL'")? == 0);
    for (filter, expected) in
        [("skc_dport == 9", 2), ("skc_dport != 9", 1), ("skc_dport < 10", 2), ("skc_dport >= 9", 3)]
    {
        ensure!(count(&format!("all --comm wget --filter '{filter}'"))? == expected, "{filter}");
    }
    let (written, in_kernel) =
        (guest.probe("some")?.filter, guest.in_instance("events/kprobes/some/filter")?);
    ensure!(
        written == "skc_dport == 9" && in_kernel.starts_with("skc_dport == 2304"),
        "{written} {in_kernel}"
    );
    let refused = guest.ctl_says("update some --filter 'skc_dport < 10'")?;
    ensure!(refused.code != 0 && refused.stderr.contains("network order"), "{refused:?}");
    Ok(())
}
