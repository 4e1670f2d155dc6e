//! Approved definitions.

use std::io;

use kprobed_client::api::{Approval, RevokeApprovalsResponse};
use kprobed_document::json::Json;

use super::Output;
use super::table::{Cell, Table};
use super::time::rfc3339;

impl Output {
    /// Prints approvals, one below the other.
    pub(crate) fn approvals(&mut self, approvals: &[Approval]) -> io::Result<()> {
        if self.structured(&approvals.iter().map(Json::full).collect::<Vec<_>>())? {
            return Ok(());
        }
        let mut table = Table::new(&["DIGEST", "APPROVED BY", "TIME", "READS", "DEFINITION", "NOTE"]);
        for approval in approvals {
            let reads = if approval.reads.is_empty() { "-".to_owned() } else { approval.reads.join(",") };
            table.row(vec![
                Cell::text(&approval.digest),
                Cell::text(&approval.principal),
                Cell::text(rfc3339(approval.time.as_ref()).unwrap_or_else(|| "-".to_owned())),
                Cell::text(reads),
                Cell::text(&approval.definition),
                Cell::text(&approval.note),
            ]);
        }
        self.table(&table)
    }

    /// Prints approvals that have ended, and the probes that go on without them.
    pub(crate) fn revoked(&mut self, response: &RevokeApprovalsResponse) -> io::Result<()> {
        if self.structured(&Json::full(response))? {
            return Ok(());
        }
        if response.approvals.is_empty() {
            return self.line("none of these definitions was approved");
        }
        self.approvals(&response.approvals)?;
        if response.probes.is_empty() {
            return Ok(());
        }
        self.line(&format!("these probes go on: {}", response.probes.join(", ")))
    }
}
