//! The files that a daemon may open after its start, by Landlock (Documentation/userspace-api/landlock.rst).
//!
//! Owns the rights on each kind of path, and the paths that every daemon reads. What the configuration adds comes
//! from the caller. A rule is about a file as it is now: what is replaced later has to lie in a directory with a
//! rule. Never covers connections and system calls: `calls` does.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, path_beneath_rules,
};

/// The rights that are taken away, as far as the kernel knows them: 6.1 has the second version, in which truncation
/// by name is not restricted yet, and 6.12 the sixth. A kernel that has none is left as it is.
const VERSION: ABI = ABI::V5;

/// What every daemon reads: facts of the kernel and of processes; the user database, the resolver, its modules and
/// their libraries; the zone of the host's time; randomness. Landlock has no exception below a directory, and files of
/// /etc are replaced when they change: all of it can be read.
const READ: [&str; 8] = ["/proc", "/sys", "/etc", "/usr", "/lib", "/lib64", "/dev/urandom", "/run/systemd"];

/// What every daemon writes.
const WRITTEN: [&str; 1] = ["/dev/null"];

/// Files and directories of one daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// They are read, with all that is in them.
    pub read: Vec<PathBuf>,
    /// They are read and written, and files are made and removed in them.
    pub written: Vec<PathBuf>,
}

/// Takes the right to open all other files from the calling thread, and from those that it starts. Returns how much
/// of that the kernel knows.
///
/// # Errors
/// Those of landlock_create_ruleset(2), landlock_add_rule(2) and landlock_restrict_self(2).
pub(super) fn restrict(files: &Files) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let written = read | written();
    let of_all = |paths: &[&str], those: &[PathBuf]| -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).chain(those.iter().filter_map(|path| nearest(path))).collect()
    };
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .create()?
        // A path that is not there needs no rule.
        .add_rules(path_beneath_rules(of_all(&READ, &files.read), read))?
        .add_rules(path_beneath_rules(of_all(&WRITTEN, &files.written), written))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// Files, directories and sockets are made and removed; devices, pipes and links are not.
fn written() -> BitFlags<AccessFs> {
    AccessFs::WriteFile
        | AccessFs::RemoveDir
        | AccessFs::RemoveFile
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::Refer
        | AccessFs::Truncate
}

/// A path that is there, or the nearest directory above it in which it can be made. Absent if that would be the whole
/// file system.
fn nearest(path: &Path) -> Option<PathBuf> {
    let found = path.ancestors().find(|path| path.exists())?;
    (found == path || found.parent().is_some()).then(|| found.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_comes_later_is_covered_by_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        assert_eq!(nearest(here).as_deref(), Some(here));
        assert_eq!(nearest(&here.join("probes.d/a.yaml")).as_deref(), Some(here));
        assert_eq!(nearest(Path::new("/nosuch-directory/file")), None);
    }
}
