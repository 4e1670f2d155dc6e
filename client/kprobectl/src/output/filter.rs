//! Filters of probes, and what `filter --dry-run` finds.

use std::io;

use kprobed_client::api::ProbeFilter;
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::diagnostic;
use super::style::Tone;
use super::table::{Cell, Table};

/// The answer for one probe, as JSON and YAML.
#[derive(Serialize)]
struct ProbeFilterView {
    #[serde(flatten)]
    filter: Json,
    usable: bool,
}

impl ProbeFilterView {
    fn new(found: &ProbeFilter) -> Self {
        Self { filter: Json::full(found), usable: found.problem.is_none() }
    }
}

impl Output {
    /// Prints what a filter means for each probe.
    pub(crate) fn filter_check(&mut self, text: &str, checked: &[ProbeFilter]) -> io::Result<()> {
        if self.structured(&checked.iter().map(ProbeFilterView::new).collect::<Vec<_>>())? {
            return Ok(());
        }
        let mut table = Table::new(&["PROBE", "THE KERNEL", "KERNEL FILTER"]);
        for found in checked {
            let has_kernel_filter = !found.kernel_filter.is_empty();
            table.row(vec![
                Cell::text(&found.probe),
                match (found.problem.is_none(), found.exact, has_kernel_filter) {
                    (false, _, _) => Cell::toned("unusable", Tone::Bad),
                    (true, true, _) => Cell::toned("exact", Tone::Good),
                    (true, false, true) => Cell::toned("in part", Tone::Doubtful),
                    (true, false, false) => Cell::toned("not at all", Tone::Doubtful),
                },
                Cell::text(&found.kernel_filter),
            ]);
        }
        self.table(&table)?;
        for found in checked {
            if let Some(problem) = &found.problem {
                self.line("")?;
                self.line(&format!("{}:", found.probe))?;
                let text = diagnostic::render(text, std::slice::from_ref(problem), self.style);
                self.text(&text)?;
            }
        }
        Ok(())
    }
}
