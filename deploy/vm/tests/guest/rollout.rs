//! Roll-outs on a real daemon: gates read its ledger, and its stored request ids make a retry
//! harmless.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, Signal};
use serde_json::Value;

use crate::Test;
use crate::budget::config;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = &[
    ("a_roll_out_is_made_repeated_and_undone", a_roll_out_is_made_repeated_and_undone),
    ("a_roll_out_marks_what_it_makes", a_roll_out_marks_what_it_makes),
    ("a_probe_that_costs_too_much_stops_it", a_probe_that_costs_too_much_stops_it),
    ("a_probe_that_it_pushes_out_stops_it", a_probe_that_it_pushes_out_stops_it),
    ("a_gate_that_fails_puts_everything_back", a_gate_that_fails_puts_everything_back),
    ("a_gate_is_about_the_daemons_own_time", a_gate_is_about_the_daemons_own_time),
    ("a_daemon_that_is_started_anew_lets_it_wait", a_daemon_that_is_started_anew_lets_it_wait),
    ("a_plan_says_what_the_kernel_would", a_plan_says_what_the_kernel_would),
    ("a_check_says_what_is_recorded", a_check_says_what_is_recorded),
];

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

/// How much processor time a daemon takes on an emulated CPU says nothing: more than there is, is
/// allowed.
const APPLY: &str = "kprobectl rollout apply -f /tmp/wanted.yaml --hosts /run/kprobed/kprobed.sock --waves 100% --soak 2s --state /tmp/roll.json -o json --gate 'cpu<=6400%'";

