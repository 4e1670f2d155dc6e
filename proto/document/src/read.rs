//! Reader of probe documents from YAML or JSON text.
//!
//! Owns the keys of a document. It reads on after a mistake, so that it reports all mistakes of a
//! file at once. Never judges a definition: the daemon does.

use std::collections::{BTreeMap, HashMap};

use crate::document::{Document, KernelChange, Lease};
use crate::lease;
use crate::place::{Place, Problem, meant};
use crate::tree::{self, Node, Value};

/// All keys of a document, in the order in which they are written.
const KEYS: [&str; 10] = [
    "probe",
    "definition",
    "enabled",
    "filter",
    "labels",
    "owner",
    "description",
    "lease",
    "on_kernel_change",
    "take_over",
];

/// A document with its places in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedDocument {
    /// The document.
    pub document: Document,
    /// Place of its name.
    pub name_place: Place,
    /// Place at which its definition begins.
    pub definition_place: Place,
    /// Whether a file of the daemon's directory takes the probe from a client that owns it. It
    /// concerns the owner of the probe and is not a property of the probe, so that no probe has it,
    /// and clients that apply the document ignore it.
    pub take_over: bool,
}

/// Reads the documents of a text: YAML, of which JSON is a subset. A text without a document gives
/// an empty list.
///
/// # Errors
/// All problems, in the order of the text; never empty. One wrong document makes the whole text an
/// error.
pub fn read(text: &str) -> Result<Vec<PlacedDocument>, Vec<Problem>> {
    let nodes = tree::read(text).map_err(|problem| vec![problem])?;
    let mut reader = Reader { text, problems: Vec::new() };
    let entries: Vec<_> = nodes.iter().filter_map(|node| reader.document(node)).collect();
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for entry in &entries {
        if let Some(first) = lines.insert(&entry.document.name, entry.name_place.line) {
            let message = format!("`{}` stands in line {first} already", entry.document.name);
            reader.problem(entry.name_place, message, "write one document for each probe");
        }
    }
    let mut problems = reader.problems;
    if problems.is_empty() {
        return Ok(entries);
    }
    problems.sort_by_key(|problem| problem.place);
    Err(problems)
}

