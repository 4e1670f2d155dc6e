//! Tests of the plan: files and probes in, changes and problems out.

use kprobed_document::{creation, read as read_documents};

use super::*;
use crate::health::in_words;

fn files(files: &[(&str, &str)]) -> Vec<Declaration> {
    let file = |(name, text): &(&str, &str)| Declaration {
        name: (*name).to_owned(),
        content: match *text {
            "?" => Err("it cannot be opened".to_owned()),
            text => Ok(text.to_owned()),
        },
    };
    files.iter().map(file).collect()
}

fn open(more: &str) -> String {
    format!("probe: kprobes/open\ndefinition: p:kprobes/open vfs_open\n{more}")
}

/// The probe of a document, which a file has declared; a client for none.
fn probe(text: &str, declared_by: &str) -> v1::Probe {
    let document = read_documents(text).unwrap().remove(0).document;
    let made = creation(&document);
    v1::Probe {
        name: document.name,
        definition: made.definition,
        enabled: made.enabled,
        filter: made.filter,
        owner: made.owner,
        on_kernel_change: made.on_kernel_change,
        declared_by: declared_by.to_owned(),
        etag: "1-1".to_owned(),
        ..v1::Probe::default()
    }
}

/// Understands `p:GROUP/EVENT PLACE`, in which the name can be missing, and takes blanks for nothing.
fn understand(text: &str, of: &ProbeName) -> Result<v1::ProbeSpec, Error> {
    let Some((name, place)) = text.strip_prefix('p').and_then(|rest| rest.split_once(' ')) else {
        return Err(Error::bad_argument("definition", "this is no definition").fix("write `p:`"));
    };
    let name = name.strip_prefix(':').unwrap_or(of.event());
    let (group, event) = name.split_once('/').unwrap_or((of.group(), name));
    if (group, event) != of.parts() {
        let message = format!("the definition is of `{group}/{event}`, and the document of `{of}`");
        return Err(Error::bad_argument("definition", message));
    }
    let symbol = v1::SymbolPlace { symbol: place.trim().to_owned(), ..Default::default() };
    let place = v1::probe_place::Place::Symbol(symbol);
    Ok(v1::ProbeSpec {
        group: group.to_owned(),
        event: event.to_owned(),
        place: Some(v1::ProbePlace { place: Some(place) }),
        ..Default::default()
    })
}

fn planned(declared: &[(&str, &str)], probes: &[v1::Probe]) -> (Vec<Task>, Vec<String>) {
    let declared = declared_probes(files(declared));
    let (tasks, problems) = plan(&declared, probes, understand);
    let said = declared.problems.iter().chain(&problems).map(in_words).collect();
    (tasks, said)
}

#[test]
fn what_is_there_is_so_and_what_goes_is_gone() {
    let (tasks, problems) = planned(&[("a.yaml", &open(""))], &[]);
    assert!(matches!(tasks.as_slice(), [Task::Create(claim)] if claim.file == "a.yaml"), "{tasks:?}");
    assert!(problems.is_empty());
    let is = probe(&open(""), "a.yaml");
    assert_eq!(planned(&[("a.yaml", &open("enabled: true\n"))], std::slice::from_ref(&is)), (vec![], vec![]));
    let (tasks, _) = planned(&[("a.yaml", &open("owner: storage\n"))], std::slice::from_ref(&is));
    let [Task::Update(_, request)] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!((request.owner.as_deref(), request.etag.as_str()), (Some("storage"), "1-1"));
    assert_eq!((&request.definition, request.enabled), (&None, None));
    let client = probe("probe: kprobes/mine\ndefinition: p:mine f\n", "");
    let (tasks, _) = planned(&[], &[is, client]);
    assert!(matches!(tasks.as_slice(), [Task::Remove { name, .. }] if name == "kprobes/open"), "{tasks:?}");
}

#[test]
fn a_definition_is_replaced_if_it_means_something_else() {
    let is = probe(&open(""), "a.yaml");
    let text = |definition: &str| format!("probe: kprobes/open\ndefinition: {definition}\n");
    for same in ["p:open vfs_open", "p:kprobes/open   vfs_open"] {
        assert_eq!(
            planned(&[("a.yaml", &text(same))], std::slice::from_ref(&is)),
            (vec![], vec![]),
            "{same}"
        );
    }
    let (tasks, _) = planned(&[("a.yaml", &text("p:open vfs_read"))], std::slice::from_ref(&is));
    let [Task::Update(_, request)] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!(request.definition.as_deref(), Some("p:open vfs_read"));
    for (wrong, said) in [
        (
            "p:other vfs_read",
            "a.yaml:2:13: the definition is of `kprobes/other`, and the document of `kprobes/open`",
        ),
        ("nothing", "a.yaml:2:13: this is no definition"),
    ] {
        let (tasks, problems) = planned(&[("a.yaml", &text(wrong))], std::slice::from_ref(&is));
        assert_eq!((tasks, problems), (vec![], vec![said.to_owned()]));
    }
}

