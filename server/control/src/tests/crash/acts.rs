//! The kinds of change: how each is prepared, made, and what a client then knows of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kprobed_fake::FakeKernel;
use kprobed_lang::model::{LabelChange, Labels, LeaseTerm, MetadataChange};
use kprobed_verdict::checker::DefinitionText;

use super::check::ADOPTED;
use super::daemon::{Daemon, Facts, INSTANCE, caller};
use super::model::{
    EVENTS, Expected, Fate, Known, MANY, Model, Term, Wanted, base, definition, possible, shown,
};
use crate::error::Error;
use crate::store::tests::disk::Disk;
use crate::{AdoptRequest, Change, CreateRequest, Hold, RemoveRequest, Unit, UpdateRequest};

/// What is done while a fault is made.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Changes of which each has its own outcome.
    Each(Vec<Change>),
    /// The same, when there is a probe that a file declares.
    Declared(Vec<Change>),
    /// A group that is made whole or not at all.
    Whole(Vec<Change>),
    /// A start after a stop: everything is brought back.
    Start,
    /// A start after a crash: everything is still in the kernel.
    Recover,
    /// The daemon stops.
    Stop,
    /// Another program has switched off one event, and removed another one; the daemon looks, and repairs both.
    Reconcile,
    /// The same, when both are enabled once more.
    Repair,
    /// The event of another program becomes a probe.
    Adopt,
    /// A probe that means something else on this kernel is accepted.
    Accept,
    /// The lease of a probe is over.
    Expire,
    /// A probe whose lease is over is renewed, in a group that the kernel refuses.
    Revive,
    /// A client goes that held probes.
    Release,
    /// A probe costs too much.
    Trip,
    /// It is enabled again.
    Reset,
}

impl Act {
    pub(super) const fn is_start(&self) -> bool {
        matches!(self, Self::Start | Self::Recover)
    }
}

