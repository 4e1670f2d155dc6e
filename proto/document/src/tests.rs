//! Tests of documents: documents and texts are inverse, mistakes have their places, and applying a
//! document twice changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_proto::v1;
use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;

use super::*;

const OPEN: &str = "\
probe: kprobes/open
definition: p:kprobes/open do_sys_openat2 name=+0($arg2):ustring
enabled: true
filter: dfd >= 0
labels:
  team: storage
  tier: \"2\"
owner: storage team
description: who opens what
lease: 1h 30m
on_kernel_change: arm-anyway
";

fn open() -> Document {
    Document {
        name: "kprobes/open".to_owned(),
        definition: "p:kprobes/open do_sys_openat2 name=+0($arg2):ustring".to_owned(),
        enabled: true,
        filter: "dfd >= 0".to_owned(),
        labels: [("team", "storage"), ("tier", "2")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        owner: "storage team".to_owned(),
        description: "who opens what".to_owned(),
        lease: Some(Lease::Lasting(Duration::from_mins(90))),
        on_kernel_change: KernelChange::ArmAnyway,
    }
}

/// A probe that matches its document.
fn probe(document: &Document) -> v1::Probe {
    let made = creation(document);
    v1::Probe {
        name: document.name.clone(),
        definition: made.definition,
        enabled: made.enabled,
        filter: made.filter,
        labels: made.labels,
        description: made.description,
        owner: made.owner,
        lease: made.lease,
        on_kernel_change: made.on_kernel_change,
        etag: "1-1".to_owned(),
        ..v1::Probe::default()
    }
}

/// The probe after a request.
fn updated(mut probe: v1::Probe, request: v1::UpdateProbeRequest) -> v1::Probe {
    assert_eq!(request.etag, probe.etag);
    let policy = request.on_kernel_change();
    probe.definition = request.definition.unwrap_or(probe.definition);
    probe.enabled = request.enabled.unwrap_or(probe.enabled);
    probe.filter = request.filter.unwrap_or(probe.filter);
    probe.description = request.description.unwrap_or(probe.description);
    probe.owner = request.owner.unwrap_or(probe.owner);
    probe.labels.extend(request.set_labels);
    probe.labels.retain(|key, _| !request.remove_labels.contains(key));
    if let Some(lease) = request.lease {
        probe.lease = (lease != v1::Lease::default()).then_some(lease);
    }
    if policy != v1::KernelChange::Unspecified {
        probe.on_kernel_change = policy.into();
    }
    probe
}

/// Texts that are hard to quote, and texts of all kinds.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,40}",
        "\\PC{0,12}",
        "[:#'\"\\\\%@`&*!|>?,\\[\\]{} \n\t-]{0,12}",
        any::<String>(),
        prop::sample::select(vec!["null", "~", "true", "no", "0x1f", "1e3", "---", "...", "- a", "a: b"])
            .prop_map(str::to_owned),
    ]
}

