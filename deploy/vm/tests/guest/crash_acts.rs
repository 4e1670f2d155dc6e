//! Preparing, making and reverting each kind of change of the crash tests.
//!
//! Owns what the daemon is asked for in a case. Never makes a fault.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::Hold;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{AdoptProbeRequest, CreateProbeRequest, UpdateProbeRequest};
use kprobed_vm::daemon;
use kprobed_vm::machine::{PATIENCE, Signal};
use kprobed_vm::protocol::Status;

use crate::crash_check::{ADOPTED, Expected};
use crate::crash_plans::{Act, Declared, base, create, created, creations, deletions, lend, update};
use crate::crash_state::{Fate, Model, Possible, RequestedProbe, Term, made, shown};
use crate::daemon::{DECLARATIONS, DaemonGuest, TRACEFS, creation};
use crate::rebuilt_module::{BUILDS, MODULE, load, put_builds};

/// The lease of the probe that expires, in seconds: the shortest that there is.
const SHORTEST_S: i64 = 1;

const LASTS: Term = Term::Lasts(SHORTEST_S);
const OVER: Term = Term::Ended(SHORTEST_S);

/// A probe of a module that comes back as another build, and where the guest keeps the place of it.
const TWIN: &str = "kprobes/twin";
const PLACE: &str = "/tmp/twin.place";

/// What a case begins with beside the base.
#[derive(Default)]
pub(crate) struct Scene {
    before: Model,
    hold: Option<Hold>,
}

/// Makes changes that have to succeed.
pub(crate) fn apply(guest: &DaemonGuest, changes: Vec<Change>) -> Result<()> {
    if !changes.is_empty() {
        for outcome in guest.wait_for(guest.client.apply_probes(changes))?? {
            outcome?;
        }
    }
    Ok(())
}

/// Brings the daemon from what it has to the state that each case begins with.
pub(crate) fn rebase(guest: &DaemonGuest, from: &Model) -> Result<()> {
    let base = base();
    apply(guest, deletions(from, &base))?;
    apply(guest, creations(from, &base))
}

/// Prepares the guest before the change, while the daemon runs.
pub(crate) fn prepare(guest: &mut DaemonGuest, act: &Act) -> Result<Scene> {
    let mut scene = Scene { before: base(), hold: None };
    match act {
        Act::Repair | Act::Reconcile => {
            let ours = format!("{}/events/kprobes", guest.instance()?);
            guest.shell(&format!(
                "echo 0 > {ours}/keep/enable; echo 0 > {ours}/target/enable; echo '-:kprobes/target' >> {TRACEFS}/kprobe_events"
            ))?;
        }
        Act::Adopt => {
            guest.shell(&format!("echo '{}' >> {TRACEFS}/kprobe_events", adopted().definition))?;
        }
        Act::Accept => scene.before = with(&base(), &hold_back(guest)?),
        Act::Expire => {
            apply(guest, vec![lend("short", SHORTEST_S)])?;
            // It ends once the fault is prepared, however long that takes.
            guest.machine.signal(daemon::NAME, Signal::SIGSTOP)?;
        }
        Act::Release => {
            let hold = guest.wait_for(guest.client.hold())??;
            let changes = held().map(|name| {
                Change::Create(CreateProbeRequest { lease: Some(hold.lease()), ..created(&name) })
            });
            apply(guest, changes.collect())?;
            scene.hold = Some(hold);
        }
        Act::Declare(Declared::Changed | Declared::Removed) => {
            write(guest, &declared(false))?;
            settled(guest, &with(&base(), &declared(false)))?;
            scene.before = with(&base(), &declared(false));
        }
        _ => {}
    }
    Ok(scene)
}

