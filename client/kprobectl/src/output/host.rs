//! Checks of `kprobectl doctor`, and versions.

use std::collections::BTreeMap;
use std::io;

use kprobed_client::api::{CheckStatus, GetHostResponse, HostCheck};
use serde::Serialize;

use super::Output;
use super::style::Tone;
use super::table::{Cell, Table, properties};
use super::time::rfc3339;

/// Versions, for programs.
#[derive(Serialize)]
struct VersionView<'a> {
    client_version: &'a str,
    daemon_version: Option<&'a str>,
    hostname: Option<&'a str>,
    kernel_release: Option<&'a str>,
}

fn status(check: &HostCheck) -> (&'static str, Tone) {
    match check.status() {
        CheckStatus::Ok => ("ok", Tone::Good),
        CheckStatus::Warning => ("warning", Tone::Doubtful),
        CheckStatus::Failed => ("failed", Tone::Bad),
        CheckStatus::Unspecified => ("unknown", Tone::Plain),
    }
}

impl Output {
    /// Prints what is known about the host, what was checked and what to do.
    pub(crate) fn host(&mut self, host: &GetHostResponse) -> io::Result<()> {
        if self.message_structured(host)? {
            return Ok(());
        }
        let labels: BTreeMap<_, _> = host.labels.iter().collect();
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = properties(
            self.style,
            &[
                ("host", host.hostname.clone()),
                ("kernel", format!("{} {} {}", host.kernel_release, host.machine, host.kernel_version)),
                ("boot", host.boot_id.clone()),
                ("labels", labels.join(", ")),
                (
                    "daemon",
                    format!(
                        "{}, since {}",
                        host.daemon_version,
                        rfc3339(host.daemon_start_time.as_ref()).unwrap_or_default()
                    ),
                ),
                (
                    "tracefs",
                    format!("{}, instance {}, clock {}", host.tracefs, host.instance, host.trace_clock),
                ),
                (
                    "buffers",
                    format!(
                        "{} CPUs, {} KiB each, sub-buffers of {} bytes",
                        host.cpus, host.buffer_kib, host.sub_buffer_bytes
                    ),
                ),
            ],
        );
        self.text(&text)?;
        self.line("")?;
        self.checks(&host.checks)?;
        if !host.features.is_empty() {
            let mut table = Table::new(&["FEATURE", "AVAILABLE", "FOR"]);
            for feature in &host.features {
                let available =
                    if feature.available { Cell::text("yes") } else { Cell::toned("no", Tone::Faint) };
                table.row(vec![Cell::text(&feature.id), available, Cell::text(&feature.description)]);
            }
            self.line("")?;
            self.table(&table)?;
        }
        if !host.foreign_probes.is_empty() {
            let mut table = Table::new(&["FOREIGN PROBE", "DEFINITION"]);
            for probe in &host.foreign_probes {
                table.row(vec![Cell::text(&probe.name), Cell::text(&probe.kernel_definition)]);
            }
            self.line("")?;
            self.table(&table)?;
        }
        Ok(())
    }

    fn checks(&mut self, checks: &[HostCheck]) -> io::Result<()> {
        let mut table = Table::new(&["CHECK", "STATUS", "FINDING"]);
        for check in checks {
            let (text, tone) = status(check);
            table.row(vec![Cell::text(&check.id), Cell::toned(text, tone), Cell::text(&check.finding)]);
        }
        self.table(&table)?;
        // Below the table, so that a command can be copied in one piece.
        for check in checks.iter().filter(|check| !check.fix.is_empty()) {
            let head = self.style.hint("fix:");
            self.line(&format!("{head} {}: {}", check.id, super::data::one_line(&check.fix)))?;
        }
        Ok(())
    }

    /// Prints the versions of this command and, if it could be asked, of the daemon.
    pub(crate) fn version(&mut self, host: Option<&GetHostResponse>) -> io::Result<()> {
        let view = VersionView {
            client_version: env!("CARGO_PKG_VERSION"),
            daemon_version: host.map(|host| host.daemon_version.as_str()),
            hostname: host.map(|host| host.hostname.as_str()),
            kernel_release: host.map(|host| host.kernel_release.as_str()),
        };
        if self.structured(&view)? {
            return Ok(());
        }
        self.line(&format!("kprobectl {}", view.client_version))?;
        if let Some(host) = host {
            self.line(&format!(
                "kprobed {} on {} (Linux {})",
                host.daemon_version, host.hostname, host.kernel_release
            ))?;
        }
        Ok(())
    }
}
