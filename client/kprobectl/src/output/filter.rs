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
struct ProbeFilterView<'a> {
    probe: &'a str,
    usable: bool,
    /// `null`: the kernel can do nothing of it.
    kernel_filter: Option<&'a str>,
    exact: bool,
    problem: Option<Json>,
}

impl Output {
    /// Prints what a filter means for each probe.
    pub(crate) fn filter_check(&mut self, text: &str, checked: &[ProbeFilter]) -> io::Result<()> {
        let views: Vec<_> = checked.iter().map(ProbeFilterView::new).collect();
        if self.structured(&views)? {
            return Ok(());
        }
        let mut table = Table::new(&["PROBE", "THE KERNEL", "KERNEL FILTER"]);
        for view in &views {
            table.row(vec![
                Cell::text(view.probe),
                match (view.usable, view.exact, view.kernel_filter) {
                    (false, _, _) => Cell::toned("unusable", Tone::Bad),
                    (true, true, _) => Cell::toned("exact", Tone::Good),
                    (true, false, Some(_)) => Cell::toned("in part", Tone::Doubtful),
                    (true, false, None) => Cell::toned("not at all", Tone::Doubtful),
                },
                Cell::text(view.kernel_filter.unwrap_or_default()),
            ]);
        }
        self.table(&table)?;
        for found in checked {
            if let Some(problem) = &found.problem {
                self.line("")?;
                self.line(&format!("{}:", found.probe))?;
                let text = diagnostic::render(text, std::slice::from_ref(problem), self.style);
                self.raw(text.as_bytes())?;
            }
        }
        Ok(())
    }
}

impl<'a> ProbeFilterView<'a> {
    fn new(found: &'a ProbeFilter) -> Self {
        Self {
            probe: &found.probe,
            usable: found.problem.is_none(),
            kernel_filter: Some(found.kernel_filter.as_str()).filter(|filter| !filter.is_empty()),
            exact: found.exact,
            problem: found.problem.as_ref().map(Json::full),
        }
    }
}
