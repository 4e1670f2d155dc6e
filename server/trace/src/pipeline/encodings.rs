//! Encodings of one batch, shared by the subscribers that want the same events.
//!
//! Owns the cache of encoded messages: subscribers with the same selection get the same bytes,
//! which are encoded once. Never decides which subscriber gets which events: `selection` does.

use std::sync::Arc;

use bytes::Bytes;

use super::selection::{Picked, Selected};
use super::view::View;
use super::{Draft, Group};
use crate::wire::{self, Envelope, GroupRows, MessagePool, Projection, Task};

/// Encodings of one batch so far.
#[derive(Debug)]
pub(super) struct Encodings<'a> {
    messages: Vec<(Vec<usize>, Projection, Bytes)>,
    pool: &'a MessagePool,
}

impl<'a> Encodings<'a> {
    pub(super) const fn new(pool: &'a MessagePool) -> Self {
        Self { messages: Vec::new(), pool }
    }

    /// The message with the selected events.
    pub(super) fn message(
        &mut self,
        draft: &Draft,
        selected: &Selected,
        sequence: u64,
        view: &View,
    ) -> Bytes {
        if view.hides_addresses() {
            return self.hidden(draft, selected, sequence);
        }
        if !selected.is_whole() {
            return encode(draft, selected, (sequence, draft.events()), self.pool);
        }
        let groups = || selected.groups.iter().map(|picked| picked.group);
        let same = |(known, projection, _): &&(Vec<usize>, Projection, Bytes)| {
            *projection == view.projection && known.iter().copied().eq(groups())
        };
        if let Some((_, _, bytes)) = self.messages.iter().find(same) {
            return bytes.clone();
        }
        let bytes = encode(draft, selected, (sequence, draft.events()), self.pool);
        self.messages.push((groups().collect(), view.projection.clone(), bytes.clone()));
        bytes
    }

    /// The same without kernel addresses. Nothing of it is shared: few subscribers are of this kind.
    fn hidden(&self, draft: &Draft, selected: &Selected, sequence: u64) -> Bytes {
        let batch = columns_of(draft, selected).without_addresses();
        let groups = selected.groups.iter().enumerate();
        let groups = groups.map(|(group, picked)| Picked {
            group,
            rows: None,
            projected: Arc::clone(&picked.projected),
        });
        let whole = Selected { groups: groups.collect(), ..Selected::default() };
        encode(&batch, &whole, (sequence, draft.events()), self.pool)
    }
}

/// `sequence` is the place of the log entry, which has so many events.
fn encode(
    draft: &Draft,
    selected: &Selected,
    (sequence, log_events): (u64, u64),
    pool: &MessagePool,
) -> Bytes {
    let groups: Vec<_> = selected
        .groups
        .iter()
        .filter_map(|picked| {
            let group = draft.groups.get(picked.group)?;
            Some(GroupRows {
                schema_id: group.origin.schema_id,
                columns: &group.columns,
                rows: picked.rows.as_deref(),
                projected: &picked.projected,
            })
        })
        .collect();
    let named = selected.groups.iter().any(|picked| picked.projected.comm);
    let tasks = if selected.is_whole() { None } else { Some(tasks_of(draft, &selected.groups)) };
    let envelope = Envelope {
        cpu: draft.cpu,
        sequence,
        log_events: u32::try_from(log_events).unwrap_or(u32::MAX),
        clock: draft.clock,
        tasks: if named { tasks.as_deref().unwrap_or(&draft.tasks) } else { &[] },
        symbols: &draft.symbols,
    };
    wire::encode(&envelope, &groups, pool)
}

fn columns_of(draft: &Draft, selected: &Selected) -> Draft {
    let group = |picked: &Picked| {
        let Group { origin, columns } = draft.groups.get(picked.group)?;
        let columns = match &picked.rows {
            None => columns.clone(),
            Some(rows) => columns.take_rows(rows),
        };
        Some(Group { origin: Arc::clone(origin), columns })
    };
    let tasks = if selected.is_whole() { draft.tasks.clone() } else { tasks_of(draft, &selected.groups) };
    Draft {
        cpu: draft.cpu,
        groups: selected.groups.iter().filter_map(group).collect(),
        tasks,
        symbols: draft.symbols.clone(),
        clock: draft.clock,
    }
}

/// The tasks of the selected rows only: a subscriber that wants one event in a thousand does not
/// want the names of all tasks.
fn tasks_of(draft: &Draft, picked: &[Picked]) -> Vec<Task> {
    let occurs = |tid: i32| {
        picked.iter().any(|picked| {
            let Some(group) = draft.groups.get(picked.group) else { return false };
            let columns = &group.columns;
            match &picked.rows {
                None => (0..columns.len()).any(|row| columns.tid(row) == Some(tid)),
                Some(rows) => rows.iter().any(|row| columns.tid(*row as usize) == Some(tid)),
            }
        })
    };
    draft.tasks.iter().filter(|task| occurs(task.tid)).cloned().collect()
}
