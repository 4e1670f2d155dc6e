//! Dangerous definitions: those that the kernel accepts and that harm it, or whose values nothing
//! proves.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{Probe, ProbeKind, Verdict};

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config, creation, refused};
use crate::differential::{Random, daemon_answers};
use crate::effort;
use crate::fixture::Fixture;
use crate::report;
use crate::verdicts::symbols;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        filters_that_would_harm_the_kernel_are_refused,
        variables_of_the_kernel_can_fault,
        faults_that_the_kernel_expects_are_still_handled,
    }
    Daemon {
        filters_on_symbol_strings_are_the_daemons,
        what_would_harm_the_kernel_is_never_written,
        symbol_strings_under_load_harm_nobody,
        values_that_nothing_proves_are_marked,
    }
    Seldom {
        random_probes_under_load_harm_nobody,
    }
};

/// What the workload opens.
const PATH: &str = "/tmp/dangerous";

/// How the kernel itself names what `shown` of `m/names` holds, in an instance of our own.
fn named_by_the_kernel(guest: &DaemonGuest) -> Result<Vec<String>> {
    let twin = format!("{TRACEFS}/instances/twin");
    let text = guest.shell(&format!(
        "mkdir {twin} && echo 1 > {twin}/events/m/names/enable && workload open {PATH} 0 0 2 > /dev/null; \
         echo 0 > {twin}/events/m/names/enable; cat {twin}/trace; rmdir {twin}"
    ))?;
    let events = text.lines().filter(|line| line.contains(PATH));
    let names: Vec<_> =
        events.filter_map(|line| Some(line.split_once(" shown=")?.1.split(' ').next()?.to_owned())).collect();
    ensure!(names.len() == 2, "{text}");
    Ok(names)
}

fn symbol_strings_under_load_harm_nobody(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let definition = "p:m/e fput c=%si:symstr x=$comm";
    let check = guest.wait_for(guest.client.check_probe(definition))??;
    if fixture.is_older_than(6, 1) {
        // This kernel does not have the type, so there is no danger.
        ensure!(
            check.rule == "BAD_TYPE" && check.diagnostics[0].hint.contains("write `symbol`"),
            "{check:?}"
        );
        return Ok(());
    }
    ensure!(check.verdict() == Verdict::Accepted && check.canonical.contains(":symstr"), "{check:?}");
    let told = check.diagnostics.iter().find(|found| found.code == "REWRITTEN").context("no warning")?;
    ensure!(told.message.contains("the kernel gets `:symbol`"), "{told:?}");
    let probe = guest.add(definition)?;
    ensure!(!probe.kernel_definition.contains("symstr"), "{probe:?}");
    guest.add(
        "p:m/names do_sys_openat2 path=+0(%si):string ip=%ip:symstr caller=+0(%sp):symstr \
         shown=+0(%sp):symbol number=\\5:u32 gone=+0(+0(\\16)):symstr user=%si:symstr raw=%si:x64",
    )?;
    let listed = guest.tracefs("kprobe_events")?;
    ensure!(listed.contains("c=%si:symbol") && !listed.contains("symstr"), "{listed}");

    // The kernel's own way stops it within seconds of this: records fill several pages of the
    // buffer.
    guest.workload(&["open", PATH, "65", "384", "3000"])?;
    // Reads all of that before the next events are counted.
    guest.ledger()?;
    let recording = guest.record(|| guest.workload(&["open", PATH, "0", "0", "200"]).map(drop))?;
    let names = named_by_the_kernel(&guest)?;
    let path = format!("{PATH:?}");
    let events: Vec<_> =
        recording.of("m/names", "workload").filter(|event| event.field("path") == path).collect();
    ensure!(events.len() == 200, "{} events", events.len());
    for event in events {
        ensure!(event.field("ip").starts_with("\"do_sys_openat2+0x"), "{event:?}");
        ensure!(
            names.iter().any(|name| event.field("caller") == format!("{name:?}")),
            "{event:?}: {names:?}"
        );
        ensure!(event.field("caller").trim_matches('"') == event.field("shown"), "{event:?}");
        ensure!(event.field("gone") == "(fault)" && event.field("number") == "5", "{event:?}");
        // An address without a symbol is a number, as in the kernel.
        ensure!(event.field("user") == format!("\"{}\"", event.field("raw")), "{event:?}");
    }
    let puts: Vec<_> = recording.events.iter().filter(|event| event.probe == "m/e").collect();
    ensure!(!puts.is_empty() && puts.iter().all(|event| event.field("c").starts_with('"')), "{puts:?}");
    let fields = guest.probe("m/names")?.schema.context("no schema")?.fields;
    ensure!(fields.iter().all(|field| field.fault_detected), "{fields:?}");
    let log =
        guest.shell("dmesg | grep -E 'BUG: |Oops: |Kernel panic - |general protection fault' || true")?;
    ensure!(log.is_empty(), "{log}");
    Ok(())
}

