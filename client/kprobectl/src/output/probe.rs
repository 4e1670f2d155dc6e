//! Probes: tables, properties, messages, JSON and YAML.

use std::collections::BTreeMap;
use std::io;

use jiff::Timestamp;
use kprobed_client::api::{
    DeletedProbe, EventField, EventSchema, KernelChange, Probe, ProbeKind, ProbeState,
};
use kprobed_client::event::Schema;
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::cost;
use super::diagnostic;
use super::lease::{left, sentence};
use super::meaning;
use super::past::ProbePast;
use super::style::Tone;
use super::table::{Cell, Table, properties};
use super::time::rfc3339;
use super::width::columns;

/// A probe, as JSON and YAML.
#[derive(Serialize)]
pub(super) struct ProbeView {
    #[serde(flatten)]
    probe: Json,
    /// Its schema, with types as people write them.
    fields: Option<Vec<FieldView>>,
}

/// A probe and its past, as JSON and YAML.
#[derive(Serialize)]
struct WithPast<'a> {
    #[serde(flatten)]
    probe: &'a ProbeView,
    #[serde(flatten)]
    past: &'a ProbePast,
}

/// A field of events, as JSON and YAML.
#[derive(Serialize)]
pub(super) struct FieldView {
    pub(super) name: String,
    r#type: String,
    fault_detected: bool,
}
impl ProbeView {
    pub(super) fn new(probe: &Probe) -> Self {
        let fields = probe.schema.as_ref().map(fields);
        Self { probe: Json::full(probe).without(&["schema"]), fields }
    }
}

/// The library knows how types are written. A schema that it does not understand is shown without
/// types.
pub(super) fn fields(schema: &EventSchema) -> Vec<FieldView> {
    let view = |field: &EventField, r#type: String| FieldView {
        name: field.name.clone(),
        r#type,
        fault_detected: field.fault_detected,
    };
    match Schema::try_from(schema.clone()) {
        Ok(known) => schema
            .fields
            .iter()
            .zip(known.fields())
            .map(|(field, known)| view(field, known.type_name()))
            .collect(),
        Err(_) => schema.fields.iter().map(|field| view(field, "unknown".to_owned())).collect(),
    }
}

/// In the order of keys.
fn labels(probe: &Probe) -> BTreeMap<&str, &str> {
    probe.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

pub(super) fn labels_text(probe: &Probe) -> String {
    labels(probe).iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

pub(super) fn kind(probe: &Probe) -> &'static str {
    match probe.kind() {
        ProbeKind::Entry => "entry",
        ProbeKind::Return => "return",
        ProbeKind::Unspecified => "unknown",
    }
}

fn on_kernel_change(probe: &Probe) -> &'static str {
    match probe.on_kernel_change() {
        KernelChange::Hold => "hold",
        KernelChange::ArmAnyway => "arm-anyway",
        KernelChange::Unspecified => "unknown",
    }
}

pub(super) fn state(probe: &Probe) -> (&'static str, Tone) {
    state_name(probe.state())
}

/// The name of a state, and how it is to look.
pub(super) const fn state_name(state: ProbeState) -> (&'static str, Tone) {
    match state {
        ProbeState::Pending => ("pending", Tone::Doubtful),
        ProbeState::Armed => ("armed", Tone::Good),
        ProbeState::Disabled => ("disabled", Tone::Faint),
        ProbeState::Failed => ("failed", Tone::Bad),
        ProbeState::PendingModule => ("pending-module", Tone::Doubtful),
        ProbeState::HeldBack => ("held-back", Tone::Bad),
        ProbeState::Expired => ("expired", Tone::Doubtful),
        ProbeState::Tripped => ("tripped", Tone::Bad),
        ProbeState::Drifted => ("drifted", Tone::Bad),
        ProbeState::Unspecified => ("unknown", Tone::Plain),
    }
}

fn state_cell(probe: &Probe) -> Cell {
    let (text, tone) = state(probe);
    Cell::toned(text, tone)
}

impl Output {
    /// Prints the name of a new probe on stdout, for scripts, and warnings on stderr.
    pub(crate) fn probe_created(&mut self, probe: &Probe) -> io::Result<()> {
        if self.structured(&ProbeView::new(probe))? {
            return Ok(());
        }
        self.line(&probe.name)?;
        self.probe_warnings(probe);
        self.note_state(probe);
        if let Some(cost) = &probe.hit_cost {
            self.note(&format!("a hit takes {}", cost::hit(cost)));
        }
        Ok(())
    }

    /// Prints on stderr what the writer of a probe should know.
    pub(crate) fn probe_warnings(&mut self, probe: &Probe) {
        if !probe.warnings.is_empty() {
            let text = diagnostic::render(&probe.definition, &probe.warnings, self.error_style);
            self.message(&text);
        }
    }

    /// Prints probes for programs, if the form of the output is one for programs.
    pub(super) fn probes_structured(&mut self, probes: &[Probe]) -> io::Result<bool> {
        self.structured(&probes.iter().map(ProbeView::new).collect::<Vec<_>>())
    }

    /// Prints probes that were switched.
    pub(crate) fn probes_changed(&mut self, probes: &[Probe]) -> io::Result<()> {
        if self.probes_structured(probes)? {
            return Ok(());
        }
        for probe in probes {
            self.line(&format!("{} {}", probe.name, state(probe).0))?;
            self.note_state(probe);
        }
        Ok(())
    }

