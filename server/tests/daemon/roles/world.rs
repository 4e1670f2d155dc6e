//! The probes and events of the host on which roles are tried: one for each reason why a role can hide it.

use std::sync::Arc;
use std::time::SystemTime;

use kprobed_control::store::{ProbeSpec, Record};
use kprobed_lang::model::{KernelChange, Labels, Metadata};
use kprobed_verdict::checker::DefinitionText;

/// A function of the stored kernel. Rules forbid it.
pub(super) const FUNCTION: &str = "vfs_iocb_iter_write";

/// Another one, which no rule forbids.
pub(super) const OTHER: &str = "noop_direct_IO";

/// What the kernel lists that the daemon has not made.
pub(super) const FOREIGN: &[&str] = &["p:zforeign/zforeign_e vfs_iocb_iter_write zforeign_a=%di"];

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

    /// A probe of its group, as it is called before its name is looked at.
    pub(super) fn unnamed(self) -> String {
        format!("{}/unnamed", self.group())
    }

    /// The principal that has made it.
    pub(super) fn maker(self) -> String {
        format!("uri:{}", self.mark())
    }

    /// A definition whose name is taken by it.
    pub(super) fn again(self) -> String {
        format!("p:{} {FUNCTION} other=%si", self.name())
    }
}

/// All but the event of the other program.
pub(super) fn probes() -> Vec<Record> {
    let probes = Object::ALL.into_iter().filter(|object| *object != Object::Foreign);
    probes.map(probe).collect()
}

fn probe(object: Object) -> Record {
    let mark = object.mark();
    let function = match object {
        Object::Plain | Object::Labelled => OTHER,
        Object::Unknown => "zunknown_f",
        _ => FUNCTION,
    };
    let line = format!("p:{} {function} {mark}_a=%di", object.name());
    let label = if object == Object::Labelled { "secret" } else { "team" };
    let spec = ProbeSpec {
        definition: Arc::new(DefinitionText::new(line.clone())),
        enabled: true,
        filter: format!("{mark}_a == 1"),
        stack: false,
        labels: Labels::new([(label.to_owned(), format!("{mark}_l"))]).unwrap(),
        metadata: Metadata {
            description: format!("{mark} description"),
            owner: format!("{mark} owner"),
            // Nothing is known of what they meant.
            on_kernel_change: KernelChange::ArmAnyway,
            ..Metadata::default()
        },
    };
    let mut record = Record::new(object.name().parse().unwrap(), spec, line, SystemTime::UNIX_EPOCH);
    record.creator = object.maker();
    record.creator_names = vec![object.maker()];
    record
}
