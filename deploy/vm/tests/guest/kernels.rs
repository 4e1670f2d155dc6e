//! One disk booted with two kernels in turn: probes that mean the same are armed; all others are
//! held back with both meanings shown, and armed again on the kernel that they were made for.
//!
//! The test of each kernel begins with that one and boots the other, so that both directions are
//! tried.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::Error;
use kprobed_client::api::{
    CreateProbeRequest, KernelChange, MeaningChange, Probe, ProbeState, UpdateProbeRequest,
};
use kprobed_vm::daemon;
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, creation, refused, update};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        one_disk_and_two_kernels,
    }
};

/// Flags of `open`: O_WRONLY, O_CREAT, O_APPEND.
const FLAGS: u32 = 0o1 | 0o100 | 0o2000;

/// Definitions that mean the same on both kernels. `named` lies elsewhere, and resolves anew.
const SAME: [&str; 4] = [
    "p:plain vfs_unlink",
    "p:registers do_sys_openat2 dfd=%di:s32 filename=+0(%si):string",
    "p:named vfs_open flags=file->f_flags",
    // `do_sys_openat2` gives a `long` on some kernels, and an `int` on others.
    "r:result vfs_open ret=$retval:s32",
];

/// `inet_csk_accept` lost two of its parameters in 6.10: `%si` is something else since.
const ACCEPT: &str = "p:accept inet_csk_accept flags=%si:s32";

fn states(guest: &DaemonGuest) -> Result<BTreeMap<String, Probe>> {
    let probes = guest.probes()?.into_iter();
    Ok(probes.map(|probe| (probe.name.trim_start_matches("kprobes/").to_owned(), probe)).collect())
}

fn expect(guest: &DaemonGuest, expected: &[(&str, ProbeState, &str)]) -> Result<BTreeMap<String, Probe>> {
    let probes = states(guest)?;
    let found: Vec<_> = probes
        .iter()
        .map(|(name, probe)| (name.as_str(), probe.state(), probe.state_reason.as_str()))
        .collect();
    let mut expected = expected.to_vec();
    expected.sort_unstable_by_key(|(name, ..)| *name);
    ensure!(found == expected, "{found:?} instead of {expected:?}\n{}", guest.log());
    // What is held back is not in the kernel.
    let there = guest.tracefs("kprobe_events")?;
    for (name, state, _) in expected {
        let is_there = there.lines().any(|line| line.contains(&format!("kprobes/{name} ")));
        ensure!(is_there != (state == ProbeState::HeldBack), "{name}: {there}");
    }
    Ok(probes)
}

/// Opens a file with [`FLAGS`]: a probe that reads them as `flags` has recorded them, and nothing
/// else.
fn expect_flags(guest: &DaemonGuest, probes: &[&str]) -> Result<()> {
    let recording = guest
        .record(|| guest.workload(&["open", "/tmp/opened", &FLAGS.to_string(), "384", "1"]).map(drop))?;
    for probe in probes {
        let flags: Vec<u32> = recording
            .of(&format!("kprobes/{probe}"), "workload")
            .filter_map(|event| event.field("flags").parse().ok())
            .collect();
        ensure!(flags.iter().any(|flags| flags & FLAGS == FLAGS), "{probe}: {flags:?} {recording:?}");
    }
    Ok(())
}

fn change(probes: &BTreeMap<String, Probe>, name: &str) -> Result<MeaningChange> {
    let probe = probes.get(name).context("it is gone")?;
    let change = probe.meaning_change.clone().with_context(|| format!("{probe:?}"))?;
    let build = |build: &Option<kprobed_client::api::KernelBuild>| build.clone().unwrap_or_default().build_id;
    let (made_for, running) = (build(&change.made_for), build(&change.running));
    ensure!(made_for.len() == 40 && running.len() == 40 && made_for != running, "{change:?}");
    Ok(change)
}

