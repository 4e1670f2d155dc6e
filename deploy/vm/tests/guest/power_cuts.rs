//! Power cuts after any write: the database on the disk has every acknowledged change, and any
//! other change as a whole or not at all.
//!
//! QEMU logs the writes and flushes of the guest. Each power cut is a prefix of that log, or what
//! the last flush made durable and some of the later writes. The host makes that disk, replays the
//! journal of the file system, and opens the database with the daemon's own store; some of the
//! disks are booted. CI draws as many cuts as take some seconds; with `--effort full`, or with
//! `KPROBED_VM_POWER_CUTS=all`, every prefix is checked, and subsets of the writes after every
//! flush.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CreateProbeRequest, ProbeState, UpdateProbeRequest};
use kprobed_control::store::{Record, Store, set_aside_in};
use kprobed_vm::disk::Disk;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::write_log::{self, Cut, Replay, WriteLog};
use kprobed_vm::{daemon, ext4};
use tokio::runtime::Runtime;

use crate::Test;
use crate::crash_plans::{delete, update};
use crate::crash_state::{Fate, Model, Possible, RequestedProbe, Term};
use crate::daemon::DaemonGuest;
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        nothing_acknowledged_is_lost_with_the_power,
    }
};

/// The files of the database, in the root directory of the disk.
const FILES: [&str; 3] = ["kprobed.db", "kprobed.db-wal", "kprobed.db-shm"];

/// Probes that are changed. Few, so that each is made, changed and deleted many times.
const PROBES: usize = 6;

/// A request that the daemon has acknowledged as a whole.
struct Acknowledged {
    changes: Vec<Change>,
    whole: bool,
    before: Model,
    after: Model,
    /// Entries that the log of writes had when the answer was there.
    position: usize,
}

/// Whether every cut is looked at.
fn is_whole() -> bool {
    effort::pick(false, true) || std::env::var("KPROBED_VM_POWER_CUTS").is_ok_and(|value| value == "all")
}

/// A change of one of the probes that fits what it is.
fn draw_change(random: &mut Random, state: &Model, number: usize, name: usize) -> Change {
    let event = format!("drawn{name}");
    let set_labels = [("change".to_owned(), number.to_string())].into();
    let Some(probe) = state.get(&format!("kprobes/{event}")) else {
        return Change::Create(CreateProbeRequest {
            definition: format!("p:kprobes/{event} __x64_sys_getpgid a{number}=+0x70(%di):u64"),
            filter: format!("common_pid > {number}"),
            enabled: random.below(2) == 0,
            labels: set_labels,
            ..Default::default()
        });
    };
    let change = UpdateProbeRequest { set_labels, ..update(&event) };
    Change::Update(match random.below(5) {
        0 => return delete(&event),
        1 => UpdateProbeRequest { enabled: Some(!probe.enabled), ..change },
        2 => UpdateProbeRequest { filter: Some(format!("common_pid > {number}")), ..change },
        3 => {
            let definition = format!("p:kprobes/{event} __x64_sys_getpgid b{number}=+0x70(%di):u32");
            UpdateProbeRequest { definition: Some(definition), ..change }
        }
        _ => change,
    })
}

/// Makes requests, and writes down where the log of writes is when each is acknowledged.
fn run(guest: &DaemonGuest, log: &Path, random: &mut Random, requests: usize) -> Result<Vec<Acknowledged>> {
    let (mut acknowledged, mut state) = (Vec::new(), Model::new());
    for number in 1..=requests {
        let first = random.below(PROBES);
        // One change, three of their own fate, or three that are made together.
        let (count, whole) = [(1, false), (1, false), (3, false), (3, true)][random.below(4)];
        let changes: Vec<_> =
            (first..first + count).map(|name| draw_change(random, &state, number, name % PROBES)).collect();
        let outcomes = if whole {
            guest.wait_for(guest.client.apply_all_or_nothing(changes.clone()))?
        } else {
            guest.wait_for(guest.client.apply_probes(changes.clone()))?
        };
        let position = write_log::position(log)?;
        let fate = Fate::of(&state, &changes, whole, &outcomes);
        ensure!(fate.acknowledged() == changes.len(), "{changes:#?}: {outcomes:#?}");
        let after = fate.possible(&state).single().context("an acknowledged change leaves one state")?;
        let before = std::mem::replace(&mut state, after.clone());
        acknowledged.push(Acknowledged { changes, whole, before, after, position });
    }
    Ok(acknowledged)
}