fn filters_on_symbol_strings_are_the_daemons(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    if fixture.is_older_than(6, 1) {
        return Ok(());
    }
    guest.add("p:m/where do_sys_openat2 path=+0(%si):string at=%ip:symstr")?;
    let error = refused(guest.wait_for(guest.client.set_filter("m/where", "at ~ \"do_sys*\""))?)?;
    let text = format!("{error:?}");
    ensure!(text.contains("the kernel records `at` as an address") && text.contains(".function"), "{text}");
    // Each of the two patterns selects what it says, in the daemon.
    let filter = "at ~ \"do_sys_openat2+0x*\" && comm == \"workload\"";
    let found = guest.observe(&format!("m/where -n 1 --for 20s --filter '{filter}' -o json"), || {
        guest.workload(&["open", PATH, "65", "384", "3"]).map(drop)
    })?;
    ensure!(found.contains("\"at\":\"do_sys_openat2+0x"), "{found}");
    Ok(())
}

fn what_would_harm_the_kernel_is_never_written(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.shell(&format!("echo > {TRACEFS}/error_log"))?;
    let many = format!("p:m/e vfs_read{}", " %di".repeat(129));
    let refused = [
        "p:m/e vfs_read $arg100000",
        "p:m/e vfs_read $arg2147483649",
        "p:m/e vfs_read $arg4294967296:u8",
        "p:m/e vfs_read $arg0",
        "r:m/e vfs_read $arg2147483649",
        "p:m/e vfs_read a=@0xffffffffff600000",
        "p:m/e vfs_read a=+0(\\0xffffffffff600000):string",
        "p:m/enable vfs_read",
        &many,
    ];
    for definition in refused {
        let check = guest.wait_for(guest.client.check_probe(definition))??;
        ensure!(check.verdict() == Verdict::Refused, "{definition}: {check:?}");
        let refusal = guest.refusal(definition)?;
        let found = refusal.diagnostics.as_ref().and_then(|found| found.diagnostics.first());
        ensure!(found.is_some_and(|found| !found.hint.is_empty()), "{definition}: {refusal:?}");
    }
    let log = guest.tracefs("error_log")?;
    ensure!(!log.contains("trace_kprobe"), "the kernel heard of it: {log}");
    ensure!(guest.tracefs("kprobe_events")?.is_empty(), "{}", guest.tracefs("kprobe_events")?);
    Ok(())
}

/// Kernels before 6.1 call a function that is not there with the first event.
fn filters_that_would_harm_the_kernel_are_refused(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:m/three do_sys_openat2 path=+0(%si):string three=+5(%si):u8[3] four=+5(%si):u8[4]")?;
    for filter in ["three == 1", "four == 1 || three & 2", "three > 1 &&"] {
        let error = refused(guest.wait_for(guest.client.set_filter("m/three", filter))?).context(filter)?;
        ensure!(error.reason == "BAD_FILTER" && error.message.contains("`three` has 3 bytes"), "{error:?}");
        let counted = guest.ctl_says(&format!("hist m/three --by four --filter '{filter}' --for 1s"))?.all();
        // Debian builds 5.10 without histograms.
        let is_built = !fixture.is_older_than(6, 1);
        ensure!(counted.contains(if is_built { "`three` has 3 bytes" } else { "NOT_BUILT" }), "{counted}");
    }
    // Kernels before a fix of 2026 ignore an operator at the end.
    let error = refused(guest.wait_for(guest.client.set_filter("m/three", "four == 1 &&"))?)?;
    ensure!(error.reason == "BAD_FILTER" && error.message.contains("the end of the filter"), "{error:?}");
    // An event of another program, and its filter on the daemon's event.
    guest.shell(&format!(
        "echo 'p:theirs/three vfs_statx t=+0(%sp):u8[3]' >> {TRACEFS}/kprobe_events && echo 'four == 7' > {TRACEFS}/events/m/three/filter"
    ))?;
    let recorded = guest.wait_for(guest.client.create_probe(creation("theirs/three", "t == 1")))?;
    ensure!(
        recorded.as_ref().is_err_and(|error| error.to_string().contains("`t` has 3 bytes")),
        "{recorded:?}"
    );
    guest.wait_for(guest.client.set_filter("m/three", "four == 1"))??;
    ensure!(guest.tracefs("events/m/three/filter")?.trim() == "four == 7");
    guest.workload(&["open", PATH, "65", "384", "3"])?;
    Ok(())
}

