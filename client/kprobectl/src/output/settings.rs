//! Changed settings of a daemon.

use std::io;

use kprobed_client::api::SettingChange;
use kprobed_document::json::Json;

use super::Output;
use super::style::Tone;
use super::table::{Cell, Table};

impl Output {
    /// Prints what differs, one setting below the other.
    pub(crate) fn setting_changes(&mut self, changes: &[SettingChange], is_dry_run: bool) -> io::Result<()> {
        if self.structured(&changes.iter().map(Json::full).collect::<Vec<_>>())? {
            return Ok(());
        }
        if changes.is_empty() {
            return self.line("no setting differs");
        }
        let mut table = Table::new(&["SETTING", "BEFORE", "NOW", "IN FORCE"]);
        for change in changes {
            let value = |value: Option<&String>| Cell::text(value.map_or("(default)", String::as_str));
            let in_force = match (change.needs_restart, is_dry_run) {
                (true, _) => Cell::toned("after a restart", Tone::Doubtful),
                (false, true) => Cell::text("after a reload"),
                (false, false) => Cell::toned("yes", Tone::Good),
            };
            let setting = Cell::text(&change.setting);
            table.row(vec![setting, value(change.before.as_ref()), value(change.after.as_ref()), in_force]);
        }
        self.table(&table)
    }
}
