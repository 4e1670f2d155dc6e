//! Documents of probes from files, directories and standard input, and the changes that bring the daemon's probes in
//! line with them.
//!
//! Owns which files a directory stands for, that each probe has one document, and the comparison, by meaning and not by
//! text. It never makes a change: `apply` and `rollout` do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kprobed_client::Client;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CheckProbeRequest, DeleteProbeRequest, ListProbesRequest, Probe};
use kprobed_document::{
    Document, PlacedDocument, Problem, ROLLOUT_LABEL, changed, creation, described, keeping_mark,
};

use super::definitions::of_document;
use super::input::content;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

/// A document and the file that has it.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) entry: PlacedDocument,
    /// As it was named, or found below a directory that was.
    pub(super) file: String,
}

impl Declared {
    pub(super) fn name(&self) -> &str {
        &self.entry.document.name
    }

    /// Where its definition is, for messages.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.file, self.entry.definition_place)
    }
}

/// Ends of the names of files that a directory is searched for.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Whether a path stands for documents: a directory, or a file with such a name.
pub(super) fn are_in(path: &Path) -> bool {
    path.is_dir() || is_named_so(path)
}

fn is_named_so(path: &Path) -> bool {
    path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Reads all documents.
///
/// # Errors
/// When one cannot be read, with all problems of all files.
pub(super) async fn read(paths: &[PathBuf], recursive: bool) -> Result<Vec<Declared>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, recursive, &mut files)?;
    }
    let mut all: Vec<Declared> = Vec::new();
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut failures = Vec::new();
    for path in files {
        let file =
            if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let text = content(&path).await?;
        match kprobed_document::read(&text) {
            Ok(entries) => {
                for entry in entries {
                    let declared = Declared { entry, file: file.clone() };
                    let place = format!("{file}:{}", declared.entry.name_place);
                    if let Some(first) = seen.insert(declared.name().to_owned(), place) {
                        failures.push(failure(&file, &again(&declared, &first, &text)));
                    }
                    all.push(declared);
                }
            }
            Err(problems) => failures.extend(problems.iter().map(|problem| failure(&file, problem))),
        }
    }
    if let Some(failure) = Failure::all(failures) {
        return Err(failure);
    }
    if all.is_empty() {
        let hint =
            "`kprobectl get NAME -o yaml` prints one; a directory is searched for *.yaml, *.yml and *.json";
        return Err(Failure::usage("there is no document of a probe in what was given", hint));
    }
    Ok(all)
}

/// What is wrong with a file, with the line.
fn failure(file: &str, problem: &Problem) -> Failure {
    let message =
        format!("{file}:{}: {}\n{}", problem.place, problem.message.replace('\n', "\\n"), problem.shown());
    let hint = (!problem.hint.is_empty()).then(|| problem.hint.clone());
    Failure::new(Exit::Usage, message.trim_end(), hint)
}

/// A document of a probe that has one already.
fn again(declared: &Declared, first: &str, text: &str) -> Problem {
    let place = declared.entry.name_place;
    Problem {
        place,
        line: text.lines().nth(place.line - 1).unwrap_or_default().to_owned(),
        message: format!("`{}` has a document already: {first}", declared.name()),
        hint: "leave one of them out".to_owned(),
    }
}

/// The files of a path: the file itself, or the files of a directory, without hidden ones.
fn collect(path: &Path, recursive: bool, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if path == Path::new("-") || !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let failure = |why: io::Error| Failure::unreadable(path, &why);
    let entries = fs::read_dir(path).map_err(failure)?.collect::<io::Result<Vec<_>>>().map_err(failure)?;
    let mut found: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    found.sort();
    for inner in found {
        let is_hidden = inner.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        // A link to a directory could lead back here.
        if inner.is_dir() && !inner.is_symlink() {
            if recursive && !is_hidden {
                collect(&inner, recursive, files)?;
            }
        } else if is_named_so(&inner) && !is_hidden && !inner.is_dir() {
            files.push(inner);
        }
    }
    Ok(())
}

/// A document, and what must be done for it.
#[derive(Debug)]
pub(super) struct PlannedDocument {
    pub(super) declared: Declared,
    /// The probe that the daemon has, if any.
    pub(super) live: Option<Probe>,
    /// The document of the probe after the change, with the definition as the daemon would keep it.
    pub(super) wanted: Document,
    /// Absent if nothing must change.
    pub(super) change: Option<Change>,
}

