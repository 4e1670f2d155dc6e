//! The probes and events of the host on which roles are tried: one for each reason why a role can hide it.

use std::sync::Arc;
use std::time::SystemTime;

use kprobed_control::store::{ProbeSpec, Record};
use kprobed_control::{Footprint, Probe, ProbeState, Trouble};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{Labels, Metadata, ProbeUid};
use kprobed_rights::{Read, Reads};
use kprobed_verdict::checker::{DefinitionText, Target};

use crate::attacks::events;

/// A function of the stored kernel. Rules forbid it.
pub(super) const FUNCTION: &str = "vfs_iocb_iter_write";

/// Another one, which no rule forbids.
pub(super) const OTHER: &str = "noop_direct_IO";

/// What the kernel lists that the daemon has not made.
pub(super) const EVENTS: &str = "p:zforeign/zforeign_e vfs_iocb_iter_write zforeign_a=%di\n";

/// A probe, or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    /// Hidden by nothing but the lack of a right.
    Plain,
    /// Of another group.
    Grouped,
    /// With a label.
    Labelled,
    /// On a function.
    Placed,
    /// On a function that is not known.
    Unknown,
    /// An event of another program, on the function.
    Foreign,
}

impl Object {
    pub(super) const ALL: [Self; 6] =
        [Self::Plain, Self::Grouped, Self::Labelled, Self::Placed, Self::Unknown, Self::Foreign];

    /// What every text about it has, and no other text.
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Plain => "zplain",
            Self::Grouped => "zgrouped",
            Self::Labelled => "zlabelled",
            Self::Placed => "zplaced",
            Self::Unknown => "zunknown",
            Self::Foreign => "zforeign",
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Grouped | Self::Foreign => self.mark(),
            _ => "open",
        }
    }

    pub(super) fn event(self) -> String {
        format!("{}_e", self.mark())
    }

    pub(super) fn name(self) -> String {
        format!("{}/{}", self.group(), self.event())
    }

    /// A definition whose name is taken by it.
    pub(super) fn again(self) -> String {
        format!("p:{} {FUNCTION} other=%si", self.name())
    }
}

/// All but the event of the other program.
pub(super) fn probes() -> Vec<Probe> {
    let probes = Object::ALL.into_iter().filter(|object| *object != Object::Foreign);
    (1..).zip(probes).map(|(uid, object)| probe(uid, object)).collect()
}

fn probe(uid: i64, object: Object) -> Probe {
    let mark = object.mark();
    let function = if matches!(object, Object::Plain | Object::Labelled) { OTHER } else { FUNCTION };
    let line = format!("p:{} {function} {mark}_a=%di", object.name());
    let label = if object == Object::Labelled { "secret" } else { "team" };
    let spec = ProbeSpec {
        definition: Arc::new(DefinitionText::new(line.clone())),
        enabled: true,
        filter: format!("{mark}_a == 1"),
        labels: Labels::new([(label.to_owned(), format!("{mark}_l"))]).unwrap(),
        metadata: Metadata {
            description: format!("{mark} description"),
            owner: format!("{mark} owner"),
            ..Metadata::default()
        },
    };
    let mut record = Record::new(object.name().parse().unwrap(), spec, line, SystemTime::UNIX_EPOCH);
    record.uid = ProbeUid(uid);
    record.creator = format!("uri:{mark}");
    let trouble =
        Trouble { code: "CANNOT_DEFINE", reason: format!("{mark} reason"), hint: format!("{mark} hint") };
    let probe = Probe::unresolved(record, ProbeKind::Entry, ProbeState::Failed(trouble));
    let target =
        Target { functions: vec![function.to_owned()], module: Some("vmlinux".to_owned()), whole: true };
    let footprint = match object {
        Object::Unknown => Footprint::default(),
        _ => Footprint { target, reads: Reads::NONE.with(Read::Registers), ..Footprint::default() },
    };
    let schema = Some(Arc::clone(&events::source().origin.schema));
    Probe { location: format!("{function}+0x0"), footprint, schema, ..probe }
}
