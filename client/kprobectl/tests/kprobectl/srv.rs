//! Tests of `--hosts srv:NAME`.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::command::kprobectl;
use super::fake::{Dns, Says, Scripted, Way};

fn targets(targets: &[(&str, u16)]) -> Says {
    Says::Targets(targets.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect())
}

/// Without a configuration, unless the directory has one.
fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = kprobectl(arguments);
    command.env("KPROBECTL_CONFIG", directory.join("config.yaml")).env("XDG_STATE_HOME", directory);
    command.output().unwrap()
}

/// Names and addresses of the hosts that a term means.
fn hosts(directory: &TempDir, term: &str) -> Vec<(String, String)> {
    let output = run(directory.path(), &["config", "get-hosts", "--hosts", term, "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let hosts: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |host: &Value, key: &str| host[key].as_str().unwrap().to_owned();
    hosts.iter().map(|host| (text(host, "name"), text(host, "address"))).collect()
}

#[test]
fn a_record_names_its_targets_once_and_in_order() {
    let several = [
        ("web2.example.org.", 7443),
        ("WEB1.example.org", 7444),
        ("web1.example.org", 7443),
        ("web2.Example.org", 7443),
    ];
    let dns = Dns::start([
        ("_kprobed._tcp.example.org", targets(&several)),
        ("_kprobed._tcp.dc2.example.org", targets(&[("db.example.org", 1)])),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let one = |name: &str| (name.to_owned(), name.to_owned());
    assert_eq!(
        hosts(&directory, &dns.term("_kprobed._tcp.example.org")),
        [one("web1.example.org:7443"), one("web1.example.org:7444"), one("web2.example.org:7443")]
    );
    // Beside other terms, with a range, and with a host that was named before.
    let list = format!("10.0.0.1:5,db.example.org:1,{}", dns.term("_kprobed._tcp.dc[2-2].example.org."));
    assert_eq!(hosts(&directory, &list), [one("10.0.0.1:5"), one("db.example.org:1")]);
    // From a file.
    let file = directory.path().join("hosts.txt");
    std::fs::write(&file, format!("# all\n{}\n", dns.term("_kprobed._tcp.dc2.example.org"))).unwrap();
    assert_eq!(hosts(&directory, &format!("@{}", file.display())), [one("db.example.org:1")]);
}

#[test]
fn a_fleet_that_fits_into_no_datagram_comes_whole() {
    let all: Vec<_> = (1..=480).map(|number| (format!("web{number:03}.example.org"), 7443)).collect();
    let names: Vec<_> = all.iter().map(|(name, port)| format!("{name}:{port}")).collect();
    let dns = Dns::start([("_kprobed._tcp.example.org", Says::Targets(all))]);
    let directory = tempfile::tempdir().unwrap();
    let found = hosts(&directory, &dns.term("_kprobed._tcp.example.org"));
    assert_eq!(found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
}

#[test]
fn the_targets_are_connected_to() {
    let fakes = [0, 3].map(|ahead| Scripted::start(Way::Tcp, Instant::now(), Duration::from_secs(ahead)));
    let ports = fakes.each_ref().map(|fake| fake.address().rsplit_once(':').unwrap().1.parse().unwrap());
    let dns = Dns::start([("_kprobed._tcp.test", targets(&ports.map(|port| ("localhost", port))))]);
    for (number, fake) in (1..).zip(&fakes) {
        fake.record([number]);
    }
    let directory = tempfile::tempdir().unwrap();
    let term = dns.term("_kprobed._tcp.test");
    let output = run(directory.path(), &["observe", "--hosts", &term, "--oldest", "-o", "json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for (number, port) in (1..).zip(ports) {
        let event = objects.iter().find(|one| one["tid"] == number).unwrap();
        assert_eq!(event["host"], format!("localhost:{port}"));
    }
    let ledger = &objects.last().unwrap()["ledger"];
    assert_eq!((&ledger["answered"], &ledger["closes"]), (&2.into(), &true.into()));
}

#[test]
fn what_names_no_hosts_says_why_and_what_to_do() {
    let dns = Dns::start([
        ("_none._tcp.test", targets(&[])),
        ("_off._tcp.test", targets(&[(".", 0)])),
        ("_zero._tcp.test", targets(&[("web1.test", 0)])),
        ("_failing._tcp.test", Says::Code(2)),
        ("_silent._tcp.test", Says::Nothing),
        ("_half._tcp.test", Says::Half),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let mut told = String::new();
    for name in ["absent", "none", "off", "zero", "failing", "silent", "half"] {
        let term = dns.term(&format!("_{name}._tcp.test"));
        let output = run(directory.path(), &["list", "--hosts", &term, "--timeout", "300ms"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        told.push_str(&String::from_utf8(output.stderr).unwrap());
    }
    insta::assert_snapshot!(told.replace(&dns.address().to_string(), "SERVER"), @"
    error: there is no name `_absent._tcp.test` in DNS, says SERVER
    hint: check the name; it must be the whole one, since the search list of the system is not used
    error: `_none._tcp.test` has no SRV records, says SERVER
    hint: check the name: that of an SRV record mostly begins with `_SERVICE._tcp`
    error: the SRV record of `_off._tcp.test` has the target `.`, says SERVER: the service is not offered there
    hint: add the hosts to the record, or name them in another way
    error: the SRV record of `_zero._tcp.test` gives `web1.test` the port 0, says SERVER
    hint: add the hosts to the record, or name them in another way
    error: the SRV records of `_failing._tcp.test` are not known: SERVER answered SERVFAIL
    hint: check the servers of /etc/resolv.conf, or ask another one: `srv:NAME@SERVER`
    error: the SRV records of `_silent._tcp.test` are not known: no answer from SERVER within 300ms
    hint: check the servers of /etc/resolv.conf, or ask another one: `srv:NAME@SERVER`
    error: the SRV records of `_half._tcp.test` are not known: the answer of SERVER is malformed
    hint: check the servers of /etc/resolv.conf, or ask another one: `srv:NAME@SERVER`
    ");
    for (term, message) in [
        ("srv:", "`srv:` names no SRV record: a name is missing"),
        ("srv:a..b", "`a..b` is not a name of DNS"),
        ("srv:_kprobed._tcp.test@dns.test", "`dns.test` is not the address of a DNS server"),
    ] {
        let output = run(directory.path(), &["list", "--hosts", term]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(message), "{output:?}");
    }
}