/// The names of fields that are marked, and the one line that `observe` prints of an event, which
/// the rest of a filter chooses: of what a program opens first, the name is not in memory yet.
fn marked(
    guest: &DaemonGuest,
    probe: &Probe,
    filter: &str,
) -> Result<(Vec<String>, String, serde_json::Value)> {
    let fields = probe.schema.as_ref().context("no schema")?.fields.iter();
    let marked = fields.filter(|field| !field.fault_detected).map(|field| field.name.clone()).collect();
    let observe = |form: &str| {
        let filter = format!("comm == \"workload\"{filter}");
        let arguments = format!("{} -n 1 --for 20s --filter '{filter}' {form}", probe.name);
        guest.observe(&arguments, || guest.workload(&["open", PATH, "65", "384", "3"]).map(drop))
    };
    let text = observe("")?;
    let object = observe("-o json")?;
    let object = object.lines().find(|line| line.contains("\"type\":\"event\"")).context("no event")?;
    Ok((marked, text, serde_json::from_str(object)?))
}

fn values_that_nothing_proves_are_marked(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.workload(&["open", PATH, "65", "384", "1"])?;

    if !fixture.proves_reads() {
        return nothing_is_proven(&guest);
    }
    // Too long for a guard: one that faults, beside one that can be read, and one that has a guard.
    let listed = guest.shell("cat /proc/kallsyms")?;
    let is_long = |name: &str| (44..=54).contains(&name.len()) && !name.contains('.');
    let long = symbols(&listed)
        .find(|one| matches!(one.kind, "D" | "d") && one.module.is_none() && is_long(one.name));
    let long = long.context("no variable has a name of that length")?.name;
    let faulty = "+1111(+1111(+1111(+1111(+1111(+1111(\\16))))))";
    let probe =
        guest.add(&format!("p:m/long do_sys_openat2 a={faulty}:x64 b=@{long}:u8 c=+0(%si):u8 d=%si"))?;
    let warned: Vec<_> = probe.warnings.iter().filter(|warning| warning.code == "UNPROVEN_VALUE").collect();
    ensure!(warned[0].hint.contains("shorten the expression by 3 bytes"), "{warned:?}");
    // Those with one hint are one warning.
    let told: String = warned.iter().map(|warning| warning.message.as_str()).collect();
    ensure!(told.contains(faulty) && told.contains(&format!("@{long}")), "{warned:?}");
    let (fields, text, object) = marked(&guest, &probe, " && c == 47")?;
    ensure!(fields == ["a", "b"], "{fields:?}");
    ensure!(
        object["unproven"] == serde_json::json!(["a", "b"]) && object["faults"] == serde_json::json!([]),
        "{object}"
    );
    let shown = |field: &str| {
        text.split_whitespace().find(|word| word.starts_with(&format!("{field}="))).unwrap_or("")
    };
    ensure!(shown("a").ends_with("(?)") && shown("b").ends_with("(?)"), "{text}");
    ensure!(shown("c") == "c=47" && !shown("d").contains('?'), "{text}");
    guest.delete("m/long")?;

    // Too many for guards.
    for (fetch, chosen, shown) in [("+0(%si):u8", " && a0 == 47", "=47(?)"), ("+0(\\16):u8", "", "(?)")] {
        let mut many = "p:m/many do_sys_openat2".to_owned();
        for index in 0..127 {
            write!(many, " a{index}={fetch}")?;
        }
        let probe = guest.add(&many)?;
        let (fields, text, object) = marked(&guest, &probe, chosen)?;
        ensure!(fields.len() == 127, "{}", fields.len());
        let mut warned = probe.warnings.iter().filter(|warning| warning.code == "UNPROVEN_VALUE");
        ensure!(warned.next().is_some_and(|warning| warning.message.ends_with(" and 118 more")));
        ensure!(warned.next().is_none(), "one warning for all of them");
        ensure!(text.matches(shown).count() == 127, "{text}");
        ensure!(object["unproven"].as_array().is_some_and(|names| names.len() == 127), "{object}");
        guest.delete("m/many")?;
    }

    // All that has a guard is proven, at the same depth on every kernel.
    let probe = guest.add(
        "p:m/deep do_sys_openat2 good=+0(+0(%sp)):u8 bad=+0(+0(+0(+0(+0(+0(\\16)))))):x64 e=+0(%si):u8",
    )?;
    let (fields, _, object) = marked(&guest, &probe, " && e == 47")?;
    ensure!(fields.is_empty() && object["faults"] == serde_json::json!(["bad"]), "{fields:?} {object}");
    ensure!(object["fields"]["e"] == 47 && object["fields"]["good"].is_u64(), "{object}");
    Ok(())
}

