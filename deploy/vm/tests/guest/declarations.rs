//! Probes as documents: what a directory of declarations does on a real kernel.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CheckStatus, Probe, UpdateProbeRequest};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, switch};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        a_directory_says_what_there_is,
        files_take_back_what_a_lost_database_left,
    }
};

/// `getsid` is called by nothing else in the guest, and `di` of its registers is its argument.
const NUMBERS: &str = "\
probe: kprobes/numbers
definition: p:kprobes/numbers __x64_sys_getsid n=+0x70(%di):s32
labels: {team: storage}
owner: storage team
description: which numbers are asked for
";

/// Runs `kprobectl`, which has to end with this code. Returns what it printed to both outputs.
fn run(guest: &DaemonGuest, code: i32, arguments: &str) -> Result<String> {
    let said = guest.ctl_says(arguments)?;
    ensure!(said.code == code, "{arguments}: {said:?}");
    Ok(said.all())
}

fn write(guest: &DaemonGuest, path: &str, text: &str) -> Result<()> {
    Ok(guest.machine.put(path, 0o644, text.as_bytes())?)
}

fn probe(guest: &DaemonGuest, name: &str) -> Result<Option<Probe>> {
    Ok(guest.probes()?.into_iter().find(|probe| probe.name == name))
}

/// The numbers that the probe has recorded of so many calls, which begin with 2,000,000.
fn values(guest: &DaemonGuest, count: i64) -> Result<Vec<String>> {
    let recording = guest.record(|| guest.call(2_000_000, count))?;
    let events = recording.events.iter().filter(|event| event.probe == "kprobes/numbers");
    Ok(events.map(|event| event.field("n").to_owned()).collect())
}

/// How the check of declarations ended, and what it found.
fn check(guest: &DaemonGuest) -> Result<(CheckStatus, String)> {
    let check = guest.host_check("declarations")?;
    Ok((check.status(), check.finding))
}

fn a_directory_says_what_there_is(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    let directory = "/etc/kprobed/probes.d";
    guest.until("a first look", || Ok(check(&guest)?.1.contains("there is no directory")))?;
    ensure!(guest.probes()?.is_empty());
    // A volume of Kubernetes: a link to a link.
    guest.shell(&format!("mkdir -p {directory}/..1 && cd {directory} && ln -s ..1 ..data"))?;
    write(&guest, &format!("{directory}/..1/numbers.yaml"), NUMBERS)?;
    guest.shell(&format!("cd {directory} && ln -s ..data/numbers.yaml numbers.yaml"))?;
    guest.until("the first file", || Ok(probe(&guest, "kprobes/numbers")?.is_some()))?;
    ensure!(values(&guest, 2)? == ["2000000", "2000001"]);
    let first = guest.probes()?.remove(0);
    ensure!(first.declared_by == "numbers.yaml" && first.owner == "storage team", "{first:?}");
    guest.until("all is well", || Ok(check(&guest)?.0 == CheckStatus::Ok))?;

    // The link is swapped: the same probe with another filter.
    guest.shell(&format!("mkdir {directory}/..2"))?;
    write(&guest, &format!("{directory}/..2/numbers.yaml"), &format!("{NUMBERS}filter: n == 2000001\n"))?;
    guest
        .shell(&format!("cd {directory} && ln -s ..2 ..data_tmp && mv -T ..data_tmp ..data && rm -r ..1"))?;
    guest.until("the swap", || {
        Ok(probe(&guest, "kprobes/numbers")?.is_some_and(|found| found.filter == "n == 2000001"))
    })?;
    ensure!(values(&guest, 3)? == ["2000001"]);
    ensure!(probe(&guest, "kprobes/numbers")?.is_some_and(|found| found.uid == first.uid));

    // It belongs to its file.
    let refused = run(&guest, 1, "disable numbers")?;
    ensure!(
        refused.contains("the file `numbers.yaml` declares `kprobes/numbers`")
            && refused.contains("--take-over"),
        "{refused}"
    );
    ensure!(run(&guest, 1, "delete numbers")?.contains("DECLARED_BY_FILE"));

    // Half of a file, as rsync --inplace leaves it, and a daemon that is killed then: the last good
    // state.
    write(
        &guest,
        &format!("{directory}/..2/numbers.yaml"),
        NUMBERS.split_once("er: storage").map_or("", |(half, _)| half),
    )?;
    guest.shell(&format!("touch {directory}/..2/numbers.yaml && cd {directory} && ln -s ..2 ..data_tmp && mv -T ..data_tmp ..data"))?;
    let half = |guest: &DaemonGuest| {
        let (status, finding) = check(guest)?;
        Ok(status == CheckStatus::Failed && finding.contains("numbers.yaml:"))
    };
    guest.until("half a file is noticed", || half(&guest))?;
    ensure!(run(&guest, 0, "list")?.contains("what the file declared before stays as it was"));
    guest.kill_and_restart()?;
    guest.until("half a file is noticed again", || half(&guest))?;
    let kept = probe(&guest, "kprobes/numbers")?;
    ensure!(kept.is_some_and(|kept| kept.uid == first.uid && kept.filter == "n == 2000001" && kept.enabled));
    ensure!(values(&guest, 3)? == ["2000001"]);

    // A second file, of which one probe is refused and one is a client's; a third says what the
    // first does.
    guest.add("p:mine vfs_read")?;
    write(
        &guest,
        &format!("{directory}/second.yaml"),
        "probe: kprobes/bad\ndefinition: p:kprobes/bad do_sys_openat2+3\n---\nprobe: kprobes/mine\ndefinition: p:kprobes/mine vfs_write\n---\n\
         probe: kprobes/good\ndefinition: p:kprobes/good vfs_write\n",
    )?;
    guest.until("the good one of three", || Ok(probe(&guest, "kprobes/good")?.is_some()))?;
    let list = run(&guest, 0, "list")?;
    ensure!(list.contains("second.yaml:2:13: `kprobes/bad` is not made"), "{list}");
    ensure!(list.contains("second.yaml:4:8: a client made `kprobes/mine`"), "{list}");
    ensure!(probe(&guest, "kprobes/mine")?.is_some_and(|mine| mine.definition.contains("vfs_read")));

    // Taken over, it is the client's, whatever the file says.
    let take_over = UpdateProbeRequest { take_over: true, ..switch("kprobes/good", false) };
    let taken = guest.wait_for(guest.client.update_probe(take_over))??;
    ensure!(taken.declared_by.is_empty() && !taken.enabled, "{taken:?}");
    guest.until("that is said", || Ok(run(&guest, 0, "list")?.contains("a client made `kprobes/good`")))?;
    let clients = probe(&guest, "kprobes/good")?.filter(|good| !good.enabled).context("it is as it was")?;

    // The file takes it back if it says `take_over`: with the file's definition, and its counts
    // have continued.
    let before = guest.ledger_of("kprobes/good")?.hits;
    write(
        &guest,
        &format!("{directory}/second.yaml"),
        "probe: kprobes/mine\ndefinition: p:kprobes/mine vfs_write\n---\n\
         probe: kprobes/good\ndefinition: p:good  vfs_write\ntake_over: true\n",
    )?;
    guest.until("the file takes it", || {
        Ok(probe(&guest, "kprobes/good")?
            .is_some_and(|good| good.declared_by == "second.yaml" && good.enabled))
    })?;
    let taken = probe(&guest, "kprobes/good")?.context("it is there")?;
    ensure!((taken.uid, &taken.definition) == (clients.uid, &clients.definition), "{taken:?}");
    let after = guest.ledger_of("kprobes/good")?.hits;
    ensure!(before > Some(0) && after >= before, "{before:?}, and then {after:?}");
    ensure!(probe(&guest, "kprobes/mine")?.is_some_and(|mine| mine.declared_by.is_empty()));
    let list = run(&guest, 0, "list")?;
    ensure!(
        list.contains("a client made `kprobes/mine`") && list.contains("write `take_over: true`"),
        "{list}"
    );

    // All goes with the directory, but what is a client's.
    guest.shell(&format!("mv {directory} /tmp/old"))?;
    guest.until("the directory is gone", || {
        Ok(guest.probes()?.iter().map(|probe| probe.name.as_str()).eq(["kprobes/mine"]))
    })?;
    guest.until("all is well again", || Ok(check(&guest)?.0 == CheckStatus::Ok))?;
    Ok(())
}

