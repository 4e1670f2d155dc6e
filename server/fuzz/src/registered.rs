//! Property: parser of debugfs `kprobes/list`.

use std::fmt::Write as _;

use kprobed_host::tracefs::RegisteredProbe;
use kprobed_lang::definition::ProbeKind;

/// Every probe is a line of the text; one that is printed as the kernel prints it is read again.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let probes = RegisteredProbe::parse_list(&text);
    assert!(probes.len() <= text.lines().count());
    let mut printed = String::new();
    for RegisteredProbe { address, kind, location, gone, disabled } in &probes {
        assert!(!location.is_empty() && !location.contains(|c: char| c.is_ascii_whitespace()));
        let letter = if *kind == ProbeKind::Entry { 'k' } else { 'r' };
        let flag = |on: &bool, name: &'static str| if *on { name } else { "" };
        let flags = [flag(gone, "[GONE]"), flag(disabled, "[DISABLED]")].concat();
        writeln!(printed, "{address:x}  {letter}  {location}    {flags}").expect("a string takes everything");
    }
    assert_eq!(RegisteredProbe::parse_list(&printed), probes, "{printed:?}");
}