/// A kernel that does not show its fixes: every number that is read from memory is marked, and
/// nothing else.
fn nothing_is_proven(guest: &DaemonGuest) -> Result<()> {
    let probe = guest.add("p:m/old do_sys_openat2 a=+0(%si):u8 b=%si c=+0(%si):string d=+0(\\16):u8")?;
    let (fields, text, object) = marked(guest, &probe, " && a == 47")?;
    ensure!(
        fields == ["a", "d"] && object["unproven"] == serde_json::json!(["a", "d"]),
        "{fields:?} {object}"
    );
    let warned: Vec<_> = probe.warnings.iter().filter(|warning| warning.code == "UNPROVEN_VALUE").collect();
    let is_of_both = |message: &str| message.contains("`a=+0(%si):u8`") && message.contains("`+0(\\16)`");
    ensure!(warned.len() == 1 && is_of_both(&warned[0].message), "{warned:?}");
    ensure!(text.matches("(?)").count() == 2 && text.contains(" a=47(?)"), "{text}");
    Ok(())
}

/// The address of a variable of each CPU is an offset, and no kernel address; and no variable
/// reaches 2 GiB beyond its start.
fn variables_of_the_kernel_can_fault(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(
        "p:m/vars do_sys_openat2 path=+0(%si):string good=@linux_banner:u8 text=@linux_banner+0:char far=@linux_banner+0x70000000:u64 \
         all=@linux_banner:u8[16] half=@linux_banner+0x70000000:u64[4]",
    )
    .or_else(|_no_char| {
        guest.add(
            "p:m/vars do_sys_openat2 path=+0(%si):string good=@linux_banner:u8 far=@linux_banner+0x70000000:u64 \
             all=@linux_banner:u8[16] half=@linux_banner+0x70000000:u64[4]",
        )
    })?;
    let path = format!("{PATH:?}");
    let recording = guest.record(|| guest.workload(&["open", PATH, "65", "384", "3"]).map(drop))?;
    let events: Vec<_> =
        recording.of("m/vars", "workload").filter(|event| event.field("path") == path).collect();
    ensure!(events.len() == 3, "{recording:?}");
    for event in events {
        ensure!(event.field("good") != "(fault)" && !event.field("all").contains("fault"), "{event:?}");
        if !fixture.proves_reads() {
            continue;
        }
        ensure!(event.field("far") == "(fault)", "{event:?}");
        ensure!(event.field("half") == "{(fault),(fault),(fault),(fault)}", "{event:?}");
    }
    Ok(())
}

