//! The accelerator of guests: KVM if it really works, otherwise QEMU's emulation (TCG).
//!
//! `/dev/kvm` can exist and not work, as on a virtual machine without nested virtualisation: the CPU
//! must have the extensions for it, and a machine without a disk is tried first.

use std::env;
use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::json;

use super::qemu::Qemu;
use crate::progress;

/// How long the trial runs: firmware has begun by then, and what fails has failed.
const TRIAL: Duration = Duration::from_millis(500);

/// The accelerator of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// The host's CPU.
    Kvm,
    /// QEMU translates it.
    Tcg,
}

impl Accelerator {
    /// The value of `KPROBED_VM_ACCEL` (`kvm` or `tcg`), else KVM if it works. Tested once.
    pub(super) fn of_this_host() -> Self {
        static CHOSEN: OnceLock<Accelerator> = OnceLock::new();
        *CHOSEN.get_or_init(|| match env::var("KPROBED_VM_ACCEL").as_deref() {
            Ok("kvm") => Self::Kvm,
            Ok("tcg") => Self::Tcg,
            _ if kvm_works() => {
                progress::note("guests run on KVM");
                Self::Kvm
            }
            _ => Self::Tcg,
        })
    }
}

fn kvm_works() -> bool {
    let virtualises = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|cpus| cpu_virtualises(&cpus));
    if !virtualises || File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return false;
    }
    let arguments = "-accel kvm -cpu max -m 32M -display none -nodefaults -chardev stdio,id=qmp,signal=off -mon chardev=qmp,mode=control";
    let Ok((qemu, mut qmp)) =
        Qemu::start(arguments.split(' ').map(str::to_owned).collect(), Path::new("/dev/null"))
    else {
        return false;
    };
    qemu.wait(TRIAL).is_none()
        && qmp.command("query-status", &json!({})).is_ok_and(|status| status["status"] == "running")
}

/// Whether the CPUs have VMX or SVM, by `/proc/cpuinfo`. There are modules that offer `/dev/kvm`
/// without them (pagetable virtual machines): firmware runs there, and a kernel that writes to its own
/// code stops with an internal error.
fn cpu_virtualises(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.flat_map(|(_, flags)| flags.split_ascii_whitespace()).any(|flag| matches!(flag, "vmx" | "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_a_cpu_that_virtualises() {
        let cpu = |flags: &str| format!("processor\t: 0\nflags\t\t: fpu {flags} lm\nvmx flags\t: vnmi\n\n");
        assert!(cpu_virtualises(&cpu("vmx")));
        assert!(cpu_virtualises(&cpu("svm")));
        // Part of another word, or a line of another name, is none.
        assert!(!cpu_virtualises(&cpu("svm_lock hypervisor")));
        assert!(!cpu_virtualises(""));
    }
}