/// Makes the change, and says what may be there afterwards. `is_hit`: whether there was a fault by
/// now.
pub(crate) fn make(
    guest: &DaemonGuest,
    act: &Act,
    scene: Scene,
    is_hit: &dyn Fn() -> Result<bool>,
) -> Result<Expected> {
    let until = |is_done: &dyn Fn(&Model) -> bool| until(guest, is_hit, is_done);
    let Scene { before, hold } = scene;
    match act {
        Act::Each(changes) => {
            let outcomes = guest.wait_for(guest.client.apply_probes(changes.clone()))?;
            Ok(answered(&Fate::of(&before, changes, false, &outcomes), &before))
        }
        Act::Whole(changes) => {
            let outcomes = guest.wait_for(guest.client.apply_all_or_nothing(changes.clone()))?;
            Ok(answered(&Fate::of(&before, changes, true, &outcomes), &before))
        }
        Act::Repair => {
            let repairs = ["keep", "target"].map(|name| {
                // As a person asks for it; the look of every half minute does the same.
                Change::Update(UpdateProbeRequest { enabled: Some(true), ..update(name) })
            });
            let outcomes = guest.wait_for(guest.client.apply_probes(repairs.to_vec()))?;
            Ok(answered(&Fate::of(&before, &repairs, false, &outcomes), &before))
        }
        Act::Reconcile => {
            // The client reads the outcome of each probe. What is wanted has not changed.
            drop(guest.wait_for(guest.client.reconcile_probes(true))?);
            Ok(answered(&Fate::nothing_asked(), &before))
        }
        // What a daemon that has just started could not bring back is tried again later, and shown
        // until then.
        Act::Start | Act::Recover | Act::Stop => {
            Ok(Expected { is_answered: false, ..answered(&Fate::nothing_asked(), &before) })
        }
        Act::Adopt => {
            let RequestedProbe { filter, labels, enabled, .. } = adopted();
            let request = AdoptProbeRequest {
                name: ADOPTED.to_owned(),
                enabled: Some(enabled),
                filter: Some(filter),
                labels: labels.into_iter().collect(),
                ..Default::default()
            };
            let outcome = guest.wait_for(guest.client.adopt_probe(request))?;
            Ok(answered(&Fate::of_one(ADOPTED, adopted(), &outcome), &before))
        }
        Act::Accept => {
            let request = UpdateProbeRequest { name: TWIN.to_owned(), accept: true, ..Default::default() };
            let outcome = guest.wait_for(guest.client.update_probe(request))?;
            let held_back = before.get(TWIN).cloned().context("nothing is held back")?;
            let fate = Fate::of_one(TWIN, RequestedProbe { term: Term::None, ..held_back }, &outcome);
            Ok(answered(&fate, &before))
        }
        Act::Expire => {
            let short = |term| Model::from([made_of("short", term)]);
            let (lasts, over) = (with(&before, &short(LASTS)), with(&before, &short(OVER)));
            until(&|found| *found == over)?;
            let ends = short(OVER).into_iter().map(|(name, over)| (name, Some(over)));
            Ok(promised(&lasts, ends, over))
        }
        Act::Release => {
            let held: Model = held().map(|name| made_of(&name, Term::Held)).collect();
            drop(hold);
            until(&|found| *found == before)?;
            Ok(promised(&with(&before, &held), held.into_keys().map(|name| (name, None)), before))
        }
        Act::Declare(how) => {
            let (after, changes) = match how {
                Declared::Created => (with(&base(), &declared(false)), difference(&before, &declared(false))),
                Declared::Changed => (with(&base(), &declared(true)), difference(&before, &declared(true))),
                Declared::Removed => (base(), difference(&before, &Model::new())),
            };
            match how {
                Declared::Removed => guest.shell(&format!("rm -r {DECLARATIONS}")).map(drop)?,
                _ => write(guest, &declared(*how == Declared::Changed))?,
            }
            until(&|found| *found == after)?;
            Ok(promised(&before, changes, after))
        }
    }
}