/// What the kernel's log has to say when something is wrong.
fn ensure_healthy(guest: &DaemonGuest) -> Result<()> {
    let found =
        guest.shell("dmesg | grep -E 'BUG: |Oops|WARNING: |general protection|Kernel panic' || true")?;
    let release = guest.machine.release();
    let found: Vec<_> = found.lines().filter(|line| !report::is_known(release, line)).collect();
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

/// Any program can have the kernel restore a floating-point state that the CPU refuses with a general
/// protection fault. Of the copy of an instruction, which a probe executes, the kernel does not know
/// that it may fault so.
fn faults_that_the_kernel_expects_are_still_handled(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let functions = guest.tracefs("available_filter_functions")?;
    let restore = ["__fpu_restore_sig", "__fpu__restore_sig"];
    let function = restore.iter().find(|name| functions.lines().any(|line| line == **name));
    let function = function.context("no function restores the state")?;
    let answer = guest.wait_for(guest.client.disassemble_function(function, ProbeKind::Entry))??;
    let mut refused = 0;
    for (index, one) in answer.instructions.iter().enumerate() {
        if one.rule == "EXPECTED_FAULT" {
            let place = format!("p:m/fault {function}+{}", one.offset);
            let refusal = guest.refusal(&place)?;
            ensure!(
                refusal.reason == "EXPECTED_FAULT" && refusal.message.contains("can fault"),
                "{refusal:?}"
            );
            refused += 1;
        } else if one.probeable && one.text.contains("xrstor") {
            ensure!(guest.add(&format!("p:m/restore{index} {function}+{}", one.offset)).is_ok());
        }
    }
    ensure!(refused > 3, "{refused} places of {function} are refused");
    let ended = guest.workload(&["sigframe"])?;
    ensure!(ended == ["SIGSEGV"], "{ended:?}");
    ensure_healthy(&guest)
}

/// Places with what they read, one for each line. Which of them the kernel takes is not known.
fn random_definitions(random: &mut Random, functions: &[&str], count: usize) -> Vec<String> {
    const FETCHES: [&str; 8] = [
        "",
        "a=%di b=%si:x32",
        "a=+0(%di):u64",
        "a=$comm b=$stack2",
        "a=+0(+8(%si)):string",
        "a=%ip:symbol",
        "a=+0(%sp):x64[8]",
        "a=+u0(%si):ustring",
    ];
    let one = |index: usize, random: &mut Random| {
        let listed = *random.pick(functions);
        let place = match listed.split_once(" [") {
            Some((name, module)) => format!("{}:{name}", module.trim_end_matches(']')),
            None => listed.to_owned(),
        };
        let fetches = *random.pick(&FETCHES);
        match random.below(4) {
            0 => format!("p:random/e{index} {place} {fetches}"),
            1 => format!("r:random/e{index} {place} {fetches} ret=$retval"),
            _ => format!("p:random/e{index} {place}+{} {fetches}", random.below(200)),
        }
    };
    (0..count).map(|index| one(index, random)).collect()
}

/// Has many parts of the kernel run.
const LOAD: &str = "\
    workload open /tmp/dangerous 65 384 200 > /dev/null; workload spawn 20 > /dev/null; workload storm 200 > /dev/null; \
    workload sigframe > /dev/null; cat /proc/[0-9]*/status /proc/meminfo /proc/interrupts > /dev/null 2>&1; \
    ls -lR /sys/kernel /sys/devices > /dev/null 2>&1; dd if=/dev/zero of=/tmp/load bs=64k count=64 2> /dev/null; sync; \
    rmmod virtio_rng 2> /dev/null; insmod /lib/kprobed-guest/modules/*-virtio_rng.ko 2> /dev/null; \
    echo 0 > /sys/devices/system/cpu/cpu1/online 2> /dev/null; echo 1 > /sys/devices/system/cpu/cpu1/online 2> /dev/null; true";

fn random_probes_under_load_harm_nobody(fixture: &Fixture) -> Result<()> {
    // Of one round.
    let probes = effort::pick(30, 60);
    // What all rounds record would fill the disk of the guest.
    let guest = fixture.daemon_with(&config("[spool]\nmax_mib = 16"))?;
    guest.shell("for file in /lib/kprobed-guest/modules/*.ko; do insmod $file 2> /dev/null; done; true")?;
    let functions = guest.tracefs("available_filter_functions")?;
    let functions: Vec<_> = functions.lines().collect();
    let mut random = Random::of_theme("dangerous");
    let mut armed = 0;
    for _ in 0..effort::pick(1, 60) {
        let lines = random_definitions(&mut random, &functions, 3 * probes);
        let answers = daemon_answers(&guest, &lines)?;
        let judged = lines.iter().zip(&answers);
        let accepted = judged.filter(|(_, answer)| answer.verdict() == Verdict::Accepted);
        let accepted: Vec<_> = accepted.map(|(line, _)| line.as_str()).take(probes).collect();
        let added = guest.ctl_fed("add -f -", &accepted.join("\n"))?;
        ensure!(added.code == 0, "{added:?}");
        armed += accepted.len();
        // Names the probes if the guest does not survive them.
        fixture.note(format_args!("armed {accepted:?}"));
        guest.shell(LOAD)?;
        ensure_healthy(&guest)?;
        guest.delete_all()?;
    }
    ensure!(armed >= probes / 2, "{armed} probes were armed");
    ensure_healthy(&guest)
}
