//! A probe as the daemon knows it: its record, its state, and what the kernel has of it.
//!
//! Owns these types and the etag. Never reads or writes the kernel.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_proto::v1;

use super::budget::stored_trouble;
use super::footprint::Footprint;
use super::guard::Guarded;
use crate::error::{Error, Reason};
use crate::store::{Record, StoreError};
use kprobed_host::tracefs::OwnEvent;
use kprobed_lang::definition::{Code, Diagnostic, ProbeKind};
use kprobed_rights::Object;
use kprobed_trace::decode::Schema;
use kprobed_verdict::checker::CheckOutcome;
use kprobed_verdict::validate::Arming;

/// State of a probe: what the kernel has, compared with what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeState {
    /// Stored, not yet in the kernel.
    Pending,
    /// In the kernel and recording.
    Armed,
    /// In the kernel and switched off.
    Disabled,
    /// Stored, but the kernel does not have it.
    Failed(Trouble),
    /// In the kernel, but not as it was requested.
    Drifted(Trouble),
    /// Kept out of the kernel, which would take it: it would record something other than what it was
    /// made for, this daemon refuses its place, or its module is not loaded, so that nothing proves its address.
    HeldBack(Trouble),
    /// Removed from the kernel: its lease has ended.
    Expired(Trouble),
    /// In the kernel and switched off: it has cost more than its budget.
    Tripped(Trouble),
}

impl ProbeState {
    /// The state alone, as in the API.
    pub const fn kind(&self) -> v1::ProbeState {
        match self {
            Self::Pending => v1::ProbeState::Pending,
            Self::Armed => v1::ProbeState::Armed,
            Self::Disabled => v1::ProbeState::Disabled,
            Self::Failed(_) => v1::ProbeState::Failed,
            Self::Drifted(_) => v1::ProbeState::Drifted,
            Self::HeldBack(_) => v1::ProbeState::HeldBack,
            Self::Expired(_) => v1::ProbeState::Expired,
            Self::Tripped(_) => v1::ProbeState::Tripped,
        }
    }

    /// The state of a stored probe that is not in the kernel for that reason.
    pub(super) fn kept_out(error: &Error) -> Self {
        if !error.is_objection() {
            return Self::Failed(Trouble::because(error));
        }
        let (reason, hint) = (error.message.clone(), error.hint().to_owned());
        Self::HeldBack(Trouble { code: error.reason.name, reason, hint })
    }

    /// Whether the kernel has the probe, so that the state follows from that. Otherwise it is the outcome of a change,
    /// whatever the kernel has.
    pub(super) const fn is_in_kernel(&self) -> bool {
        match self {
            Self::Pending | Self::Failed(_) | Self::HeldBack(_) | Self::Expired(_) => false,
            Self::Armed | Self::Disabled | Self::Drifted(_) | Self::Tripped(_) => true,
        }
    }

    /// Why the probe is not as it should be. Absent if it is.
    pub const fn trouble(&self) -> Option<&Trouble> {
        match self {
            Self::Pending | Self::Armed | Self::Disabled => None,
            Self::Failed(trouble)
            | Self::Drifted(trouble)
            | Self::HeldBack(trouble)
            | Self::Expired(trouble)
            | Self::Tripped(trouble) => Some(trouble),
        }
    }
}

/// Why a probe is not as it should be, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Reason code, in upper snake case.
    pub code: &'static str,
    /// Why.
    pub reason: String,
    /// What to do; may be empty.
    pub hint: String,
}

impl Trouble {
    /// The code of a probe whose row cannot be relied on.
    const UNREADABLE: &'static str = "ROW_DAMAGED";

    /// Without advice.
    pub(super) fn because(reason: &Error) -> Self {
        let code = match reason.reason {
            _ if reason.is_of_definition() => "REFUSED",
            Reason::FOREIGN_EVENT_EXISTS => "NAME_TAKEN",
            Reason::KPROBES_DISABLED => "KPROBES_OFF",
            Reason::FTRACE_DISABLED => "FTRACE_OFF",
            _ if reason.cause::<StoreError>().is_some() => "DATABASE",
            _ => "CANNOT_DEFINE",
        };
        Self { code, reason: reason.to_string(), hint: String::new() }
    }

    /// The row of a probe that cannot be relied on.
    pub(super) fn of_row(name: &impl fmt::Display, why: &str) -> Self {
        Self {
            code: Self::UNREADABLE,
            reason: format!("its row in the database was damaged: {why}"),
            hint: format!("`kprobectl delete {name}`, and make it again"),
        }
    }