/// How long an emulated guest may take for anything.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs a command, and gives its exit code and what it printed.
fn run(guest: &DaemonGuest, script: &str) -> Result<(i32, String)> {
    let output = guest.machine.exec(&Command::shell(format!("{script}; echo \"exit $?\"")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let code = text.rsplit_once("exit ").with_context(|| all.clone())?.1.trim().parse()?;
    Ok((code, all))
}

/// A probe that is there before, and documents that change it.
fn prepare(guest: &DaemonGuest) -> Result<()> {
    guest.add(BEFORE)?;
    guest.shell("kprobectl filter known 'dfd == -100'")?;
    guest.shell(&format!("cat > /tmp/wanted.yaml <<'END'\n{WANTED}END\nrm -f /tmp/roll.json")).map(drop)
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
    let (code, text) = run(&guest, APPLY)?;
    ensure!(code == 0, "{text}");
    let made = probes(&guest)?;
    ensure!(made.len() == 2 && made.iter().all(|(_, _, filter, _)| filter.is_empty()), "{made:?}");
    // As if the client had ended right after the request: it is sent again as it was.
    let state: Value = serde_json::from_str(&guest.shell("cat /tmp/roll.json")?)?;
    let mut again = state.clone();
    again["phase"] = "running".into();
    again["wave"] = 0.into();
    again["hosts"][0]["step"] = "intended".into();
    ensure!(again["hosts"][0]["changes"].as_array().is_some_and(|changes| changes.len() == 2), "{again}");
    guest.shell(&format!("cat > /tmp/roll.json <<'END'\n{again}\nEND"))?;
    let (code, text) = run(&guest, "kprobectl rollout resume --state /tmp/roll.json")?;
    ensure!(code == 0, "{text}");
    ensure!(probes(&guest)? == made, "the same probes, and no new incarnation: {made:?}");
    let (code, text) = run(&guest, "kprobectl rollout undo --state /tmp/roll.json")?;
    ensure!(code == 0 && text.contains("undone: 1 host put back as they were"), "{text}");
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
    let same = "---\nprobe: kprobes/same\ndefinition: p:kprobes/same __x64_sys_getsid\n";
    guest.shell(&format!("cat >> /tmp/wanted.yaml <<'END'\n{same}END"))?;
    let (code, text) = run(&guest, APPLY)?;
    ensure!(code == 0, "{text}");
    let marked = marks(&guest)?;
    let [(fresh, name), (known, other)] = marked.as_slice() else { anyhow::bail!("{marked:?}") };
    ensure!(fresh == "kprobes/fresh" && known == "kprobes/known" && name == other, "{marked:?}");
    let made = probes(&guest)?;
    // The documents do not have the mark, and that is no difference. Nor is there one for a second roll-out.
    let applied = guest.shell("kprobectl apply -f /tmp/wanted.yaml")?;
    ensure!(applied.matches("unchanged").count() == 3, "{applied}");
    let (code, text) = run(&guest, &APPLY.replace("roll.json", "again.json"))?;
    ensure!(code == 0 && probes(&guest)? == made && marks(&guest)? == marked, "{text}");
    // A document that gives a probe to another roll-out.
    guest.shell(
        "sed 's/^enabled: true/&\\nlabels: {kprobed\\/rollout: other}/' /tmp/wanted.yaml > /tmp/other.yaml",
    )?;
    let (code, text) =
        run(&guest, &APPLY.replace("wanted.yaml", "other.yaml").replace("roll.json", "x.json"))?;
    ensure!(
        code == 2 && text.contains("has the label `kprobed/rollout=other`, and this roll-out is"),
        "{text}"
    );
    let (code, text) = run(&guest, "kprobectl apply -f /tmp/other.yaml")?;
    let of = format!("has the label `kprobed/rollout=other`, and it is of the roll-out `{name}`");
    ensure!(code == 2 && text.contains(&of), "{code} {text}");
    let (code, text) = run(&guest, "kprobectl rollout undo --state /tmp/roll.json")?;
    ensure!(code == 0 && marks(&guest)?.is_empty(), "{text}");
    // Made again, and then changed: it is the same roll-out, also after the change was taken back.
    let (code, text) = run(&guest, &APPLY.replace("roll.json", "third.json"))?;
    ensure!(code == 0 && marks(&guest)? == marked, "{text}");
    let made = probes(&guest)?;
    guest.shell("sed -i 's/flags=$arg3:x64/flags=$arg3:x32/' /tmp/wanted.yaml")?;
    let (code, text) = run(&guest, &APPLY.replace("roll.json", "fourth.json"))?;
    ensure!(code == 0 && probes(&guest)? != made && marks(&guest)? == marked, "{text}");
    let (code, text) = run(&guest, "kprobectl rollout undo --state /tmp/fourth.json")?;
    ensure!(code == 0 && marks(&guest)? == marked, "{text}");
    Ok(())
}

fn a_probe_that_costs_too_much_stops_it(fixture: &Fixture) -> Result<()> {
    let config = config(0, 0, "rollout_ns_per_s = 10000000\ncalibrate = false");
    let guest = fixture.own_daemon("rollout-trip", &config)?;
    guest.add("p:others/there __x64_sys_getppid")?;
    let one = |name: &str| {
        format!("probe: kprobes/{name}\ndefinition: p:kprobes/{name} __x64_sys_getppid\nenabled: true\n")
    };
    guest.shell(&format!("cat > /tmp/wanted.yaml <<'END'\n{}---\n{}END", one("one"), one("two")))?;
    // 500 ns each: 15 ms a second by each of the three probes.
    guest
        .machine
        .spawn("steady", &Command::new("workload").args(["storm", "120000", "--per-second", "30000"]))?;
    let rolling = APPLY.replace("--soak 2s", "--soak 60s");
    let (code, text) = run(&guest, &format!("{rolling} --name trial-7 --gate errors=off --gate hits=off"))?;
    guest.machine.signal("steady", Signal::SIGKILL)?;
    ensure!(code == 1 && text.contains("\"phase\":\"undone\""), "{code} {text}");
    ensure!(text.contains("budget: `kprobes/") && text.contains(" is tripped: disarmed at "), "{text}");
    let of = "all probes of the roll-out `trial-7` together may take 10.0 ms (`budget.rollout_ns_per_s`)";
    ensure!(text.contains(of), "{text}");
    let left = guest.probes()?;
    ensure!(left.len() == 1 && left[0].name == "others/there" && left[0].state_reason.is_empty(), "{left:?}");
    Ok(())
}

/// The most expensive probe of a host goes first, also if it was there before the roll-out.
fn a_probe_that_it_pushes_out_stops_it(fixture: &Fixture) -> Result<()> {
    let config = config(0, 20_000_000, "rollout_ns_per_s = 0\ncalibrate = false");
    let guest = fixture.own_daemon("rollout-pushes", &config)?;
    guest.add("p:others/there __x64_sys_getppid a=%di b=%si c=%dx d=%cx")?;
    let wanted = "probe: kprobes/one\ndefinition: p:kprobes/one __x64_sys_getppid\nenabled: true\n";
    guest.shell(&format!("cat > /tmp/wanted.yaml <<'END'\n{wanted}END"))?;
    // 500 ns a hit, and 20 for each argument: 17.4 ms and 15 ms a second.
    guest
        .machine
        .spawn("steady", &Command::new("workload").args(["storm", "120000", "--per-second", "30000"]))?;
    let rolling = APPLY.replace("--soak 2s", "--soak 60s");
    let (code, text) = run(&guest, &format!("{rolling} --gate errors=off --gate hits=off"))?;
    guest.machine.signal("steady", Signal::SIGKILL)?;
    ensure!(code == 1 && text.contains("\"phase\":\"undone\""), "{code} {text}");
    ensure!(text.contains("budget: `others/there` is tripped: disarmed at "), "{text}");
    let left = guest.probes()?;
    ensure!(left.len() == 1 && left[0].state_reason == "OVER_HOST_BUDGET", "{left:?}");
    Ok(())
}

fn a_gate_that_fails_puts_everything_back(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    prepare(&guest)?;
    // The command itself reads files: its own hits are above a limit of zero.
    let (code, text) = run(&guest, &format!("{APPLY} --gate 'hits<=0/s'"))?;
    ensure!(code == 1 && text.contains("hits<=0/s: "), "{code} {text}");
    is_as_before(&guest)
}

/// The daemon that answers readings uses some time, and no more than all CPUs have.
fn a_gate_is_about_the_daemons_own_time(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    prepare(&guest)?;
    let (code, text) = run(&guest, &format!("{APPLY} --gate 'cpu<=0%'"))?;
    ensure!(code == 1 && text.contains("cpu<=0%: "), "{code} {text}");
    is_as_before(&guest)?;
    let (code, text) = run(&guest, APPLY)?;
    ensure!(code == 0, "{code} {text}");
    let state: Value = serde_json::from_str(&guest.shell("cat /tmp/roll.json")?)?;
    let figure = state["hosts"][0]["figures"]["cpu"].as_str().context("no figure")?;
    let percent: f64 = figure.strip_suffix("% of one core").context(figure.to_owned())?.parse()?;
    let cpus = guest.wait_for(guest.client.host_basics())??.cpus;
    ensure!(percent > 0.0 && percent <= 100.0 * f64::from(cpus), "{figure}, {cpus} CPUs");
    Ok(())
}

fn a_daemon_that_is_started_anew_lets_it_wait(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.own_daemon("rollout-anew", daemon::DEFAULT_CONFIG)?;
    prepare(&guest)?;
    let rolling = APPLY.replace("--soak 2s", "--soak 60s");
    let rolling = Command::shell(format!("{rolling} > /tmp/rolling 2>&1; echo exit $? >> /tmp/rolling"));
    guest.machine.spawn("rolling", &rolling)?;
    guest.shell("until grep -q '\"event\":\"changed\"' /tmp/rolling; do sleep 0.1; done")?;
    ensure!(guest.stop()?.success(), "{}", guest.log());
    guest.restart(daemon::DEFAULT_CONFIG)?;
    guest.machine.wait("rolling", Some(PATIENCE))?;
    let text = guest.shell("cat /tmp/rolling")?;
    ensure!(text.trim_end().ends_with("exit 4"), "{text}");
    // It was read when the daemon was back, or while it was away.
    ensure!(text.contains("the daemon was started anew") || text.contains("no answer: "), "{text}");
    let (code, text) = run(&guest, "kprobectl rollout undo --state /tmp/roll.json")?;
    ensure!(code == 0, "{code} {text}");
    is_as_before(&guest)
}

/// What is refused is refused before anything is changed, and nothing is left of having asked.
fn a_plan_says_what_the_kernel_would(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    prepare(&guest)?;
    let plan = "kprobectl rollout plan -f /tmp/wanted.yaml --hosts /run/kprobed/kprobed.sock --waves 100% --state /tmp/roll.json";
    let (code, text) = run(&guest, plan)?;
    ensure!(code == 0 && text.contains("accepted"), "{code} {text}");
    guest.shell("sed -i 's/vfs_read/no_such_function/' /tmp/wanted.yaml")?;
    let (code, text) = run(&guest, plan)?;
    ensure!(
        code == 1 && text.contains("the change is refused") && text.contains("kprobes/fresh"),
        "{code} {text}"
    );
    let (code, text) = run(&guest, APPLY)?;
    ensure!(
        code == 1 && text.contains("the change is refused") && !text.contains("\"intended\""),
        "{code} {text}"
    );
    ensure!(text.contains("\"phase\":\"undone\""), "{text}");
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