/// Compares documents with the daemon's probes. Changes nothing.
pub(super) async fn compare(
    client: &Client,
    global: &Global,
    declared: Vec<Declared>,
) -> Result<Vec<PlannedDocument>, Failure> {
    let probes = client.list_probes("").await?;
    let mut probes: BTreeMap<_, _> = probes.into_iter().map(|probe| (probe.name.clone(), probe)).collect();
    let mut planned = Vec::with_capacity(declared.len());
    for mut declared in declared {
        let written = &declared.entry.document.definition;
        let line = of_document(client, global, (declared.name(), written)).await;
        if let Some(line) = line.map_err(|failure| failure.at(&declared.place()))? {
            declared.entry.document.definition = line;
        }
        let document = &declared.entry.document;
        let live = probes.remove(&document.name);
        require_mark(document, live.as_ref())?;
        let (wanted, change) = compare_one(client, document, live.as_ref()).await?;
        planned.push(PlannedDocument { declared, live, wanted, change });
    }
    Ok(planned)
}

/// Refuses a document that gives a probe to another roll-out, or takes it for one.
fn require_mark(document: &Document, live: Option<&Probe>) -> Result<(), Failure> {
    let Some((live, mark)) = live.zip(document.labels.get(ROLLOUT_LABEL)) else { return Ok(()) };
    let is = live.labels.get(ROLLOUT_LABEL);
    if is == Some(mark) {
        return Ok(());
    }
    let is =
        is.map_or_else(|| "it is of no roll-out".to_owned(), |is| format!("it is of the roll-out `{is}`"));
    Err(Failure::usage(
        format!("the document of `{}` has the label `{ROLLOUT_LABEL}={mark}`, and {is}", live.name),
        "only roll-outs set that label: leave it out of the document",
    ))
}

/// The document of the probe after the change, and the change that it needs. The mark of a roll-out stays
/// if the document has none.
pub(super) async fn compare_one(
    client: &Client,
    document: &Document,
    live: Option<&Probe>,
) -> Result<(Document, Option<Change>), Failure> {
    let Some(live) = live else {
        return Ok((document.clone(), Some(Change::Create(creation(document)))));
    };
    let document = keeping_mark(document, live);
    let definition = other_definition(client, &document, live).await?;
    let wanted = described(&document, live, definition.as_deref());
    Ok((wanted, changed(&document, live, definition).map(Change::Update)))
}

/// The definition of a document, if it means something else than that of the probe.
async fn other_definition(
    client: &Client,
    document: &Document,
    live: &Probe,
) -> Result<Option<String>, Failure> {
    if document.definition == live.definition {
        return Ok(None);
    }
    let (definition, name) = (document.definition.clone(), document.name.clone());
    let checked = client.check(CheckProbeRequest { definition, name, explain: false }).await?;
    // What cannot be read, or is of another probe, is for the daemon to refuse.
    let is_its_line = matches!(checked.lines.as_slice(), [line] if *line == live.definition);
    let is_same = is_its_line || checked.spec.is_some() && checked.spec == live.spec;
    Ok((!is_same).then(|| document.definition.clone()))
}

/// The probes that a selector finds and no document names: none without one. Those that belong to a file of the daemon
/// are left to it.
pub(super) async fn to_prune(
    client: &Client,
    selector: Option<String>,
    planned: &[PlannedDocument],
    take_over: bool,
    output: &mut Output,
) -> Result<Vec<Probe>, Failure> {
    let Some(selector) = selector else { return Ok(Vec::new()) };
    let named: HashSet<&str> = planned.iter().map(|one| one.declared.name()).collect();
    let request = ListProbesRequest { label_selector: selector, ..Default::default() };
    let found = client.select_probes(request).await?;
    let (kept, pruned): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter(|probe| !named.contains(probe.name.as_str()))
        .partition(|probe| !probe.declared_by.is_empty() && !take_over);
    for probe in kept {
        output
            .note(&format!("`{}` stays: the daemon's file `{}` declares it", probe.name, probe.declared_by));
    }
    Ok(pruned)
}

/// The request that deletes a probe, if it has not changed since it was listed.
pub(super) fn deletion(probe: &Probe, take_over: bool) -> Change {
    Change::Delete(DeleteProbeRequest {
        name: probe.name.clone(),
        etag: probe.etag.clone(),
        take_over,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("inner")).unwrap();
        fs::create_dir(path(".git")).unwrap();
        std::os::unix::fs::symlink(directory.path(), path("loop")).unwrap();
        for name in ["b.yaml", "a.json", ".c.yaml", "notes.txt", "inner/d.yml", ".git/e.yaml"] {
            fs::write(path(name), "").unwrap();
        }
        let found = |recursive| {
            let mut files = Vec::new();
            collect(directory.path(), recursive, &mut files).unwrap();
            files
        };
        assert_eq!(found(false), [path("a.json"), path("b.yaml")]);
        assert_eq!(found(true), [path("a.json"), path("b.yaml"), path("inner/d.yml")]);
    }
}