    /// A probe whose module is not loaded. `warnings` are those of its definition.
    pub(super) fn module_absent(module: &str, warnings: &[Diagnostic]) -> Self {
        if let Some(known) = warnings.iter().find(|warning| warning.code == Code::ModuleAbsent) {
            return Self::found(known.clone());
        }
        Self {
            code: Code::ModuleAbsent.name(),
            reason: format!(
                "its module `{module}` is not loaded: its address is checked, and the probe defined, when the module is loaded"
            ),
            hint: format!("`modprobe {module}`; `modinfo {module}` shows whether there is such a module"),
        }
    }

    /// The code of a probe of an event that the host does not have now.
    const EVENT_ABSENT: &'static str = "EVENT_ABSENT";

    /// A probe of an event that the host does not have now.
    pub(super) fn event_absent() -> Self {
        Self {
            code: Self::EVENT_ABSENT,
            reason: "the host does not have its event now: it is recorded when it appears".to_owned(),
            hint: String::new(),
        }
    }

    /// Whether it ends by itself when a module is loaded.
    pub(crate) fn waits_for_module(&self) -> bool {
        self.code == Code::ModuleAbsent.name()
    }

    /// Whether it ends by itself, and may be as it was meant.
    pub fn ends_by_itself(&self) -> bool {
        self.waits_for_module() || self.code == Self::EVENT_ABSENT
    }

    /// What a check has found.
    pub(super) fn found(found: Diagnostic) -> Self {
        Self { code: found.code.name(), reason: found.message, hint: found.hint.unwrap_or_default() }
    }

    /// Several troubles as one, with the code of the first. Absent if there are none.
    pub(super) fn all(troubles: &[Self]) -> Option<Self> {
        let code = troubles.first()?.code;
        let mut hints: Vec<&str> = Vec::new();
        for trouble in troubles {
            if !trouble.hint.is_empty() && !hints.contains(&trouble.hint.as_str()) {
                hints.push(&trouble.hint);
            }
        }
        let reasons: Vec<_> = troubles.iter().map(|trouble| trouble.reason.as_str()).collect();
        Some(Self { code, reason: reasons.join("; "), hint: hints.join("; ") })
    }
}

/// A time as reasons have it: whole seconds are enough for people.
pub(super) fn to_the_second(time: SystemTime) -> String {
    let time = prost_types::Timestamp::from(time);
    prost_types::Timestamp { nanos: 0, ..time }.to_string()
}

/// A probe: its record, and what the kernel has of it. Dereferences to its record (`probe.name`,
/// `probe.spec.filter`), so that no field exists twice.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What is stored of it, with what is wanted.
    pub record: Record,
    /// Entry or return.
    pub kind: ProbeKind,
    /// In the registry, the outcome of the last change; to clients, what the kernel has: see
    /// [`super::Observed::shown`].
    pub state: ProbeState,
    /// Time since which it has this state. Absent before that was noted.
    pub state_time: Option<SystemTime>,
    /// The event that was made of it. Absent when the kernel does not have it.
    pub own: Option<OwnEvent>,
    /// How often it was repaired, if the daemon has stopped repairing it.
    pub left_alone: Option<u32>,
    /// The fields of its events, once the kernel has it.
    pub schema: Option<Arc<Schema>>,
    /// What its writer should know.
    pub warnings: Vec<Diagnostic>,
    /// `FUNCTION+0xOFFSET`, once it is resolved.
    pub location: String,
    /// The same for people, who must know which function of that name it is.
    pub told_location: String,
    /// What rules are compared with, apart from its name and labels.
    pub footprint: Footprint,
    /// How the kernel arms it. Absent while it is not resolved.
    pub arming: Option<Arming>,
    /// What its definition meant on the build that it was made for, and how that has changed.
    pub guarded: Guarded,
}

impl Deref for Probe {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl Probe {
    /// Whether it is an event that the kernel brings, and not one that the daemon has defined.
    pub fn is_of_host(&self) -> bool {
        self.own.as_ref().is_some_and(OwnEvent::is_of_host)
    }

    /// A probe of which nothing is known but its record.
    pub fn unresolved(record: Record, kind: ProbeKind, state: ProbeState) -> Self {
        let guarded = Guarded::of_stored(record.meaning.clone());
        Self {
            record,
            kind,
            state,
            state_time: None,
            own: None,
            left_alone: None,
            schema: None,
            warnings: Vec::new(),
            location: String::new(),
            told_location: String::new(),
            footprint: Footprint::default(),
            arming: None,
            guarded,
        }
    }

    /// A probe whose definition was checked, and which is not in the kernel yet.
    pub(super) fn checked(record: Record, outcome: &CheckOutcome) -> Self {
        let probe = Self::unresolved(record, outcome.definition.kind, ProbeState::Pending);
        let probe = probe.guarded(Guarded::new(outcome.meaning())).resolved(outcome);
        Self { state: probe.settled(), ..probe }
    }

