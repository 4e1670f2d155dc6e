//! Roll-outs on a real daemon: gates read its ledger, and its probes and stored request ids make a retry
//! harmless.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::{Command, Signal};
use serde_json::Value;

use crate::Test;
use crate::budget::config;
use crate::daemon::{DaemonGuest, Running, Said, kprobectl};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_roll_out_is_made_repeated_and_undone,
        gates_are_about_this_kernel,
        a_check_says_what_is_recorded,
    }
    Seldom {
        a_probe_that_it_pushes_out_stops_it,
        a_probe_that_costs_too_much_stops_it,
        a_roll_out_marks_what_it_makes,
        a_daemon_that_is_started_anew_lets_it_wait,
    }
};

const BEFORE: &str = "p:kprobes/known do_sys_openat2 dfd=$arg1:s32";

const WANTED: &str = "\
probe: kprobes/known
definition: p:kprobes/known do_sys_openat2 flags=$arg3:x64
enabled: true
---
probe: kprobes/fresh
definition: p:kprobes/fresh vfs_read
enabled: true
";

/// Runs `kprobectl rollout` with these arguments.
fn rollout(guest: &DaemonGuest, arguments: &str) -> Result<Said> {
    Said::new(&kprobectl(guest.home(), &format!("rollout {arguments}"))?.output()?)
}

/// The arguments that roll `wanted.yaml` out to the guest.
fn apply(guest: &DaemonGuest) -> Result<String> {
    Ok(format!(
        "apply -f wanted.yaml --hosts {} --waves 100% --soak 2s --state roll.json -o json",
        guest.target()?
    ))
}

/// A probe that is there before, and documents that change it.
fn prepare(guest: &DaemonGuest) -> Result<()> {
    guest.add(BEFORE)?;
    guest.wait_for(guest.client.set_filter("known", "dfd == -100"))??;
    guest.write_for_ctl("wanted.yaml", WANTED)?;
    forget(guest)
}

