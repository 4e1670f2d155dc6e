//! Registered kprobes, from debugfs `kprobes/list`.
//!
//! A write to `kprobe_events` can succeed and register nothing (an address without a symbol, a
//! module that is not loaded); this list is the only positive proof.

use super::{Tracefs, TracefsError};
use crate::kernel::hex;
use kprobed_lang::definition::ProbeKind;

/// One line of the list: `ADDRESS k|r SYMBOL+0xOFFSET [MODULE] [FLAGS]...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredProbe {
    /// Address; 0 when the kernel hides it.
    pub address: u64,
    /// Entry (`k`) or return (`r`).
    pub kind: ProbeKind,
    /// `SYMBOL+0xOFFSET`.
    pub location: String,
    /// Its module has gone.
    pub gone: bool,
    /// Marked as disabled: registered, not armed.
    pub disabled: bool,
}

impl RegisteredProbe {
    /// Parses the list. Lines of another form are left out.
    pub fn parse_list(text: &str) -> Vec<Self> {
        text.lines().filter_map(parse_line).collect()
    }
}

fn parse_line(line: &str) -> Option<RegisteredProbe> {
    let mut words = line.split_ascii_whitespace();
    let address = hex(words.next()?)?;
    let kind = match words.next()? {
        "k" => ProbeKind::Entry,
        "r" => ProbeKind::Return,
        _ => return None,
    };
    let location = words.next()?.to_owned();
    Some(RegisteredProbe {
        address,
        kind,
        location,
        gone: line.contains("[GONE]"),
        disabled: line.contains("[DISABLED]"),
    })
}

impl Tracefs {
    /// Everything that is registered with the kernel's kprobe core, by whomever.
    ///
    /// # Errors
    /// [`TracefsError`]; ENOENT when debugfs is not mounted.
    pub fn registered(&self) -> Result<Vec<RegisteredProbe>, TracefsError> {
        Ok(RegisteredProbe::parse_list(&self.files.read(&self.debugfs.join("kprobes/list"))?))
    }

    /// Whether the kernel's kprobes are switched on as a whole (debugfs `kprobes/enabled`). Absent
    /// when that cannot be read.
    pub fn kprobes_enabled(&self) -> Option<bool> {
        self.files.read_trimmed(&self.kprobes_switch()).ok().map(|value| value == "1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let list = RegisteredProbe::parse_list(
            "ffffffff8141a004  k  vfs_read+0x4    [DISABLED][FTRACE]\nffffffffc0001000  r  fx_hot+0x0  fx [GONE]\nx\n",
        );
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].location, "vfs_read+0x4");
        assert!(list[0].disabled && !list[0].gone && list[0].kind == ProbeKind::Entry);
        assert!(list[1].gone && list[1].kind == ProbeKind::Return);
    }
}