struct Reader<'a> {
    text: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, place: Place, message: impl Into<String>, hint: impl Into<String>) {
        self.problems.push(Problem::new(self.text, place, message, hint));
    }

    /// Reads one document. Absent if it has a problem.
    fn document(&mut self, node: &Node) -> Option<PlacedDocument> {
        let Value::Mapping(entries) = &node.value else {
            let hint = match &node.value {
                Value::Scalar { text, .. } if is_line(text) => {
                    "this is a line of definitions: `kprobectl add -f` takes those; a document begins with `probe: GROUP/EVENT`"
                }
                Value::Sequence => "put `---` between documents, and no `-` before them",
                _ => "begin with `probe: GROUP/EVENT`, and `definition:` in the next line",
            };
            self.problem(node.place, format!("this is {}, and no document of a probe", node.kind()), hint);
            return None;
        };
        let before = self.problems.len();
        let mut found = Found::default();
        for (key, value) in entries {
            let Value::Scalar { text: word, .. } = &key.value else { continue };
            if !KEYS.contains(&word.as_str()) {
                self.unknown(key.place, word);
            } else if value.is_null() {
                self.problem(key.place, format!("`{word}` has no value"), "write one, or leave the key out");
            } else {
                self.value(word, value, &mut found);
            }
        }
        if found.name.is_none() && !self.problems[before..].iter().any(|problem| problem.place >= node.place)
        {
            self.problem(
                node.place,
                "the document has no `probe`",
                "name the probe: `probe: GROUP/EVENT`, for example `probe: kprobes/open`",
            );
        }
        if found.definition.is_none() && self.problems.len() == before {
            let place = found.name.as_ref().map_or(node.place, |(_, place)| *place);
            self.problem(
                place,
                "the document has no `definition`",
                "write what the probe records, for example `definition: p:kprobes/open do_sys_openat2`",
            );
        }
        let (name, name_place) = found.name?;
        let (definition, definition_place) = found.definition?;
        if self.problems.len() > before {
            return None;
        }
        let Rest { enabled, filter, labels, owner, description, lease, on_kernel_change, take_over } =
            found.rest;
        let document = Document {
            name,
            definition,
            enabled: enabled.unwrap_or(true),
            filter,
            labels,
            owner,
            description,
            lease,
            on_kernel_change,
        };
        Some(PlacedDocument { document, name_place, definition_place, take_over: take_over.unwrap_or(false) })
    }

    fn unknown(&mut self, place: Place, word: &str) {
        let hint = match (word, meant(word, KEYS)) {
            ("name", _) => "the name is the value of `probe`".to_owned(),
            (_, Some(key)) => format!("did you mean `{key}`?"),
            (_, None) => format!("a document can have {}", listed(&KEYS)),
        };
        self.problem(place, format!("`{word}` is not a key of a document"), hint);
    }

    fn value(&mut self, word: &str, value: &Node, found: &mut Found) {
        match word {
            "probe" => found.name = self.name(value).map(|name| (name, value.place)),
            "definition" => found.definition = self.line(word, value).map(|text| (text, value.place)),
            "enabled" => found.rest.enabled = self.truth(word, value),
            "filter" => found.rest.filter = self.line(word, value).unwrap_or_default(),
            "labels" => found.rest.labels = self.labels(value),
            "owner" => found.rest.owner = self.text(word, value).unwrap_or_default(),
            "description" => found.rest.description = self.text(word, value).unwrap_or_default(),
            "take_over" => found.rest.take_over = self.truth(word, value),
            "lease" => found.rest.lease = self.lease(value),
            _ => found.rest.on_kernel_change = self.policy(value).unwrap_or_default(),
        }
    }

    /// A text, with or without quotes.
    fn text(&mut self, word: &str, node: &Node) -> Option<String> {
        if let Value::Scalar { text, .. } = &node.value
            && !node.is_null()
        {
            return Some(text.clone());
        }
        self.problem(
            node.place,
            format!("`{word}` is {}, and must be a text", node.kind()),
            "put it into single quotes",
        );
        None
    }

    /// As [`Self::text`], without the newline at the end of a block (`|`, `>`).
    fn line(&mut self, word: &str, node: &Node) -> Option<String> {
        self.text(word, node).map(|text| text.trim_end_matches('\n').to_owned())
    }

    fn truth(&mut self, word: &str, node: &Node) -> Option<bool> {
        match &node.value {
            Value::Scalar { text, plain: true } if text == "true" => return Some(true),
            Value::Scalar { text, plain: true } if text == "false" => return Some(false),
            _ => {}
        }
        let message = match &node.value {
            Value::Scalar { text, .. } => format!("`{word}` is `{text}`, and must be true or false"),
            _ => format!("`{word}` is {}, and must be true or false", node.kind()),
        };
        self.problem(node.place, message, format!("write `{word}: true` or `{word}: false`, without quotes"));
        None
    }

    fn name(&mut self, node: &Node) -> Option<String> {
        let name = self.text("probe", node)?;
        let part = |part: &str| {
            part.len() < 64
                && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '-')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        let (message, hint) = match name.split_once('/') {
            Some((group, event)) if part(group) && part(event) && !event.contains('-') => return Some(name),
            None if part(&name) => {
                (format!("`{name}` has no group"), format!("write `probe: kprobes/{name}`"))
            }
            _ => (
                format!("`{name}` cannot be the name of a probe"),
                "write GROUP/EVENT: letters, digits and underscores only, no digit first, less than 64 of them"
                    .to_owned(),
            ),
        };
        self.problem(node.place, message, hint);
        None
    }

    fn labels(&mut self, node: &Node) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        let Value::Mapping(entries) = &node.value else {
            let message = format!("`labels` is {}, and must be a mapping", node.kind());
            self.problem(node.place, message, "write `labels: {team: storage}`");
            return labels;
        };
        for (key, value) in entries {
            let Value::Scalar { text: name, .. } = &key.value else { continue };
            if value.is_null() {
                let message = format!("the label `{name}` has no value");
                self.problem(key.place, message, format!("write `{name}: ''` for an empty one"));
            } else if let Some(text) = self.text("a label", value) {
                labels.insert(name.clone(), text);
            }
        }
        labels
    }

    fn lease(&mut self, node: &Node) -> Option<Lease> {
        if let Value::Mapping(entries) = &node.value {
            match entries.as_slice() {
                [(key, value)] if matches!(&key.value, Value::Scalar { text, .. } if text == "holder") => {
                    return self.text("holder", value).map(Lease::Held);
                }
                _ => {}
            }
        }
        let read = match &node.value {
            Value::Scalar { text, .. } => lease::read(text),
            _ => None,
        };
        if read.is_none() {
            let message = match &node.value {
                Value::Scalar { text, .. } => format!("`lease` is `{text}`, and must be a duration"),
                _ => format!("`lease` is {}, and must be a duration", node.kind()),
            };
            let hint = "write a number with a unit, such as `90s`, `2h` or `1d 12h`; leave the key out for a probe that is to stay";
            self.problem(node.place, message, hint);
        }
        read.map(Lease::Lasting)
    }

    fn policy(&mut self, node: &Node) -> Option<KernelChange> {
        let known = |text: &str| KernelChange::ALL.into_iter().find(|one| one.name() == text);
        let (text, found) = match &node.value {
            Value::Scalar { text, .. } => (format!("`{text}`"), known(text)),
            _ => (node.kind().to_owned(), None),
        };
        if found.is_none() {
            let message = format!("`on_kernel_change` is {text}, and there is no such choice");
            self.problem(node.place, message, "write `hold` or `arm-anyway`");
        }
        found
    }
}

/// Documents and problems found so far.
#[derive(Default)]
struct Found {
    name: Option<(String, Place)>,
    definition: Option<(String, Place)>,
    rest: Rest,
}

/// Optional keys of a document.
#[derive(Default)]
struct Rest {
    enabled: Option<bool>,
    filter: String,
    labels: BTreeMap<String, String>,
    owner: String,
    description: String,
    lease: Option<Lease>,
    on_kernel_change: KernelChange,
    take_over: Option<bool>,
}

/// Whether the text begins like a line of `kprobe_events`, or like a prototype.
fn is_line(text: &str) -> bool {
    text.starts_with(['p', 'r', '-']) && text.contains([':', ' ']) || text.contains('(')
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