/// Forgets the roll-outs before.
fn forget(guest: &DaemonGuest) -> Result<()> {
    match fs::remove_file(guest.home().join("roll.json")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Name, definition, filter and incarnation of all probes.
fn probes(guest: &DaemonGuest) -> Result<Vec<(String, String, String, i64)>> {
    let probes = guest.probes()?.into_iter();
    Ok(probes.map(|probe| (probe.name, probe.definition, probe.filter, probe.uid)).collect())
}

fn is_as_before(guest: &DaemonGuest) -> Result<()> {
    let probes = probes(guest)?;
    let [(name, definition, filter, _)] = probes.as_slice() else { anyhow::bail!("{probes:?}") };
    ensure!(name == "kprobes/known" && definition == BEFORE && filter == "dfd == -100", "{probes:?}");
    Ok(())
}

fn a_roll_out_is_made_repeated_and_undone(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    prepare(&guest)?;
    let plan = format!("plan -f wanted.yaml --hosts {} --waves 100% --state roll.json", guest.target()?);
    let said = rollout(&guest, &plan)?;
    ensure!(said.code == 0 && said.all().contains("accepted"), "{said:?}");
    let apply = apply(&guest)?;
    let said = rollout(&guest, &apply)?;
    ensure!(said.code == 0, "{said:?}");
    let made = probes(&guest)?;
    ensure!(made.len() == 2 && made.iter().all(|(_, _, filter, _)| filter.is_empty()), "{made:?}");
    // As if the client had ended right after the request: what it asked for is found on the host.
    let file = guest.home().join("roll.json");
    let state: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let mut again = state.clone();
    again["phase"] = "running".into();
    again["wave"] = 1.into();
    again["hosts"][0]["step"] = "intended".into();
    again["hosts"][0]["armed"] = serde_json::json!({});
    ensure!(again["hosts"][0]["changes"].as_object().is_some_and(|changes| changes.len() == 2), "{again}");
    fs::write(&file, again.to_string())?;
    let said = rollout(&guest, "resume --state roll.json")?;
    ensure!(said.code == 0, "{said:?}");
    ensure!(probes(&guest)? == made, "the same probes, and no new incarnation: {made:?}");
    let said = rollout(&guest, "undo --state roll.json")?;
    ensure!(said.code == 0 && said.all().contains("undone: 1 host put back as they were"), "{said:?}");
    is_as_before(&guest)?;

    // What is refused is refused before anything is changed, and nothing is left of having asked.
    forget(&guest)?;
    guest.write_for_ctl("wanted.yaml", &WANTED.replace("vfs_read", "no_such_function"))?;
    let said = rollout(&guest, &plan)?;
    let text = said.all();
    ensure!(
        said.code == 1 && text.contains("the change is refused") && text.contains("kprobes/fresh"),
        "{said:?}"
    );
    let said = rollout(&guest, &apply)?;
    let text = said.all();
    ensure!(
        said.code == 1 && text.contains("the change is refused") && !text.contains("\"intended\""),
        "{said:?}"
    );
    ensure!(text.contains("\"phase\":\"undone\""), "{text}");
    is_as_before(&guest)
}

/// The mark of the roll-out on each probe that has one, by name.
fn marks(guest: &DaemonGuest) -> Result<Vec<(String, String)>> {
    let mark =
        |probe: kprobed_client::api::Probe| Some((probe.name, probe.labels.get("kprobed/rollout")?.clone()));
    Ok(guest.probes()?.into_iter().filter_map(mark).collect())
}

fn a_roll_out_marks_what_it_makes(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    prepare(&guest)?;
    // It is as wanted already, and of no roll-out.
    guest.add("p:kprobes/same __x64_sys_getsid")?;
    let wanted = format!("{WANTED}---\nprobe: kprobes/same\ndefinition: p:kprobes/same __x64_sys_getsid\n");
    guest.write_for_ctl("wanted.yaml", &wanted)?;
    let apply = apply(&guest)?;
    let said = rollout(&guest, &apply)?;
    ensure!(said.code == 0, "{said:?}");
    let marked = marks(&guest)?;
    let [(fresh, name), (known, other)] = marked.as_slice() else { anyhow::bail!("{marked:?}") };
    ensure!(fresh == "kprobes/fresh" && known == "kprobes/known" && name == other, "{marked:?}");
    let made = probes(&guest)?;
    // The documents do not have the mark, and that is no difference. Nor is there one for a second roll-out.
    let applied = guest.ctl("apply -f wanted.yaml")?;
    ensure!(applied.matches("unchanged").count() == 3, "{applied}");
    let said = rollout(&guest, &apply.replace("roll.json", "again.json"))?;
    ensure!(said.code == 0 && probes(&guest)? == made && marks(&guest)? == marked, "{said:?}");
    // A document that gives a probe to another roll-out.
    let other = wanted.replace("enabled: true", "enabled: true\nlabels: {kprobed/rollout: other}");
    guest.write_for_ctl("other.yaml", &other)?;
    let said = rollout(&guest, &apply.replace("wanted.yaml", "other.yaml").replace("roll.json", "x.json"))?;
    ensure!(
        said.code == 2 && said.all().contains("has the label `kprobed/rollout=other`, and this roll-out is"),
        "{said:?}"
    );
    let said = guest.ctl_says("apply -f other.yaml")?;
    let of = format!("has the label `kprobed/rollout=other`, and it is of the roll-out `{name}`");
    ensure!(said.code == 2 && said.all().contains(&of), "{said:?}");
    let said = rollout(&guest, "undo --state roll.json")?;
    ensure!(said.code == 0 && marks(&guest)?.is_empty(), "{said:?}");
    // Made again, and then changed: it is the same roll-out, also after the change was taken back.
    let said = rollout(&guest, &apply.replace("roll.json", "third.json"))?;
    ensure!(said.code == 0 && marks(&guest)? == marked, "{said:?}");
    let made = probes(&guest)?;
    guest.write_for_ctl("wanted.yaml", &wanted.replace("flags=$arg3:x64", "flags=$arg3:x32"))?;
    let said = rollout(&guest, &apply.replace("roll.json", "fourth.json"))?;
    ensure!(said.code == 0 && probes(&guest)? != made && marks(&guest)? == marked, "{said:?}");
    let said = rollout(&guest, "undo --state fourth.json")?;
    ensure!(said.code == 0 && marks(&guest)? == marked, "{said:?}");
    Ok(())
}

/// Rolls documents out beside 6000 calls a second, until a budget stops it and all is undone. What it says.
fn stopped_by_a_budget(guest: &DaemonGuest, wanted: &str) -> Result<String> {
    guest.write_for_ctl("wanted.yaml", wanted)?;
    let steady = Command::new("workload").args(["storm", "120000", "--per-second", "6000"]);
    guest.machine.spawn("steady", &steady)?;
    forget(guest)?;
    let rolling = apply(guest)?.replace("--soak 2s", "--soak 60s");
    let said = rollout(guest, &format!("{rolling} --gate errors=off --gate hits=off"))?;
    let (code, text) = (said.code, said.all());
    guest.machine.signal("steady", Signal::SIGKILL)?;
    ensure!(code == 1 && text.contains("\"phase\":\"undone\""), "{code} {text}");
    Ok(text)
}

fn a_probe_that_costs_too_much_stops_it(fixture: &Fixture) -> Result<()> {
    let config = config(2_000_000, 0, "calibrate = false");
    let guest = fixture.daemon_with(&config)?;
    guest.add("p:others/there __x64_sys_getsid")?;
    let one = |name: &str| {
        format!("probe: kprobes/{name}\ndefinition: p:kprobes/{name} __x64_sys_getppid\nenabled: true\n")
    };
    // 500 ns each: 3 ms a second by each of the two probes. A guest makes that many calls beside much other work too.
    let text = stopped_by_a_budget(&guest, &format!("{}---\n{}", one("one"), one("two")))?;
    ensure!(text.contains("budget: `kprobes/") && text.contains(" is tripped: disarmed at "), "{text}");
    ensure!(text.contains("a probe may take 2.0 ms (`budget.probe_ns_per_s`)"), "{text}");
    let left = guest.probes()?;
    ensure!(left.len() == 1 && left[0].name == "others/there" && left[0].state_reason.is_empty(), "{left:?}");
    Ok(())
}

/// The most expensive probe of a host goes first, also if it was there before the roll-out.
fn a_probe_that_it_pushes_out_stops_it(fixture: &Fixture) -> Result<()> {
    let config = config(0, 4_000_000, "calibrate = false");
    let guest = fixture.daemon_with(&config)?;
    guest.add("p:others/there __x64_sys_getppid a=%di b=%si c=%dx d=%cx")?;
    let wanted = "probe: kprobes/one\ndefinition: p:kprobes/one __x64_sys_getppid\nenabled: true\n";
    // 500 ns a hit, and 20 for each argument: 3.5 ms and 3 ms a second.
    let text = stopped_by_a_budget(&guest, wanted)?;
    ensure!(text.contains("budget: `others/there` is tripped: disarmed at "), "{text}");
    let left = guest.probes()?;
    ensure!(left.len() == 1 && left[0].state_reason == "OVER_HOST_BUDGET", "{left:?}");
    Ok(())
}

/// Gates read the counts of the kernel.
fn gates_are_about_this_kernel(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    prepare(&guest)?;
    let apply = apply(&guest)?;
    // The program that carries the connection into the guest reads: its hits are above a limit of zero.
    let said = rollout(&guest, &format!("{apply} --gate hits<=0/s"))?;
    ensure!(said.code == 1 && said.all().contains("hits<=0/s: "), "{said:?}");
    is_as_before(&guest)?;
    forget(&guest)?;
    let said = rollout(&guest, &apply)?;
    ensure!(said.code == 0, "{said:?}");
    let state: Value = serde_json::from_str(&fs::read_to_string(guest.home().join("roll.json"))?)?;
    let rate = &state["hosts"][0]["figures"]["hits"]["count"];
    ensure!(rate.as_u64().is_some_and(|rate| rate > 0), "{state}");
    Ok(())
}

fn a_daemon_that_is_started_anew_lets_it_wait(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    prepare(&guest)?;
    let rolling = apply(&guest)?.replace("--soak 2s", "--soak 60s");
    let mut rolling = Running::start(kprobectl(guest.home(), &format!("rollout {rolling}"))?)?;
    guest.until("the change", || Ok(rolling.printed()?.contains("\"event\":\"changed\"")))?;
    guest.stop_and_restart()?;
    let said = rolling.end()?;
    let text = said.all();
    ensure!(said.code == 4, "{said:?}");
    // It was read when the daemon was back, or while it was away.
    ensure!(text.contains("the daemon was started again") || text.contains("no answer: "), "{text}");
    let said = rollout(&guest, "undo --state roll.json")?;
    ensure!(said.code == 0, "{said:?}");
    is_as_before(&guest)
}

/// `inet_csk_accept` lost two of its parameters in 6.10.
fn a_check_says_what_is_recorded(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let checked = guest.wait_for(guest.client.check_probe("p:accept inet_csk_accept a=%si"))??;
    let meaning = checked.meaning.with_context(|| format!("{:?}", checked.diagnostics))?;
    let value = meaning.values.first().context("no value")?;
    let (parameter, prototype) = if fixture.is_older_than(6, 10) {
        ("flags", "int flags, int *err, bool kern")
    } else {
        ("arg", "struct proto_accept_arg *arg")
    };
    ensure!(
        value.parameter == parameter && value.meaning.starts_with(&format!("parameter {parameter} (")),
        "{meaning:?}"
    );
    ensure!(meaning.prototype.contains(prototype), "{meaning:?}");
    Ok(())
}