fn documents() -> impl Strategy<Value = Document> {
    let names = ("[a-z_-][a-zA-Z0-9_-]{0,8}", "[A-Za-z_][a-zA-Z0-9_]{0,8}");
    let line = || texts().prop_map(|text| text.trim_end_matches('\n').to_owned());
    let lease = prop_oneof![
        (0..u64::MAX / 2, 0..1_000_000_000u32)
            .prop_map(|(seconds, ns)| Lease::Lasting(Duration::new(seconds, ns))),
        "[0-9a-f]{1,8}".prop_map(Lease::Held),
    ];
    let labels = btree_map("[a-z0-9._/-]{1,6}|null|~|true", "[a-zA-Z0-9._-]{0,6}|null|yes|012", 0..4);
    let policy = prop::sample::select(vec![KernelChange::Hold, KernelChange::ArmAnyway]);
    let first = (names, line(), any::<bool>(), line(), labels);
    (first, texts(), texts(), option::of(lease), policy).prop_map(
        |(((group, event), definition, enabled, filter, labels), owner, description, lease, policy)| {
            Document {
                name: format!("{group}/{event}"),
                definition,
                enabled,
                filter,
                labels,
                owner,
                description,
                lease,
                on_kernel_change: policy,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_can_be_read(mut documents in prop::collection::vec(documents(), 1..4)) {
        let mut seen = std::collections::HashSet::new();
        documents.retain(|document| seen.insert(document.name.clone()));
        let text = write(&documents).unwrap();
        let read = read(&text).map_err(|problems| format!("{problems:?}\n{text}")).unwrap();
        let read: Vec<_> = read.into_iter().map(|entry| entry.document).collect();
        prop_assert_eq!(read, documents, "{}", text);
    }

    #[test]
    fn the_document_of_a_probe_changes_nothing(document in documents()) {
        let probe = probe(&document);
        let read = read(&write(&[document_of(&probe)]).unwrap()).unwrap();
        prop_assert_eq!(&read[0].document.definition, &probe.definition);
        prop_assert_eq!(changed(&read[0].document, &probe, None), None);
    }

    #[test]
    fn a_change_leads_to_what_the_document_says(
        from in documents(),
        to in documents(),
    ) {
        let to = Document { name: from.name.clone(), ..to };
        let before = probe(&from);
        let definition = (to.definition != before.definition).then(|| to.definition.clone());
        let after = match changed(&to, &before, definition) {
            Some(request) => updated(before, request),
            None => before,
        };
        prop_assert_eq!(document_of(&after), to.clone());
        prop_assert_eq!(changed(&to, &after, None), None);
    }

    #[test]
    fn any_text_is_survived(text in prop_oneof![
        any::<String>(),
        "(probe|definition|labels|lease|[a-z{}\\[\\]:,\"'\\- \n0-9&*!|>#%@?\t]){0,40}",
    ]) {
        match read(&text) {
            Ok(_) => {}
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                for problem in problems {
                    prop_assert!(problem.place.line >= 1 && problem.place.column >= 1);
                    prop_assert!(!problem.message.is_empty());
                    problem.shown();
                }
            }
        }
    }
}

#[test]
fn a_document_is_what_a_person_would_write() {
    let read = read(OPEN).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].document, open());
    assert_eq!((read[0].name_place.line, read[0].name_place.column), (1, 8));
    assert_eq!((read[0].definition_place.line, read[0].definition_place.column), (2, 13));
    assert_eq!(write(&[open()]).unwrap(), OPEN);
}

#[test]
fn a_lease_begins_again_once_it_has_ended() {
    let (document, mut probe) = (open(), probe(&open()));
    assert_eq!(changed(&document, &probe, None), None, "it lasts");
    probe.set_state(v1::ProbeState::Expired);
    let request = changed(&document, &probe, None).unwrap();
    let expected = v1::UpdateProbeRequest {
        name: probe.name.clone(),
        etag: probe.etag.clone(),
        lease: probe.lease.clone(),
        ..v1::UpdateProbeRequest::default()
    };
    assert_eq!(request, expected);
}

#[test]
fn what_is_left_out_is_as_for_a_new_probe() {
    let text = "# nothing\n---\nprobe: kprobes/a\ndefinition: >\n  p:kprobes/a\n  vfs_read\ntake_over: true\n---\n\
                {\"probe\": \"kprobes/b\", \"definition\": \"r:kprobes/b vfs_read\"}\n";
    let read = read(text).unwrap();
    let expected = Document {
        name: "kprobes/a".to_owned(),
        definition: "p:kprobes/a vfs_read".to_owned(),
        enabled: true,
        filter: String::new(),
        labels: BTreeMap::new(),
        owner: String::new(),
        description: String::new(),
        lease: None,
        on_kernel_change: KernelChange::Hold,
    };
    assert_eq!(read[0].document, expected);
    assert!(read[0].take_over && !read[1].take_over);
    assert_eq!(read[1].document.definition, "r:kprobes/b vfs_read");
    assert!(super::read("").unwrap().is_empty() && super::read("# nothing\n").unwrap().is_empty());
}

