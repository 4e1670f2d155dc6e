//! Mark of a roll-out: the label that its probes have on each host.
//!
//! Owns the name of a roll-out, and which probes get it: those that it creates and those that it changes. A
//! probe that is as wanted already is left as it is, with the mark that it has. Never sends a request.

use std::collections::BTreeSet;
use std::str::FromStr;

use kprobed_client::api::UpdateProbeRequest;
use kprobed_client::api::probe_change::Change as Asked;
use kprobed_document::{Document, ROLLOUT_LABEL};

/// The most characters of a name: it is the value of a label.
const LONGEST: usize = 63;

/// Name of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolloutName(String);

impl FromStr for RolloutName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
        let is_name = (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_good);
        is_name.then(|| Self(text.to_owned())).ok_or_else(|| {
            format!(
                "`{text}` cannot be the name of a roll-out: write 1 to {LONGEST} letters, digits, `.`, `_`, `/` and `-`"
            )
        })
    }
}

impl RolloutName {
    /// The name by default: it follows from the names of the probes, so that a repeated roll-out of the same
    /// probes has the same one, wherever it is started.
    pub(crate) fn of(documents: &[Document]) -> Self {
        let names: BTreeSet<_> = documents.iter().map(|document| document.name.as_str()).collect();
        // FNV-1a: the same on every machine and in every version, unlike the hashes of the standard library.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let bytes = names.into_iter().flat_map(|name| name.bytes().chain([b'\n']));
        Self(format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step)))
    }

    /// Puts the mark into documents.
    ///
    /// # Errors
    /// When a document is of another roll-out.
    pub(crate) fn mark(&self, documents: &mut [Document]) -> Result<(), String> {
        let Self(wanted) = self;
        for document in documents {
            let found = document.labels.entry(ROLLOUT_LABEL.to_owned()).or_insert_with(|| wanted.clone());
            if found != wanted {
                return Err(format!(
                    "the document of `{}` has the label `{ROLLOUT_LABEL}={found}`, and this roll-out is `{wanted}`",
                    document.name
                ));
            }
        }
        Ok(())
    }
}

/// Whether a change does no more than to mark a probe that is as wanted otherwise.
pub(crate) fn only_marks(change: &Asked) -> bool {
    let Asked::Update(request) = change else { return false };
    let UpdateProbeRequest { name, etag, set_labels, .. } = request;
    let is_mark = set_labels.len() == 1 && set_labels.contains_key(ROLLOUT_LABEL);
    let (name, etag, set_labels) = (name.clone(), etag.clone(), set_labels.clone());
    is_mark && *request == UpdateProbeRequest { name, etag, set_labels, ..UpdateProbeRequest::default() }
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::Probe;
    use kprobed_document::{changed, document_of, keeping_mark};

    use super::*;

    fn documents(text: &str) -> Vec<Document> {
        kprobed_document::read(text).unwrap().into_iter().map(|entry| entry.document).collect()
    }

    const TWO: &str = "\
probe: k/a
definition: p:k/a vfs_read
---
probe: k/b
definition: p:k/b vfs_write
labels: {team: net}
";

    /// The probe that a document makes.
    fn made(document: &Document) -> Probe {
        let request = kprobed_document::creation(document);
        Probe {
            name: document.name.clone(),
            definition: request.definition,
            enabled: request.enabled,
            labels: request.labels,
            on_kernel_change: request.on_kernel_change,
            ..Probe::default()
        }
    }

    #[test]
    fn the_name_follows_from_the_probes() {
        let two = documents(TWO);
        let turned: Vec<_> = two.iter().rev().cloned().collect();
        let edited = documents(&TWO.replace("vfs_write", "vfs_open"));
        assert_eq!(RolloutName::of(&two), RolloutName::of(&turned));
        assert_eq!(RolloutName::of(&two), RolloutName::of(&edited));
        assert_ne!(RolloutName::of(&two), RolloutName::of(&two[..1]));
        // It is the same in every version.
        assert_eq!(RolloutName::of(&[]), RolloutName("cbf29ce484222325".to_owned()));
        let parsed = |text: &str| text.parse::<RolloutName>();
        assert!(parsed(&RolloutName::of(&two).0).is_ok() && parsed(&"x".repeat(LONGEST)).is_ok());
        for text in ["", "a b", "a=b", &"x".repeat(LONGEST + 1)] {
            assert!(parsed(text).unwrap_err().starts_with(&format!("`{text}` cannot be the name")));
        }
    }

    #[test]
    fn a_mark_is_no_difference_and_is_taken_back_with_the_change() {
        let plain = documents(TWO);
        let mut marked = plain.clone();
        let name: RolloutName = "7".parse().unwrap();
        name.mark(&mut marked).unwrap();
        name.mark(&mut marked).unwrap();
        let other = "8".parse::<RolloutName>().unwrap().mark(&mut marked).unwrap_err();
        assert_eq!(
            other,
            "the document of `k/a` has the label `kprobed/rollout=7`, and this roll-out is `8`"
        );
        for (plain, marked) in plain.iter().zip(&marked) {
            let (before, after) = (made(plain), made(marked));
            // The same documents without a roll-out: nothing to do.
            assert_eq!(changed(&keeping_mark(plain, &after), &after, None), None);
            // A roll-out of what is there: nothing but the mark, and that is no reason for a change.
            assert!(only_marks(&Asked::Update(changed(marked, &before, None).unwrap())));
            let wanted = Document { filter: "fd == 1".to_owned(), ..marked.clone() };
            assert!(!only_marks(&Asked::Update(changed(&wanted, &before, None).unwrap())));
            assert!(!only_marks(&Asked::Create(kprobed_document::creation(marked))));
            // What was there before had no mark, and gets none back.
            let back = changed(&document_of(&before), &after, None).unwrap();
            assert_eq!(back.remove_labels, [ROLLOUT_LABEL]);
        }
    }
}
