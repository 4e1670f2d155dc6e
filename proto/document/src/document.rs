//! Document model: one declared probe and its properties, and its text.
//!
//! Owns the written form: it omits properties with the value of a new probe, except `enabled`. Never reads
//! a text: `read` does.

use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_proto::v1;
use serde::{Serialize, Serializer};
use serde_saphyr::SerializeError;

use crate::duration::write_duration;

/// A declared probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document {
    /// `GROUP/EVENT`. Its definition can leave it out.
    #[serde(rename = "probe")]
    pub name: String,
    /// Its definition, in any dialect.
    pub definition: String,
    /// Whether it records.
    pub enabled: bool,
    /// Filter in the kernel's language; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Labels, by which clients select it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The person or team to ask about the probe; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Its purpose, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// How long the probe is to exist. Absent: without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// What the daemon does with it on another build of the kernel.
    #[serde(skip_serializing_if = "KernelChange::is_hold")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelChange {
    /// The daemon holds it back until a user accepts it.
    #[default]
    Hold,
    /// The daemon arms it all the same.
    ArmAnyway,
}

impl KernelChange {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
    fn is_hold(&self) -> bool {
        *self == Self::Hold
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

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Lasting(duration) => serializer.serialize_str(&write_duration(*duration)),
            Self::Held(holder) => serializer.collect_map([("holder", holder)]),
        }
    }
}

/// Writes documents, each with `---` before it if there are several.
///
/// # Errors
/// An error of the YAML library. No document is known to cause one.
pub fn write(documents: &[Document]) -> Result<String, SerializeError> {
    let mark = if documents.len() > 1 { "---\n" } else { "" };
    documents.iter().map(|document| Ok(mark.to_owned() + &yaml(document)?)).collect()
}

/// Writes a value as a document of YAML, without breaking long lines.
///
/// # Errors
/// As [`write()`].
pub fn yaml(value: &impl Serialize) -> Result<String, SerializeError> {
    serde_saphyr::to_string_with_options(value, serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX })
}
