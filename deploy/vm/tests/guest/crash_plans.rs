//! The kinds of changes of the crash tests, and the state that each begins with.

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CreateProbeRequest, DeleteProbeRequest, Lease, UpdateProbeRequest};

use crate::crash_check::EVENTS;
use crate::crash_state::{Model, RequestedProbe, Term, made};
use crate::daemon::{creation, deletion};

/// A probe of `getpgid` that records its argument.
const ARGUMENT: &str = "number=+0x70(%di):u64";

/// What is done while a fault is made.
pub(crate) enum Act {
    /// Changes of which each has its own outcome.
    Each(Vec<Change>),
    /// A batch that is made whole or not at all.
    Whole(Vec<Change>),
    /// A start after a clean stop: everything is brought back.
    Start,
    /// A start after `kill -9`: everything is still in the kernel.
    Recover,
    /// Another program has switched off one event, and removed another one; the daemon repairs both
    /// when they are changed.
    Repair,
    /// The same, and the daemon is asked to look at all its probes.
    Reconcile,
    /// SIGTERM.
    Stop,
    /// The event of another program becomes a probe.
    Adopt,
    /// A probe that is held back is accepted.
    Accept,
    /// The time of a probe is over.
    Expire,
    /// A client goes that held probes.
    Release,
    /// A directory of declarations changes.
    Declare(Declared),
}

/// How the directory of declarations changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// It appears, with a file.
    Created,
    /// The file declares one probe otherwise, another one no more, and a third one for the first
    /// time.
    Changed,
    /// It is removed.
    Removed,
}