/// Waits for what the daemon does by itself and a while after a start.
pub(crate) fn settle(guest: &DaemonGuest, act: &Act, expected: &Expected) -> Result<()> {
    if matches!(act, Act::Declare(_)) {
        let begun = Instant::now();
        while expected.found.find(&guest.probes()?).is_err() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Brings back what each case begins with.
pub(crate) fn take_back(guest: &DaemonGuest, act: &Act, found: &Model) -> Result<()> {
    let mut found = found.clone();
    if matches!(act, Act::Declare(_)) {
        guest.shell(&format!("rm -rf {DECLARATIONS}"))?;
        found.retain(|name, _| !name.starts_with(DECLARED));
        settled(guest, &found)?;
    }
    rebase(guest, &found)?;
    if matches!(act, Act::Accept) {
        guest.shell(&format!("rmmod {MODULE}"))?;
    }
    if matches!(act, Act::Adopt) && !found.contains_key(ADOPTED) {
        guest.shell(&format!("echo '-:{ADOPTED}' >> {TRACEFS}/kprobe_events"))?;
    }
    Ok(())
}

/// Waits until the daemon shows something, or has met a fault and may never show it.
fn until(
    guest: &DaemonGuest,
    is_hit: &dyn Fn() -> Result<bool>,
    is_done: &dyn Fn(&Model) -> bool,
) -> Result<()> {
    let begun = Instant::now();
    loop {
        // Asked before, so that what is shown is from after the fault.
        let was_hit = is_hit()?;
        if guest.machine.wait(daemon::NAME, Duration::from_millis(20))? != Status::TimedOut {
            return Ok(());
        }
        if let Ok(probes) = guest.probes()
            && (was_hit || is_done(&shown(&probes)))
        {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "nothing happens\n{}", guest.log());
    }
}

/// Waits until the daemon has these probes.
fn settled(guest: &DaemonGuest, wanted: &Model) -> Result<()> {
    let settled = guest.until("the probes that are declared", || Ok(shown(&guest.probes()?) == *wanted));
    settled.map(drop).with_context(|| format!("{:#?}", guest.probes().map(|probes| shown(&probes))))
}

/// After an answer, or the loss of the connection.
fn answered(fate: &Fate, before: &Model) -> Expected {
    Expected {
        live: fate.possible(before),
        found: fate.possible(before),
        acknowledged: fate.acknowledged(),
        is_answered: true,
    }
}

/// After something that the daemon has to do whatever happens, without an answer: it may be at any
/// point of it, and after a start it is done.
fn promised(
    before: &Model,
    changes: impl IntoIterator<Item = (String, Option<RequestedProbe>)>,
    after: Model,
) -> Expected {
    let changes: Vec<_> = changes.into_iter().collect();
    let acknowledged = changes.len();
    Expected {
        live: Fate::may_become(changes).possible(before),
        found: Possible::only(after),
        acknowledged,
        is_answered: false,
    }
}

/// Makes a probe, and has the daemon find another build of its module when it starts: it is held
/// back.
fn hold_back(guest: &mut DaemonGuest) -> Result<Model> {
    let place = if let Ok(place) = guest.machine.get(PLACE) {
        String::from_utf8_lossy(&place).into_owned()
    } else {
        let place = put_builds(guest)?;
        guest.machine.put(PLACE, 0o644, place.as_bytes())?;
        place
    };
    let [(first, _), (second, _)] = BUILDS;
    load(guest, first)?;
    let labels = [("of".to_owned(), "module".to_owned())].into();
    let probe = CreateProbeRequest { labels, ..creation(&format!("p:{TWIN} {place}"), "") };
    apply(guest, vec![Change::Create(probe)])?;
    guest.kill()?;
    guest.shell(&format!("rmmod {MODULE}"))?;
    load(guest, second)?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let mut probes = shown(&guest.probes()?);
    probes.retain(|name, _| name == TWIN);
    ensure!(probes.values().all(|twin| twin.term == Term::HeldBack) && probes.len() == 1, "{probes:?}");
    Ok(probes)
}

/// The foreign event as the probe that it becomes.
fn adopted() -> RequestedProbe {
    RequestedProbe {
        definition: format!("p:{ADOPTED} __x64_sys_getpgid x=%di:u64"),
        enabled: true,
        filter: "x != 1".to_owned(),
        labels: [("from".to_owned(), "theirs".to_owned())].into(),
        term: Term::None,
    }
}

fn held() -> impl Iterator<Item = String> {
    (0..3).map(|number| format!("held{number}"))
}

/// A probe as [`create`] makes it, with another end.
fn made_of(name: &str, term: Term) -> (String, RequestedProbe) {
    let (name, wanted) = made(&Model::new(), &create(name));
    (name, RequestedProbe { term, ..wanted.unwrap_or_else(|| unreachable!("a creation makes a probe")) })
}

/// How the names of declared probes begin.
const DECLARED: &str = "kprobes/declared";

/// The probes that a file declares, at first and then.
fn declared(is_changed: bool) -> Model {
    let names = if is_changed { [0, 2] } else { [0, 1] };
    let filter = if is_changed { "number == 8" } else { "number == 7" };
    let probes = names.map(|number| {
        let name = format!("{DECLARED}{number}");
        let wanted = RequestedProbe {
            definition: format!("p:{name} __x64_sys_getpgid number=+0x70(%di):u64"),
            enabled: true,
            filter: filter.to_owned(),
            labels: [("from".to_owned(), "file".to_owned())].into(),
            term: Term::None,
        };
        (name, wanted)
    });
    probes.into()
}

/// Makes it what the files declare, at once.
fn write(guest: &DaemonGuest, probes: &Model) -> Result<()> {
    let documents = probes.iter().map(|(name, wanted)| {
        format!(
            "---\nprobe: {name}\ndefinition: {}\nfilter: {}\nlabels: {{from: file}}\n",
            wanted.definition, wanted.filter
        )
    });
    let documents: String = documents.collect();
    guest.machine.put(&format!("{DECLARATIONS}/.new"), 0o644, documents.as_bytes())?;
    guest.shell(&format!("mv {DECLARATIONS}/.new {DECLARATIONS}/declared.yaml")).map(drop).context("mv")
}

fn with(state: &Model, more: &Model) -> Model {
    let mut state = state.clone();
    state.extend(more.clone());
    state
}

/// What becomes of the declared probes of a state.
fn difference(before: &Model, declared: &Model) -> Vec<(String, Option<RequestedProbe>)> {
    let gone = before.keys().filter(|name| name.starts_with(DECLARED) && !declared.contains_key(*name));
    let gone = gone.map(|name| (name.clone(), None));
    gone.chain(declared.iter().map(|(name, wanted)| (name.clone(), Some(wanted.clone())))).collect()
}
