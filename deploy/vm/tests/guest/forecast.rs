//! Forecasts: what the daemon says that a hit takes, compared with what a loop of hits loses by it;
//! trials; and what is shown of all that.
//!
//! An emulated processor is not steady, and the host shares it with other work: the bounds are wide,
//! and the figures are printed.

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::machine::{Command, Signal};
use serde_json::Value;

use crate::Test;
use crate::budget::{config, storm};
use crate::daemon::DaemonGuest;
use crate::effort::is_full;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        a_forecast_is_what_is_measured,
        what_is_taken_is_shown,
    }
};

/// What is measured is at least this part of the forecast less its error, and at most the other of the
/// forecast and its error.
const BOUND: (f64, f64) = (0.7, 1.3);

/// How long a calibration may take in an emulated guest, in milliseconds.
const CALIBRATED_WITHIN_MS: u64 = 2500;

fn json(guest: &DaemonGuest, command: &str) -> Result<Vec<Value>> {
    let text = guest.ctl(&format!("{command} -o json"))?;
    Ok(serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>()?)
}

fn number(value: &Value) -> Result<f64> {
    // 64 bits are text in the JSON of protobuf.
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_f64().or(text).with_context(|| format!("{value} is no number"))
}

/// The forecast for a definition, and its error, in nanoseconds.
fn forecast(guest: &DaemonGuest, definition: &str) -> Result<(f64, f64)> {
    let answers = json(guest, &format!("check '{definition}'"))?;
    let cost = &answers.first().context("no answer")?["hit_cost"];
    ensure!(cost["calibrated"] == true, "{answers:?}\n{}", guest.log());
    Ok((number(&cost["ns"])?, number(&cost["error_ns"])?))
}

/// An instance that nothing reads, so that the reader does not share the loop's processor.
const INSTANCE: &str = "/sys/kernel/tracing/instances/measured";

/// What a hit takes from the loop: its speed without a probe and with it, which other tools arm with
/// the line that the daemon would write.
fn measured(guest: &DaemonGuest, definition: &str) -> Result<f64> {
    let answers = json(guest, &format!("check '{definition}'"))?;
    let line = answers.first().and_then(|answer| answer["kernel_definition"].as_str()).context("no line")?;
    let (name, _) = line.split_once(' ').context("no place")?;
    let (_, event) = name.split_once(':').context("no name")?;
    let events = "/sys/kernel/tracing/kprobe_events";
    // The fastest of each met no other work.
    let (mut without, mut with) = (0.0_f64, 0.0_f64);
    for _ in 0..7 {
        without = without.max(storm(guest, 150, 0)?.best_per_cpu_s);
        guest.shell(&format!(
            "mkdir {INSTANCE}; echo '{line}' >> {events}; echo 1 > {INSTANCE}/events/{event}/enable"
        ))?;
        with = with.max(storm(guest, 150, 0)?.best_per_cpu_s);
        guest.shell(&format!("rmdir {INSTANCE}; echo '-:{event}' >> {events}"))?;
    }
    Ok(1e9 / with - 1e9 / without)
}

