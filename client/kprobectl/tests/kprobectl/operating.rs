//! Tests of `kprobectl status` and `kprobectl debug bundle`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::command::kprobectl;
use super::fake::{Ending, Fake, Scripted, Way, shown};

#[test]
fn a_page_says_what_needs_attention() {
    let fake = Fake::start(Ending::Open);
    let said = fake.run(&["status"]);
    // An exporter fails.
    assert!(said.starts_with("exit: 1"), "{said}");
    assert_eq!(said.matches("kprobes/open").count(), 1, "one rate for all boots: {said}");
    for part in
        ["checks ", "probes ", "hits ", "exporters ", "exporter otlp: connect to `http://127.0.0.1:4317`"]
    {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    let json = fake.run(&["status", "-o", "json"]);
    let begin = json.find('{').unwrap();
    let end = json.rfind('}').unwrap();
    let view: Value = serde_json::from_str(&json[begin..=end]).unwrap();
    assert_eq!(view["exporters"]["otlp"], "failing");
    assert!(view["to_do"].as_array().unwrap().iter().any(|one| one["what"] == "exporter otlp"), "{view}");
    let counted: u64 =
        view["probes"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert!(counted > 0, "{view}");
}

#[test]
fn a_part_that_is_not_answered_keeps_no_other_from_being_shown() {
    // It has no ledger.
    let fake = Scripted::start(Way::Unix, Instant::now(), Duration::ZERO);
    let address = fake.address();
    let output = kprobectl(&["status", "--server", &address]).output().unwrap();
    let said = shown(&output);
    assert!(said.starts_with("exit: 1"), "{said}");
    for part in [
        "host           testhost (Linux 6.12.1)",
        "probes         none",
        "events         not known",
        "\nthe ledger: not known: ledger\n",
    ] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    let output = kprobectl(&["status", "-o", "json", "--server", &address]).output().unwrap();
    let view: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&view["ok"], &view["ledger_closes"]), (&false.into(), &Value::Null), "{view}");
}

fn files(archive: &std::path::Path) -> BTreeMap<String, Value> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(fs::File::open(archive).unwrap()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(name, serde_json::from_str(&text).unwrap());
    }
    files
}

#[test]
fn a_bundle_has_every_answer_or_why_it_is_missing() {
    let fake = Fake::start(Ending::Open);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bundle.tar");
    let said = fake.run(&["debug", "bundle", file.to_str().unwrap()]);
    assert!(said.starts_with("exit: 0") && said.contains("bundle.tar"), "{said}");
    let files = files(&file);
    assert_eq!(files.len(), 11, "{:?}", files.keys());
    assert_eq!(files["kprobed-debug/ledger.json"]["exporters"][0]["name"], "jsonl");
    assert!(!files["kprobed-debug/probes.json"].as_array().unwrap().is_empty());
    assert_eq!(files["kprobed-debug/audit.json"].as_array().unwrap().len(), 4);
    // The fake has no services for these.
    for file in ["caller.json", "foreign.json"] {
        let file = &files[&format!("kprobed-debug/{file}")];
        assert!(file["missing"].is_string(), "{file:?}");
    }
    assert!(said.contains("2 of 11 answers are missing"), "{said}");
    let again = fake.run(&["debug", "bundle", file.to_str().unwrap()]);
    assert!(again.starts_with("exit: 2") && again.contains("name another file"), "{again}");
}
