//! Attached events: table, messages, JSON and YAML.

use std::io;

use kprobed_client::api::{AttachedEvent, AttachedEventState};
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::probe::{FieldView, fields};
use super::style::Tone;
use super::table::{Cell, Table};
use super::time::rfc3339;

/// An attached event, as JSON and YAML.
#[derive(Serialize)]
struct AttachedView {
    #[serde(flatten)]
    event: Json,
    /// Its schema, with types as people write them.
    fields: Option<Vec<FieldView>>,
}

impl AttachedView {
    fn new(event: &AttachedEvent) -> Self {
        let fields = event.schema.as_ref().map(fields);
        Self { event: Json::full(event).without(&["schema"]), fields }
    }
}

fn state(event: &AttachedEvent) -> (&'static str, Tone) {
    match event.state() {
        AttachedEventState::Recording => ("recording", Tone::Good),
        AttachedEventState::Waiting => ("waiting", Tone::Doubtful),
        AttachedEventState::Unspecified => ("unknown", Tone::Plain),
    }
}

impl Output {
    fn attached_structured(&mut self, events: &[AttachedEvent]) -> io::Result<bool> {
        self.structured(&events.iter().map(AttachedView::new).collect::<Vec<_>>())
    }

    /// Prints events that were attached: their names, which is all that a script wants.
    pub(crate) fn events_attached(&mut self, events: &[AttachedEvent]) -> io::Result<()> {
        if self.attached_structured(events)? {
            return Ok(());
        }
        events.iter().try_for_each(|event| self.line(&event.name))
    }

    /// Prints events that were detached, with what was read of them.
    pub(crate) fn events_detached(&mut self, events: &[AttachedEvent]) -> io::Result<()> {
        if self.attached_structured(events)? {
            return Ok(());
        }
        events.iter().try_for_each(|event| self.line(&format!("{} read={}", event.name, event.read)))
    }

    /// Prints a list of attached events.
    pub(crate) fn attached_events(&mut self, events: &[AttachedEvent]) -> io::Result<()> {
        if self.attached_structured(events)? {
            return Ok(());
        }
        let wide = self.is_wide();
        let mut headings = vec!["NAME", "STATE", "READ", "FILTER"];
        if wide {
            headings.extend(["UNDECODABLE", "CREATED", "FIELDS"]);
        }
        let mut table = Table::new(&headings);
        for event in events {
            let (text, tone) = state(event);
            let mut cells = vec![
                Cell::text(&event.name),
                Cell::toned(text, tone),
                Cell::number(event.read),
                Cell::text(&event.filter),
            ];
            if wide {
                let names = event.schema.iter().flat_map(fields).map(|field| field.name);
                cells.push(Cell::number(event.undecodable));
                cells.push(Cell::text(rfc3339(event.create_time.as_ref()).unwrap_or_default()));
                cells.push(Cell::text(names.collect::<Vec<_>>().join(" ")));
            }
            table.row(cells);
        }
        self.table(&table)?;
        for event in events.iter().filter(|event| !event.state_reason.is_empty()) {
            self.note(&format!("`{}` is {}: {}", event.name, state(event).0, event.state_reason));
        }
        Ok(())
    }
}
