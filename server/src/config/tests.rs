//! Tests of the configuration: every message, with its place and hint.

use std::fs;
use std::path::PathBuf;

use rcgen::{CertificateParams, KeyPair};

use super::export::HAS_NATS;
use super::*;

const HOST: HostSize = HostSize { cpus: 2, memory_kib: 512 << 10 };

fn judged(text: &str) -> Result<CheckedConfig, Vec<Problem>> {
    Config::of_text(text, HOST)
}

/// All that is wrong, as `SETTING LINE:COLUMN MESSAGE`.
fn wrong(text: &str) -> Vec<String> {
    let problems = match judged(text) {
        Ok(judged) => judged.warnings,
        Err(problems) => problems,
    };
    let errors = problems.into_iter().filter(|problem| problem.severity == Severity::Error);
    errors
        .map(|Problem { setting, message, place, .. }| {
            let place = place.map_or_else(String::new, |place| format!("{}:{}", place.line, place.column));
            format!("{setting} {place} {message}")
        })
        .collect()
}

/// The one thing that is wrong: its message and its hint.
fn only(text: &str) -> (String, String) {
    let problems = judged(text).unwrap_err();
    let mut errors = problems.into_iter().filter(|problem| problem.severity == Severity::Error);
    let error = errors.next().unwrap();
    assert_eq!(errors.next(), None);
    (error.message, error.hint)
}

#[test]
fn the_example_is_the_default() {
    let example = include_str!("../../../deploy/kprobed.example.toml");
    assert_eq!(judged(example).unwrap().config, Config::default());
}

#[test]
fn budgets_have_bounds() {
    assert_eq!(
        wrong("[budget]\nprobe_ns_per_s = 5\nhost_ns_per_s = 6\n"),
        [
            "budget.probe_ns_per_s 2:1 `budget.probe_ns_per_s` cannot be `5`: it must be from 1000000 to 1000000000000000",
            "budget.host_ns_per_s 3:1 `budget.host_ns_per_s` cannot be `6`: it must be from 1000000 to 1000000000000000",
        ]
    );
    let (_, hint) = only("[budget]\nhost_ns_per_s = 999999\n");
    assert_eq!(hint, "use 1000000, or 0 for no limit");
    let settings = Config::default().budget.settings();
    assert_eq!((settings.probe_ns_per_s, settings.host_ns_per_s), (Some(50_000_000), Some(100_000_000)));
    assert!(settings.calibrate);
}

#[test]
fn everything_is_said_at_once_with_its_place() {
    let text = "[listen]\nunix = ''\nport = 1\n\n[state]\ndirectory = 'kprobed'\n[tracing]\n  buffer_kib = 'big'\n\
                on_exit = 'stay'\n[log]\nlevel = 'loud'\n";
    assert_eq!(
        wrong(text),
        [
            "listen.unix 2:1 `listen.unix` cannot be ``: it is empty",
            "listen.port 3:1 `listen.port` is not a setting",
            "state.directory 6:1 `state.directory` cannot be `kprobed`: it is relative, and a daemon has no directory of \
             its own to begin from",
            "tracing.buffer_kib 8:16 `tracing.buffer_kib` cannot be `big`: it must be a whole number",
            "tracing.on_exit 9:11 `tracing.on_exit` cannot be `stay`: there is no such choice",
            "log.level 11:1 `log.level` cannot be `loud`: `loud` is not a level",
        ]
    );
}

#[test]
fn what_is_not_toml_says_where() {
    let problems = judged("[listen\nunix = 3").unwrap_err();
    assert!(problems[0].message.starts_with("this is not TOML: "), "{problems:?}");
    assert_eq!(problems[0].place.unwrap().line, 1);
    assert_eq!(
        wrong("[listen]\ntcp = '1.2.3.4'")[0],
        "listen.tcp 2:7 `listen.tcp` cannot be `1.2.3.4`: it is not an address with a port"
    );
    assert_eq!(wrong("listen = 3\n[no]\n").len(), 2);
}

