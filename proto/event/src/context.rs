//! Execution context of an event: interrupts, preemption and migration.
//!
//! Owns the meaning of the kernel's `common_flags` and `common_preempt_count`
//! (include/linux/trace_events.h). Never guesses: a context that the kernel recorded as garbage is
//! absent.

use std::fmt;

const IRQS_OFF: u8 = 0x01;
const HARDIRQ: u8 = 0x08;
const SOFTIRQ: u8 = 0x10;
const NMI: u8 = 0x40;
/// 5.19.
const BH_OFF: u8 = 0x80;

/// The bits that say that a reschedule was due: at once (`NEED_RESCHED`, 0x04), once preemption is on again
/// (`PREEMPT_RESCHED`, 0x20), or lazily (`NEED_RESCHED_LAZY`, 0x02, since 6.13).
///
/// Before 6.13, 0x02 meant that the architecture does not know whether interrupts are off; x86-64 always knows.
const NEED_RESCHED: u8 = 0x26;

/// The recorder subtracts one from the context word, to take back the preemption count that its caller is supposed to
/// have raised (include/linux/trace_events.h:tracing_gen_ctx_dec). A probe that is hit through a breakpoint has not
/// raised it on preemptible builds, and the subtraction borrows: both depths become 15 and the lowest bits of the flags
/// turn over. For kprobes NMI is set then as well; for uprobes any flags can be. Both depths being truly 15 or more is
/// not to be expected.
const BORROWED: u8 = 0xff;

/// Execution context of an event. `Display` writes it as the kernel's trace does, `d.h1.` for
/// example, but for a due reschedule, which is an `n` for every reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    flags: u8,
    preempt_count: u8,
}

impl Context {
    /// `None` when the kernel recorded garbage, as it does for probes that are hit through a
    /// breakpoint.
    pub fn new(flags: u8, preempt_count: u8) -> Option<Self> {
        (preempt_count != BORROWED).then_some(Self { flags, preempt_count })
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Interrupts were off.
    pub fn irqs_off(self) -> bool {
        self.has(IRQS_OFF)
    }

    /// In a hardware interrupt.
    pub fn hardirq(self) -> bool {
        self.has(HARDIRQ)
    }

    /// In a software interrupt.
    pub fn softirq(self) -> bool {
        self.has(SOFTIRQ)
    }

    /// In a non-maskable interrupt.
    pub fn nmi(self) -> bool {
        self.has(NMI)
    }

    /// A reschedule was due, at once or lazily.
    pub fn need_resched(self) -> bool {
        self.has(NEED_RESCHED)
    }

    /// Bottom halves were off. Always false before 5.19.
    pub fn bh_off(self) -> bool {
        self.has(BH_OFF)
    }

    /// Depth of disabled preemption, at most 15.
    pub fn preempt_depth(self) -> u8 {
        self.preempt_count & 0xf
    }

    /// Depth of disabled migration, at most 15.
    pub fn migrate_disable_depth(self) -> u8 {
        self.preempt_count >> 4
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interrupts = match (self.irqs_off(), self.bh_off()) {
            (true, true) => 'D',
            (true, false) => 'd',
            (false, true) => 'b',
            (false, false) => '.',
        };
        let resched = if self.need_resched() { 'n' } else { '.' };
        let level = match (self.nmi(), self.hardirq(), self.softirq()) {
            (true, true, _) => 'Z',
            (true, false, _) => 'z',
            (false, true, true) => 'H',
            (false, true, false) => 'h',
            (false, false, true) => 's',
            (false, false, false) => '.',
        };
        let depth =
            |depth: u8| std::char::from_digit(u32::from(depth), 16).filter(|_| depth != 0).unwrap_or('.');
        write!(
            f,
            "{interrupts}{resched}{level}{}{}",
            depth(self.preempt_depth()),
            depth(self.migrate_disable_depth())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_print_like_the_kernel_and_garbage_is_none() {
        let text = |flags, count| Context::new(flags, count).map(|context| context.to_string());
        assert_eq!(text(0, 0).as_deref(), Some("....."));
        assert_eq!(text(IRQS_OFF | HARDIRQ, 0x01).as_deref(), Some("d.h1."));
        assert_eq!(text(0x01, 0x12).as_deref(), Some("d..21"));
        assert_eq!(text(0x88, 0).as_deref(), Some("b.h.."));
        assert_eq!(text(0x10, 0).as_deref(), Some("..s.."));
        assert_eq!(text(BH_OFF | IRQS_OFF | 0x04 | HARDIRQ | SOFTIRQ, 0x2f).as_deref(), Some("DnHf2"));
        for due in [0x02, 0x04, 0x20, 0x24] {
            assert_eq!(text(due, 0).as_deref(), Some(".n..."), "{due:#x}");
        }
        assert_eq!(text(NMI, 0).as_deref(), Some("..z.."));
        assert_eq!(text(NMI | HARDIRQ, 0xff), None);
        assert_eq!(text(NMI | HARDIRQ, 0x01).as_deref(), Some("..Z1."), "a real NMI");
        assert_eq!(text(0xff, 0xff), None, "a uprobe");
        assert_eq!(text(0x05, 0xff), None, "a uprobe while a reschedule is due");
        assert_eq!(text(0, 0xff), None, "whatever the flags say");
    }
}