#[test]
fn a_definition_without_a_name_is_that_of_its_document() {
    let text = |definition: &str| format!("probe: kprobes/open\ndefinition: {definition}\n");
    let (tasks, problems) = planned(&[("a.yaml", &text("p vfs_open"))], &[]);
    assert!(matches!(tasks.as_slice(), [Task::Create(claim)] if claim.name.to_string() == "kprobes/open"));
    assert_eq!(problems, [""; 0]);
    let is = probe(&text("p vfs_open"), "a.yaml");
    for same in ["p vfs_open", "p:open vfs_open", "p:kprobes/open vfs_open"] {
        assert_eq!(
            planned(&[("a.yaml", &text(same))], std::slice::from_ref(&is)),
            (vec![], vec![]),
            "{same}"
        );
    }
    let (tasks, _) = planned(&[("a.yaml", &text("p vfs_read"))], std::slice::from_ref(&is));
    let [Task::Update(_, request)] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!(request.definition.as_deref(), Some("p vfs_read"));
    let (tasks, problems) = planned(&[("a.yaml", &text("p:other vfs_open"))], &[]);
    assert!(tasks.is_empty() && problems[0].contains("the definition is of `kprobes/other`"), "{problems:?}");
}

#[test]
fn a_file_that_cannot_be_read_keeps_what_it_declared() {
    let is = probe(&open(""), "a.yaml");
    for (text, said) in [
        ("?", "a.yaml: it cannot be opened; what the file declared before stays as it was"),
        ("probe: kprobes/op", "a.yaml:1:8: the document has no `definition`; what"),
        (
            "fliter: 1\nprobe: x\n",
            "a.yaml:1:1: `fliter` is not a key of a document (and 1 more mistakes); what",
        ),
    ] {
        let (tasks, problems) = planned(&[("a.yaml", text)], std::slice::from_ref(&is));
        assert_eq!(tasks, []);
        assert!(problems.len() == 1 && problems[0].starts_with(said), "{problems:?}");
        // And its name is not free meanwhile.
        let (tasks, problems) =
            planned(&[("a.yaml", text), ("b.yaml", &open(""))], std::slice::from_ref(&is));
        assert_eq!(tasks, []);
        assert!(problems[1].contains("belongs to `a.yaml`, which cannot be read now"), "{problems:?}");
    }
}

#[test]
fn a_probe_has_one_owner() {
    let both = [("a.yaml", open("")), ("b.yaml", format!("# second\n{}", open("")))];
    let both = both.each_ref().map(|(name, text)| (*name, text.as_str()));
    let (tasks, problems) = planned(&both, &[]);
    assert!(matches!(tasks.as_slice(), [Task::Create(claim)] if claim.file == "a.yaml"));
    assert_eq!(problems, ["b.yaml:2:8: `a.yaml` declares `kprobes/open` already, in line 1: that one holds"]);
    // The first one goes: the second takes its probe along, as it is.
    let is = probe(&open(""), "a.yaml");
    let (tasks, problems) = planned(&both[1..], std::slice::from_ref(&is));
    let [Task::Update(claim, request)] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!((claim.file.as_str(), request.definition.as_ref()), ("b.yaml", None));
    assert_eq!(problems, [""; 0]);
    let of_client = v1::Probe { declared_by: String::new(), ..is };
    let (tasks, problems) = planned(&both[..1], &[of_client]);
    assert_eq!(tasks, []);
    assert!(problems[0].starts_with("a.yaml:1:8: a client made `kprobes/open`, or took it over"));
}

#[test]
fn a_file_takes_a_probe_from_a_client_if_it_says_so() {
    let client = probe(&open(""), "");
    let taken = |more: &str| {
        let (tasks, problems) = planned(&[("a.yaml", &open(more))], std::slice::from_ref(&client));
        assert!(problems.is_empty(), "{problems:?}");
        let [Task::Update(claim, request)] = tasks.as_slice() else { panic!("{tasks:?}") };
        assert_eq!(claim.file, "a.yaml");
        (**request).clone()
    };
    // It is as the file says: nothing but its owner changes.
    let nothing_else =
        v1::UpdateProbeRequest { name: client.name.clone(), etag: client.etag.clone(), ..Default::default() };
    assert_eq!(taken("take_over: true\n"), nothing_else);
    let filtered = v1::UpdateProbeRequest { filter: Some("a == 1".to_owned()), ..nothing_else };
    assert_eq!(taken("filter: a == 1\ntake_over: true\n"), filtered);
    // Then it is the file's, and no task is left.
    let is = probe(&open(""), "a.yaml");
    let settled = planned(&[("a.yaml", &open("take_over: true\n"))], std::slice::from_ref(&is));
    assert_eq!(settled, (vec![], vec![]));
    let (tasks, problems) = planned(&[("a.yaml", &open("take_over: false\n"))], &[client]);
    assert!(tasks.is_empty() && problems.len() == 1, "{tasks:?}");
}

#[test]
fn a_lease_is_refused_and_removes_nothing() {
    let is = probe(&open(""), "a.yaml");
    let (tasks, problems) = planned(&[("a.yaml", &open("lease: 2h\n"))], &[is]);
    assert_eq!(tasks, []);
    assert!(problems[0].starts_with("a.yaml:1:8: `kprobes/open` has a lease"), "{problems:?}");
}
