//! Rows of probes in the database, and the journal of changes that are under way.
//!
//! Owns what is wanted of a probe ([`ProbeSpec`]) and what is stored of it ([`Record`]): the one
//! form that requests are turned into, that the control thread works with, and that is stored.
//! Never changes a row: that is [`super::changes`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::bad::{BadValue, CheckedRow, lossy};
use super::{Store, StoreError};
use kprobed_lang::model::{Labels, Metadata, ProbeName, ProbeUid};
use kprobed_rights::Principal;
use kprobed_verdict::checker::DefinitionText;
use kprobed_verdict::meaning::Meaning;

/// The specification of a probe: everything that clients say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSpec {
    /// The client's text, with its dialect if another kernel could read it in another one, and with
    /// its syntax tree.
    pub definition: Arc<DefinitionText>,
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// Whether the call stack of the kernel is recorded with each event.
    pub stack: bool,
    /// Its labels.
    pub labels: Labels,
    /// Its other metadata.
    pub metadata: Metadata,
}

/// What the database stores of a probe. The fields are stored as they are here, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its uid; 0 before it has one.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// What is wanted.
    pub spec: ProbeSpec,
    /// The kernel's line, guards included.
    pub kernel_definition: String,
    /// How the kernel lists it, which is not the same text; empty while that is not known. It tells
    /// an event that a crash left behind from one of another program.
    pub kernel_listing: String,
    /// Whether it was made of an event that the kernel had.
    pub adopted: bool,
    /// What its definition meant on the build that it was made for, or accepted on. Absent if that
    /// is not known.
    #[serde(deserialize_with = "known_meaning")]
    pub meaning: Option<Arc<Meaning>>,
    /// Why it is disarmed although it is enabled, if it has cost more than its budget.
    pub trip: Option<Trip>,
    /// The end, by [`Moment::wall`](kprobed_lang::model::Moment), of the lease of it that has ended.
    pub lease_ended: Option<SystemTime>,
    /// Counts the changes that clients made, from 1.
    pub revision: i64,
    /// When it was created.
    pub create_time: SystemTime,
    /// When a client last changed it.
    pub update_time: SystemTime,
    /// The account of the principal that made it ([`kprobed_rights::Principal::account`]); empty for
    /// the daemon.
    pub creator: String,
    /// All names that this principal had then ([`kprobed_rights::Principal::names`]).
    pub creator_names: Vec<String>,
}

/// Why a probe is disarmed that has cost more than its budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trip {
    /// Code of the reason.
    pub code: String,
    /// The reason with its figures.
    pub message: String,
}

/// A meaning in another format counts as not known.
fn known_meaning<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Arc<Meaning>>, D::Error> {
    let stored: Option<serde_json::Value> = Option::deserialize(from)?;
    Ok(stored.and_then(Meaning::from_value).map(Arc::new))
}

/// A probe that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProbe {
    /// The probe.
    pub record: Record,
    /// Why the row cannot be relied on: the probe must not be armed, and only be deleted. Its record then has what can
    /// be read, and is disabled.
    pub unreadable: Option<String>,
}

/// A change that was neither acknowledged nor taken back. What the probe was before is its row, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// The probe.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// What it was to be. Absent if it was to be deleted.
    pub after: Option<StoredProbe>,
}

/// What a damaged row of a probe costs.
pub(super) const NOT_ARMED: &str =
    "the probe is not armed, and its name and uid stay taken until `kprobectl delete` removes it";

/// What a damaged row of the journal costs.
const NOT_FOUND: &str = "an event that an interrupted change has made may stay in the kernel";

impl Record {
    /// A probe that is about to be made: it has no uid yet.
    pub fn new(name: ProbeName, spec: ProbeSpec, kernel_definition: String, now: SystemTime) -> Self {
        Self {
            uid: ProbeUid(0),
            name,
            spec,
            kernel_definition,
            kernel_listing: String::new(),
            adopted: false,
            meaning: None,
            trip: None,
            lease_ended: None,
            revision: 1,
            create_time: now,
            update_time: now,
            creator: String::new(),
            creator_names: Vec::new(),
        }
    }

    /// The same, made by this principal.
    #[must_use]
    pub fn by(self, creator: &Principal) -> Self {
        Self { creator: creator.account(), creator_names: creator.names(), ..self }
    }

    /// The principal that made it, with the names that it had then. Absent for the daemon itself.
    pub(crate) fn maker(&self) -> Option<Principal> {
        if self.creator.is_empty() {
            return None;
        }
        let known = Principal::of_names(&self.creator_names);
        // Roles that it has by other names only do not count then.
        known.or_else(|_unknown| Principal::of_names(std::slice::from_ref(&self.creator))).ok()
    }

    pub(super) fn to_json(&self) -> Result<String, StoreError> {
        serde_json::to_string(self)
            .map_err(|error| StoreError::Corrupt { what: "record of a probe", value: error.to_string() })
    }
}