#[test]
fn the_lines_that_an_operator_reads() {
    let problems = judged("[tracing]\nbuffer_kib = 99_999_999_999\n").unwrap_err();
    let text = problem::list(Some(Path::new("/etc/k.toml")), &problems);
    let lines: Vec<_> = text.lines().filter(|line| !line.contains("group")).collect();
    assert_eq!(
        lines[..2],
        [
            "error: /etc/k.toml:2:1: `tracing.buffer_kib` cannot be `99999999999`: with 2 CPUs the buffers take 195312499 MiB, \
             and the host has 512 MiB of memory",
            "hint: use at most 65536: a quarter of the memory for all CPUs",
        ]
    );
}

#[test]
fn tcp_is_loopback_or_tls() {
    assert!(wrong("[listen]\ntcp = '127.0.0.1:7000'").is_empty());
    assert!(wrong("[listen]\ntcp = '[::1]:7000'").is_empty());
    let (message, hint) = only("[listen]\ntcp = '0.0.0.0:7000'");
    assert!(message.contains("open to the network") && hint.contains("[listen.tls]"), "{message} {hint}");
}

#[test]
fn a_socket_has_a_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "not to be removed").unwrap();
    let unix = |path: PathBuf| wrong(&format!("[listen]\nunix = '{}'", path.display()));
    assert!(unix(directory.path().join("k.sock")).is_empty());
    assert!(unix(directory.path().join("missing/k.sock")).is_empty());
    for (path, why) in [
        (PathBuf::from("k.sock"), "it is relative"),
        (file.clone(), "there is a file of that name"),
        (directory.path().to_owned(), "there is a directory of that name"),
        (file.join("k.sock"), "is a file"),
        (
            PathBuf::from(format!("/{}", "x".repeat(110))),
            "it has 111 bytes, and the name of a socket can have 103",
        ),
    ] {
        let found = unix(path);
        assert!(found.len() == 1 && found[0].contains(why), "{found:?}");
    }
}

#[test]
fn procfs_is_where_it_is() {
    let procfs = |path: &str| wrong(&format!("[tracing]\nprocfs = '{path}'"));
    assert!(procfs("/proc").is_empty());
    assert!(procfs("proc")[0].contains("it is relative"));
    assert!(procfs("/proc/self")[0].contains("no procfs is mounted there"));
    assert!(procfs("/nowhere")[0].contains("no procfs is mounted there"));
}

#[test]
fn directories_are_directories() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let state = |path: PathBuf| wrong(&format!("[state]\ndirectory = '{}'", path.display()));
    assert!(state(directory.path().join("new/one")).is_empty());
    assert!(state(file.clone())[0].contains("is a file"));
    assert!(state(file.join("state"))[0].contains("is a file"));
    let spool = |path: &str| {
        let root = directory.path().display();
        wrong(&format!("[state]\ndirectory = '{root}'\n[spool]\ndirectory = '{path}'"))
    };
    assert!(spool("events").is_empty());
    for (path, why) in [
        ("", "the directory of the state itself"),
        ("x/..", "the directory of the state itself"),
        ("/", "the directory of the state is in it"),
        ("..", "the directory of the state is in it"),
        ("file", "is a file"),
    ] {
        let found = spool(path);
        assert!(found.len() == 1 && found[0].contains(why), "{path}: {found:?}");
    }
}

#[test]
fn numbers_have_bounds() {
    for (setting, value, why) in [
        ("tracing.buffer_kib", "1", "it must be at least 16"),
        ("tracing.buffer_kib", "65537", "with 2 CPUs the buffers take 128 MiB"),
        ("tracing.buffer_kib", "-1", "it must be a whole number"),
        ("tracing.buffer_max_kib", "99999999999", "that is the size for one CPU"),
        ("tracing.sub_buffer_kib", "48", "it must be a power of two from 4 to 512"),
        ("state.sample_interval_s", "0", "it must be from 1 to"),
        ("state.sample_interval_s", "9223372036854775807", "it must be from 1 to"),
        ("reconcile.interval_ms", "9223372036854775807", "it must be from 0 to"),
        ("reconcile.interval_ms", "30", "the daemon would do nothing but look"),
        ("state.minute_retention_days", "9223372036854775807", "it must be from 0 to 36500"),
        ("state.hour_retention_days", "0", "it must be from 1 to 36500"),
        ("spool.max_mib", "3", "it must be from 4 to"),
        ("spool.max_age_hours", "0", "it must be from 1 to"),
        ("spool.sync_interval_ms", "0", "it must be from 1 to"),
        ("listen.max_connections", "0", "it must be from 4 to"),
        ("listen.max_connections_per_peer", "0", "it must be from 1 to"),
        ("listen.idle_timeout_s", "0", "it must be from 1 to"),
    ] {
        let (section, name) = setting.split_once('.').unwrap();
        let (message, hint) = only(&format!("[{section}]\n{name} = {value}"));
        assert_eq!(
            message,
            format!(
                "`{setting}` cannot be `{value}`: {why}{}",
                &message[message.find(why).unwrap() + why.len()..]
            )
        );
        assert!(!hint.is_empty(), "{message}");
    }
    for good in [
        "[tracing]\nbuffer_kib = 65536",
        "[tracing]\nsub_buffer_kib = 0",
        "[spool]\nenabled = false\nmax_mib = 0",
    ] {
        assert!(wrong(good).is_empty(), "{good}");
    }
}

