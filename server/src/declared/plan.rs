//! The changes that make the probes of the host those that the files declare.
//!
//! Pure functions over the files that were read and the probes that exist. Never reads or changes
//! anything.

use std::collections::{BTreeMap, BTreeSet};

use kprobed_document::{Place, PlacedDocument, changed};
use kprobed_proto::v1;
use kprobed_proto::v1::DeclarationProblem;

use super::files::Declaration;
use kprobed_control::error::Error;
use kprobed_lang::model::ProbeName;
use kprobed_verdict::message::length;

/// A probe that a file declares.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    pub(super) name: ProbeName,
    pub(super) file: String,
    pub(super) entry: PlacedDocument,
}

impl Claim {
    /// Something that is wrong with it.
    pub(super) fn problem(&self, place: Place, message: String, hint: String) -> DeclarationProblem {
        DeclarationProblem { probe: self.name.to_string(), ..problem(&self.file, Some(place), message, hint) }
    }
}

/// Something that is wrong in a file.
fn problem(file: &str, place: Option<Place>, message: String, hint: impl Into<String>) -> DeclarationProblem {
    let (line, column) = place.map(|place| (length(place.line), length(place.column))).unwrap_or_default();
    let (file, probe, hint) = (file.to_owned(), String::new(), hint.into());
    DeclarationProblem { file, line, column, probe, message, hint }
}

/// The probes of all files together.
#[derive(Debug, Default)]
pub(super) struct DeclaredProbes {
    pub(super) claims: BTreeMap<ProbeName, Claim>,
    /// Files that cannot be read: what they declared stays as it is.
    pub(super) unreadable_files: BTreeSet<String>,
    pub(super) problems: Vec<DeclarationProblem>,
}

/// A change to make.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    /// Make the probe of a claim.
    Create(Claim),
    /// Change it.
    Update(Claim, Box<v1::UpdateProbeRequest>),
    /// Remove a probe that its file declares no more.
    Remove { name: String, etag: String, file: String },
}

/// Reads files, in their order.
pub(super) fn declared_probes(files: Vec<Declaration>) -> DeclaredProbes {
    let mut declared = DeclaredProbes::default();
    for Declaration { name: file, content } in files {
        match read(&file, content) {
            Ok(entries) => entries.into_iter().for_each(|entry| declared.add(&file, entry)),
            Err(problem) => {
                declared.problems.push(problem);
                declared.unreadable_files.insert(file);
            }
        }
    }
    declared
}

fn read(file: &str, content: Result<String, String>) -> Result<Vec<PlacedDocument>, DeclarationProblem> {
    let unread = |place: Option<Place>, message: &str, hint: &str| {
        problem(file, place, format!("{message}; what the file declared before stays as it was"), hint)
    };
    let text = content.map_err(|message| unread(None, &message, ""))?;
    kprobed_document::read(&text).map_err(|problems| match problems.as_slice() {
        [] => unread(None, "it cannot be read", ""),
        [only] => unread(Some(only.place), &only.message, &only.hint),
        [first, more @ ..] => {
            let message = format!("{} (and {} more mistakes)", first.message, more.len());
            unread(Some(first.place), &message, &first.hint)
        }
    })
}

impl DeclaredProbes {
    fn add(&mut self, file: &str, entry: PlacedDocument) {
        let name_place = entry.name_place;
        let name = match entry.document.name.parse::<ProbeName>() {
            Ok(name) => name,
            Err(error) => {
                self.problems.push(problem(file, Some(name_place), error.to_string(), "write GROUP/EVENT"));
                return;
            }
        };
        let claim = Claim { name, file: file.to_owned(), entry };
        if let Some(first) = self.claims.get(&claim.name) {
            let message = format!(
                "`{}` declares `{}` already, in line {}: that one holds",
                first.file, claim.name, first.entry.name_place.line
            );
            self.problems.push(claim.problem(name_place, message, "leave one of them out".to_owned()));
            return;
        }
        if claim.entry.document.lease.is_some() {
            let message = format!("`{}` has a lease: it would go, and come back at once", claim.name);
            let hint = "leave `lease` out: a probe that a file declares is there as long as the file says so";
            self.problems.push(claim.problem(name_place, message, hint.to_owned()));
        }
        // Its name is taken all the same, so that it is not removed.
        self.claims.insert(claim.name.clone(), claim);
    }
}

