//! What a document says.

use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_proto::v1;

/// A probe that there should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// `GROUP/EVENT`, the name that its definition gives it too.
    pub name: String,
    /// What it records, and where.
    pub definition: Definition,
    /// Whether it records.
    pub enabled: bool,
    /// Filter in the kernel's language; empty for none.
    pub filter: String,
    /// What it is found by.
    pub labels: BTreeMap<String, String>,
    /// Who is to be asked; empty for nobody.
    pub owner: String,
    /// What it is for.
    pub description: String,
    /// How long it is to be there. Absent: without end.
    pub lease: Option<Lease>,
    /// What is done with it when the kernel is another build.
    pub on_kernel_change: KernelChange,
}

/// A definition: text in any dialect, or fields.
#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// Text in any dialect.
    Text(String),
    /// Fields, with the name of the probe in them.
    Fields(Box<v1::ProbeSpec>),
}

/// How long a probe is to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// For so long from when it is asked for.
    Lasting(Duration),
    /// As long as this hold of a connection lasts.
    Held(String),
}

/// What is done with a probe when the kernel is another build, on which it might record something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChange {
    /// It is held back until somebody has looked at it.
    #[default]
    Hold,
    /// It is armed all the same.
    ArmAnyway,
}

impl KernelChange {
    /// Every choice.
    pub(crate) const ALL: [Self; 2] = [Self::Hold, Self::ArmAnyway];

    /// As documents have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::ArmAnyway => "arm-anyway",
        }
    }

    pub(crate) const fn message(self) -> v1::KernelChange {
        match self {
            Self::Hold => v1::KernelChange::Hold,
            Self::ArmAnyway => v1::KernelChange::ArmAnyway,
        }
    }

    pub(crate) const fn of_message(message: v1::KernelChange) -> Self {
        match message {
            v1::KernelChange::Unspecified | v1::KernelChange::Hold => Self::Hold,
            v1::KernelChange::ArmAnyway => Self::ArmAnyway,
        }
    }
}

impl Lease {
    /// Absent for a message that asks for none.
    pub(crate) fn of_message(message: &v1::Lease) -> Option<Self> {
        match &message.duration {
            Some(duration) => Duration::try_from(*duration).ok().map(Self::Lasting),
            None if message.holder.is_empty() => None,
            None => Some(Self::Held(message.holder.clone())),
        }
    }

    pub(crate) fn message(&self) -> v1::Lease {
        match self {
            Self::Lasting(duration) => v1::Lease {
                duration: prost_types::Duration::try_from(*duration).ok(),
                ..v1::Lease::default()
            },
            Self::Held(holder) => v1::Lease { holder: holder.clone(), ..v1::Lease::default() },
        }
    }
}