fn files_take_back_what_a_lost_database_left(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    let directory = "/etc/kprobed/probes.d";
    guest.shell(&format!("mkdir -p {directory}"))?;
    write(&guest, &format!("{directory}/numbers.yaml"), &format!("{NUMBERS}filter: n > 2000000\n"))?;
    guest.until("the file", || Ok(probe(&guest, "kprobes/numbers")?.is_some()))?;
    // Another program has the event of the second file.
    guest.shell(&format!("echo 'p:kprobes/theirs vfs_read' >> {TRACEFS}/kprobe_events"))?;
    write(
        &guest,
        &format!("{directory}/theirs.yaml"),
        "probe: kprobes/theirs\ndefinition: p:kprobes/theirs vfs_read\n",
    )?;
    let refused = "kprobed did not define it: it is exactly this probe";
    guest.until("the second file", || Ok(run(&guest, 0, "list")?.contains(refused)))?;
    let before = guest.tracefs("kprobe_events")?;
    let id = guest.tracefs("events/kprobes/numbers/id")?;
    guest.lose_database("rm kprobed.db*")?;
    // What it records meanwhile is of no probe; from here on it is.
    guest.workload(&["numbers", "2000000", "5"])?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    guest.until("it is as declared", || {
        Ok(probe(&guest, "kprobes/numbers")?.is_some_and(|found| {
            found.declared_by == "numbers.yaml" && found.enabled && found.filter == "n > 2000000"
        }))
    })?;
    ensure!(guest.tracefs("kprobe_events")? == before && guest.tracefs("events/kprobes/numbers/id")? == id);
    let found = probe(&guest, "kprobes/numbers")?;
    ensure!(found.is_some_and(|found| found.owner == "storage team" && found.labels["team"] == "storage"));
    ensure!(values(&guest, 3)? == ["2000001", "2000002"]);
    let ledger = guest.ledger_of("kprobes/numbers")?;
    ensure!((ledger.hits, ledger.read) == (Some(3), 2), "{ledger:?}");
    // What is another program's is still said to be that.
    guest.until("the second file is refused again", || Ok(run(&guest, 0, "list")?.contains(refused)))?;
    ensure!(probe(&guest, "kprobes/theirs")?.is_none());
    // It goes with its file.
    guest.shell(&format!("rm {directory}/numbers.yaml"))?;
    guest
        .until("it is gone", || Ok(guest.tracefs("kprobe_events")?.trim() == "p:kprobes/theirs vfs_read"))?;
    Ok(())
}
