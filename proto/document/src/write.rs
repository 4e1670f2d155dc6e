//! Writer of probe documents as YAML.
//!
//! Owns the document of a probe, and the text of documents. Never changes a probe.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kprobed_proto::v1;
use serde::{Serialize, Serializer};

use crate::document::{Document, KernelChange, Lease};
use crate::lease;

/// The document of a probe: applying it to that probe changes nothing.
pub fn document_of(probe: &v1::Probe) -> Document {
    Document {
        name: probe.name.clone(),
        definition: probe.definition.clone(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: probe.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        owner: probe.owner.clone(),
        description: probe.description.clone(),
        lease: probe.lease.as_ref().and_then(Lease::of_message),
        on_kernel_change: KernelChange::of_message(probe.on_kernel_change()),
    }
}

/// Writes documents, each with `---` before it if there are several. A document with characters
/// that YAML cannot hold unescaped is written as JSON.
///
/// # Errors
/// An error of the YAML library. No document is known to cause one.
pub fn write(documents: &[Document]) -> Result<String, serde_yaml_ng::Error> {
    let mut text = String::new();
    for document in documents {
        if documents.len() > 1 {
            text.push_str("---\n");
        }
        text.push_str(&yaml(document)?);
    }
    Ok(text)
}

/// Writes a value as a document of YAML; as JSON if it has characters that YAML cannot hold
/// unescaped.
///
/// # Errors
/// As [`write()`].
pub fn yaml(view: &impl Serialize) -> Result<String, serde_yaml_ng::Error> {
    let text = serde_yaml_ng::to_string(view)?;
    if !text.contains(is_special) {
        return Ok(text);
    }
    // The library does not escape characters that YAML 1.1 takes for the end of a line. JSON can
    // escape everything.
    let json = serde_json::to_string(view).map_err(<serde_yaml_ng::Error as serde::ser::Error>::custom)?;
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_special(character) {
            write!(text, "\\u{:04x}", u32::from(character)).ok();
        } else {
            text.push(character);
        }
    }
    text.push('\n');
    Ok(text)
}

/// Characters that readers of YAML take for the end of a line, or do not accept. All of it is below
/// U+10000.
fn is_special(character: char) -> bool {
    matches!(character, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// The written form of a document: it omits properties with the value of a new probe, except
/// `enabled`.
#[derive(Serialize)]
struct View<'a> {
    probe: &'a str,
    definition: &'a str,
    enabled: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    filter: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    owner: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_kernel_change: Option<&'static str>,
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        View::new(self).serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum LeaseView<'a> {
    Lasting(String),
    Held { holder: &'a str },
}

impl<'a> View<'a> {
    fn new(document: &'a Document) -> Self {
        let policy = document.on_kernel_change;
        Self {
            probe: &document.name,
            definition: &document.definition,
            enabled: document.enabled,
            filter: &document.filter,
            labels: &document.labels,
            owner: &document.owner,
            description: &document.description,
            lease: document.lease.as_ref().map(|lease| match lease {
                Lease::Lasting(duration) => LeaseView::Lasting(lease::write(*duration)),
                Lease::Held(holder) => LeaseView::Held { holder },
            }),
            on_kernel_change: (policy != KernelChange::default()).then(|| policy.name()),
        }
    }
}
