//! A module that is loaded again as another build: a probe in it is held back, although the kernel
//! would arm it.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ProbeState;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::fixture::Fixture;
use crate::kernel_module::{Build, Function};
use crate::triggers::{config, wait_for_note};

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        an_address_is_not_that_of_another_module,
        another_build_of_a_module_is_held_back,
    }
};

/// The module that there are two builds of.
pub(crate) const MODULE: &str = "kpd_twin";

/// The two builds, by the byte that their build ids are made of. At the same distance both have the
/// same instruction: another one leads there.
pub(crate) const BUILDS: [(u8, &[u8]); 2] = [
    // mov eax, 0; nop
    (0x11, &[0xb8, 0, 0, 0, 0, 0x90]),
    // xor eax, eax; nop (three bytes); nop
    (0x22, &[0x31, 0xc0, 0x0f, 0x1f, 0x00, 0x90]),
];

/// Where that instruction is in the body.
const DISTANCE: usize = 5;

const CALLS: usize = 3;

/// Calls the function, and sees how many of the calls are recorded.
fn records(guest: &DaemonGuest, hits: usize) -> Result<()> {
    let calls = format!("for i in $(seq {CALLS}); do echo 1 > /sys/module/{MODULE}/parameters/call; done");
    let recording = guest.record(|| guest.shell(&calls).map(drop))?;
    let recorded = recording.events.iter().filter(|event| event.probe == "kprobes/probed").count();
    ensure!(recorded == hits, "{recorded} of {hits}\n{}", guest.log());
    Ok(())
}

/// Puts both builds into the guest. Returns the place at which they differ.
pub(crate) fn put_builds(guest: &DaemonGuest) -> Result<String> {
    let build = Build::of(guest)?;
    for (build_id, body) in BUILDS {
        let module = build.module(MODULE, build_id, &Function::new("twin_called", body))?;
        guest.machine.put(&format!("/tmp/{build_id}.ko"), 0o644, &module)?;
    }
    Ok(format!("{MODULE}:twin_called+{}", build.body_at() + DISTANCE))
}

/// Loads one of them.
pub(crate) fn load(guest: &DaemonGuest, build_id: u8) -> Result<()> {
    guest.shell(&format!("insmod /tmp/{build_id}.ko")).map(drop)
}

/// The address of a function, as the kernel lists it.
fn address_of(guest: &DaemonGuest, function: &str) -> Result<String> {
    let digits = guest.shell(&format!("grep -w {function} /proc/kallsyms | head -n 1 | cut -c1-16"))?;
    Ok(format!("0x{}", digits.trim()))
}

/// The kernel gives the memory of a module to the next one, whose functions can begin where those of the
/// first one did.
fn an_address_is_not_that_of_another_module(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    let build = Build::of(&guest)?;
    for (module, function) in [("kpd_one", "one_called"), ("kpd_two", "two_called")] {
        let image = build.module(module, 0x33, &Function::returning(function, 0))?;
        guest.machine.put(&format!("/tmp/{module}.ko"), 0o644, &image)?;
    }
    guest.shell("insmod /tmp/kpd_one.ko")?;
    let address = address_of(&guest, "one_called")?;
    let probe = guest.add(&format!("p:addressed {address}"))?;
    ensure!(probe.state() == ProbeState::Armed && probe.location == "kpd_one:one_called+0x0", "{probe:?}");
    guest.shell("rmmod kpd_one")?;
    wait_for_note(&guest, "addressed", "PLACE_CHANGED")?;
    guest.shell("insmod /tmp/kpd_two.ko")?;
    let is_same = address_of(&guest, "two_called")? == address;
    guest.wait_for(guest.client.reconcile_probes(true))??;
    let probe = guest.probe("addressed")?;
    let says = probe.state_hint.contains("write `kpd_one:one_called+0x0`");
    ensure!(probe.state() == ProbeState::HeldBack && says, "{probe:?}");
    let recording = guest.record(|| guest.shell("echo 1 > /sys/module/kpd_two/parameters/call").map(drop))?;
    ensure!(recording.events.is_empty(), "{recording:?}");
    guest.shell("rmmod kpd_two; insmod /tmp/kpd_one.ko")?;
    let is_back = address_of(&guest, "one_called")? == address;
    if is_back {
        wait_for_note(&guest, "addressed", "Armed")?;
    }
    fixture.note(format_args!(
        "another module {} the address of a probe, and the first one {} it again",
        if is_same { "had" } else { "did not have" },
        if is_back { "had" } else { "did not have" },
    ));
    guest.delete("addressed")?;
    guest.shell("rmmod kpd_one").map(drop)
}

fn another_build_of_a_module_is_held_back(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    let place = put_builds(&guest)?;
    let [(first, _), (second, _)] = BUILDS;
    load(&guest, first)?;
    let probe = guest.add(&format!("p:probed {place}"))?;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
    records(&guest, CALLS)?;

    // At once, so that it can have the address of the first: size and name are the same.
    guest.shell(&format!("rmmod {MODULE}"))?;
    load(&guest, second)?;
    let held = wait_for_note(&guest, "probed", "CODE_CHANGED")?;
    records(&guest, 0)?;
    let events = guest.tracefs("kprobe_events")?;
    ensure!(!events.contains("kprobes/probed"), "it is in the kernel: {events}");
    let probe = guest.probe("probed")?;
    ensure!(probe.state() == ProbeState::HeldBack, "{probe:?}");
    let change = probe.meaning_change.context("nothing has changed")?;
    let id = |build_id: u8| format!("{build_id:02x}").repeat(20);
    let module =
        |found: Option<kprobed_client::api::KernelBuild>| found.map(|found| (found.name, found.build_id));
    ensure!(module(change.module_made_for.clone()) == Some((MODULE.to_owned(), id(first))), "{change:?}");
    ensure!(module(change.module_running.clone()) == Some((MODULE.to_owned(), id(second))), "{change:?}");
    let difference = change.differences.first().context("no difference")?;
    ensure!(difference.before.contains("mov") && !difference.before.contains("xor"), "{change:?}");
    ensure!(difference.after.contains("xor") && !difference.after.contains("mov"), "{change:?}");
    guest.ctl_shows("get probed", &["xor", "mov"])?;
    // The kernel itself would arm it.
    guest.shell(&format!("echo 'p:neighbours/same {place}' >> {TRACEFS}/kprobe_events"))?;
    guest.shell(&format!("echo -:neighbours/same >> {TRACEFS}/kprobe_events"))?;

    guest.shell(&format!("rmmod {MODULE}"))?;
    load(&guest, first)?;
    let armed = wait_for_note(&guest, "probed", "Armed")?;
    records(&guest, CALLS)?;
    fixture.note(format_args!(
        "another build of a module is held back after {held:.1?}, and the first one armed again after {armed:.1?}"
    ));
    let probe = guest.probe("probed")?;
    ensure!(probe.state() == ProbeState::Armed && probe.meaning_change.is_none(), "{probe:?}");
    guest.delete("probed")?;
    guest.shell(&format!("rmmod {MODULE}")).map(drop)
}
