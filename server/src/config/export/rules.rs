//! Validation of the sections `[export.*]`.

use std::fs;
use std::ops::RangeInclusive;

use tonic::metadata::{AsciiMetadataKey as MetadataKey, AsciiMetadataValue as MetadataValue};

use super::super::problem::Problem;
use super::super::rules::within;
use super::super::tls;
use super::{ClientTls, HAS_NATS, JsonLinesTarget, Nats, NetworkAddress, OTLP, Selecting, ServerUrl};
use crate::config::Config;

/// All problems of the sections `[export.*]`.
pub(in crate::config) fn problems(config: &Config) -> Vec<Problem> {
    [jsonl(config), prometheus(config), otlp(config), nats(config)].into_iter().flatten().collect()
}

fn jsonl(config: &Config) -> Vec<Problem> {
    let Some(jsonl) = &config.export.jsonl else { return Vec::new() };
    let mut found = history("export.jsonl", config);
    found.extend(selecting("export.jsonl", jsonl.selecting()));
    match jsonl.path.parse::<JsonLinesTarget>() {
        Err(error) => found.push(Problem::value(
            "export.jsonl.path",
            &jsonl.path,
            error,
            "use for example `/var/log/kprobed/events.jsonl`, `unix:/run/logs.sock` or `-`",
        )),
        Ok(JsonLinesTarget::File(path)) => {
            let is_directory = fs::metadata(&path).is_ok_and(|found| found.is_dir());
            if is_directory {
                let hint = "use the path of a file in it, for example with `events.jsonl` at its end";
                let why = "there is a directory of that name";
                found.push(Problem::value("export.jsonl.path", path.display(), why, hint));
            } else if let Some(directory) = path.parent().filter(|directory| !directory.is_dir()) {
                let directory = directory.display();
                found.push(Problem::warning(
                    "export.jsonl.path",
                    format!("`export.jsonl.path` is `{}`, and `{directory}` is not a directory", path.display()),
                    format!(
                        "`mkdir -m 0750 {directory}`; the unit makes `/var/log/kprobed`, when the daemon is started"
                    ),
                ));
            }
        }
        Ok(JsonLinesTarget::Unix(_) | JsonLinesTarget::Stdout) => {}
    }
    found.extend(within("export.jsonl.sync_interval_ms", jsonl.sync_interval_ms, 0..=3_600_000));
    found
}

fn prometheus(config: &Config) -> Vec<Problem> {
    let Some(prometheus) = &config.export.prometheus else { return Vec::new() };
    let mut found = selecting("export.prometheus", prometheus.selecting());
    if !prometheus.listen.ip().is_loopback() && prometheus.tls.is_none() {
        found.push(Problem::warning(
            "export.prometheus.listen",
            format!(
                "everybody who reaches `{}` can read the names of all probes and how often they are hit",
                prometheus.listen
            ),
            "use a loopback address, or add `[export.prometheus.tls]`",
        ));
    }
    if config.listen.tcp == Some(prometheus.listen) {
        found.push(Problem::value(
            "export.prometheus.listen",
            prometheus.listen,
            "that is where clients connect (`listen.tcp`)",
            "use another port",
        ));
    }
    found.extend(prometheus.tls.iter().flat_map(|files| tls::problems(&tls::PROMETHEUS, files)));
    found
}

