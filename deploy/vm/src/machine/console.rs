//! The guest's serial console: its text, and the lines that report a panic, an oops or a stall.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The file that QEMU writes the console into. It is read although another program has removed its directory.
#[derive(Debug)]
pub(super) struct Console {
    path: PathBuf,
    file: File,
}

impl Console {
    /// An empty file at this path, replacing what is there.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        Ok(Self { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Everything so far. Nothing if the file cannot be read.
    pub(super) fn text(&self) -> String {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.file.metadata()?.len()).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// The lines in which the kernel, or the guest's PID 1, reports that something is wrong.
pub(super) fn problems(text: &str) -> impl Iterator<Item = &str> {
    let wrong = |message: &&str| is_failure(message) || message.starts_with("WARNING: ");
    text.lines().map(message).filter(wrong)
}

/// The first of [`problems`], but only what the guest does not survive, or should not.
pub(super) fn failure(text: &str) -> Option<String> {
    text.lines().map(message).find(|message| is_failure(message)).map(str::to_owned)
}

/// Whether the guest has said `line`, alone on a line.
pub(super) fn has_line(text: &str, line: &str) -> bool {
    // A kernel message may stand before it on the same line: two writers, one serial port.
    text.lines().any(|candidate| candidate.trim_end().ends_with(line))
}

/// The last `count` lines.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A console line without its `[   12.345678] ` time stamp.
fn message(line: &str) -> &str {
    let line = line.trim();
    let stamped = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    match stamped {
        Some((stamp, message)) if stamp.trim().parse::<f64>().is_ok() => message.trim_start(),
        _ => line,
    }
}

fn is_failure(message: &str) -> bool {
    const START: [&str; 9] = [
        "kprobed-guest: failed",
        "Kernel panic",
        "BUG: ",
        "Oops: ",
        "general protection fault",
        "INFO: task ",
        "watchdog: BUG",
        "kernel BUG at",
        "Unable to handle kernel",
    ];
    START.iter().any(|start| message.starts_with(start))
        || (message.starts_with("rcu: ") && message.contains("stall"))
        || message.contains("soft lockup")
        || message.contains("hard LOCKUP")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_console_is_read_when_its_directory_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("serial.log");
        fs::write(&path, "of an earlier boot").unwrap();
        let console = Console::create(path.clone()).unwrap();
        assert_eq!(console.text(), "");
        // QEMU empties the file, and writes into it.
        let mut qemu = File::create(&path).unwrap();
        io::Write::write_all(&mut qemu, b"one\n").unwrap();
        directory.close().unwrap();
        io::Write::write_all(&mut qemu, b"two\n").unwrap();
        assert_eq!(console.text(), "one\ntwo\n");
    }

    #[test]
    fn trouble_is_found_with_and_without_time_stamp() {
        for line in [
            "[    3.141592] Kernel panic - not syncing: Attempted to kill init!",
            "[   12.000000] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI",
            "[   60.123456] watchdog: BUG: soft lockup - CPU#0 stuck for 44s! [sh:71]",
            "[   60.123456] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "kprobed-guest: failed: mount /dev/vda: EINVAL",
        ] {
            let text = format!("[    0.5] booting\r\n{line}\r\n[    1.0] after\r\n");
            assert_eq!(problems(&text).collect::<Vec<_>>(), [message(line)], "{line}");
            assert_eq!(failure(&text).as_deref(), Some(message(line)), "{line}");
        }
    }

    #[test]
    fn a_warning_is_a_problem_but_no_failure() {
        let text = "[    9.9] WARNING: CPU: 0 PID: 1 at kernel/kprobes.c:1100 arm_kprobe+0x1/0x2";
        assert_eq!(problems(text).count(), 1);
        assert_eq!(failure(text), None);
    }

    #[test]
    fn ordinary_lines_are_not_trouble() {
        for line in [
            "[    0.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled",
            "[    0.2] DEBUG: all is well",
            "[    0.3] rcu: Hierarchical RCU implementation.",
            "[    0.4] printk: console [ttyS0] enabled",
            "",
        ] {
            assert_eq!(problems(line).count(), 0, "{line}");
        }
    }

    #[test]
    fn lines_and_tails() {
        let text = "one\r\n[    1.0] noise kprobed: off\r\nlast";
        assert!(has_line(text, "kprobed: off"));
        assert!(!has_line(text, "on"));
        assert_eq!(tail(text, 1), "last");
        assert_eq!(tail("", 3), "");
    }
}
