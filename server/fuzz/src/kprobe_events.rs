//! Property: parser of `kprobe_events` listings.

use kprobed_host::tracefs::ListedProbe;

/// Every probe is a line of the text, and its name is in it.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    for probe in ListedProbe::parse_list(&text) {
        assert!(lines.any(|line| line == probe.line), "in the order of the text");
        assert!(probe.line.contains(&format!("/{} ", probe.event)));
        if let Some(name) = &probe.name {
            assert_eq!(name.event(), probe.event);
            assert!(probe.line.contains(&format!(":{name} ")));
            assert_eq!(name.to_string().parse().as_ref(), Ok(name));
        }
    }
}