impl StoredProbe {
    /// Reads a row of `table`.
    fn from_row(
        stored: &SqliteRow,
        (table, cost): (&'static str, &'static str),
        found: &mut Vec<BadValue>,
    ) -> Self {
        let before = found.len();
        let mut row = CheckedRow::new(stored, table, "uid", found);
        let uid = ProbeUid(row.get("uid", cost));
        if uid.0 <= 0 {
            row.note("uid", &"no uid of a probe", cost);
        }
        let name = row.need::<String>("name", cost).and_then(|text| {
            let read = text.parse::<ProbeName>();
            read.inspect_err(|error| row.note("name", error, cost)).ok()
        });
        let record = row.need::<String>("record", cost).and_then(|text| {
            let read = serde_json::from_str::<Record>(&text);
            read.inspect_err(|error| row.note("record", error, cost)).ok()
        });
        if let Some(record) = record.as_ref().filter(|record| record.uid != uid) {
            row.note("uid", &format_args!("its record is that of {}", record.uid), cost);
        }
        if let (Some(record), Some(name)) = (&record, &name)
            && record.name != *name
        {
            row.note("name", &format_args!("its record is that of `{}`", record.name), cost);
        }
        let wrong = found.get(before..).unwrap_or_default();
        if let (Some(record), []) = (&record, wrong) {
            return Self { record: record.clone(), unreadable: None };
        }
        let why: Vec<_> = wrong.iter().map(|bad| format!("`{}` is {}", bad.column, bad.value)).collect();
        let record = record.unwrap_or_else(|| readable(&lossy(stored, "record")));
        let spec = &record.spec;
        // Whatever its lease says, it stays listed until a client deletes it.
        let metadata = Metadata { lease: None, ..spec.metadata.clone() };
        let spec = ProbeSpec { enabled: false, metadata, ..spec.clone() };
        // The event that the kernel may have is found by the lines, and taken out of it.
        let name =
            name.or_else(|| name_in(&record.kernel_listing)).or_else(|| name_in(&record.kernel_definition));
        let name = name.unwrap_or_else(|| placeholder(uid));
        Self { record: Record { uid, name, spec, ..record }, unreadable: Some(why.join(", ")) }
    }
}

/// What can be read of the text of a damaged record.
fn readable(text: &str) -> Record {
    let line = |field: &str| {
        let (_, rest) = text.split_once(&format!("\"{field}\":"))?;
        serde_json::Deserializer::from_str(rest).into_iter::<String>().next()?.ok()
    };
    let definition = Arc::new(DefinitionText::new(line("definition").unwrap_or_default()));
    let spec = ProbeSpec { definition, ..ProbeSpec::default() };
    let written = line("kernel_definition").unwrap_or_default();
    let record = Record::new(placeholder(ProbeUid(0)), spec, written, SystemTime::UNIX_EPOCH);
    Record { kernel_listing: line("kernel_listing").unwrap_or_default(), ..record }
}

/// The name in a line of the kernel: `p:GROUP/EVENT ...`.
fn name_in(line: &str) -> Option<ProbeName> {
    line.split(' ').next()?.split_once(':')?.1.parse().ok()
}

/// The name of a probe whose own cannot be read.
fn placeholder(uid: ProbeUid) -> ProbeName {
    ProbeName::unreadable("probe", uid.0.unsigned_abs())
}

impl Store {
    /// All probes as they were acknowledged, by name.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn probes(&self) -> Result<Vec<StoredProbe>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM probe ORDER BY name").fetch_all(&mut *connection).await?;
            let mut found = Vec::new();
            let mut probes: Vec<_> =
                rows.iter().map(|row| StoredProbe::from_row(row, ("probe", NOT_ARMED), &mut found)).collect();
            self.database.found("probe", found);
            name_apart(&mut probes);
            Ok(probes)
        };
        self.database.read(read).await
    }

    /// The changes that were begun, and neither acknowledged nor taken back.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn journal(&self) -> Result<Vec<Interrupted>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let query = sqlx::query("SELECT *, record IS NULL AS deletes FROM journal ORDER BY uid");
            let rows = query.fetch_all(&mut *connection).await?;
            let mut found = Vec::new();
            let interrupted = |row: &SqliteRow| {
                let mut checked = CheckedRow::new(row, "journal", "uid", &mut found);
                if checked.get::<i64>("deletes", NOT_FOUND) != 0 {
                    let uid = ProbeUid(checked.get("uid", NOT_FOUND));
                    let name = checked.get::<String>("name", NOT_FOUND).parse();
                    return Interrupted { uid, name: name.unwrap_or_else(|_| placeholder(uid)), after: None };
                }
                let after = StoredProbe::from_row(row, ("journal", NOT_FOUND), &mut found);
                let (uid, name) = (after.record.uid, after.record.name.clone());
                Interrupted { uid, name, after: Some(after) }
            };
            let journal = rows.iter().map(interrupted).collect();
            self.database.found("journal", found);
            Ok(journal)
        };
        self.database.read(read).await
    }
}

/// Gives a row that cannot be relied on another name, if its name is that of another row.
fn name_apart(probes: &mut [StoredProbe]) {
    let taken: HashSet<_> =
        probes.iter().filter(|one| one.unreadable.is_none()).map(|one| one.record.name.clone()).collect();
    let mut given = HashSet::new();
    for one in probes.iter_mut().filter(|one| one.unreadable.is_some()) {
        if taken.contains(&one.record.name) || !given.insert(one.record.name.clone()) {
            one.record.name = placeholder(one.record.uid);
        }
    }
}
