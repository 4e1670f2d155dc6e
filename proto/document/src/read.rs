//! Reader of probe documents from YAML or JSON text.
//!
//! Owns the keys of a document, and the bounds of a text: it has no anchors, aliases and tags, so that a document
//! means what it shows, and a text of a kilobyte cannot expand to a gigabyte. The reader reads on after a mistake
//! in a value, so that it reports all of them at once. Never judges a definition: the daemon does.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{
    Error, Location, MergeKeyPolicy, MessageFormatter, NonFiniteFloatPolicy, Spanned, UserMessageFormatter,
    budget, options,
};

use crate::document::{Document, KernelChange, Lease};
use crate::duration::read_duration;
use crate::place::{Place, Problem, meant};

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

/// Deepest nesting. A document has two levels.
const MAX_DEPTH: usize = 8;

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

/// A text with its location; of a number or a truth value, the text that is written.
type Text = Spanned<String>;

/// A document as it is written. [`Reader::keys`] reports keys that no document has: serde would stop at the first.
#[derive(Deserialize)]
struct Written {
    probe: Option<Text>,
    definition: Option<Text>,
    enabled: Option<Text>,
    filter: Option<Text>,
    labels: Option<HashMap<Text, Option<Text>>>,
    owner: Option<Text>,
    description: Option<Text>,
    lease: Option<Spanned<WrittenLease>>,
    on_kernel_change: Option<Text>,
    take_over: Option<Text>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenLease {
    Held(HashMap<String, String>),
    Lasting(String),
    Other(IgnoredAny),
}

/// Reads the documents of a text: YAML, of which JSON is a subset. A text without a document gives
/// an empty list.
///
/// # Errors
/// All problems, in the order of the text; never empty. One wrong document makes the whole text an
/// error.
pub fn read(text: &str) -> Result<Vec<PlacedDocument>, Vec<Problem>> {
    let mut reader = Reader { lines: text.lines().collect(), problems: Vec::new() };
    let entries = reader.documents(text);
    let mut first_lines: HashMap<&str, usize> = HashMap::new();
    for PlacedDocument { document, name_place, .. } in &entries {
        if let Some(first) = first_lines.insert(&document.name, name_place.line) {
            let message = format!("`{}` stands in line {first} already", document.name);
            let problem =
                Problem::new(&reader.lines, *name_place, message, "write one document for each probe");
            reader.problems.push(problem);
        }
    }
    if reader.problems.is_empty() {
        return Ok(entries);
    }
    reader.problems.sort_by_key(|problem| problem.place);
    Err(reader.problems)
}

/// All documents of a text, but for empty ones. Another follows one that cannot be read.
fn parse<'a, T: DeserializeOwned + 'a>(text: &'a mut &[u8]) -> impl Iterator<Item = Result<T, Error>> + 'a {
    let options = options! {
        budget: budget! { max_depth: MAX_DEPTH, max_anchors: 0, max_aliases: 0 },
        merge_keys: MergeKeyPolicy::AsOrdinary,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        null_as_string: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::read_with_options(text, options)
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, location: Location, message: impl Into<String>, hint: impl Into<String>) {
        let place = Place::of(&self.lines, location);
        self.problems.push(Problem::new(&self.lines, place, message, hint));
    }

    /// Reads the documents, and reports problems.
    fn documents(&mut self, text: &str) -> Vec<PlacedDocument> {
        let (mut for_keys, mut for_values) = (text.as_bytes(), text.as_bytes());
        let all_keys = parse::<HashMap<Text, Option<IgnoredAny>>>(&mut for_keys);
        let all_values = parse::<Spanned<Written>>(&mut for_values);
        let mut entries = Vec::new();
        for (keys, written) in all_keys.zip(all_values) {
            let before = self.problems.len();
            match (keys, written) {
                (Err(error), _) => self.unread(&error, true),
                (Ok(keys), written) => {
                    // No document has it, and each further key and line would be a mistake of its own.
                    if let Some(key) = keys.keys().find(|key| key.value == "etag") {
                        let message = "this is a probe as `-o json` prints it, and no document";
                        let hint = "`kprobectl get NAME -o yaml` prints its document";
                        self.problem(key.referenced, message, hint);
                        return entries;
                    }
                    self.keys(&keys);
                    match written {
                        Ok(written) => entries.extend(self.document(&written, before)),
                        Err(error) => self.unread(&error, false),
                    }
                }
            }
        }
        entries
    }

    /// Reports keys that no document has, and keys without a value.
    fn keys(&mut self, keys: &HashMap<Text, Option<IgnoredAny>>) {
        for (key, value) in keys {
            let word = key.value.as_str();
            if !KEYS.contains(&word) {
                let hint = match (word, meant(word, KEYS)) {
                    ("name", _) => "the name is the value of `probe`".to_owned(),
                    (_, Some(key)) => format!("did you mean `{key}`?"),
                    (_, None) => format!("a document can have `{}`", KEYS.join("`, `")),
                };
                self.problem(key.referenced, format!("`{word}` is not a key of a document"), hint);
            } else if value.is_none() {
                let message = format!("`{word}` has no value");
                self.problem(key.referenced, message, "write one, or leave the key out");
            }
        }
    }

    /// Reads one document. Absent if it has a problem: `before` is the number of those before it.
    fn document(&mut self, written: &Spanned<Written>, before: usize) -> Option<PlacedDocument> {
        let Spanned { value: written, referenced: begin, .. } = written;
        if let Some(name) = &written.probe {
            self.name(name);
        }
        let text = |text: &Option<Text>| text.as_ref().map_or_else(String::new, |text| text.value.clone());
        // Without the newline at the end of a block (`|`, `>`).
        let line = |line: &Option<Text>| text(line).trim_end_matches('\n').to_owned();
        let document = Document {
            name: text(&written.probe),
            definition: line(&written.definition),
            enabled: self.truth("enabled", written.enabled.as_ref()).unwrap_or(true),
            filter: line(&written.filter),
            labels: self.labels(written.labels.iter().flatten()),
            owner: text(&written.owner),
            description: text(&written.description),
            lease: written.lease.as_ref().and_then(|lease| self.lease(lease)),
            on_kernel_change: self.kernel_change(written.on_kernel_change.as_ref()),
        };
        let take_over = self.truth("take_over", written.take_over.as_ref()).unwrap_or(false);
        if self.problems.len() > before {
            return None;
        }
        let Some(name) = &written.probe else {
            let hint = "name the probe: `probe: GROUP/EVENT`, for example `probe: kprobes/open`";
            self.problem(*begin, "the document has no `probe`", hint);
            return None;
        };
        let Some(definition) = &written.definition else {
            let hint =
                "write what the probe records, for example `definition: p:kprobes/open do_sys_openat2`";
            self.problem(name.referenced, "the document has no `definition`", hint);
            return None;
        };
        let [name_place, definition_place] =
            [name, definition].map(|text| Place::of(&self.lines, text.referenced));
        Some(PlacedDocument { document, name_place, definition_place, take_over })
    }

    fn name(&mut self, name: &Text) {
        let part = |part: &str| {
            part.len() < 64
                && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '-')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        let place = name.referenced;
        let name = name.value.as_str();
        match name.split_once('/') {
            Some((group, event)) if part(group) && part(event) && !event.contains('-') => {}
            None if part(name) => {
                self.problem(place, format!("`{name}` has no group"), format!("write `probe: kprobes/{name}`"));
            }
            _ => self.problem(
                place,
                format!("`{name}` cannot be the name of a probe"),
                "write GROUP/EVENT: letters, digits and underscores only, no digit first, less than 64 of them",
            ),
        }
    }

    fn truth(&mut self, key: &str, text: Option<&Text>) -> Option<bool> {
        let text = text?;
        let Place { line, column, .. } = Place::of(&self.lines, text.referenced);
        let quotes = self.lines.get(line - 1).and_then(|line| line.chars().nth(column - 1));
        match text.value.parse() {
            Ok(truth) if !matches!(quotes, Some('\'' | '"')) => Some(truth),
            _ => {
                let message = format!("`{key}` is `{}`, and must be true or false", text.value);
                let hint = format!("write `{key}: true` or `{key}: false`, without quotes");
                self.problem(text.referenced, message, hint);
                None
            }
        }
    }

    fn labels<'t>(
        &mut self,
        labels: impl Iterator<Item = (&'t Text, &'t Option<Text>)>,
    ) -> BTreeMap<String, String> {
        let mut read = BTreeMap::new();
        for (key, value) in labels {
            let name = &key.value;
            if let Some(value) = value {
                read.insert(name.clone(), value.value.clone());
            } else {
                let message = format!("the label `{name}` has no value");
                self.problem(key.referenced, message, format!("write `{name}: ''` for an empty one"));
            }
        }
        read
    }

    fn lease(&mut self, lease: &Spanned<WrittenLease>) -> Option<Lease> {
        let is = match &lease.value {
            WrittenLease::Held(keys) => match (keys.get("holder"), keys.len()) {
                (Some(holder), 1) => return Some(Lease::Held(holder.clone())),
                _ => "a mapping, and must be a duration, or `{holder: KEY}`".to_owned(),
            },
            WrittenLease::Lasting(text) => match read_duration(text) {
                Some(duration) => return Some(Lease::Lasting(duration)),
                None => format!("`{text}`, and must be a duration"),
            },
            WrittenLease::Other(_) => "not a duration".to_owned(),
        };
        let hint = "write a number with a unit, such as `90s`, `2h` or `1d 12h`; leave the key out for a probe that is to stay";
        self.problem(lease.referenced, format!("`lease` is {is}"), hint);
        None
    }

    fn kernel_change(&mut self, text: Option<&Text>) -> KernelChange {
        match text.map(|text| (text.value.as_str(), text.referenced)) {
            None | Some(("hold", _)) => KernelChange::Hold,
            Some(("arm-anyway", _)) => KernelChange::ArmAnyway,
            Some((other, place)) => {
                let message = format!("`on_kernel_change` is `{other}`, and there is no such choice");
                self.problem(place, message, "write `hold` or `arm-anyway`");
                KernelChange::Hold
            }
        }
    }

    /// Reports what ended the reading: of the keys of all documents (`is_of_keys`), or of their values.
    fn unread(&mut self, error: &Error, is_of_keys: bool) {
        let location = error.location().unwrap_or(Location::UNKNOWN);
        let Place { line, column, .. } = Place::of(&self.lines, location);
        let line = self.lines.get(line - 1).copied().unwrap_or_default();
        let written: String = line.chars().skip(column - 1).collect();
        let kind = match written.chars().next() {
            Some('-' | '[') => "a list",
            Some('{') => "a mapping",
            _ => "a text",
        };
        let (message, hint) = match error {
            Error::Unexpected { expected: "mapping start", .. } if is_of_keys => (
                format!("this is {kind}, and no document of a probe"),
                if kind == "a list" {
                    "put `---` between documents, and no `-` before them"
                } else if is_line(&written) {
                    "this is a line of definitions: `kprobectl add -f` takes those; a document begins with `probe: GROUP/EVENT`"
                } else {
                    "begin with `probe: GROUP/EVENT`, and `definition:` in the next line"
                },
            ),
            Error::Unexpected { .. } if is_of_keys => {
                (format!("{kind} cannot be a key"), "write each key once, as a word")
            }
            Error::Unexpected { expected: "mapping start", .. } => {
                (format!("`labels` is {kind}, and must be a mapping"), "write `labels: {team: storage}`")
            }
            Error::Unexpected { .. } => {
                (format!("this is {kind}, and must be a string"), "put it into single quotes")
            }
            Error::DuplicateMappingKey { key, .. } => {
                (format!("`{}` is there twice", key.as_deref().unwrap_or_default()), "write each key once")
            }
            Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
                (format!("this is nested more than {MAX_DEPTH} times"), "no document needs as much")
            }
            Error::Budget { breach: BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. }, .. }
            | Error::UnknownAnchor { .. } => (
                "anchors and aliases (`&`, `*`) are not taken".to_owned(),
                "write the value out, or put the text into quotes",
            ),
            Error::UnsupportedTag { .. } | Error::TaggedScalarCannotDeserializeIntoString { .. } => {
                ("tags (`!`) are not taken".to_owned(), "leave it out, or put the text into quotes")
            }
            _ => (
                format!("this is not YAML: {}", UserMessageFormatter.format_message(error)),
                if self.lines.iter().any(|line| line.contains('\t')) {
                    "YAML is indented with blanks, never with tabs; put texts with `: `, ` #`, `%`, `@` or quotes in them into single quotes"
                } else {
                    "put texts with `: `, ` #`, `%`, `@` or quotes in them into single quotes"
                },
            ),
        };
        self.problem(location, message, hint);
    }
}

/// Whether the text begins like a line of `kprobe_events`, or like a prototype.
fn is_line(text: &str) -> bool {
    text.starts_with(['p', 'r', '-']) && text.contains([':', ' ']) || text.contains('(')
}