fn a_forecast_is_what_is_measured(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(&config(0, 0, ""))?;
    let told = guest.shell("grep 'measured what hits cost' /run/log/kprobed.log")?;
    fixture.note(told.trim());
    let took = told.split_once("took_ms=").and_then(|(_, rest)| rest.split([' ', '\n']).next());
    let took: u64 = took.context("it is not said how long it took")?.parse()?;
    ensure!(!is_full() || took <= CALIBRATED_WITHIN_MS, "{told}");
    let left = guest.shell("cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances")?;
    ensure!(!left.contains("temporary"), "{left}");
    let arguments = "a=%di:u64 b=%si:u64 c=%dx:u64 d=%cx:u64";
    let definitions = [
        "p:plain __x64_sys_getppid".to_owned(),
        format!("p:fetching __x64_sys_getppid {arguments}"),
        "r:returning __x64_sys_getppid value=$retval:u64".to_owned(),
        // Beside each value stands a guard.
        "p:reading __x64_sys_getppid a=+8(%sp):u64 b=+16(%sp):u64 c=+24(%sp):u64 d=+32(%sp):u64".to_owned(),
        "p:behind __x64_sys_getppid a=+0(%di):u64 b=+128(%di):u64".to_owned(),
        "p:named __x64_sys_getppid comm=$comm".to_owned(),
        // The name of the operating system.
        "p:texts __x64_sys_getppid a=@init_uts_ns:string b=@init_uts_ns:string c=$comm".to_owned(),
    ];
    for definition in &definitions {
        let (ns, error_ns) = forecast(&guest, definition)?;
        ensure!(ns > 0.0 && error_ns > 0.0, "{definition}: {ns} ns, error {error_ns} ns");
        // A busy host measures something else: only before a release.
        if !is_full() {
            continue;
        }
        let found = measured(&guest, definition)?;
        let ratio = ns / found;
        fixture.note(format_args!(
            "{definition}: forecast {ns:.0} ns, error {error_ns:.0} ns, measured {found:.0} ns: {:.0} % of it",
            100.0 * ratio
        ));
        // The error says how far the values that are read can change it.
        ensure!(
            found >= BOUND.0 * (ns - error_ns) && found <= BOUND.1 * (ns + error_ns),
            "{definition}: {ns} ns, error {error_ns} ns, and measured {found} ns"
        );
    }
    // It is not measured again on the same kernel.
    let before = forecast(&guest, "p:plain __x64_sys_getppid")?;
    guest.kill_and_restart()?;
    ensure!(forecast(&guest, "p:plain __x64_sys_getppid")? == before);

    // Temporary probes see a steady rate, and leave nothing.
    let steady = Command::new("workload").args(["storm", "60000", "--per-second", "5000"]);
    guest.machine.spawn("steady", &steady)?;
    let mut rates = Vec::new();
    // The first ones may come before the loop.
    while rates.len() < 5 {
        let counted = json(&guest, "hits 'p:tried __x64_sys_getppid' --for 100ms")?;
        let [counted] = counted.as_slice() else { bail!("{counted:?}") };
        rates.extend(Some(number(&counted["hits_per_second"])?).filter(|rate| *rate > 0.0));
    }
    guest.machine.signal("steady", Signal::SIGKILL)?;
    rates.sort_by(f64::total_cmp);
    fixture.note(format_args!("counts of 5000 hits a second find {rates:.0?}"));
    ensure!(!is_full() || (2500.0..10_000.0).contains(&rates[2]), "{rates:?}");
    let left = guest.shell("cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances")?;
    ensure!(!left.contains("temporary") && guest.probes()?.is_empty(), "{left}");
    Ok(())
}

fn what_is_taken_is_shown(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config(0, 0, ""))?;
    guest.add("p:taken __x64_sys_getppid")?;
    let cost = |guest: &DaemonGuest| -> Result<Value> {
        let costs = json(guest, "hits --cost")?;
        costs.into_iter().find(|probe| probe["probe"] == "kprobes/taken").context("it is not there")
    };
    storm(&guest, 3000, 1000)?;
    let shown = cost(&guest)?;
    let (per_s, ns_per_s) = (number(&shown["hits_per_second"])?, number(&shown["ns_per_second"])?);
    // On average over what the daemon has watched, which is longer than the loop took.
    ensure!(per_s > 5.0 && per_s < 1500.0, "{shown}");
    ensure!((ns_per_s / (per_s * number(&shown["hit_cost"]["ns"])?) - 1.0).abs() < 0.01, "{shown}");
    let table = guest.ctl("hits --cost")?;
    ensure!(table.lines().any(|line| line.starts_with("kprobes/taken ") && line.ends_with(" %")), "{table}");
    Ok(())
}
