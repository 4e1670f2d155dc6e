//! The files that a daemon opens after its start, as its configuration names them.
//!
//! Owns which settings are such paths, and whether they are read or written. For a file it is its directory, in which
//! another one can take its place. Never opens one.

use std::path::{Path, PathBuf};

use kprobed_host::tracefs::Mounted;

use crate::config::Config;
use crate::config::export::JsonLinesTarget;
use crate::sandbox::Files;

/// What this configuration needs. `path` is the file that it is read from again.
pub(super) fn files(config: &Config, path: Option<&Path>, mounted: &Mounted) -> Files {
    let export = &config.export;
    let mut read = vec![config.tracing.procfs.clone(), config.declarations.directory.clone()];
    let scrapers = export.prometheus.as_ref().and_then(|prometheus| prometheus.tls.as_ref());
    let servers = config.listen.tls.iter().chain(scrapers);
    let servers = servers.flat_map(|tls| [&tls.certificate, &tls.key, &tls.client_ca]);
    let clients = [
        export.otlp.as_ref().and_then(|otlp| otlp.tls.as_ref()),
        export.nats.as_ref().and_then(|nats| nats.tls.as_ref()),
    ];
    let clients = clients.into_iter().flatten();
    let clients = clients.flat_map(|tls| [Some(&tls.ca), tls.certificate.as_ref(), tls.key.as_ref()]);
    let secrets = export.nats.iter().flat_map(|nats| nats.secrets().map(|(_setting, path)| path));
    let single = servers.chain(clients.flatten()).chain(secrets).map(PathBuf::as_path);
    read.extend(single.chain(path).chain(config.host.labels_file.as_deref()).filter_map(directory));

    let mut written = vec![
        mounted.tracefs.root().to_owned(),
        config.state.directory.clone(),
        config.state.directory.join(&config.spool.directory),
    ];
    written.extend(directory(&config.listen.unix));
    written.extend(export.jsonl.as_ref().and_then(|jsonl| match jsonl.path.parse() {
        Ok(JsonLinesTarget::File(path)) => directory(&path),
        _ => None,
    }));
    Files { read, written }
}

/// The directory of a file, from the root on.
fn directory(path: &Path) -> Option<PathBuf> {
    Some(std::path::absolute(path).ok()?.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use kprobed_host::tracefs::Tracefs;

    use super::*;
    use crate::config::Tls;

    #[test]
    fn each_setting_that_is_a_path_is_there() {
        let mut config = Config::default();
        let mounted = Mounted { tracefs: Tracefs::new("/sys/kernel/tracing", "/sys/kernel/debug") };
        config.declarations.directory = "/etc/kprobed/probes.d".into();
        config.host.labels_file = Some("/etc/podinfo/labels".into());
        config.listen.tls = Some(Tls {
            certificate: "/tls/one/server.pem".into(),
            key: "/tls/two/server.key".into(),
            client_ca: "/tls/three/ca.pem".into(),
        });
        let found = files(&config, Some(Path::new("/opt/kprobed.toml")), &mounted);
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            found.read,
            paths(&[
                "/proc",
                "/etc/kprobed/probes.d",
                "/tls/one",
                "/tls/two",
                "/tls/three",
                "/opt",
                "/etc/podinfo"
            ])
        );
        assert_eq!(
            found.written,
            paths(&["/sys/kernel/tracing", "/var/lib/kprobed", "/var/lib/kprobed/spool", "/run/kprobed"])
        );
    }
}