#[test]
fn names_are_names() {
    for (name, why) in
        [("", "it is empty"), ("../x", "it contains '.'"), (&"x".repeat(251), "more than 250 bytes")]
    {
        let (message, _) = only(&format!("[tracing]\ninstance = '{name}'"));
        assert!(message.contains(why), "{message}");
    }
    assert!(only("[listen]\ngroup = ''").0.contains("it is empty"));
    let warnings = judged("[listen]\ngroup = 'nosuch-group'").unwrap().warnings;
    assert_eq!(warnings[0].message, "this host has no group `nosuch-group`: only root can use the socket");
    assert_eq!(warnings[0].place, Some(Place { line: 2, column: 1 }));
}

#[test]
fn certificates_and_keys_belong_together() {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let certified = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (certificate, key) = certified("one");
    let (certificate, key) = (put("one.pem", &certificate), put("one.key", &key));
    let (_, other) = certified("other");
    let other = put("other.key", &other);
    let garbage = put("garbage", "hello");
    let torn = put("torn", "-----BEGIN CERTIFICATE-----\nAAA");
    let missing = directory.path().join("missing");
    let tls = |certificate: &Path, key: &Path, ca: &Path| {
        let (certificate, key, ca) = (certificate.display(), key.display(), ca.display());
        wrong(&format!(
            "[listen]\ntcp = '0.0.0.0:1'\n[listen.tls]\ncertificate = '{certificate}'\nkey = '{key}'\nclient_ca = '{ca}'"
        ))
    };
    assert!(tls(&certificate, &key, &certificate).is_empty());
    let all = tls(&missing, &garbage, &torn);
    assert_eq!(all.len(), 3);
    assert!(all[0].starts_with("listen.tls.certificate 4:1") && all[0].contains("No such file"), "{all:?}");
    assert!(all[1].starts_with("listen.tls.key 5:1") && all[1].contains("no private key"), "{all:?}");
    assert!(all[2].starts_with("listen.tls.client_ca 6:1") && all[2].contains("PEM"), "{all:?}");
    let mismatch = tls(&certificate, &other, &certificate);
    assert!(
        mismatch.len() == 1 && mismatch[0].contains("the key does not belong to the certificate in"),
        "{mismatch:?}"
    );
    assert_eq!(wrong("[listen.tls]\nkey = 'k'"), ["listen.tls 1:1 `listen.tls` has no `certificate`"]);
}

#[test]
fn the_spool_has_room() {
    let options = |text: &str| {
        let config = judged(text).unwrap().config;
        config.spool.options(&config.state)
    };
    assert_eq!(options("[spool]\nenabled = false"), None);
    let options = options("[spool]\nmax_mib = 32\nmax_age_hours = 2").unwrap();
    assert_eq!(options.directory, PathBuf::from("/var/lib/kprobed/spool"));
    assert_eq!((options.max_bytes, options.segment_bytes), (32 << 20, 2 << 20));
    assert_eq!((options.max_age.as_secs(), options.sync_interval.as_millis()), (7200, 1000));
}

