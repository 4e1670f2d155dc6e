//! Foreign events, and adopted probes.

use std::io;

use kprobed_client::api::{AdoptProbeResponse, ForeignEvent, ProbeKind};
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::probe::{ProbeView, state};
use super::style::Tone;
use super::table::{Cell, Table};

/// An event, as JSON and YAML.
#[derive(Serialize)]
struct ForeignView {
    #[serde(flatten)]
    event: Json,
    adoptable: bool,
}

/// A probe that was adopted, as JSON and YAML.
#[derive(Serialize)]
struct AdoptedView<'a> {
    #[serde(flatten)]
    probe: Option<ProbeView>,
    enabled_in: &'a [String],
}

/// The instance at the top has no name.
fn instances(names: &[String]) -> Vec<&str> {
    names.iter().map(|name| if name.is_empty() { "(top)" } else { name }).collect()
}

fn kind(event: &ForeignEvent) -> &'static str {
    match event.kind() {
        ProbeKind::Entry => "entry",
        ProbeKind::Return => "return",
        ProbeKind::Unspecified => "unknown",
    }
}

fn is_adoptable(event: &ForeignEvent) -> bool {
    event.obstacle.is_empty()
}

impl ForeignView {
    fn new(event: &ForeignEvent) -> Self {
        Self { event: Json::full(event), adoptable: is_adoptable(event) }
    }
}

fn count(hits: Option<u64>) -> Cell {
    hits.map_or_else(|| Cell::text("-"), Cell::number)
}

impl Output {
    /// Prints events that are not the daemon's.
    pub(crate) fn foreign_events(&mut self, events: &[ForeignEvent]) -> io::Result<()> {
        if self.structured(&events.iter().map(ForeignView::new).collect::<Vec<_>>())? {
            return Ok(());
        }
        let wide = self.is_wide();
        let mut headings = vec!["NAME", "KIND", "PLACE", "ENABLED IN", "HITS", "LOOKS OWN", "ADOPTABLE"];
        if wide {
            headings.extend(["NMISSED", "KERNEL DEFINITION"]);
        }
        let mut table = Table::new(&headings);
        for event in events {
            let adoptable = if is_adoptable(event) {
                Cell::toned("yes", Tone::Good)
            } else {
                Cell::toned("no", Tone::Faint)
            };
            let mut cells = vec![
                Cell::text(&event.name),
                Cell::text(kind(event)),
                Cell::text(&event.place),
                Cell::text(instances(&event.enabled_in).join(",")),
                count(event.hits),
                Cell::text(if event.made_by_kprobed { "yes" } else { "no" }),
                adoptable,
            ];
            if wide {
                cells.push(count(event.nmissed));
                cells.push(Cell::text(event.kernel_definitions.join("; ")));
            }
            table.row(cells);
        }
        self.table(&table)?;
        for event in events.iter().filter(|event| !is_adoptable(event)) {
            self.note(&format!("`{}` cannot be adopted: {}", event.name, event.obstacle_message));
        }
        Ok(())
    }

    /// Prints probes that events were made to.
    pub(crate) fn probes_adopted(&mut self, adopted: &[AdoptProbeResponse]) -> io::Result<()> {
        let views = adopted.iter().map(|one| AdoptedView {
            probe: one.probe.as_ref().map(ProbeView::new),
            enabled_in: &one.enabled_in,
        });
        if self.structured(&views.collect::<Vec<_>>())? {
            return Ok(());
        }
        for AdoptProbeResponse { probe, enabled_in, .. } in adopted {
            let Some(probe) = probe else { continue };
            self.line(&format!("{} {}", probe.name, state(probe).0))?;
            if !enabled_in.is_empty() {
                let others = instances(enabled_in).join(", ");
                self.note(&format!(
                    "`{}` is switched on in other trace instances as well, and stays so: {others}",
                    probe.name
                ));
            }
        }
        Ok(())
    }
}
