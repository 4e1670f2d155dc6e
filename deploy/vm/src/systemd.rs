//! systemd in a guest: the programs and unit files of Debian's package that it boots with.
//!
//! Owns which files of the package a guest gets: PID 1, `systemctl`, `systemd-sysusers` for what packages install, and
//! the units that others hang on. Never the units that a package adds to the boot (`*.wants`): a guest starts nothing
//! that no test asks for.

use std::fs;

use anyhow::{Context as _, Result};

use crate::cache::Cache;
use crate::initramfs::Initramfs;
use crate::unpacked::Unpacked;

/// For the kernel command line: the boot ends with `basic.target`, and messages go to the kernel's log.
pub(crate) const CMDLINE: &str =
    "systemd.unit=basic.target systemd.log_target=kmsg systemd.log_level=notice systemd.show_status=0";

/// Programs. The executor is there since version 255.
const PROGRAMS: [&str; 4] =
    ["lib/systemd/systemd", "lib/systemd/systemd-executor", "bin/systemctl", "bin/systemd-sysusers"];

/// A host that has been booted before: systemd enables all units on the first boot.
const MACHINE_ID: &str = "6b70726f62656420677565737420697a\n";

/// Its units.
const UNITS: &str = "lib/systemd/system";

/// Kinds of units that start no program, by the ends of their names.
const QUIET_UNITS: [&str; 3] = [".target", ".slice", ".mount"];

/// The files of systemd that guests get.
#[derive(Clone, Debug)]
pub struct Systemd {
    package: Unpacked,
    /// From the root on.
    files: Vec<String>,
}

impl Systemd {
    /// The package of this machine's Debian, downloaded when it is not in `cache`.
    pub fn ensure(cache: &Cache) -> Result<Self> {
        let package = Unpacked::ensure_with_missing(cache, "systemd")?;
        let place = |path: &str| {
            // Later releases have everything below /usr.
            [path.to_owned(), format!("usr/{path}")].into_iter().find(|path| package.program(path).exists())
        };
        let missing = |path: &str| format!("the package systemd has no {path}");
        let mut files: Vec<_> = PROGRAMS.into_iter().filter_map(place).collect();
        for needed in [PROGRAMS[0], PROGRAMS[2]] {
            place(needed).with_context(|| missing(needed))?;
        }
        let units = place(UNITS).with_context(|| missing(UNITS))?;
        let directory = package.program(&units);
        let name = || directory.display().to_string();
        for entry in fs::read_dir(&directory).with_context(name)? {
            let entry = entry.with_context(name)?;
            let unit = entry.file_name().to_string_lossy().into_owned();
            let is_file = entry.file_type().with_context(name)?.is_file();
            if is_file && QUIET_UNITS.iter().any(|end| unit.ends_with(end)) {
                files.push(format!("{units}/{unit}"));
            }
        }
        Ok(Self { package, files })
    }

    /// Puts them at their places in a guest.
    pub(crate) fn add_to(&self, content: &mut Initramfs) -> Result<()> {
        content.text("/etc/machine-id", MACHINE_ID)?;
        self.files.iter().try_for_each(|path| content.add_unpacked(&self.package, path))
    }
}
