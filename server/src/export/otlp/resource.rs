//! What the records, spans and metrics are of: this host, and the daemon on it.

use std::collections::BTreeMap;
use std::path::Path;

use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{InstrumentationScope, KeyValue};
use kprobed_otlp::resource::Resource;

use super::attribute::{attribute, text};
use crate::kernel::HostIdentity;
use crate::spool::Cursor;

/// The names of the semantic conventions. What the configuration says of one of them takes its place.
pub fn resource(host: &HostIdentity, own: &BTreeMap<String, String>) -> Resource {
    let machine_id = machine_id(Path::new("/etc/machine-id"));
    // As the conventions name the architecture.
    let arch = if host.machine == "x86_64" { "amd64" } else { &host.machine };
    let instance = machine_id.as_deref().unwrap_or(&host.hostname);
    let mut all: BTreeMap<&str, &str> = BTreeMap::from([
        ("service.name", "kprobed"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance),
        ("host.name", host.hostname.as_str()),
        ("host.arch", arch),
        ("os.type", "linux"),
        ("os.version", host.kernel_release.as_str()),
        ("os.description", host.kernel_version.as_str()),
    ]);
    all.extend(machine_id.as_deref().map(|id| ("host.id", id)));
    all.extend(own.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let attributes: Vec<KeyValue> =
        all.into_iter().map(|(name, value)| attribute(name, text(value))).collect();
    Resource { attributes, ..Resource::default() }
}

/// Who made them. Places in the log are of one run of the daemon: its name is here.
pub(super) fn scope(run: Option<&Cursor>) -> InstrumentationScope {
    let of_run = run.map(|cursor| {
        [
            attribute("kprobed.boot_id", text(cursor.boot_id.to_string())),
            attribute("kprobed.epoch", epoch(cursor.epoch)),
        ]
    });
    InstrumentationScope {
        name: "kprobed".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        attributes: of_run.into_iter().flatten().collect(),
        ..InstrumentationScope::default()
    }
}

/// As values of events have their integers.
fn epoch(epoch: u64) -> Any {
    i64::try_from(epoch).map_or_else(|_| text(epoch.to_string()), Any::IntValue)
}

fn machine_id(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}