#[test]
fn exporters_are_judged_to_the_last_field() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.pem");
    let text = format!(
        "[export.jsonl]\npath = 'events.jsonl'\nsync_interval_ms = -1\nlabels = 'team in ('\nfilter = 'pid ='\n\
         [export.prometheus]\nprobes = 'all'\n[export.kafka]\n\
         [export.otlp]\nendpoint = 'collector:4317'\ntraces = 1\nmax_request_kib = 4\nfilter = 'pid ='\n\
         [export.otlp.tls]\nca = '{0}'\nkey = '{0}'\n\
         [export.otlp.headers]\n'x-bin' = 'x'\ntoken = \"\\u0001\"\n",
        missing.display()
    );
    let found = wrong(&text);
    for expected in [
        "export.jsonl.path 2:1 `export.jsonl.path` cannot be `events.jsonl`: it is neither an absolute path",
        "export.jsonl.sync_interval_ms 3:20 `export.jsonl.sync_interval_ms` cannot be `-1`: it must be a whole number",
        "export.jsonl.labels 4:1 `export.jsonl.labels` cannot be `team in (`",
        "export.jsonl.filter 5:1 `export.jsonl.filter` cannot be `pid =`",
        "export.prometheus 6:1 `export.prometheus` has no `listen`",
        "export.prometheus.probes 7:10 `export.prometheus.probes` cannot be `all`: it must be a list",
        "export.kafka 8:9 `export.kafka` is not a setting",
        "export.otlp.endpoint 10:1 `export.otlp.endpoint` cannot be `collector:4317`: it is neither `http://HOST:PORT`",
        "export.otlp.traces 11:10 `export.otlp.traces` cannot be `1`",
        "export.otlp.max_request_kib 12:1 `export.otlp.max_request_kib` cannot be `4`",
        "export.otlp.filter 13:1 `export.otlp.filter` cannot be `pid =`",
        "export.otlp.tls.ca 15:1 ",
        "export.otlp.tls 14:14 `export.otlp.tls` has a `key` and no `certificate`",
        "export.otlp.headers.x-bin 18:1 `export.otlp.headers.x-bin`: it cannot be the name of a header",
        "export.otlp.headers.token 19:1 `export.otlp.headers.token`: its value has characters",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected}\n{}", found.join("\n"));
    }
}

#[test]
fn events_do_not_go_over_the_network_in_the_open() {
    for local in ["127.0.0.1", "localhost", "[::1]"] {
        assert!(wrong(&format!("[export.otlp]\nendpoint = 'http://{local}:4317'")).is_empty());
    }
    let (message, hint) = only("[export.otlp]\nendpoint = 'http://collector.example:4317'");
    assert!(message.contains("in the open") && hint.contains("https://"), "{message} {hint}");
    let (message, hint) = only("[export.otlp]\nendpoint = 'https://collector.example:4317'");
    assert!(message.contains("[export.otlp.tls]") && hint.contains("`ca`"), "{message} {hint}");
}

#[test]
fn labels_of_the_host_are_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("labels");
    let set = format!("[host]\nlabels_file = '{}'", path.display());
    assert!(
        wrong("[host]\nlabels_file = 'labels'")[0]
            .contains("`host.labels_file` cannot be `labels`: it is relative")
    );
    // It may come later: a warning.
    let warnings = || {
        let warnings = judged(&set).unwrap().warnings.into_iter();
        let of_labels = warnings.filter(|problem| problem.setting == "host.labels_file");
        of_labels.map(|problem| problem.message).collect::<Vec<_>>()
    };
    assert!(
        warnings()[0].contains("the labels of the host cannot be read")
            && warnings()[0].contains("No such file")
    );
    fs::write(&path, "zone=\"eu\"\nrack=7\n").unwrap();
    assert!(warnings()[0].contains("line 2: it must be `KEY=\"VALUE\"`"), "{:?}", warnings());
    fs::write(&path, "zone=\"eu\"\n").unwrap();
    assert_eq!(warnings(), Vec::<String>::new());
}

/// The problems of a section for NATS, without the one that this build does not have the exporter.
fn wrong_nats(text: &str) -> Vec<String> {
    let mut found = wrong(&format!("[export.nats]\n{text}"));
    let missing = |found: &String| found.contains("this build of the daemon has no NATS exporter");
    assert_eq!(found.iter().any(missing), !HAS_NATS, "{found:?}");
    found.retain(|found| !missing(found));
    found
}

