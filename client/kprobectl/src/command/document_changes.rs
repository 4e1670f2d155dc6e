//! Changes that bring the daemon's probes in line with documents.
//!
//! Owns the comparison, by meaning and not by text. It never makes a change: `apply` and `rollout` do.

use std::collections::{BTreeMap, HashSet};

use kprobed_client::Client;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CheckProbeRequest, DeleteProbeRequest, ListProbesRequest, Probe};
use kprobed_document::{Document, ROLLOUT_LABEL, changed, creation, described, keeping_mark};

use super::Failure;
use super::definitions::of_document;
use super::documents::Declared;
use crate::global::Global;
use crate::output::Output;

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

/// The probes that a selector finds and no document names. Those that belong to a file of the daemon are left to it.
pub(super) async fn to_prune(
    client: &Client,
    selector: String,
    planned: &[PlannedDocument],
    take_over: bool,
    output: &mut Output,
) -> Result<Vec<Probe>, Failure> {
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