/// A kind of change, and its name.
pub(crate) type ChangeKind = (&'static str, fn() -> Act);

pub(crate) const CHANGE_KINDS: &[ChangeKind] = &[
    ("create", || Act::Each(vec![create("new0")])),
    ("create_three", || Act::Each((0..3).map(|number| create(&format!("new{number}"))).collect())),
    ("enable", || Act::Each(vec![switch("off", true)])),
    ("disable", || Act::Each(vec![switch("keep", false)])),
    ("filter", || Act::Each(vec![filter("keep", "number == 4")])),
    ("delete", || Act::Each(vec![delete("target")])),
    ("delete_three", || Act::Each((0..3).map(|number| delete(&format!("many{number}"))).collect())),
    ("hand_over", || Act::Each((0..MANY).map(|number| delete(&format!("many{number}"))).collect())),
    ("replace", || Act::Each(vec![replace("target")])),
    ("whole", || {
        Act::Whole(vec![create("new0"), filter("keep", "number == 5"), replace("target"), delete("many0")])
    }),
    ("start", || Act::Start),
    ("recover", || Act::Recover),
    ("repair", || Act::Repair),
    ("reconcile", || Act::Reconcile),
    ("stop", || Act::Stop),
    ("adopt", || Act::Adopt),
    ("record_event", || Act::Each(vec![Change::Create(host_event(EVENTS[1]))])),
    ("leave_event", || {
        Act::Each(vec![Change::Delete(DeleteProbeRequest {
            name: EVENTS[0].0.to_owned(),
            ..Default::default()
        })])
    }),
    ("lend", || Act::Each(vec![lend("new0", 5400)])),
    ("renew", || Act::Each(vec![renew("leased", Some(7200))])),
    ("keep", || Act::Each(vec![renew("leased", None)])),
    ("accept", || Act::Accept),
    ("expire", || Act::Expire),
    ("release", || Act::Release),
    ("declare", || Act::Declare(Declared::Created)),
    ("redeclare", || Act::Declare(Declared::Changed)),
    ("undeclare", || Act::Declare(Declared::Removed)),
];

/// Probes to delete at once: so many that the daemon switches to another instance.
const MANY: usize = 9;

/// How long the lease of the base lasts, in seconds: longer than a run.
const LEASE_S: i64 = 86_400;

pub(crate) fn create(name: &str) -> Change {
    Change::Create(created(name))
}

/// The request that [`create`] makes.
pub(crate) fn created(name: &str) -> CreateProbeRequest {
    let definition = format!("p:kprobes/{name} __x64_sys_getpgid {ARGUMENT}");
    let labels = [("made".to_owned(), name.to_owned())].into();
    CreateProbeRequest { labels, ..creation(&definition, "number == 3") }
}

/// An event of the host, with its filter.
fn host_event((name, filter): (&str, &str)) -> CreateProbeRequest {
    CreateProbeRequest { labels: [("of".to_owned(), "host".to_owned())].into(), ..creation(name, filter) }
}

pub(crate) fn update(name: &str) -> UpdateProbeRequest {
    UpdateProbeRequest { name: format!("kprobes/{name}"), ..Default::default() }
}

/// A lease of so many seconds.
pub(crate) fn lease(seconds: i64) -> Lease {
    let mut duration = Lease::default().duration.unwrap_or_default();
    duration.seconds = seconds;
    Lease { duration: Some(duration), ..Lease::default() }
}

/// A probe that is there for a time only.
pub(crate) fn lend(name: &str, seconds: i64) -> Change {
    Change::Create(CreateProbeRequest { lease: Some(lease(seconds)), ..created(name) })
}

/// Another lease for a probe, in seconds, or none any more.
fn renew(name: &str, seconds: Option<i64>) -> Change {
    Change::Update(UpdateProbeRequest {
        // One with neither a duration nor a holder never ends.
        lease: Some(seconds.map(lease).unwrap_or_default()),
        ..update(name)
    })
}

fn switch(name: &str, enabled: bool) -> Change {
    let set_labels = [("switched".to_owned(), enabled.to_string())].into();
    Change::Update(UpdateProbeRequest { enabled: Some(enabled), set_labels, ..update(name) })
}

fn filter(name: &str, filter: &str) -> Change {
    Change::Update(UpdateProbeRequest { filter: Some(filter.to_owned()), ..update(name) })
}

fn replace(name: &str) -> Change {
    let definition = format!("p:kprobes/{name} __x64_sys_getpgid again=+0x70(%di):u32");
    Change::Update(UpdateProbeRequest { definition: Some(definition), ..update(name) })
}

pub(crate) fn delete(name: &str) -> Change {
    Change::Delete(deletion(&format!("kprobes/{name}")))
}

/// What each case begins with.
pub(crate) fn base() -> Model {
    let wanted = |name: &str, enabled: bool, filter: &str| {
        let wanted = RequestedProbe {
            definition: format!("p:kprobes/{name} __x64_sys_getpgid {ARGUMENT}"),
            enabled,
            filter: filter.to_owned(),
            labels: [("role".to_owned(), name.to_owned())].into(),
            term: Term::None,
        };
        (format!("kprobes/{name}"), wanted)
    };
    let (leased, mut lent) = wanted("leased", true, "number == 6");
    lent.term = Term::Lasts(LEASE_S);
    let mut model = Model::from([
        wanted("keep", true, "number == 3"),
        wanted("off", false, ""),
        // What replaces its definition has no `number`.
        wanted("target", true, "common_pid > 1"),
        (leased, lent),
    ]);
    let event = Change::Create(host_event(EVENTS[0]));
    let (event, recorded) = made(&Model::new(), &event);
    model.extend(recorded.map(|recorded| (event, recorded)));
    model.extend((0..MANY).map(|number| wanted(&format!("many{number}"), true, "")));
    model
}

/// Deletes what another state does not have so.
pub(crate) fn deletions(from: &Model, to: &Model) -> Vec<Change> {
    let gone = from.iter().filter(|(name, wanted)| to.get(*name) != Some(wanted));
    gone.map(|(name, _)| Change::Delete(deletion(name))).collect()
}

/// Creates what another state does not have so.
pub(crate) fn creations(from: &Model, to: &Model) -> Vec<Change> {
    let new = to.iter().filter(|(name, wanted)| from.get(*name) != Some(wanted));
    new.map(|(_, wanted)| {
        Change::Create(CreateProbeRequest {
            definition: wanted.definition.clone(),
            enabled: wanted.enabled,
            filter: wanted.filter.clone(),
            labels: wanted.labels.clone().into_iter().collect(),
            lease: match wanted.term {
                Term::Lasts(seconds) => Some(lease(seconds)),
                _ => None,
            },
            ..Default::default()
        })
    })
    .collect()
}