#[test]
fn mistakes_have_their_place_and_what_to_write() {
    let head = "probe: kprobes/a\ndefinition: p:kprobes/a f\n";
    for (text, expected) in [
        (
            format!("{head}fliter: 'a < 1'\n"),
            "3:1: `fliter` is not a key of a document (did you mean `filter`?)",
        ),
        (format!("{head}enabled: yes\n"), "3:10: `enabled` is `yes`, and must be true or false"),
        (format!("{head}take_over: 'true'\n"), "3:12: `take_over` is `true`, and must be true or false"),
        (format!("{head}lease: 2 hours\n"), "3:8: `lease` is `2 hours`, and must be a duration"),
        (format!("{head}labels: [a]\n"), "3:9: `labels` is a list, and must be a mapping"),
        (format!("{head}labels: {{a: }}\n"), "3:10: the label `a` has no value"),
        (format!("{head}owner:\n"), "3:1: `owner` has no value"),
        (format!("{head}lease: 5\n"), "3:8: `lease` is not a duration"),
        (format!("{head}lease: [a]\n"), "3:8: `lease` is not a duration"),
        (format!("{head}lease: {{holder: a, b: c}}\n"), "3:8: `lease` is a mapping, and must be a duration"),
        (format!("{head}owner: [a]\n"), "3:8: this is a list, and must be a string"),
        (format!("{head}[a]: b\n"), "3:1: a list cannot be a key"),
        (format!("{head}on_kernel_change: never\n"), "3:19: `on_kernel_change` is `never`"),
        (format!("{head}---\n{head}"), "4:8: `kprobes/a` stands in line 1 already"),
        (format!("{head}enabled: true\nenabled: true\n"), "4:1: `enabled` is there twice"),
        (format!("{head}owner: *a\n"), "3:8: anchors and aliases (`&`, `*`) are not taken"),
        (format!("{head}owner: &a b\n"), "3:11: anchors and aliases (`&`, `*`) are not taken"),
        (format!("{head}owner: !x a\n"), "3:11: tags (`!`) are not taken"),
        (
            "probe: open\ndefinition: p:open f\n".to_owned(),
            "1:8: `open` has no group (write `probe: kprobes/open`)",
        ),
        ("probe: a/b-c\ndefinition: p:a f\n".to_owned(), "1:8: `a/b-c` cannot be the name of a probe"),
        ("definition: p:a f\n".to_owned(), "1:1: the document has no `probe`"),
        ("probe: kprobes/a\n".to_owned(), "1:8: the document has no `definition`"),
        (
            "p:open do_sys_openat2\n".to_owned(),
            "1:1: this is a text, and no document of a probe (this is a line of definitions",
        ),
        ("- probe: kprobes/a\n".to_owned(), "1:1: this is a list, and no document of a probe"),
        ("probe: a\n\tdefinition: b\n".to_owned(), "1:8: this is not YAML: "),
    ] {
        let problems = read(&text).unwrap_err();
        let said = problems[0].to_string();
        assert!(said.starts_with(expected), "{text}\n{said}\n{expected}");
        assert!(problems[0].shown().contains('^'), "{text}");
    }
}

#[test]
fn plain_words_are_texts() {
    let text = "probe: kprobes/a\ndefinition: p f\nlabels: {1: 1e3, 012: 1_000, true: 0x1f, null: .inf}\nowner: no\n";
    let document = read(text).unwrap().remove(0).document;
    let labels = [("012", "1_000"), ("1", "1e3"), ("null", ".inf"), ("true", "0x1f")];
    assert_eq!(document.labels, labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(document.owner, "no");
    // The definition has no name: the request brings it.
    let made = creation(&document);
    assert_eq!((made.name.as_str(), made.definition.as_str()), ("kprobes/a", "p f"));
}

#[test]
fn all_mistakes_are_said_at_once() {
    let text = "probe: a\ndefinition: p:a f\nenabled: 1\n---\nprobe: kprobes/b\nfilter: x\n";
    let lines: Vec<_> = read(text).unwrap_err().iter().map(|problem| problem.place.line).collect();
    assert_eq!(lines, [1, 3, 5]);
}

#[test]
fn probes_as_json_are_one_mistake() {
    let line = r#"{"name":"kprobes/a","uid":"1","definition":"p f","etag":"1-1","labels":{}}"#;
    let problems = read(&format!("{line}\n{line}\n")).unwrap_err();
    let expected = "1:50: this is a probe as `-o json` prints it, and no document (`kprobectl get NAME -o yaml` prints its document)";
    assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_text_cannot_be_nested_for_ever() {
    let text = format!("probe: kprobes/a\nlabels: {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    let problems = read(&text).unwrap_err();
    assert!(problems[0].message.contains("recursion limit"), "{}", problems[0]);
}
