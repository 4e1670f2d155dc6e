//! Events of one CPU that wait for their call stack.
//!
//! Owns which stack belongs to which event. The kernel writes a stack behind its event, and can be interrupted in
//! between, but neither goes on with another task nor comes back to the event after its handler has ended. So at most
//! one event waits in each kind of context, what interrupts has its stack first, and whatever comes later in the same
//! context or in an interrupted one shows that a stack does not come any more. System calls are an exception, whose
//! handlers can be preempted: then the thread differs, and the stack counts as lost.

/// An event that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) tid: i32,
    /// `common_flags` as recorded.
    pub(super) flags: u8,
    /// Its group in the batch.
    pub(super) group: usize,
    /// Its row there.
    pub(super) row: usize,
}

/// Those that wait, the innermost context last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingEvents(Vec<Waiting>);

impl WaitingEvents {
    /// Whether none waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one that has waited longest: its group and its row in the batch.
    pub(super) fn first(&self) -> Option<(usize, usize)> {
        self.0.first().map(|waiting| (waiting.group, waiting.row))
    }

    /// An event was recorded whose stack follows.
    pub(super) fn add(&mut self, event: Waiting) {
        self.0.retain(|waiting| depth(waiting.flags) < depth(event.flags));
        self.0.push(event);
    }

    /// The event to which a stack belongs. It waits no longer.
    pub(super) fn take(&mut self, tid: i32, flags: u8) -> Option<Waiting> {
        self.0.retain(|waiting| depth(waiting.flags) <= depth(flags));
        self.0.pop_if(|waiting| depth(waiting.flags) == depth(flags)).filter(|waiting| waiting.tid == tid)
    }

    /// Gives the one up that has waited longest.
    pub(super) fn give_up_first(&mut self) {
        self.0.drain(..self.0.len().min(1));
    }

    /// Gives all of them up.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// How deeply a context can interrupt others (include/linux/trace_events.h:enum trace_flag_type).
const fn depth(flags: u8) -> u8 {
    const HARDIRQ: u8 = 0x08;
    const SOFTIRQ: u8 = 0x10;
    const NMI: u8 = 0x40;
    if flags & NMI != 0 {
        3
    } else if flags & HARDIRQ != 0 {
        2
    } else if flags & SOFTIRQ != 0 {
        1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: u8 = 0;
    const NEED_RESCHED: u8 = 0x04;
    const SOFTIRQ: u8 = 0x10;
    const HARDIRQ: u8 = 0x08 | SOFTIRQ;
    const NMI: u8 = 0x40 | 0x08;

    /// The rows of the events that get these stacks: `(flags, Some(row))` is an event, `(flags, None)` a stack.
    fn paired(records: &[(u8, Option<usize>)]) -> Vec<Option<usize>> {
        let mut waiting = WaitingEvents::default();
        let mut paired = Vec::new();
        for (flags, row) in records.iter().copied() {
            match row {
                Some(row) => waiting.add(Waiting { tid: 7, flags, group: 0, row }),
                None => paired.push(waiting.take(7, flags).map(|event| event.row)),
            }
        }
        paired
    }

    #[test]
    fn what_interrupts_has_its_stack_first() {
        let nested = [
            (TASK, Some(0)),
            (SOFTIRQ, Some(1)),
            (HARDIRQ, Some(2)),
            (NMI, Some(3)),
            (NMI, None),
            (HARDIRQ, None),
            (HARDIRQ, Some(4)),
            (HARDIRQ, None),
            (SOFTIRQ, None),
            (NEED_RESCHED, None),
        ];
        assert_eq!(paired(&nested), [Some(3), Some(2), Some(4), Some(1), Some(0)]);
    }

    #[test]
    fn a_stack_that_does_not_come_is_nobody_elses() {
        // The first event of two in the same context, and one of an interrupt that has ended.
        assert_eq!(paired(&[(TASK, Some(0)), (TASK, Some(1)), (TASK, None), (TASK, None)]), [Some(1), None]);
        assert_eq!(paired(&[(TASK, Some(0)), (NMI, Some(1)), (TASK, None), (NMI, None)]), [Some(0), None]);
        // The interrupt came after the event had lost its stack.
        assert_eq!(paired(&[(TASK, Some(0)), (HARDIRQ, None), (TASK, None)]), [None, Some(0)]);
        assert_eq!(paired(&[(TASK, None)]), [None]);
    }

    #[test]
    fn a_stack_of_another_thread_is_not_taken() {
        let mut waiting = WaitingEvents::default();
        waiting.add(Waiting { tid: 7, flags: TASK, group: 0, row: 0 });
        assert_eq!(waiting.take(8, TASK), None);
        assert!(
            waiting.is_empty(),
            "another thread runs: the first one has ended its handler, or goes on elsewhere"
        );
    }
}
