//! Document model: one declared probe and its properties.
//!
//! Owns the names of choices, and their messages in the API. Never reads or writes text: `read` and
//! `write` do.

use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_proto::v1;

/// A declared probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// `GROUP/EVENT`, which its definition must name too.
    pub name: String,
    /// Its definition, in any dialect.
    pub definition: String,
    /// Whether it records.
    pub enabled: bool,
    /// Filter in the kernel's language; empty for none.
    pub filter: String,
    /// Labels, by which clients select it.
    pub labels: BTreeMap<String, String>,
    /// The person or team to ask about the probe; empty for none.
    pub owner: String,
    /// Its purpose, in words.
    pub description: String,
    /// How long the probe is to exist. Absent: without end.
    pub lease: Option<Lease>,
    /// What the daemon does with it on another build of the kernel.
    pub on_kernel_change: KernelChange,
}

/// Lease: how long a probe is to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// For this long from the request on.
    Lasting(Duration),
    /// As long as this hold of a connection exists.
    Held(String),
}

/// What the daemon does with a probe on another build of the kernel, on which it might record
/// something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChange {
    /// The daemon holds it back until a user accepts it.
    #[default]
    Hold,
    /// The daemon arms it all the same.
    ArmAnyway,
}

impl KernelChange {
    /// Every choice.
    pub(crate) const ALL: [Self; 2] = [Self::Hold, Self::ArmAnyway];

    /// Its name in documents.
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
    /// The lease of a message. Absent if the message has none.
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