    /// With the findings of a check of its definition.
    pub(super) fn resolved(self, outcome: &CheckOutcome) -> Self {
        let CheckOutcome { definition, report, .. } = outcome;
        Self {
            footprint: Footprint::of(outcome),
            warnings: definition.warnings.clone(),
            location: report.location.clone(),
            told_location: report.told_location(),
            arming: report.arming,
            ..self
        }
    }

    /// Refuses to change a probe whose row cannot be relied on: it can only be deleted.
    pub(super) fn require_readable(&self) -> Result<(), Error> {
        match &self.state {
            ProbeState::Failed(trouble) if trouble.code == Trouble::UNREADABLE => Err(Error::of_probe(
                Reason::DATABASE_CORRUPT,
                &self.name,
                format!("`{}`: {}", self.name, trouble.reason),
            )
            .fix(&trouble.hint)),
            _ => Ok(()),
        }
    }

    /// Whether the kernel is to record it: a client has enabled it, and it was not disarmed for its
    /// cost.
    pub fn is_to_record(&self) -> bool {
        self.spec.enabled && self.trip.is_none()
    }

    /// Why it is disarmed although it is enabled. Absent if it is not.
    pub(super) fn tripped(&self) -> Option<Trouble> {
        Some(stored_trouble(self.trip.as_ref()?, &self.name))
    }

    /// Its state while the kernel has it as it is wanted.
    pub(super) fn settled(&self) -> ProbeState {
        match self.tripped() {
            Some(why) => ProbeState::Tripped(why),
            None if self.spec.enabled => ProbeState::Armed,
            None => ProbeState::Disabled,
        }
    }

    /// Whether it is kept out of the kernel until its module is loaded.
    pub(super) fn waits_for_module(&self) -> bool {
        matches!(&self.state, ProbeState::HeldBack(trouble) if trouble.waits_for_module())
    }

    /// With what is known of the meaning of its definition.
    pub(super) fn guarded(mut self, guarded: Guarded) -> Self {
        self.record.meaning = guarded.meaning();
        Self { guarded, ..self }
    }

    /// What rules are compared with.
    pub fn object(&self) -> Object<'_> {
        let object = self.footprint.object(&self.name, &self.spec.labels);
        Object { reads: self.footprint.reads_of_spec(&self.spec, self.schema.as_deref()), ..object }
    }

    /// The module that its place is in.
    pub(super) fn module(&self) -> Option<&str> {
        let place = self.own.as_ref().and_then(|own| own.listing.split(' ').nth(1)).unwrap_or_default();
        [self.location.as_str(), place].iter().find_map(|place| Some(place.split_once(':')?.0))
    }

    /// Refuses a change of a probe that a file declares, unless it is to be taken over.
    pub(super) fn require_undeclared(&self, take_over: bool) -> Result<(), Error> {
        match &self.spec.metadata.declared_by {
            Some(file) if !take_over => {
                let message = format!("the file `{file}` declares `{}`", self.name);
                let fix = "change the file, or take the probe over (`--take-over`): the file changes it no more then";
                Err(Error::of_probe(Reason::DECLARED_BY_FILE, &self.name, message)
                    .with("file", file)
                    .fix(fix))
            }
            _ => Ok(()),
        }
    }

    /// Changes with every change that a client makes.
    pub fn etag(&self) -> String {
        format!("{}-{}", self.uid, self.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use kprobed_rights::{Read, Reads};

    /// A comparison tells as much as the number that it is with.
    #[test]
    fn a_filter_that_compares_addresses_needs_the_right_to_see_them() {
        let mut probe = samples::probe(1, "kprobes/a");
        probe.footprint = Footprint { reads: Reads::NONE, ..Footprint::default() };
        for (filter, tells) in [
            ("", false),
            ("__probe_ip > 0xffffffff80000000", true),
            ("common_pid == 7 && !(x >= 0xffff888000000000)", true),
            ("x.function == vfs_read", true),
            ("x & 0x200000", true),
            ("cpu & CPUS{0-3} && count > 4096", false),
            // The kernel alone knows what it means.
            ("x ==", true),
        ] {
            probe.record.spec.filter = filter.to_owned();
            assert_eq!(probe.object().reads.has(Read::Addresses), tells, "{filter}");
        }
    }

    #[test]
    fn a_probe_belongs_to_its_file_until_it_is_taken_over() {
        let mut probe = samples::probe(1, "kprobes/open");
        probe.require_undeclared(false).unwrap();
        probe.record.spec.metadata.declared_by = Some("a.yaml".to_owned());
        probe.require_undeclared(true).unwrap();
        let refused = probe.require_undeclared(false).unwrap_err();
        assert_eq!(refused.to_string(), "the file `a.yaml` declares `kprobes/open`");
    }
}