#[test]
fn nats_is_judged_to_the_last_field() {
    assert!(wrong_nats("url = 'nats://127.0.0.1:4222, nats://localhost:4223'").is_empty());
    let text = "url = 'nats://u:p@host:4222,tls://b:1'\nstream = 'A B'\nsubject_prefix = 'a.*'\nheartbeat_ms = 5\n\
                filter = 'pid ='\ntoken_file = '/nowhere/a'\npassword_file = '/nowhere/b'\n\
                [export.nats.create]\nmax_mib = 0\nreplicas = 9\n";
    let found = wrong_nats(text);
    for expected in [
        "`export.nats.url` cannot have a user, a password or a token",
        "`export.nats.url` cannot have `tls://` without `[export.nats.tls]`",
        "`export.nats.stream` cannot be `A B`",
        "`export.nats.subject_prefix` cannot be `a.*`: it must be words",
        "`export.nats.heartbeat_ms` cannot be `5`",
        "`export.nats.filter` cannot be `pid =`",
        "`export.nats.token_file` cannot be `/nowhere/a`: it cannot be read",
        "`[export.nats]` has token_file and password_file",
        "`export.nats.create.max_mib` cannot be `0`",
        "`export.nats.create.replicas` cannot be `9`",
    ] {
        assert!(found.iter().any(|found| found.contains(expected)), "{expected}\n{}", found.join("\n"));
    }
    let found = wrong_nats(
        "url = 'tls://nats.example:4222'\n[export.nats.tls]\nca = '/nowhere/ca'\ndomain = 'other.example'",
    );
    assert!(
        found.iter().any(|found| found.contains("`export.nats.tls.domain` cannot be `other.example`")),
        "{found:?}"
    );
    let found = wrong_nats("url = 'nats://nats.example:4222'");
    assert!(found.len() == 1 && found[0].contains("in the open"), "{found:?}");
    let off = wrong("[spool]\nenabled = false\n[export.nats]\nurl = 'nats://127.0.0.1:4222'");
    assert!(off.iter().any(|found| found.contains("`[export.nats]` needs the history")), "{off:?}");
}

#[test]
fn a_value_that_cannot_be_read_is_not_missing_too() {
    for (section, value) in [("export.prometheus", "nonsense"), ("listen", "nonsense")] {
        let setting = if section == "listen" { "tcp" } else { "listen" };
        let (message, hint) = only(&format!("[{section}]\n{setting} = '{value}'"));
        assert!(message.contains("it is not an address with a port"), "{message}");
        assert!(hint.contains("127.0.0.1:7443"), "{hint}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_told_before_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let warnings =
        |path: &Path| judged(&format!("[export.jsonl]\npath = '{}'", path.display())).unwrap().warnings;
    let is_about_path = |warning: &Problem| warning.setting == "export.jsonl.path";
    assert!(!warnings(&directory.path().join("events.jsonl")).iter().any(is_about_path));
    let absent = directory.path().join("absent");
    let found = warnings(&absent.join("events.jsonl"));
    let found = found.iter().find(|warning| is_about_path(warning)).unwrap();
    assert_eq!(found.place, Some(Place { line: 2, column: 1 }));
    assert!(found.message.ends_with(&format!("`{}` is not a directory", absent.display())), "{found}");
    assert!(found.hint.starts_with(&format!("`mkdir -m 0750 {}`", absent.display())), "{}", found.hint);
}

#[test]
fn exporters_of_events_need_the_history() {
    let (message, hint) = only("[spool]\nenabled = false\n[export.jsonl]\npath = '/tmp/events'");
    assert!(
        message.contains("`[export.jsonl]` needs the history") && hint.contains("spool.enabled"),
        "{message}"
    );
    assert!(wrong("[spool]\nenabled = false\n[export.prometheus]\nlisten = '127.0.0.1:9464'").is_empty());
    let otlp = "[export.otlp]\nendpoint = 'http://127.0.0.1:4317'";
    let (message, _) = only(&format!("[spool]\nenabled = false\n{otlp}"));
    assert!(message.contains("`[export.otlp]` needs the history"), "{message}");
    assert!(wrong(&format!("[spool]\nenabled = false\n{otlp}\nlogs = false")).is_empty());
    let (message, _) = only(&format!("{otlp}\nlogs = false\nmetrics_interval_s = 0"));
    assert!(message.contains("sends nothing"), "{message}");
}