fn one_disk_and_two_kernels(fixture: &Fixture) -> Result<()> {
    let disk = fixture.disk_name("kernels");
    let guest = fixture.own_daemon("kernels", daemon::DEFAULT_CONFIG)?;
    for definition in SAME {
        guest.add(definition)?;
    }
    guest.add(ACCEPT)?;
    guest.add("p:accepted inet_csk_accept flags=%si:s32")?;
    let anyway = CreateProbeRequest {
        on_kernel_change: KernelChange::ArmAnyway.into(),
        ..creation("p:anyway inet_csk_accept flags=%si:s32", "")
    };
    guest.wait_for(guest.client.create_probe(anyway))??;
    // The same member as `named`, written as the offset that a user has looked up.
    let named = guest.probe("named")?.kernel_definition;
    let offset = named.split_once("flags=+").and_then(|(_, rest)| rest.split('(').next());
    let offset: u32 = offset.context("no offset")?.parse()?;
    for name in ["raw", "ported"] {
        guest.add(&format!("p:{name} vfs_open flags=+{offset}(%si):u32"))?;
    }
    // Where an instruction begins that can be probed, well inside of a function.
    guest.add(&format!("p:inside {}", guest.place_from("vfs_read", 61)?))?;
    let (held, armed) = (ProbeState::HeldBack, ProbeState::Armed);
    let all =
        ["plain", "registers", "named", "result", "accept", "accepted", "anyway", "raw", "ported", "inside"];
    let at_home: Vec<_> = all.iter().map(|name| (*name, armed, "")).collect();
    let before = expect(&guest, &at_home)?;
    ensure!(before.values().all(|probe| probe.meaning_change.is_none()), "{before:?}");
    expect_flags(&guest, &["named", "raw"])?;
    guest.machine.power_off()?;

    let mut guest = DaemonGuest::boot_other(fixture, &disk, daemon::DEFAULT_CONFIG)?;
    let elsewhere = [
        ("plain", armed, ""),
        ("registers", armed, ""),
        ("named", armed, ""),
        ("result", armed, ""),
        ("accept", held, "PROTOTYPE_CHANGED"),
        ("accepted", held, "PROTOTYPE_CHANGED"),
        ("anyway", armed, ""),
        ("raw", held, "LAYOUT_CHANGED"),
        ("ported", held, "LAYOUT_CHANGED"),
        ("inside", held, "CODE_CHANGED"),
    ];
    let probes = expect(&guest, &elsewhere)?;
    // The daemon that starts anew on the same kernel comes to the same.
    guest.kill_and_restart()?;
    expect(&guest, &elsewhere)?;
    expect_flags(&guest, &["named"])?;
    shows_both_sides(&guest, &probes, offset)?;
    // Neither a switch nor another filter arms it.
    ensure!(refused(guest.wait_for(guest.client.set_enabled("accept", true))?)?.reason == "HELD_BACK");
    ensure!(
        refused(guest.wait_for(guest.client.set_filter("accept", "flags == 1"))?)?.reason == "NOT_IN_KERNEL"
    );
    // Another policy does, and an acceptance does.
    let policy = |on_kernel_change: KernelChange| {
        let on_kernel_change = on_kernel_change.into();
        let request = UpdateProbeRequest { on_kernel_change, ..update("inside") };
        guest.wait_for(guest.client.update_probe(request))
    };
    match policy(KernelChange::ArmAnyway)? {
        // The place may not even be one here.
        Err(Error::Rpc(error)) => progress::note(format_args!("not armed anyway: {}", error.message)),
        inside => {
            let inside = inside?;
            ensure!(inside.state() == armed && inside.meaning_change.is_some(), "{inside:?}");
            policy(KernelChange::Hold)??;
        }
    }
    let accept = |name: &str, etag: &str| UpdateProbeRequest {
        etag: etag.to_owned(),
        request_id: format!("accept-{name}"),
        accept: true,
        ..update(name)
    };
    let stale = guest.wait_for(guest.client.update_probe(accept("accepted", "1-99")))?;
    ensure!(refused(stale)?.reason == "ETAG_MISMATCH");
    let etag = &probes.get("accepted").context("it is gone")?.etag;
    let accepted = guest.wait_for(guest.client.update_probe(accept("accepted", etag)))??;
    ensure!(accepted.state() == armed && accepted.etag != *etag && accepted.meaning_change.is_none());
    let again = guest.wait_for(guest.client.update_probe(accept("accepted", etag)))??;
    ensure!(again.etag == accepted.etag, "it was repeated: {again:?}");
    let nothing = guest.wait_for(guest.client.update_probe(accept("plain", "")))?;
    ensure!(refused(nothing)?.reason == "NOT_HELD_BACK");
    // The line for this kernel is applied as any other.
    let offered = change(&probes, "ported")?.offered_definition;
    ensure!(guest.probe("ported")?.state_hint.contains(&format!("as `{offered}` it records here")));
    let port = UpdateProbeRequest { definition: Some(offered), ..update("ported") };
    ensure!(guest.wait_for(guest.client.update_probe(port))??.state() == armed);
    expect_flags(&guest, &["named", "ported"])?;
    guest.machine.power_off()?;

    let guest = DaemonGuest::boot(fixture, &disk, daemon::DEFAULT_CONFIG)?;
    let home: Vec<_> = all
        .iter()
        .map(|name| match *name {
            // What was accepted there is not what it records here.
            "accepted" => ("accepted", held, "PROTOTYPE_CHANGED"),
            "ported" => ("ported", held, "LAYOUT_CHANGED"),
            name => (name, armed, ""),
        })
        .collect();
    let probes = expect(&guest, &home)?;
    let back = change(&probes, "ported")?.offered_definition;
    ensure!(back == format!("p:kprobes/ported vfs_open flags=+{offset}(%si):u32"), "{back}");
    let others = probes.iter().filter(|(name, _)| !["accepted", "ported"].contains(&name.as_str()));
    ensure!(others.clone().all(|(_, probe)| probe.meaning_change.is_none()), "{probes:?}");
    expect_flags(&guest, &["named", "raw"])?;
    Ok(())
}