fn otlp(config: &Config) -> Vec<Problem> {
    let Some(otlp) = &config.export.otlp else { return Vec::new() };
    let mut found = if otlp.has_events() { history("export.otlp", config) } else { Vec::new() };
    found.extend(selecting("export.otlp", otlp.selecting()));
    match ServerUrl::parse(&otlp.endpoint, OTLP) {
        Err(error) => found.push(Problem::value(
            "export.otlp.endpoint",
            &otlp.endpoint,
            error,
            "use for example `http://127.0.0.1:4317`, where a collector on this host listens",
        )),
        Ok(ServerUrl { is_tls: true, .. }) if otlp.tls.is_none() => {
            let why = "`[export.otlp.tls]` is missing, and with it the authority that signs the receiver's certificate";
            let hint = "add `[export.otlp.tls]` with `ca`, such as `/etc/ssl/certs/ca-certificates.crt`";
            found.push(Problem::value("export.otlp.endpoint", &otlp.endpoint, why, hint));
        }
        Ok(ServerUrl { is_tls: false, address, .. }) => {
            if !is_local(&address) {
                found.push(in_the_open(
                    "export.otlp.endpoint",
                    &otlp.endpoint,
                    "`https://` with `[export.otlp.tls]`",
                ));
            }
            if otlp.tls.is_some() {
                found.push(Problem::warning(
                    "export.otlp.tls",
                    "`export.otlp.tls` is not used: `http://` has no TLS",
                    "use `https://HOST:PORT` as the endpoint, or leave the section out",
                ));
            }
        }
        Ok(_) => {}
    }
    if !otlp.has_events() && otlp.metrics_interval_s == 0 {
        found.push(Problem::error(
            "export.otlp",
            "`[export.otlp]` sends nothing: `logs` and `traces` are false, and `metrics_interval_s` is 0",
            "switch one of them on, or leave the section out",
        ));
    }
    found.extend(within("export.otlp.metrics_interval_s", otlp.metrics_interval_s, 0..=86_400));
    let hint = "use 1024: receivers refuse requests beyond 4 MiB unless their own settings allow more";
    found.extend(hinted("export.otlp.max_request_kib", otlp.max_request_kib, 16..=65_536, hint));
    found.extend(otlp.headers.iter().filter_map(|(name, value)| header(name, value.reveal())));
    found.extend(otlp.resource.keys().filter(|name| name.trim().is_empty()).map(|name| {
        let why = "an attribute needs a name";
        Problem::value("export.otlp.resource", name, why, "name it, such as `deployment.environment.name`")
    }));
    found.extend(otlp.tls.iter().flat_map(|tls| client_tls("export.otlp.tls", tls)));
    found
}

fn nats(config: &Config) -> Vec<Problem> {
    let Some(nats) = &config.export.nats else { return Vec::new() };
    let mut found = history("export.nats", config);
    if !HAS_NATS {
        let message = "`[export.nats]` cannot be used: this build of the daemon has no NATS exporter";
        let hint =
            "install the package, which has it, build with `--features nats`, or leave the section out";
        found.push(Problem::error("export.nats", message, hint));
    }
    found.extend(selecting("export.nats", nats.selecting()));
    found.extend(nats_servers(nats));
    if let Err(error) = kprobed_event::published::Subjects::new(&nats.subject_prefix) {
        let hint = "use for example `kprobed` or `site1.kprobed`";
        found.push(Problem::value("export.nats.subject_prefix", &nats.subject_prefix, error, hint));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if nats.stream.is_empty() || !nats.stream.chars().all(is_plain) {
        let why = "the name of a stream has letters, digits, `-` and `_`";
        found.push(Problem::value("export.nats.stream", &nats.stream, why, "use for example `KPROBED`"));
    }
    found.extend(within("export.nats.heartbeat_ms", nats.heartbeat_ms, 0..=3_600_000));
    if (1..100).contains(&nats.heartbeat_ms) {
        let why = "the daemon would wake up all the time, and publish as often";
        let hint = "use 2000, or 0 for none";
        found.push(Problem::value("export.nats.heartbeat_ms", nats.heartbeat_ms, why, hint));
    }
    for (setting, path) in nats.secrets() {
        if let Err(error) = fs::read(path) {
            let why = format!("it cannot be read: {error}");
            let hint = "create it, readable for the daemon only, or leave the setting out";
            found.push(Problem::value(&format!("export.nats.{setting}"), path.display(), why, hint));
        }
    }
    let secrets: Vec<&str> = nats.secrets().map(|(setting, _)| setting).collect();
    if secrets.len() > 1 {
        let message = format!("`[export.nats]` has {}: a server takes one of them", secrets.join(" and "));
        found.push(Problem::error("export.nats", message, "leave all but one out"));
    }
    if let Some(create) = &nats.create {
        let hint = "use for example 1024: the oldest messages go when the stream has so many";
        found.extend(hinted("export.nats.create.max_mib", create.max_mib, 1..=1 << 30, hint));
        found.extend(within("export.nats.create.max_age_s", create.max_age_s, 0..=10 * 366 * 86_400));
        let hint = "use 1, or 3 in a cluster";
        found.extend(hinted("export.nats.create.replicas", create.replicas, 1..=5, hint));
    }
    found
}

/// As [`within`], with another hint.
fn hinted(setting: &str, value: u64, range: RangeInclusive<u64>, hint: &str) -> Option<Problem> {
    within(setting, value, range).map(|problem| Problem { hint: hint.to_owned(), ..problem })
}

/// Problems of the servers and their TLS.
fn nats_servers(nats: &Nats) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut has_tls = false;
    for server in nats.servers() {
        match server {
            // The part before `@` is a secret, and messages are kept in logs.
            Err((url, _)) if url.contains('@') => {
                let message = "`export.nats.url` cannot have a user, a password or a token";
                let hint = "write them into a file, and name it: `credentials_file`, `token_file` or `password_file`";
                found.push(Problem::error("export.nats.url", message, hint));
            }
            Err((url, error)) => {
                let hint = "use for example `nats://127.0.0.1:4222`";
                found.push(Problem::value("export.nats.url", url, error, hint));
            }
            Ok(ServerUrl { is_tls: true, .. }) => has_tls = true,
            Ok(server) => {
                if nats.tls.is_none() && !is_local(&server.address) {
                    found.push(in_the_open(
                        "export.nats.url",
                        &nats.url,
                        "`tls://` with `[export.nats.tls]`",
                    ));
                }
                if nats.tls.is_some() {
                    let why = "`[export.nats.tls]` is there, and `nats://` has no TLS";
                    found.push(Problem::value("export.nats.url", server, why, "use `tls://HOST:PORT`"));
                }
            }
        }
    }
    if let Some(domain) = nats.tls.as_ref().and_then(|tls| tls.domain.as_ref()) {
        let why = "servers of a cluster are known by the hosts of their addresses";
        let hint = "leave it out, and give the server a certificate with the host (or the IP address) of its address";
        found.push(Problem::value("export.nats.tls.domain", domain, why, hint));
    }
    if has_tls && nats.tls.is_none() {
        let message = "`export.nats.url` cannot have `tls://` without `[export.nats.tls]`: the authority that signs the server's certificate is not known";
        let hint = "add `[export.nats.tls]` with `ca`, such as `/etc/ssl/certs/ca-certificates.crt`";
        found.push(Problem::error("export.nats.url", message, hint));
    }
    found
}

