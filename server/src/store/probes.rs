//! Rows of probes in the database.
//!
//! Owns what is wanted of a probe ([`ProbeSpec`]) and what is stored of it ([`Record`]): the one
//! form that requests are turned into, that the control thread works with, and that is stored.
//! Never changes a row: that is [`super::changes`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

#[cfg(doc)]
use super::Undo;
use super::bad::{BadValue, CheckedRow, Since1970};
use super::reversal::{self, Kept};
use super::{Store, StoreError, from_ns, labels, metadata};
use kprobed_lang::model::{Labels, Metadata, ProbeName, ProbeUid};
use kprobed_rights::Principal;
use kprobed_verdict::checker::DefinitionText;

/// How far the change of a probe has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Written before the kernel was changed; no client has an answer.
    Pending,
    /// Acknowledged.
    Settled,
    /// Its removal has begun.
    Removing,
}

impl Phase {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "settled" => Self::Settled,
            "removing" => Self::Removing,
            _ => return None,
        })
    }
}

/// The specification of a probe: everything that clients say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The client's text, with its dialect if another kernel could read it in another one, and with
    /// its syntax tree.
    pub definition: Arc<DefinitionText>,
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// Its labels.
    pub labels: Labels,
    /// Its other metadata.
    pub metadata: Metadata,
}

/// What the database stores of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its uid; 0 before it has a row.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// What is wanted.
    pub spec: ProbeSpec,
    /// The kernel's line, guards included.
    pub kernel_definition: String,
    /// Counts the changes that clients made, from 1.
    pub revision: i64,
    /// When it was created.
    pub create_time: SystemTime,
    /// When a client last changed it.
    pub update_time: SystemTime,
    /// The account of the principal that made it ([`kprobed_rights::Principal::account`]); empty for
    /// the daemon, and for one that was made before that was kept.
    pub creator: String,
    /// All names that this principal had then ([`kprobed_rights::Principal::names`]).
    pub creator_names: Vec<String>,
}

/// A row of the table, as a start finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProbe {
    /// The probe.
    pub record: Record,
    /// Its line in the kernel's list; empty before it is settled.
    pub kernel_listing: String,
    /// How far its change has got.
    pub phase: Phase,
    /// The end, by [`Moment::wall`](kprobed_lang::model::Moment), of the lease of it that has ended.
    pub lease_ended: Option<SystemTime>,
    /// A crash interrupted a change of it that was to be made with others or not at all: the record
    /// is the one before the change, and [`Undo::Reversal`] must still be written.
    pub is_reversed: bool,
    /// Why the row cannot be relied on: the probe must not be armed, and only be deleted. Its record then has what can
    /// be read, and is disabled.
    pub unreadable: Option<String>,
}

/// What a value costs that a row of a probe cannot do without.
pub(super) const NOT_ARMED: &str =
    "the probe is not armed, and its name and uid stay taken until `kprobectl delete` removes it";

/// What the names of a maker cost that cannot be read.
const OTHER_NAMES: &str = "roles that its maker has by other names do not count for the probe";