/// A kind of change, by its name.
type Kind = (&'static str, fn() -> Act);

pub(super) const KINDS: &[Kind] = &[
    ("create", || Act::Each(vec![create("new0")])),
    ("create_off", || Act::Each(vec![with_enabled(create("new0"), false)])),
    ("create_many", || Act::Each((0..3).map(|number| create(&format!("new{number}"))).collect())),
    ("create_group", || Act::Whole((0..3).map(|number| create(&format!("new{number}"))).collect())),
    ("create_waiting", || Act::Each(vec![created("waits", "p:kprobes/waits ghost:function x=%di:u64", "")])),
    ("create_refused", || {
        Act::Each(vec![
            create("new0"),
            created("none", "p:kprobes/none vfs_read number=%di:u64", "nosuch == 1"),
        ])
    }),
    ("enable", || Act::Each(vec![switch("off", true)])),
    ("disable", || Act::Each(vec![switch("keep", false)])),
    ("filter", || Act::Each(vec![filter("keep", "number == 4")])),
    ("no_filter", || Act::Each(vec![filter("keep", "")])),
    ("labels", || Act::Each(vec![labels("keep")])),
    ("replace", || Act::Each(vec![replace("target")])),
    ("replace_many", || Act::Each(vec![replace("many0"), replace("many1"), replace("many2")])),
    ("delete", || Act::Each(vec![delete("target")])),
    ("delete_off", || Act::Each(vec![delete("off")])),
    // Others record: their events are handed over.
    ("delete_many", || Act::Each((0..MANY).map(|number| delete(&format!("many{number}"))).collect())),
    ("delete_group", || Act::Whole((0..MANY).map(|number| delete(&format!("many{number}"))).collect())),
    ("group", || {
        Act::Whole(vec![create("new0"), filter("keep", "number == 5"), replace("target"), delete("many0")])
    }),
    // What the files of `probes.d` ask for.
    ("declare", || Act::Each((0..2).map(|number| declared(create(&format!("new{number}")))).collect())),
    ("claim", || Act::Each(vec![declared(filter("keep", "number == 7"))])),
    ("redeclare", || Act::Declared(vec![declared(filter("filed", "number == 8"))])),
    ("undeclare", || Act::Declared(vec![taking_over(delete("filed"))])),
    ("lend", || Act::Each(vec![with_lease(create("new0"), Some(LeaseTerm::For(HOUR)))])),
    ("renew", || Act::Each(vec![lease("leased", Some(LeaseTerm::For(2 * HOUR)))])),
    ("keep", || Act::Each(vec![lease("leased", None)])),
    ("start", || Act::Start),
    ("recover", || Act::Recover),
    ("stop", || Act::Stop),
    ("reconcile", || Act::Reconcile),
    ("repair", || Act::Repair),
    ("adopt", || Act::Adopt),
    ("create_event", || {
        let (name, filter) = EVENTS[1];
        Act::Each(vec![created("event", name, filter)])
    }),
    ("filter_event", || {
        let filter = Some("pid > 3".to_owned());
        Act::Each(vec![Change::Update(UpdateRequest { filter, name: EVENTS[0].0.to_owned(), ..update("") })])
    }),
    ("delete_event", || Act::Each(vec![removed(EVENTS[0].0.to_owned())])),
    ("accept", || Act::Accept),
    ("expire", || Act::Expire),
    ("revive", || Act::Revive),
    ("release", || Act::Release),
    ("trip", || Act::Trip),
    ("reset", || Act::Reset),
];

const HOUR: Duration = Duration::from_hours(1);

/// The lease of the probe that expires.
const SHORT: Duration = Duration::from_millis(60);

/// How long something may take that the daemon does by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// How much it costs at once to be too much.
const HITS: u64 = 100_000_000;

fn text(definition: &str) -> Arc<DefinitionText> {
    Arc::new(DefinitionText::new(definition))
}

fn label(key: &str, value: &str) -> Labels {
    Labels::new([(key.to_owned(), value.to_owned())]).unwrap()
}

fn created(name: &str, definition: &str, filter: &str) -> Change {
    Change::Create(CreateRequest {
        definition: text(definition),
        enabled: true,
        filter: filter.to_owned(),
        labels: label("role", name),
        ..CreateRequest::default()
    })
}

pub(super) fn create(name: &str) -> Change {
    created(name, &definition(name), "number == 3")
}

fn with_enabled(change: Change, enabled: bool) -> Change {
    match change {
        Change::Create(request) => Change::Create(CreateRequest { enabled, ..request }),
        other => other,
    }
}

fn with_lease(change: Change, lease: Option<LeaseTerm>) -> Change {
    match change {
        Change::Create(request) => {
            let metadata = MetadataChange { lease: Some(lease), ..MetadataChange::default() };
            Change::Create(CreateRequest { metadata, ..request })
        }
        other => other,
    }
}

/// The same by a file.
fn declared(change: Change) -> Change {
    let file = Some(Some("a.yaml".to_owned()));
    match taking_over(change) {
        Change::Create(request) => {
            let metadata = MetadataChange { declared_by: file, ..request.metadata };
            Change::Create(CreateRequest { metadata, ..request })
        }
        Change::Update(request) => {
            let metadata = MetadataChange { declared_by: file, ..request.metadata };
            Change::Update(UpdateRequest { metadata, ..request })
        }
        other @ (Change::Remove(_) | Change::Adopt(_)) => other,
    }
}

/// The same, whoever has the probe.
fn taking_over(change: Change) -> Change {
    match change {
        Change::Update(request) => Change::Update(UpdateRequest { take_over: true, ..request }),
        Change::Remove(request) => Change::Remove(RemoveRequest { take_over: true, ..request }),
        other @ (Change::Create(_) | Change::Adopt(_)) => other,
    }
}

fn update(name: &str) -> UpdateRequest {
    UpdateRequest {
        name: format!("kprobes/{name}"),
        definition: None,
        enabled: None,
        filter: None,
        labels: LabelChange::default(),
        metadata: MetadataChange::default(),
        take_over: false,
        accept: false,
        etag: None,
        request: None,
        validate_only: false,
    }
}

fn switch(name: &str, enabled: bool) -> Change {
    Change::Update(UpdateRequest { enabled: Some(enabled), ..update(name) })
}

fn filter(name: &str, filter: &str) -> Change {
    Change::Update(UpdateRequest { filter: Some(filter.to_owned()), ..update(name) })
}

fn labels(name: &str) -> Change {
    let labels = LabelChange::new(label("role", "other"), []).unwrap();
    Change::Update(UpdateRequest { labels, ..update(name) })
}

fn replaced(name: &str) -> String {
    format!("p:kprobes/{name} do_sys_openat2 again=+0x70(%di):u32")
}

fn replace(name: &str) -> Change {
    Change::Update(UpdateRequest { definition: Some(text(&replaced(name))), ..update(name) })
}

fn lease(name: &str, lease: Option<LeaseTerm>) -> Change {
    let metadata = MetadataChange { lease: Some(lease), ..MetadataChange::default() };
    Change::Update(UpdateRequest { metadata, ..update(name) })
}

pub(super) fn delete(name: &str) -> Change {
    removed(format!("kprobes/{name}"))
}

fn removed(name: String) -> Change {
    Change::Remove(RemoveRequest { name, take_over: false, etag: None, request: None, validate_only: false })
}

/// The probe that a change is about, and what it is afterwards.
fn made(before: &Model, change: &Change) -> (String, Option<Wanted>) {
    match change {
        Change::Create(request) => {
            let definition = request.definition.as_str();
            // An event of the host is its name.
            let name = definition.split([':', ' ']).nth(1).unwrap_or(definition).to_owned();
            let term = match &request.metadata.lease {
                Some(Some(LeaseTerm::For(_))) => Term::Lasts,
                Some(Some(LeaseTerm::Held(_))) => Term::Held,
                // Its module is not loaded.
                _ if definition.contains(" ghost:") => Term::HeldBack,
                _ => Term::None,
            };
            let wanted = Wanted {
                definition: definition.to_owned(),
                enabled: request.enabled,
                filter: request.filter.clone(),
                label: request.labels.to_string(),
                file: request.metadata.declared_by.clone().flatten().unwrap_or_default(),
                term,
            };
            (name, Some(wanted))
        }
        Change::Update(request) => {
            let mut wanted = before[&request.name].clone();
            if let Some(definition) = &request.definition {
                definition.as_str().clone_into(&mut wanted.definition);
            }
            if let Some(enabled) = request.enabled {
                wanted.enabled = enabled;
                wanted.term = if wanted.term == Term::Tripped { Term::None } else { wanted.term };
            }
            if let Some(filter) = &request.filter {
                wanted.filter.clone_from(filter);
            }
            if !request.labels.is_empty() {
                "role=other".clone_into(&mut wanted.label);
            }
            if let Some(file) = &request.metadata.declared_by {
                wanted.file = file.clone().unwrap_or_default();
            }
            match &request.metadata.lease {
                Some(Some(_)) => wanted.term = Term::Lasts,
                Some(None) => wanted.term = Term::None,
                None => {}
            }
            (request.name.clone(), Some(wanted))
        }
        Change::Remove(request) => (request.name.clone(), None),
        Change::Adopt(_) => panic!("an adoption is an act of its own"),
    }
}

/// What is there before the change.
pub(super) struct Scene {
    pub(super) before: Model,
    /// Absent if the change is its start.
    pub(super) daemon: Option<Daemon>,
    pub(super) disk: Arc<Disk>,
    hold: Option<Hold>,
    /// Writes to the kernel that were made during the change.
    pub(super) changes: Vec<String>,
}

fn known<T>(daemon: &Daemon, outcome: &Result<T, Error>) -> Known {
    match outcome {
        _ if daemon.life.is_over() => Known::No,
        Ok(_) => Known::Done,
        Err(_) => Known::Refused,
    }
}

pub(super) async fn apply(daemon: &Daemon, changes: Vec<Change>) {
    for outcome in daemon.control().apply(&caller(), changes, Unit::Each).await.unwrap().outcomes {
        outcome.unwrap();
    }
}

/// Makes what each case begins with.
pub(super) async fn make_base(daemon: &Daemon, base: &Model) {
    let creation = |(name, wanted): (&String, &Wanted)| {
        let (_, event) = name.split_once('/').unwrap();
        let change = with_enabled(created(event, &wanted.definition, &wanted.filter), wanted.enabled);
        match wanted.term {
            Term::Lasts => with_lease(change, Some(LeaseTerm::For(HOUR))),
            _ => change,
        }
    };
    apply(daemon, base.iter().map(creation).collect()).await;
    assert_eq!(shown(&daemon.probes().await), *base);
}

fn adopted() -> Wanted {
    Wanted {
        definition: format!("p:{ADOPTED} do_sys_openat2 x=%di:u64"),
        enabled: true,
        filter: "x != 1".to_owned(),
        label: "from=theirs".to_owned(),
        file: String::new(),
        term: Term::None,
    }
}

fn held() -> impl Iterator<Item = String> {
    (0..3).map(|number| format!("held{number}"))
}

fn spoil(kernel: &FakeKernel) {
    let theirs = kernel.neighbour();
    let ours = format!("instances/{INSTANCE}/events/kprobes");
    theirs.set(&format!("{ours}/keep/enable"), "0").unwrap();
    theirs.set(&format!("{ours}/target/enable"), "0").unwrap();
    theirs.add("kprobe_events", "-:kprobes/target").unwrap();
}

/// Prepares the change. The kernel and the disk are those of the base.
pub(super) async fn prepare(
    act: &Act,
    kernel: &FakeKernel,
    disk: Arc<Disk>,
    facts: &Facts,
) -> Result<Scene, String> {
    let mut scene = Scene { before: base(), daemon: None, disk, hold: None, changes: Vec::new() };
    if matches!(act, Act::Recover) {
        return Ok(scene);
    }
    if matches!(act, Act::Accept) {
        kernel.move_functions(&facts.functions_before);
        let daemon = Daemon::start_before(kernel, &scene.disk, facts).await?;
        // What it means is kept of probes that are made on that kernel.
        apply(&daemon, vec![created("twin", "p:kprobes/twin tcp_sendmsg+0xb x=%di:u64", "")]).await;
        scene.disk = daemon.kill().await;
        kernel.move_functions(&facts.functions);
    }
    let daemon = Daemon::start(kernel, &scene.disk, facts).await?;
    match act {
        Act::Start => {
            daemon.stop().await;
            scene.disk = daemon.dead().await;
            return Ok(scene);
        }
        Act::Reconcile | Act::Repair => spoil(kernel),
        Act::Adopt => kernel.neighbour().add("kprobe_events", &adopted().definition).unwrap(),
        Act::Accept => scene.before = shown(&daemon.probes().await),
        Act::Declared(_) => {
            apply(&daemon, vec![declared(create("filed"))]).await;
            scene.before = shown(&daemon.probes().await);
        }
        Act::Release => {
            let hold = daemon.holds().begin(1).map_err(|error| error.to_string())?;
            let lease = hold.key().to_owned();
            let creation = |name: String| with_lease(create(&name), Some(LeaseTerm::Held(lease.clone())));
            let changes: Vec<_> = held().map(creation).collect();
            for change in &changes {
                let (name, wanted) = made(&scene.before, change);
                scene.before.insert(name, wanted.unwrap());
            }
            apply(&daemon, changes).await;
            scene.hold = Some(hold);
        }
        Act::Revive => {
            let expected = expire(&daemon, &scene.before).await;
            scene.before = shown(&daemon.probes().await);
            if expected.is_settling || scene.before["kprobes/short"].term != Term::Ended {
                return Err(format!("it has not ended: {:?}", scene.before["kprobes/short"]));
            }
        }
        Act::Trip | Act::Reset => {
            apply(&daemon, vec![created("costly", "p:kprobes/costly tcp_sendmsg x=%di:u64", "")]).await;
            if matches!(act, Act::Reset) {
                trip_and_settle(&daemon, kernel).await?;
            }
            scene.before = shown(&daemon.probes().await);
        }
        _ => {}
    }
    if matches!(act, Act::Accept) && scene.before["kprobes/twin"].term != Term::HeldBack {
        return Err(format!("nothing is held back: {:?}", scene.before["kprobes/twin"]));
    }
    scene.daemon = Some(daemon);
    Ok(scene)
}

/// Has a probe cost too much, until it is disarmed or the daemon is gone.
async fn trip(daemon: &Daemon, kernel: &FakeKernel) -> Result<(), String> {
    let mut rounds = 0;
    let hit = || {
        if rounds % 8 == 0 {
            kernel.run("tcp_sendmsg", HITS);
        }
        rounds += 1;
    };
    until(daemon, hit, |model| model["kprobes/costly"].term == Term::Tripped).await
}

/// Waits until the database has that trip, and the daemon has counted what was hit meanwhile.
async fn trip_and_settle(daemon: &Daemon, kernel: &FakeKernel) -> Result<(), String> {
    trip(daemon, kernel).await?;
    let begun = Instant::now();
    loop {
        let rows = daemon.store().probes().await.map_err(|error| error.to_string())?;
        if rows.iter().any(|row| row.record.trip.is_some()) {
            break;
        }
        if begun.elapsed() > PATIENCE {
            return Err("the trip is not stored".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    tokio::time::sleep(Duration::from_millis(120)).await;
    Ok(())
}

/// Waits until something is shown, or the daemon is gone.
async fn until(
    daemon: &Daemon,
    mut act: impl FnMut(),
    is_done: impl Fn(&Model) -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    while !daemon.life.is_over() {
        act();
        let model = shown(&daemon.probes().await);
        if !model.is_empty() && is_done(&model) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("nothing happens: {model:#?}"));
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(())
}

/// Makes the change. Says what may be there afterwards.
pub(super) async fn make(act: &Act, daemon: &Daemon, scene: &mut Scene) -> Expected {
    let before = scene.before.clone();
    match act {
        Act::Each(changes) | Act::Declared(changes) => changed(daemon, &before, changes, Unit::Each).await,
        Act::Whole(changes) => changed(daemon, &before, changes, Unit::All).await,
        Act::Repair => {
            changed(daemon, &before, &["keep", "target"].map(|name| switch(name, true)), Unit::Each).await
        }
        Act::Reset => changed(daemon, &before, &[switch("costly", true)], Unit::Each).await,
        Act::Start | Act::Recover => Expected::unchanged(&before),
        Act::Stop => {
            daemon.stop().await;
            Expected { is_stopped: true, ..Expected::unchanged(&before) }
        }
        Act::Reconcile => {
            drop(daemon.control().reconcile(true, false).await);
            Expected { is_settling: true, ..Expected::unchanged(&before) }
        }
        Act::Adopt => {
            let wanted = adopted();
            let request = AdoptRequest {
                name: ADOPTED.parse().unwrap(),
                enabled: Some(true),
                filter: Some(wanted.filter.clone()),
                labels: label("from", "theirs"),
                declared: None,
                request: None,
                validate_only: false,
            };
            let outcome = daemon.control().adopt(&caller(), request).await;
            let fate = (ADOPTED.to_owned(), Some(wanted), known(daemon, &outcome));
            Expected::after(&before, &[fate], false)
        }
        Act::Accept => {
            let request = UpdateRequest { accept: true, ..update("twin") };
            let outcome = daemon.control().update(&caller(), request).await;
            let wanted = Wanted { term: Term::None, ..before["kprobes/twin"].clone() };
            let fate = ("kprobes/twin".to_owned(), Some(wanted), known(daemon, &outcome));
            Expected::after(&before, &[fate], false)
        }
        Act::Expire => expire(daemon, &before).await,
        Act::Revive => {
            let refused = created("none", "p:kprobes/none vfs_read number=%di:u64", "nosuch == 1");
            let changes = [lease("short", Some(LeaseTerm::For(HOUR))), refused];
            changed(daemon, &before, &changes, Unit::All).await
        }
        Act::Release => {
            scene.hold = None;
            let after = base();
            let settled = until(daemon, || {}, |model| *model == after).await;
            let names = before.keys().filter(|name| !after.contains_key(*name));
            // One that cannot be removed yet is over, and is listed so.
            let over = |name: &String| Wanted { term: Term::Ended, ..before[name].clone() };
            let fates: Vec<Fate> = names
                .flat_map(|name| [Some(over(name)), None].map(|after| (name.clone(), after, Known::No)))
                .collect();
            promised(&before, &fates, vec![after], settled.is_ok())
        }
        Act::Trip => {
            let settled = trip(daemon, &daemon.kernel).await;
            let mut after = before.clone();
            after.get_mut("kprobes/costly").unwrap().term = Term::Tripped;
            let fates = [("kprobes/costly".to_owned(), after.get("kprobes/costly").cloned(), Known::No)];
            // One that could not be stored is armed again, and would be found again.
            promised(&before, &fates, vec![after, before.clone()], settled.is_ok())
        }
    }
}

async fn changed(daemon: &Daemon, before: &Model, changes: &[Change], unit: Unit) -> Expected {
    let outcomes = match daemon.control().apply(&caller(), changes.to_vec(), unit).await {
        Ok(applied) => applied.outcomes.iter().map(|outcome| known(daemon, outcome)).collect(),
        Err(error) => vec![known::<()>(daemon, &Err(error)); changes.len()],
    };
    let fates: Vec<_> = changes
        .iter()
        .zip(outcomes)
        .map(|(change, known)| {
            let (name, wanted) = made(before, change);
            (name, wanted, known)
        })
        .collect();
    Expected::after(before, &fates, unit == Unit::All)
}

/// A probe whose lease is soon over.
pub(super) fn short() -> Change {
    with_lease(create("short"), Some(LeaseTerm::For(SHORT)))
}

async fn expire(daemon: &Daemon, before: &Model) -> Expected {
    let change = short();
    let (name, wanted) = made(before, &change);
    let outcome = daemon.control().apply(&caller(), vec![change], Unit::Each).await;
    let outcome = outcome.and_then(|applied| applied.outcomes.into_iter().next().unwrap());
    let known = known(daemon, &outcome);
    if known == Known::Refused {
        return Expected::unchanged(before);
    }
    let ended = Wanted { term: Term::Ended, ..wanted.clone().unwrap() };
    let mut after = before.clone();
    after.insert(name.clone(), ended.clone());
    let settled = until(daemon, || {}, |model| *model == after).await;
    let made = possible(before, &[(name.clone(), wanted, known)], false);
    let over = possible(before, &[(name, Some(ended), known)], false);
    let live = made.iter().chain(&over).cloned().collect();
    // What had not ended by then may end later.
    Expected {
        live,
        found: over.into_iter().chain(made).collect(),
        is_settling: settled.is_err(),
        ..Expected::unchanged(before)
    }
}

/// After something that the daemon has to do whatever happens: it may be at any point of it, and is done after a
/// start.
fn promised(before: &Model, fates: &[Fate], found: Vec<Model>, is_settled: bool) -> Expected {
    Expected {
        live: possible(before, fates, false),
        found,
        is_settling: !is_settled,
        ..Expected::unchanged(before)
    }
}