/// The problem of a header. Its value is a secret: no message shows it.
fn header(name: &str, value: &str) -> Option<Problem> {
    let setting = format!("export.otlp.headers.{name}");
    if name.ends_with("-bin") || MetadataKey::from_bytes(name.as_bytes()).is_err() {
        let why = "it cannot be the name of a header: those are of letters, digits, `-`, `_` and `.`, and `-bin` at the end is for bytes";
        let message = format!("`{setting}`: {why}");
        return Some(Problem::error(&setting, message, "use a name such as `authorization`"));
    }
    let is_bad = MetadataValue::try_from(value).is_err();
    is_bad.then(|| {
        let message = format!("`{setting}`: its value has characters that a header cannot have");
        Problem::error(&setting, message, "use printable ASCII; the value is hidden here")
    })
}

/// An exporter reads the history: it goes on there after a break.
fn history(section: &str, config: &Config) -> Vec<Problem> {
    if config.spool.enabled {
        return Vec::new();
    }
    let message = format!(
        "`[{section}]` needs the history, from which it goes on after a break, and `spool.enabled` is false"
    );
    vec![Problem::error(section, message, "set `spool.enabled = true`, or leave the section out")]
}

fn selecting(section: &str, selecting: Selecting<'_>) -> Vec<Problem> {
    let of = |(setting, why): (&str, String)| {
        let (value, hint) = match setting {
            "labels" => (selecting.labels, "use a selector such as `team=storage,tier!=1`"),
            _ => (selecting.filter, "use a filter as `kprobectl observe --filter` takes it"),
        };
        Problem::value(&format!("{section}.{setting}"), value, why, hint)
    };
    selecting.read().err().unwrap_or_default().into_iter().map(of).collect()
}

fn client_tls(section: &str, files: &ClientTls) -> Vec<Problem> {
    let mut found = tls::client_problems(section, files);
    if files.certificate.is_some() != files.key.is_some() {
        let (there, missing) =
            if files.key.is_some() { ("key", "certificate") } else { ("certificate", "key") };
        let message = format!("`{section}` has a `{there}` and no `{missing}`");
        found.push(Problem::error(section, message, "give both, or neither"));
    }
    found
}

fn is_local(address: &NetworkAddress) -> bool {
    address.host == "localhost"
        || address.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Events hold memory of the kernel and of programs.
fn in_the_open(setting: &str, value: &str, remedy: &str) -> Problem {
    let why =
        "events would go over the network in the open, and they hold memory of the kernel and of programs";
    Problem::value(setting, value, why, format!("use a loopback address, or {remedy}"))
}