impl Record {
    /// A probe that is about to be made: it has no uid yet.
    pub fn new(name: ProbeName, spec: ProbeSpec, kernel_definition: String, now: SystemTime) -> Self {
        Self {
            uid: ProbeUid(0),
            name,
            spec,
            kernel_definition,
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
}

impl StoredProbe {
    fn from_row(row: &SqliteRow, labels: &mut HashMap<ProbeUid, Labels>, found: &mut Vec<BadValue>) -> Self {
        let before = found.len();
        let mut row = CheckedRow::new(row, "probe", "uid", found);
        let uid = ProbeUid(row.get("uid", NOT_ARMED));
        let group: Option<String> = row.need("event_group", NOT_ARMED);
        let event: Option<String> = row.need("event", NOT_ARMED);
        let name = group.zip(event).and_then(|(group, event)| match ProbeName::new(&group, &event) {
            Ok(name) => Some(name),
            Err(error) => {
                row.note("event", &error, NOT_ARMED);
                None
            }
        });
        let definition: Option<String> = row.need("definition", NOT_ARMED);
        let kernel_definition: Option<String> = row.need("kernel_definition", NOT_ARMED);
        let kernel_listing: Option<String> = row.need("kernel_listing", NOT_ARMED);
        let filter: Option<String> = row.need("filter", NOT_ARMED);
        let enabled: Option<i64> = row.need("enabled", NOT_ARMED);
        if enabled.is_some_and(|enabled| !(0..2).contains(&enabled)) {
            row.note("enabled", &"neither 0 nor 1", NOT_ARMED);
        }
        let phase = row.need::<String>("phase", NOT_ARMED).and_then(|phase| Phase::parse(&phase));
        let metadata = metadata::read(&mut row);
        let is_whole = uid.0 > 0
            && name.is_some()
            && definition.is_some()
            && kernel_definition.is_some()
            && kernel_listing.is_some()
            && filter.is_some()
            && matches!(enabled, Some(0 | 1))
            && phase.is_some()
            && metadata.is_some();
        if uid.0 <= 0 {
            row.note("uid", &"no uid of a probe", NOT_ARMED);
        }
        if phase.is_none() {
            row.note("phase", &"no phase", NOT_ARMED);
        }
        let revision: i64 = row.get("revision", "the changes of the probe are counted from 1 again");
        let time = |ns: Since1970| from_ns(ns.0);
        let create_time = time(row.get("create_time_ns", "it is not known when the probe was made"));
        let update_time = time(row.get("update_time_ns", "it is not known when the probe was changed"));
        let creator = row.get("creator", "it is not known who made the probe");
        let names: String = row.get("creator_names", OTHER_NAMES);
        let creator_names = serde_json::from_str(&names).unwrap_or_else(|error| {
            row.note("creator_names", &error, OTHER_NAMES);
            Vec::new()
        });
        let lease_ended: Option<Since1970> =
            row.get("lease_ended_ns", "it is not known when the lease of the probe ended");
        let listing = kernel_listing.unwrap_or_default();
        let written = kernel_definition.unwrap_or_default();
        // The event that the kernel may have is found by the other columns, and taken out of it.
        let name = name.or_else(|| name_in(&listing)).or_else(|| name_in(&written));
        let spec = ProbeSpec {
            definition: Arc::new(DefinitionText::new(definition.unwrap_or_default())),
            enabled: is_whole && enabled == Some(1),
            filter: filter.unwrap_or_default(),
            labels: labels.remove(&uid).unwrap_or_default(),
            metadata: metadata.unwrap_or_default(),
        };
        let record = Record {
            uid,
            name: name.unwrap_or_else(|| placeholder(uid)),
            spec,
            kernel_definition: written,
            revision: revision.max(1),
            create_time,
            update_time,
            creator,
            creator_names,
        };
        let probe = Self {
            record,
            kernel_listing: listing,
            phase: phase.unwrap_or(Phase::Settled),
            lease_ended: lease_ended.map(time),
            is_reversed: false,
            unreadable: None,
        };
        if is_whole {
            return probe;
        }
        let why = found
            .get(before..)
            .unwrap_or_default()
            .iter()
            .map(|bad| format!("`{}` is {}", bad.column, bad.value));
        let why = why.collect::<Vec<_>>().join(", ");
        probe.unreadable(why)
    }

    /// A row that cannot be relied on.
    fn unreadable(mut self, why: String) -> Self {
        let spec = &mut self.record.spec;
        spec.enabled = false;
        // Whatever its lease says, it stays listed until a client deletes it.
        spec.metadata.lease = None;
        Self { phase: Phase::Settled, unreadable: Some(why), ..self }
    }

    /// As it was before a change that is taken back.
    fn reversed(mut self, before: Result<Kept, String>) -> Self {
        match before.and_then(|before| before.restore(&mut self.record).map_err(|error| error.to_string())) {
            Ok(()) => Self { phase: Phase::Settled, is_reversed: true, ..self },
            Err(error) => self.unreadable(format!(
                "what it was before a change that was interrupted is not known: {error}"
            )),
        }
    }
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
    /// All probes, by name. Changes of atomic groups that a crash has interrupted are not in the
    /// result.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn probes(&self) -> Result<Vec<StoredProbe>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM probe ORDER BY event_group, event")
                .fetch_all(&mut *connection)
                .await?;
            let mut found = Vec::new();
            let mut bad_labels = Vec::new();
            let mut labels = labels::read(connection, &mut bad_labels).await?;
            let mut bad_reversals = Vec::new();
            let mut reversals = reversal::read(connection, &mut bad_reversals).await?;
            let mut probes = Vec::with_capacity(rows.len());
            for row in &rows {
                let probe = StoredProbe::from_row(row, &mut labels, &mut found);
                probes.push(match reversals.remove(&probe.record.uid) {
                    Some(before) if probe.unreadable.is_none() => probe.reversed(before),
                    _ => probe,
                });
            }
            bad_reversals.extend(reversals.keys().map(|uid| BadValue {
                table: "reversal",
                row: uid.to_string(),
                column: "probe_uid",
                value: "the uid of no probe".to_owned(),
                cost: "an interrupted change of the probe that it is about is not taken back",
            }));
            self.database.found("probe", found);
            self.database.found("probe_label", bad_labels);
            self.database.found("reversal", bad_reversals);
            name_apart(&mut probes);
            Ok(probes)
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