/// What clients and people see of probes that are held back.
fn shows_both_sides(guest: &DaemonGuest, probes: &BTreeMap<String, Probe>, offset: u32) -> Result<()> {
    let accept = change(probes, "accept")?;
    let [difference] = accept.differences.as_slice() else { bail!("{accept:?}") };
    let sides = [&difference.before, &difference.after];
    ensure!(
        sides.iter().all(|side| side.starts_with("struct sock *inet_csk_accept(struct sock *sk, ")),
        "{sides:?}"
    );
    ensure!(difference.before != difference.after && difference.argument == "flags", "{difference:?}");
    ensure!(sides.iter().any(|side| side.contains("struct proto_accept_arg *arg")), "{sides:?}");
    ensure!(accept.offered_definition.is_empty(), "nothing else holds that value: {accept:?}");
    ensure!(change(probes, "anyway")?.differences == accept.differences);
    // The member is found where the kernel's own name for it leads.
    let raw = change(probes, "raw")?;
    let named = guest.probe("named")?.kernel_definition;
    let here =
        named.split_once("flags=+").and_then(|(_, rest)| rest.split('(').next()).context("no offset")?;
    ensure!(here != offset.to_string(), "`f_flags` has not moved");
    ensure!(raw.offered_definition == format!("p:kprobes/raw vfs_open flags=+{here}(%si):u32"), "{raw:?}");
    ensure!(raw.differences[0].before.contains("f_flags") && !raw.differences[0].after.contains("f_flags"));
    let inside = change(probes, "inside")?;
    ensure!(inside.differences[0].before.lines().any(|line| line.starts_with('>')), "{inside:?}");
    // For people.
    let running = raw.running.as_ref().map_or_else(String::new, |kernel| format!("ON {}", kernel.name));
    for columns in [40, 200] {
        let shown = guest.shell(&format!("COLUMNS={columns} kprobectl get raw"))?;
        let both = ["MADE FOR", running.as_str(), "f_flags", &raw.offered_definition];
        ensure!(both.iter().all(|word| shown.contains(word)), "{shown}");
        let beside = shown.lines().any(|line| line.contains("MADE FOR") && line.contains(&running));
        ensure!(beside == (columns == 200), "{shown}");
    }
    let held: serde_json::Value = serde_json::from_str(&guest.ctl("get accept -o json")?)?;
    let of_change = &held["meaning_change"]["differences"][0];
    ensure!(of_change["code"] == "PROTOTYPE_CHANGED" && of_change["before"].is_string(), "{held}");
    ensure!(held["state"] == "PROBE_STATE_HELD_BACK", "{held}");
    Ok(())
}
