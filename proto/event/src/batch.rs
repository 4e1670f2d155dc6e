//! Event batch: events of one CPU that arrived in one message.
//!
//! Owns the names of tasks and addresses that belong to a batch, sorted for look-up. Never reorders
//! events: `row` merges them.

use std::collections::HashMap;
use std::sync::Arc;

use kprobed_filter::FieldKind;

use crate::MalformedError;
use crate::api;
use crate::group::Group;
use crate::row::Rows;
use crate::schema::Schema;
use crate::value::Address;

/// Events of one CPU.
#[derive(Clone, Debug)]
pub struct Batch {
    cpu: u32,
    sequence: u64,
    log_events: u32,
    rows: usize,
    groups: Vec<Group>,
    /// Sorted by thread id.
    tasks: Vec<api::Task>,
    /// Sorted by address.
    symbols: Vec<api::Symbol>,
    wall_offset_ns: i64,
}

impl Batch {
    /// Checks a batch against the schemas that were sent before it.
    pub(crate) fn new(
        batch: api::EventBatch,
        schemas: &HashMap<u32, Arc<Schema>>,
        wall_offset_ns: i64,
    ) -> Result<Self, MalformedError> {
        let mut groups = Vec::with_capacity(batch.groups.len());
        for group in batch.groups {
            let id = group.schema_id;
            let unknown =
                || MalformedError(format!("batch refers to schema {id}, which was not sent before"));
            let schema = schemas.get(&id).ok_or_else(unknown)?;
            groups.push(Group::new(Arc::clone(schema), group)?);
        }
        let (mut tasks, mut symbols) = (batch.tasks, batch.symbols);
        tasks.sort_by_key(|task| task.tid);
        symbols.sort_by_key(|symbol| symbol.address);
        let rows = groups.iter().map(Group::rows).sum();
        let (cpu, sequence, log_events) = (batch.cpu, batch.sequence, batch.log_events);
        Ok(Self { cpu, sequence, log_events, rows, groups, tasks, symbols, wall_offset_ns })
    }

    /// Reads one batch outside of a stream, with the schemas that it refers to: for recordings and
    /// tests.
    ///
    /// # Errors
    /// [`MalformedError`] as for a stream.
    pub fn from_parts(
        schemas: Vec<api::EventSchema>,
        batch: api::EventBatch,
    ) -> Result<Self, MalformedError> {
        let mut known = HashMap::with_capacity(schemas.len());
        for schema in schemas {
            let schema = Schema::try_from(schema)?;
            known.insert(schema.id(), Arc::new(schema));
        }
        let wall_offset_ns = batch.clock.as_ref().map_or(0, |clock| clock.wall_offset_ns);
        Self::new(batch, &known, wall_offset_ns)
    }

    /// The CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Log position in the epoch at which the entry of these events begins.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Log position at which that entry ends: a client with this batch has seen everything before
    /// it.
    pub fn end_sequence(&self) -> u64 {
        self.sequence.saturating_add(self.log_events.into())
    }

    /// The events by probe.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All events in the order of time.
    pub fn rows(&self) -> Rows<'_> {
        Rows::new(self)
    }

    /// Wall clock minus trace clock, in nanoseconds.
    pub fn wall_offset_ns(&self) -> i64 {
        self.wall_offset_ns
    }

    /// Name of a task that occurs in this batch, if it is known.
    pub fn comm(&self, tid: i32) -> Option<&[u8]> {
        self.task(tid).map(|task| task.comm.as_slice()).filter(|comm| !comm.is_empty())
    }

    /// Id of the process of a task that occurs in this batch, if it is known.
    pub fn tgid(&self, tid: i32) -> Option<i32> {
        self.task(tid).map(|task| task.tgid).filter(|tgid| *tgid != 0)
    }

    fn task(&self, tid: i32) -> Option<&api::Task> {
        let index = self.tasks.binary_search_by_key(&tid, |task| task.tid).ok()?;
        self.tasks.get(index)
    }

    /// A kernel address that occurs in this batch, with its name if it is known.
    pub fn symbol(&self, address: u64) -> Address<'_> {
        Address::find(address, &self.symbols)
    }

    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let groups: usize = self.groups.iter().map(Group::bytes).sum();
        let tasks: usize = self.tasks.iter().map(|task| size_of_val(task) + task.comm.len()).sum();
        let symbols: usize = self.symbols.iter().map(|symbol| size_of_val(symbol) + symbol.text.len()).sum();
        size_of::<Self>() + groups + tasks + symbols
    }

    /// What it knows besides events, as far as these of its events, which are taken out of it, need it.
    /// `sequence`: the number of the first of them.
    pub(crate) fn around(&self, group: &Group, sequence: u64) -> Self {
        let rows = 0..group.rows();
        let tids: Vec<i32> = rows.clone().filter_map(|row| group.tid(row)).collect();
        let mut addresses: Vec<u64> =
            rows.flat_map(|row| [group.ip(row), group.return_ip(row)]).flatten().collect();
        let columns = (0..group.schema().fields().len()).filter_map(|index| group.column(index));
        for column in columns.filter(|column| column.field().kind == FieldKind::Symbol) {
            addresses.extend((0..column.values()).map(|value| column.unsigned(value)));
        }
        let tasks = self.tasks.iter().filter(|task| tids.contains(&task.tid));
        let symbols = self.symbols.iter().filter(|symbol| addresses.contains(&symbol.address));
        let Self { cpu, log_events, wall_offset_ns, .. } = *self;
        let (tasks, symbols) = (tasks.cloned().collect(), symbols.cloned().collect());
        Self { cpu, sequence, log_events, rows: 0, groups: Vec::new(), tasks, symbols, wall_offset_ns }
    }

    /// The same entry of the log with only these of its events.
    pub(crate) fn with_groups(&self, groups: Vec<Group>) -> Self {
        let rows = groups.iter().map(Group::rows).sum();
        Self { rows, groups, ..self.clone() }
    }

    pub(crate) fn without_tasks(self) -> Self {
        Self { tasks: Vec::new(), ..self }
    }

    pub(crate) fn symbols(&self) -> &[api::Symbol] {
        &self.symbols
    }
}