/// What may be found when the power fails after so many writes and flushes, and how many requests
/// were acknowledged by then.
///
/// The client makes one request at a time: of those that are not acknowledged only the next one can
/// have begun.
fn possible(acknowledged: &[Acknowledged], end: usize) -> (Possible, usize) {
    let count = acknowledged.partition_point(|request| request.position <= end);
    let possible = match (acknowledged.get(count), count.checked_sub(1).map(|last| &acknowledged[last])) {
        (Some(next), _) => Fate::unknown(&next.before, &next.changes, next.whole).possible(&next.before),
        (None, Some(last)) => Possible::only(last.after.clone()),
        (None, None) => Possible::only(Model::new()),
    };
    (possible, count)
}

/// Opens the database of a disk as the daemon does when it starts, and answers the probes that it
/// would show. The image is changed.
fn stored(runtime: &Runtime, image: &Path, directory: &Path) -> Result<Model> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir(directory)?;
    ext4::recover(image, &FILES, directory)?;
    runtime.block_on(async {
        let store = Store::open(directory, SystemTime::now()).await?;
        let aside = set_aside_in(directory)?;
        ensure!(aside.is_empty(), "the database is damaged: {aside:?}");
        let rows = store.probes().await;
        store.close().await;
        // What is not acknowledged is in the journal: a start takes it back.
        let probes = rows?.into_iter().map(|row| {
            let Record { name, spec, .. } = row.record;
            let labels: BTreeMap<_, _> =
                spec.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let wanted = RequestedProbe {
                definition: spec.definition.to_string(),
                enabled: spec.enabled,
                filter: spec.filter,
                labels,
                term: Term::None,
            };
            (name.to_string(), wanted)
        });
        Ok(probes.collect())
    })
}

/// What is looked at, in the order in which it is made.
fn draw_cuts(log: &WriteLog, from: usize, random: &mut Random) -> Vec<Cut> {
    let all = log.entries().len();
    let mut ends: Vec<usize> = (from..=all).collect();
    let mut subsets = effort::pick(1, 2);
    if !is_whole() {
        const DRAWN: usize = 12;
        let flushes: Vec<_> = ends.iter().copied().filter(|end| log.prefix(*end).kept.is_empty()).collect();
        ends =
            (0..DRAWN).flat_map(|_| [*random.pick(&flushes), from + random.below(all + 1 - from)]).collect();
        subsets = 1;
    }
    let mut cuts = Vec::new();
    for end in ends {
        let prefix = log.prefix(end);
        for _ in 0..subsets {
            // With fewer than two writes after the flush, these are the prefixes.
            if prefix.kept.len() > 1 {
                cuts.push(log.subset(end, || random.below(2) == 0));
            }
        }
        cuts.push(prefix);
    }
    cuts.sort_by_key(|cut| (cut.end, cut.kept.clone()));
    cuts.dedup();
    cuts
}

/// A place for images, beside the disk, that is removed when it is not needed any more.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn nothing_acknowledged_is_lost_with_the_power(fixture: &Fixture) -> Result<()> {
    let mut random = Random::of_theme("power_cuts");
    let lab = fixture.lab()?;
    let name = fixture.disk_name("power-cuts");
    let disk = Disk::open_logged(&lab.cache().disks(), &name)?;
    let log_path = disk.log().context("the disk has no log")?.to_owned();
    let place = Place(lab.cache().disks().join(format!("{name}.cuts")));
    drop(fs::remove_dir_all(&place.0));
    fs::create_dir_all(&place.0)?;
    let in_place = |name: &str| place.0.join(name);
    fs::copy(disk.image(), in_place("first"))?;
    let options = GuestOptions { disk: Some(disk.clone()), ..fixture.options()? };
    let guest = DaemonGuest::over(lab.boot(&options)?, daemon::DEFAULT_CONFIG)?;
    let begun = write_log::position(&log_path)?;
    let acknowledged = run(&guest, &log_path, &mut random, if is_whole() { 60 } else { 16 })?;
    guest.machine.power_cut();
    let log = WriteLog::open(&log_path)?;
    let flushes = log.entries().iter().filter(|entry| entry.is_flush()).count();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let started = Instant::now();
    // From the very first write on when there is time for that.
    let cuts = draw_cuts(&log, if is_whole() { 0 } else { begun }, &mut random);
    let mut replay = Replay::new(&log, &in_place("first"), &in_place("image"))?;
    let (image, directory) = (in_place("cut"), in_place("directory"));
    let (mut lost, mut checked, mut in_advance) = (Vec::new(), 0, 0);
    for cut in &cuts {
        replay.cut(cut, &image)?;
        let (possible, count) = possible(&acknowledged, cut.end);
        let judged = stored(&runtime, &image, &directory).and_then(|found| {
            in_advance += usize::from(acknowledged.get(count).is_some_and(|next| next.before != found));
            possible.find_state(&found).map(drop)
        });
        checked += count;
        if let Err(error) = judged {
            let kept = cut.kept.len();
            lost.push(format!(
                "entry {} ({kept} kept behind {}), {count} acknowledged: {error:#}",
                cut.end, cut.durable
            ));
        }
    }
    ensure!(
        lost.is_empty(),
        "{} of {} cuts lose something:\n{}",
        lost.len(),
        cuts.len(),
        lost[..lost.len().min(5)].join("\n")
    );
    ensure!(checked > 0 && cuts.len() > 10, "nothing was looked at");
    fixture.note(format_args!(
        "{} requests, {} entries in the log, {flushes} of them flushes; {} power cuts in {:.1?}: {} at a flush, {} with the next request \
         begun, 0 acknowledgements lost",
        acknowledged.len(),
        log.entries().len(),
        cuts.len(),
        started.elapsed(),
        cuts.iter().filter(|cut| cut.kept.is_empty()).count(),
        in_advance
    ));
    a_disk_that_lies_is_noticed(&log, &acknowledged, &runtime, &place.0)?;
    drop(replay);
    boot_some(fixture, &log, &acknowledged, &place.0, &mut random)
}