/// The tasks that make `probes`, all probes of the daemon, the declared ones, and the problems that
/// prevent a task. `read` parses a definition of the probe with this name.
pub(super) fn plan(
    declared: &DeclaredProbes,
    probes: &[v1::Probe],
    read: impl Fn(&str, &ProbeName) -> Result<v1::ProbeSpec, Error>,
) -> (Vec<Task>, Vec<DeclarationProblem>) {
    let (mut tasks, mut problems) = (Vec::new(), Vec::new());
    let by_name: BTreeMap<&str, &v1::Probe> =
        probes.iter().map(|probe| (probe.name.as_str(), probe)).collect();
    for probe in probes.iter().filter(|probe| !probe.declared_by.is_empty()) {
        let is_declared = probe.name.parse().is_ok_and(|name: ProbeName| declared.claims.contains_key(&name));
        if !is_declared && !declared.unreadable_files.contains(&probe.declared_by) {
            let (name, etag, file) = (probe.name.clone(), probe.etag.clone(), probe.declared_by.clone());
            tasks.push(Task::Remove { name, etag, file });
        }
    }
    for claim in declared.claims.values().filter(|claim| claim.entry.document.lease.is_none()) {
        match task(
            claim,
            by_name.get(claim.entry.document.name.as_str()).copied(),
            &declared.unreadable_files,
            &read,
        ) {
            Ok(task) => tasks.extend(task),
            Err(problem) => problems.push(problem),
        }
    }
    (tasks, problems)
}

/// The task for one claim. Absent if none is needed.
fn task(
    claim: &Claim,
    probe: Option<&v1::Probe>,
    unreadable_files: &BTreeSet<String>,
    read: &impl Fn(&str, &ProbeName) -> Result<v1::ProbeSpec, Error>,
) -> Result<Option<Task>, DeclarationProblem> {
    let Claim { name, file, entry } = claim;
    let PlacedDocument { document, name_place, definition_place, take_over } = entry;
    let wanted = || {
        read(&document.definition, name)
            .map_err(|error| claim.problem(*definition_place, error.message.clone(), error.hint().to_owned()))
    };
    let Some(probe) = probe else {
        wanted()?;
        return Ok(Some(Task::Create(claim.clone())));
    };
    if probe.declared_by.is_empty() && !take_over {
        let message = format!("a client made `{name}`, or took it over: the file does not change it");
        let hint = format!(
            "write `take_over: true` in the document, and the probe is the file's, with its counts; or delete it (`kprobectl delete {name}`), \
             and the file makes it anew"
        );
        return Err(claim.problem(*name_place, message, hint));
    }
    if probe.declared_by != *file && unreadable_files.contains(&probe.declared_by) {
        let message = format!("`{name}` belongs to `{}`, which cannot be read now", probe.declared_by);
        return Err(claim.problem(*name_place, message, format!("mend `{}` first", probe.declared_by)));
    }
    let definition = if document.definition == probe.definition {
        None
    } else {
        let wanted = wanted()?;
        let is_same = read(&probe.definition, name).is_ok_and(|is| is == wanted);
        (!is_same).then(|| document.definition.clone())
    };
    let request = changed(document, probe, definition).or_else(|| {
        (probe.declared_by != *file).then(|| v1::UpdateProbeRequest {
            name: probe.name.clone(),
            etag: probe.etag.clone(),
            ..v1::UpdateProbeRequest::default()
        })
    });
    Ok(request.map(|request| Task::Update(claim.clone(), Box::new(request))))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
