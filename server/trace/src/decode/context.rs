//! Execution context of an event: interrupts, preemption and migration.
//!
//! Owns the meaning of `common_flags` and `common_preempt_count`. Never shows them: clients do.

/// Bits of `common_flags` (include/linux/trace_events.h:enum trace_flag_type).
mod flag {
    pub(super) const IRQS_OFF: u8 = 0x01;
    pub(super) const HARDIRQ: u8 = 0x08;
    pub(super) const SOFTIRQ: u8 = 0x10;
    pub(super) const NMI: u8 = 0x40;
    /// 5.19.
    pub(super) const BH_OFF: u8 = 0x80;
}

/// Context of an event: `common_flags` and `common_preempt_count`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Interrupts were off.
    pub irqs_off: bool,
    /// A reschedule was due, at once or lazily.
    pub need_resched: bool,
    /// In a hardware interrupt.
    pub hardirq: bool,
    /// In a software interrupt.
    pub softirq: bool,
    /// In a non-maskable interrupt.
    pub nmi: bool,
    /// Bottom halves were off. Always false before 5.19.
    pub bh_off: bool,
    /// Depth of disabled preemption, at most 15.
    pub preempt_depth: u8,
    /// Depth of disabled migration, at most 15.
    pub migrate_disable_depth: u8,
}

impl Context {
    /// Decodes the two bytes. Absent if they are garbage, which a count of 0xff shows.
    ///
    /// The recorder subtracts one from the context word, to take back the preemption count that its
    /// caller is supposed to have raised (include/linux/trace_events.h:tracing_gen_ctx_dec). A
    /// probe that is hit through a breakpoint has not raised it on preemptible builds, and the
    /// subtraction borrows: both depths become 15 and the lowest bits of the flags turn over. For
    /// kprobes NMI is set then as well; for uprobes any flags can be. Both depths being truly 15 or
    /// more is not to be expected.
    pub const fn from_raw(flags: u8, preempt_count: u8) -> Option<Self> {
        if preempt_count == 0xff {
            return None;
        }
        Some(Self {
            irqs_off: flags & flag::IRQS_OFF != 0,
            need_resched: flags & kprobed_event::Context::NEED_RESCHED != 0,
            hardirq: flags & flag::HARDIRQ != 0,
            softirq: flags & flag::SOFTIRQ != 0,
            nmi: flags & flag::NMI != 0,
            bh_off: flags & flag::BH_OFF != 0,
            preempt_depth: preempt_count & 0x0f,
            migrate_disable_depth: preempt_count >> 4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_named() {
        let nothing = Context::from_raw(0, 0).unwrap();
        let expected = Context { irqs_off: true, preempt_depth: 2, migrate_disable_depth: 1, ..nothing };
        assert_eq!(Context::from_raw(0x01, 0x12), Some(expected));
        assert_eq!(Context::from_raw(0x88, 0), Some(Context { bh_off: true, hardirq: true, ..nothing }));
        assert_eq!(Context::from_raw(0x10, 0), Some(Context { softirq: true, ..nothing }));
        for due in [0x02, 0x04, 0x20] {
            assert_eq!(Context::from_raw(due, 0), Some(Context { need_resched: true, ..nothing }));
        }
    }

    #[test]
    fn a_breakpoint_leaves_garbage() {
        assert_eq!(Context::from_raw(0x48, 0xff), None);
        assert_eq!(Context::from_raw(0xff, 0xff), None, "a uprobe");
        assert_eq!(Context::from_raw(0x05, 0xff), None, "a uprobe while a reschedule is due");
        assert!(Context::from_raw(0x48, 0x01).is_some_and(|context| context.nmi), "a real NMI");
    }
}