/// That the check above can fail: a disk that has lost what it was asked to keep before the
/// acknowledgement, and a claim that was not made.
fn a_disk_that_lies_is_noticed(
    log: &WriteLog,
    acknowledged: &[Acknowledged],
    runtime: &Runtime,
    place: &Path,
) -> Result<()> {
    let mut replay = Replay::new(log, &place.join("first"), &place.join("lying"))?;
    let mut noticed = 0;
    for last in acknowledged.len().saturating_sub(3).max(1)..acknowledged.len() {
        let (before, request) = (&acknowledged[last - 1], &acknowledged[last]);
        ensure!(before.position < request.position, "an acknowledgement without a flush before it");
        // Everything since the acknowledgement before is gone.
        let cut = log.subset(before.position, || false);
        replay.cut(&cut, &place.join("cut"))?;
        let found = stored(runtime, &place.join("cut"), &place.join("directory"))?;
        // As if nothing had been requested afterwards, which may take it back.
        let (possible, _) = possible(&acknowledged[..=last], request.position);
        noticed += usize::from(possible.find_state(&found).is_err());
    }
    ensure!(noticed == 3, "{noticed} of 3 lost acknowledgements were noticed");
    Ok(())
}

/// Boots some of the disks: the daemon starts, and shows what was acknowledged.
fn boot_some(
    fixture: &Fixture,
    log: &WriteLog,
    acknowledged: &[Acknowledged],
    place: &Path,
    random: &mut Random,
) -> Result<()> {
    let lab = fixture.lab()?;
    let last = log.entries().len();
    let first = acknowledged.first().map_or(0, |request| request.position);
    let mut ends: Vec<_> = (0..effort::pick(1, 24)).map(|_| first + random.below(last + 1 - first)).collect();
    ends.sort_unstable();
    let mut replay = Replay::new(log, &place.join("first"), &place.join("booted"))?;
    for end in &ends {
        let cut = log.subset(*end, || random.below(2) == 0);
        replay.cut(&cut, &place.join("cut"))?;
        let disk =
            Disk::copy(&lab.cache().disks(), &fixture.disk_name("power-cut-booted"), &place.join("cut"))?;
        let options = GuestOptions { disk: Some(disk), ..fixture.options()? };
        let guest = DaemonGuest::over(lab.boot(&options)?, daemon::DEFAULT_CONFIG)?;
        let (possible, count) = possible(acknowledged, cut.end);
        let shown = guest.probes()?;
        possible.find(&shown).with_context(|| format!("{cut:?}, {count} acknowledged"))?;
        for probe in shown {
            let expected = if probe.enabled { ProbeState::Armed } else { ProbeState::Disabled };
            ensure!(probe.state() == expected, "{cut:?}: {probe:?}");
        }
        // It can be used.
        guest.add("p:afterwards __x64_sys_getpgid")?;
    }
    fixture.note(format_args!("{} of the disks were booted", ends.len()));
    Ok(())
}
