//! The OTLP resource and scope: the host, its labels, and the daemon's epoch.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kprobed_otlp::common::{InstrumentationScope, KeyValue};
use kprobed_otlp::resource::Resource;

use super::value::{attribute, text, unsigned};
use crate::health::LabelsFile;
use kprobed_host::kernel::HostIdentity;
use kprobed_trace::spool::Cursor;

/// This host as a resource: in the names of the semantic conventions, and its labels as
/// `kprobed.host.label.KEY`. What the configuration says of a name takes its place.
#[derive(Clone, Debug)]
pub struct Host {
    known: BTreeMap<String, String>,
    own: BTreeMap<String, String>,
    labels: Arc<LabelsFile>,
}

impl Host {
    /// What is known of the host, what the configuration says of it, and its labels.
    pub fn new(host: &HostIdentity, own: &BTreeMap<String, String>, labels: &Arc<LabelsFile>) -> Self {
        let machine_id = machine_id(Path::new("/etc/machine-id"));
        // As the conventions name the architecture.
        let arch = if host.machine == "x86_64" { "amd64" } else { &host.machine };
        let instance = machine_id.as_deref().unwrap_or(&host.hostname);
        let mut known = BTreeMap::from([
            ("service.name", "kprobed"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", instance),
            ("host.name", host.hostname.as_str()),
            ("host.arch", arch),
            ("os.type", "linux"),
            ("os.version", host.kernel_release.as_str()),
            ("os.description", host.kernel_version.as_str()),
        ]);
        known.extend(machine_id.as_deref().map(|id| ("host.id", id)));
        let known = known.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { known, own: own.clone(), labels: Arc::clone(labels) }
    }

    /// The host with the labels that it has now.
    pub(super) fn resource(&self) -> Resource {
        let labels = self.labels.labels();
        let labels =
            labels.iter().map(|(key, value)| (format!("kprobed.host.label.{key}"), value.to_owned()));
        let mut all = self.known.clone();
        all.extend(labels);
        all.extend(self.own.clone());
        let attributes: Vec<KeyValue> =
            all.into_iter().map(|(name, value)| attribute(&name, text(value))).collect();
        Resource { attributes, ..Resource::default() }
    }
}

/// Who made them. Places in the log are of one run of the daemon: its name is here.
pub(super) fn scope(run: Option<&Cursor>) -> InstrumentationScope {
    let of_run = run.map(|cursor| {
        [
            attribute("kprobed.boot_id", text(cursor.boot_id.to_string())),
            attribute("kprobed.epoch", unsigned(cursor.epoch)),
        ]
    });
    InstrumentationScope {
        name: "kprobed".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        attributes: of_run.into_iter().flatten().collect(),
        ..InstrumentationScope::default()
    }
}

fn machine_id(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use kprobed_otlp::common::any_value::Value as Any;

    use super::*;

    #[test]
    fn labels_are_those_of_now_and_the_configuration_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels");
        let labels = Arc::new(LabelsFile::new(Some(path.clone())));
        let [hostname, kernel_release, kernel_version, boot_id] =
            ["here", "6.12", "#1", "b"].map(ToOwned::to_owned);
        let machine = "x86_64".to_owned();
        let identity = HostIdentity { hostname, kernel_release, kernel_version, machine, boot_id };
        let own = BTreeMap::from([
            ("kprobed.host.label.team".to_owned(), "own".to_owned()),
            ("deployment.environment.name".to_owned(), "test".to_owned()),
        ]);
        let host = Host::new(&identity, &own, &labels);
        let value = |name: &str| {
            let found = host.resource().attributes.into_iter().find(|found| found.key == name);
            found.and_then(|found| match found.value?.value? {
                Any::StringValue(text) => Some(text),
                _ => None,
            })
        };
        assert_eq!(value("host.name").as_deref(), Some("here"));
        assert_eq!(value("host.arch").as_deref(), Some("amd64"));
        assert_eq!(value("deployment.environment.name").as_deref(), Some("test"));
        assert_eq!(value("kprobed.host.label.zone"), None);
        std::fs::write(&path, "zone=\"a\"\nteam=\"file\"\n").unwrap();
        assert_eq!(value("kprobed.host.label.zone").as_deref(), Some("a"));
        assert_eq!(value("kprobed.host.label.team").as_deref(), Some("own"));
        std::fs::write(&path, "zone=\"other\"\n").unwrap();
        assert_eq!(value("kprobed.host.label.zone").as_deref(), Some("other"));
    }
}