    /// Prints probes whose labels were changed, with all that they have now.
    pub(crate) fn probes_labelled(&mut self, probes: &[Probe]) -> io::Result<()> {
        if self.probes_structured(probes)? {
            return Ok(());
        }
        probes
            .iter()
            .try_for_each(|probe| self.line(format!("{} {}", probe.name, labels_text(probe)).trim_end()))
    }

    /// Prints on stderr why a probe is not in its desired state.
    pub(crate) fn note_state(&mut self, probe: &Probe) {
        if !probe.state_message.is_empty() {
            self.note(&format!("`{}` is {}: {}", probe.name, state(probe).0, probe.state_message));
        }
        if !probe.state_hint.is_empty() {
            self.note(&format!("hint: {}", probe.state_hint));
        }
    }

    /// Prints a list of probes.
    pub(crate) fn probes(&mut self, probes: &[Probe]) -> io::Result<()> {
        if self.documents(probes)? || self.probes_structured(probes)? {
            return Ok(());
        }
        let wide = self.is_wide();
        let (now, leased) = (Timestamp::now(), probes.iter().any(|probe| probe.lease.is_some()));
        let mut headings = vec!["NAME", "KIND", "STATE", "LOCATION", "FILTER"];
        if leased {
            headings.push("LEASE");
        }
        if wide {
            headings.extend(["LABELS", "UID", "CREATED", "CREATOR", "REASON", "DEFINITION"]);
        }
        let mut table = Table::new(&headings);
        for probe in probes {
            let mut cells = vec![
                Cell::text(&probe.name),
                Cell::text(kind(probe)),
                state_cell(probe),
                Cell::text(&probe.location),
                Cell::text(&probe.filter),
            ];
            if leased {
                cells.push(Cell::text(left(probe, now)));
            }
            if wide {
                cells.push(Cell::text(labels_text(probe)));
                cells.push(Cell::number(probe.uid.unsigned_abs()));
                cells.push(Cell::text(rfc3339(probe.create_time.as_ref()).unwrap_or_default()));
                cells.push(Cell::text(&probe.creator));
                cells.push(Cell::text(&probe.state_message));
                cells.push(Cell::text(&probe.definition));
            }
            table.row(cells);
        }
        self.table(&table)?;
        // Why probes are not as they were requested.
        for probe in probes.iter().filter(|probe| !probe.state_hint.is_empty()) {
            self.note_state(probe);
        }
        Ok(())
    }

    /// Prints everything about a probe.
    pub(crate) fn probe(&mut self, probe: &Probe, past: &ProbePast) -> io::Result<()> {
        let view = ProbeView::new(probe);
        if self.documents(std::slice::from_ref(probe))?
            || self.structured(&WithPast { probe: &view, past })?
        {
            return Ok(());
        }
        let mut rows = vec![
            ("name", probe.name.clone()),
            ("uid", probe.uid.to_string()),
            ("kind", kind(probe).to_owned()),
            ("state", state(probe).0.to_owned()),
            ("state reason", probe.state_message.clone()),
            ("state hint", probe.state_hint.clone()),
            ("state since", rfc3339(probe.state_time.as_ref()).unwrap_or_default()),
            ("enabled", if probe.enabled { "yes" } else { "no" }.to_owned()),
            ("location", probe.location.clone()),
            ("filter", probe.filter.clone()),
            ("labels", labels_text(probe)),
            ("description", probe.description.clone()),
            ("owner", probe.owner.clone()),
            ("created by", probe.creator.clone()),
            ("declared by", probe.declared_by.clone()),
            ("lease", sentence(probe, Timestamp::now())),
            ("on kernel change", on_kernel_change(probe).to_owned()),
            ("definition", probe.definition.clone()),
            ("kernel definition", probe.kernel_definition.clone()),
            ("created", rfc3339(probe.create_time.as_ref()).unwrap_or_default()),
            ("updated", rfc3339(probe.update_time.as_ref()).unwrap_or_default()),
            ("etag", probe.etag.clone()),
        ];
        rows.extend(past.properties());
        self.text(&properties(self.style, &rows))?;
        if let Some(change) = &probe.meaning_change {
            self.text(&meaning::render(change, columns()))?;
        }
        if let Some(states) = past.table(self.style) {
            self.line("")?;
            self.text(&states)?;
        }
        if let Some(fields) = view.fields.filter(|fields| !fields.is_empty()) {
            let mut table = Table::new(&["FIELD", "TYPE", "FAULTS"]);
            for field in &fields {
                let faults = if field.fault_detected { "detected" } else { "unproven" };
                table.row(vec![Cell::text(&field.name), Cell::text(&field.r#type), Cell::text(faults)]);
            }
            self.line("")?;
            self.table(&table)?;
        }
        if !probe.warnings.is_empty() {
            let text = diagnostic::render(&probe.definition, &probe.warnings, self.style);
            self.line("")?;
            self.text(&text)?;
        }
        Ok(())
    }

    /// Prints probes that were deleted, with their last hit counts.
    pub(crate) fn probes_deleted(&mut self, deleted: &[DeletedProbe]) -> io::Result<()> {
        if self.structured(&deleted.iter().map(Json::full).collect::<Vec<_>>())? {
            return Ok(());
        }
        for DeletedProbe { name, profile, note } in deleted {
            match profile {
                Some(profile) => {
                    self.line(&format!("{name} hits={} nmissed={}", profile.hits, profile.nmissed))?;
                }
                None => self.line(name)?,
            }
            if !note.is_empty() {
                self.note(&format!("`{name}`: {note}"));
            }
        }
        Ok(())
    }
}
