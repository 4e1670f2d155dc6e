//! Property: parser of tracefs `error_log`.

use std::fmt::Write as _;

use kprobed_host::tracefs::KernelMessage;

/// Positions lie in their command, and records that are printed as the kernel prints them are read
/// again.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let messages = KernelMessage::parse_log(&text);
    assert!(messages.len() <= text.lines().count());
    let mut printed = String::new();
    for message in &messages {
        assert!(message.position <= message.command.len());
        let KernelMessage { stamp, subsystem, text, command, position } = message;
        let indent = " ".repeat("  Command: ".len() + position);
        writeln!(printed, "[{stamp}] {subsystem}: error: {text}\n  Command: {command}\n{indent}^")
            .expect("a string takes everything");
    }
    // The end of a line may be `\r\n`, and so the last `\r` of one is no part of it.
    if !printed.contains('\r') {
        assert_eq!(KernelMessage::parse_log(&printed), messages, "{printed:?}");
    }
}
