//! Fields that a filter can name: those of the probe, of all events, and of subscriptions.
//!
//! Owns their names and types, and the precedence of equal names. In the kernel the probe's field wins
//! (kernel/trace/trace_events.c:trace_find_event_field). In a subscription, which covers many probes, the
//! field of all events wins: `comm` is the name of the task whatever a probe records, and `fields.comm` is
//! the probe's.

use super::ast::OWN;
use super::notation::Notation;
use crate::{FieldKind, Schema};

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A field of the probe, by its place in the schema, with as many values as its array has. The name of a symbol
    /// and a computed number are made by the daemon: the kernel records an address, or the parts.
    Own {
        index: usize,
        elements: u32,
        is_made: bool,
    },
    Ip,
    ReturnIp,
    Tid,
    Tgid,
    Comm,
    Cpu,
    Type,
    Flags,
    PreemptCount,
    /// The probe's name: the same for all of its events.
    Probe,
    /// The host's name: the same for all events.
    Host,
}

/// What it can be compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Numbers of 1, 2, 4 or 8 bytes.
    Number { bytes: u32, signed: bool },
    /// Numbers and lists of CPUs.
    Cpu,
    /// Texts.
    Text,
    /// Nothing: an array of this size in bytes, of which the kernel makes no number.
    Array { bytes: u32 },
}

/// Fields of all events in the kernel (trace_define_generic_fields and trace_define_common_fields
/// in kernel/trace/trace_events.c), without the stack, which is not part of an event.
const COMMON: &[(&str, Source, Kind)] = &[
    ("common_pid", Source::Tid, Kind::Number { bytes: 4, signed: true }),
    ("common_type", Source::Type, Kind::Number { bytes: 2, signed: false }),
    ("common_flags", Source::Flags, Kind::Number { bytes: 1, signed: false }),
    ("common_preempt_count", Source::PreemptCount, Kind::Number { bytes: 1, signed: false }),
    ("COMM", Source::Comm, Kind::Text),
    ("comm", Source::Comm, Kind::Text),
    ("CPU", Source::Cpu, Kind::Cpu),
    ("cpu", Source::Cpu, Kind::Cpu),
    ("common_cpu", Source::Cpu, Kind::Cpu),
];

/// Fields of subscriptions only.
const OURS: &[(&str, Source, Kind)] = &[
    ("pid", Source::Tid, Kind::Number { bytes: 4, signed: true }),
    ("tgid", Source::Tgid, Kind::Number { bytes: 4, signed: true }),
    ("probe", Source::Probe, Kind::Text),
    ("host", Source::Host, Kind::Text),
];

/// Where an entry probe was hit, and what a return probe left and went back to
/// (kernel/trace/trace_probe.h:FIELD_STRING_IP and others).
const ADDRESS: Kind = Kind::Number { bytes: 8, signed: false };
const OF_ENTRY: &[(&str, Source, Kind)] = &[("__probe_ip", Source::Ip, ADDRESS)];
const OF_RETURN: &[(&str, Source, Kind)] =
    &[("__probe_func", Source::Ip, ADDRESS), ("__probe_ret_ip", Source::ReturnIp, ADDRESS)];

/// Whether events of every probe have a field of this name, which is not an address.
pub(super) fn is_of_all_events(name: &str) -> bool {
    COMMON.iter().chain(OURS).any(|(known, ..)| *known == name)
}

/// The fields of one probe's events.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) schema: &'a Schema,
    /// Whether the fields of subscriptions are included.
    pub(super) with_ours: bool,
}

impl Fields<'_> {
    /// The field of that name; of the probe alone if the filter says so.
    pub(super) fn find(&self, name: &str, own: bool) -> Option<(Source, Kind)> {
        match (own, self.with_ours) {
            (true, _) => self.of_probe(name),
            (false, true) => self.of_all_events(name).or_else(|| self.of_probe(name)),
            (false, false) => self.of_probe(name).or_else(|| self.of_all_events(name)),
        }
    }

    /// Whether the probe has a field that only `fields.NAME` means.
    pub(super) fn is_hidden(&self, name: &str) -> bool {
        self.with_ours && self.own(name).is_some() && self.of_all_events(name).is_some()
    }

    fn of_probe(&self, name: &str) -> Option<(Source, Kind)> {
        let index = self.own(name)?;
        let field = self.schema.fields.get(index)?;
        let elements = field.array_len.unwrap_or(1);
        let is_made = field.kind == FieldKind::SymbolName || field.notation == Notation::Computed;
        let kind = match field.kind {
            FieldKind::SymbolName if self.with_ours => Kind::Text,
            kind => kind_of(kind, elements),
        };
        Some((Source::Own { index, elements, is_made }, kind))
    }

    fn of_all_events(&self, name: &str) -> Option<(Source, Kind)> {
        self.others().find(|(known, ..)| *known == name).map(|(_, source, kind)| (*source, *kind))
    }

    fn own(&self, name: &str) -> Option<usize> {
        self.schema.fields.iter().position(|field| field.name == name)
    }

    fn others(&self) -> impl Iterator<Item = &'static (&'static str, Source, Kind)> + use<> {
        let places = if self.schema.is_return { OF_RETURN } else { OF_ENTRY };
        let ours = if self.with_ours { OURS } else { &[] };
        COMMON.iter().chain(places).chain(ours)
    }

    /// All names as a filter writes them, those of the probe first. Of the probe alone if the filter says so.
    pub(super) fn names(&self, own: bool) -> Vec<String> {
        let ours = self.schema.fields.iter().map(|field| match field.name.as_str() {
            name if own || self.is_hidden(name) => format!("{OWN}{name}"),
            name => name.to_owned(),
        });
        let others = self.others().filter(|_| !own).map(|(name, ..)| (*name).to_owned());
        ours.chain(others).collect()
    }

    /// What the kernel calls a field that is not the probe's own; absent when it has none of that
    /// kind, or the probe hides them all.
    pub(super) fn kernel_name(&self, source: Source) -> Option<&'static str> {
        let here = OF_ENTRY.iter().chain(OF_RETURN);
        let mut names =
            COMMON.iter().chain(here).filter(|(_, known, _)| *known == source).map(|(name, ..)| *name);
        names.find(|name| self.own(name).is_none())
    }
}

/// The kernel takes all bytes of an array together
/// (kernel/trace/trace_probe.c:traceprobe_define_arg_fields gives the field that size), and of an
/// array of texts the first.
fn kind_of(kind: FieldKind, elements: u32) -> Kind {
    let (bytes, signed) = match kind {
        FieldKind::String => return Kind::Text,
        FieldKind::SymbolName => return ADDRESS,
        FieldKind::Signed { bytes } => (u32::from(bytes), true),
        FieldKind::Unsigned { .. } | FieldKind::Char | FieldKind::Symbol => {
            (u32::try_from(kind.value_bytes()).unwrap_or_default(), false)
        }
    };
    match bytes.saturating_mul(elements) {
        bytes @ (1 | 2 | 4 | 8) => Kind::Number { bytes, signed },
        bytes => Kind::Array { bytes },
    }
}
