//! Livepatches: functions of the kernel and of its modules that run as other code than their own.
//!
//! Owns the reading of `/sys/kernel/livepatch` (Documentation/ABI/testing/sysfs-kernel-livepatch;
//! kernel/livepatch/core.c). Never decides what follows from it for a probe, and never writes
//! there. On a host without livepatches, reading is one directory that is empty or missing.
//!
//! `<patch>/{enabled,transition}` are 0 or 1, and each function has a
//! `<patch>/<object>/<function,sympos>/` (since 4.0; `transition` since 4.12). The object is
//! `vmlinux` or a module; it has `patched` since 6.1, which is 0 while that module is not loaded. A
//! patch is named for the module that brings it, and leaves the directory when it has been switched
//! off everywhere (klp_free_patch_async).

use std::fs;
use std::path::{Path, PathBuf};

/// The object that is the kernel itself.
const KERNEL: &str = "vmlinux";

/// The functions that the livepatches of a host redirect, by the names of the patches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Livepatches(Vec<Redirect>);

/// How far a livepatch is with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Some tasks run the new function, the others still that of the kernel.
    Enabling,
    /// All tasks run the new function.
    Enabled,
    /// Some tasks run that of the kernel again, the others still the new one.
    Disabling,
}

/// A function that is redirected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Redirect {
    /// The patch, which is the name of the module that has the new function.
    pub patch: String,
    /// Absent for the kernel itself.
    module: Option<String>,
    function: String,
    /// Which of the functions of that name, from 1, in the order of their addresses.
    pub position: u32,
    /// How far it is.
    pub progress: Progress,
}

impl Livepatches {
    /// Reads the livepatches below `sysfs`, usually `/sys`. One that is removed meanwhile, or
    /// cannot be read, is left out.
    pub fn read(sysfs: &Path) -> Self {
        let patches = directories(&sysfs.join("kernel/livepatch"));
        let mut found: Vec<_> =
            patches.filter_map(|(name, path)| redirects(&name, &path)).flatten().collect();
        found.sort_unstable();
        Self(found)
    }

    /// Whether a function is redirected. Of several patches that do so the first one that is
    /// through counts, or else the first.
    pub fn redirect_of(&self, module: Option<&str>, function: &str) -> Option<&Redirect> {
        let is_of = |found: &&Redirect| found.module.as_deref() == module && found.function == function;
        let mut found = self.0.iter().filter(is_of);
        let through = found.clone().find(|redirect| redirect.progress == Progress::Enabled);
        through.or_else(|| found.next())
    }
}

/// What a patch redirects; nothing if it is switched off.
fn redirects(patch: &str, directory: &Path) -> Option<Vec<Redirect>> {
    let enabled = flag(&directory.join("enabled"))?;
    let in_transition = flag(&directory.join("transition")).unwrap_or(false);
    let progress = match (enabled, in_transition) {
        (true, true) => Progress::Enabling,
        (true, false) => Progress::Enabled,
        (false, true) => Progress::Disabling,
        (false, false) => return None,
    };
    let mut found = Vec::new();
    for (object, path) in directories(directory) {
        // Nothing of a module that is not loaded is redirected.
        if flag(&path.join("patched")) == Some(false) && !in_transition {
            continue;
        }
        let module = (object != KERNEL).then_some(object);
        found.extend(directories(&path).filter_map(|(entry, _)| {
            let (function, position) = function(&entry)?;
            let (patch, module, function) = (patch.to_owned(), module.clone(), function.to_owned());
            Some(Redirect { patch, module, function, position, progress })
        }));
    }
    Some(found)
}

/// `NAME,POSITION` (klp_init_func). If the patch says that only one exists, it is the first.
fn function(entry: &str) -> Option<(&str, u32)> {
    let (name, position) = entry.rsplit_once(',')?;
    let position = position.parse().ok()?;
    (!name.is_empty() && position > 0).then_some((name, position))
}

fn flag(file: &Path) -> Option<bool> {
    match fs::read_to_string(file).ok()?.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The directories in a directory. The kernel makes no names that are not UTF-8.
fn directories(path: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_directory.then(|| Some((entry.file_name().into_string().ok()?, entry.path()))).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Objects, each with an entry for a function.
    type Functions<'a> = &'a [(&'a str, &'a str)];

    /// A tree as the kernel shows it: patches, and of each `enabled`, `transition`, and functions
    /// by object.
    fn tree(patches: &[(&str, &str, &str, Functions<'_>)]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        for (name, enabled, transition, functions) in patches {
            let patch = sysfs.path().join("kernel/livepatch").join(name);
            fs::create_dir_all(&patch).unwrap();
            fs::write(patch.join("enabled"), enabled).unwrap();
            fs::write(patch.join("transition"), transition).unwrap();
            for (object, function) in *functions {
                fs::create_dir_all(patch.join(object).join(function)).unwrap();
                fs::write(patch.join(object).join("patched"), "1\n").unwrap();
            }
        }
        sysfs
    }

    #[test]
    fn functions_are_redirected_as_long_as_a_patch_says_so() {
        let functions: &[(&str, &str)] = &[("vmlinux", "cmdline_proc_show,1"), ("ext4", "ext4_open,2")];
        for (enabled, transition, progress) in [
            ("1\n", "0\n", Some(Progress::Enabled)),
            ("1\n", "1\n", Some(Progress::Enabling)),
            ("0\n", "1\n", Some(Progress::Disabling)),
            ("0\n", "0\n", None),
            ("", "0\n", None),
        ] {
            let sysfs = tree(&[("fix_a", enabled, transition, functions)]);
            let read = Livepatches::read(sysfs.path());
            let found =
                |module, name| read.redirect_of(module, name).map(|found| (found.progress, found.position));
            assert_eq!(found(None, "cmdline_proc_show"), progress.map(|progress| (progress, 1)));
            assert_eq!(found(Some("ext4"), "ext4_open"), progress.map(|progress| (progress, 2)));
            assert_eq!(found(None, "ext4_open"), None);
            assert_eq!(found(Some("ext4"), "cmdline_proc_show"), None);
        }
    }

    #[test]
    fn what_is_through_counts_more_than_what_is_under_way() {
        let functions: &[(&str, &str)] = &[("vmlinux", "f,1")];
        let sysfs = tree(&[("a", "0\n", "1\n", functions), ("b", "1\n", "0\n", functions)]);
        let read = Livepatches::read(sysfs.path());
        let found = read.redirect_of(None, "f").unwrap();
        assert_eq!((found.patch.as_str(), found.progress), ("b", Progress::Enabled));
    }

    #[test]
    fn a_module_that_is_not_loaded_is_not_patched() {
        let sysfs = tree(&[("a", "1\n", "0\n", &[("ext4", "f,1")])]);
        fs::write(sysfs.path().join("kernel/livepatch/a/ext4/patched"), "0\n").unwrap();
        assert_eq!(Livepatches::read(sysfs.path()).redirect_of(Some("ext4"), "f"), None);
    }

    #[test]
    fn most_hosts_have_none() {
        assert_eq!(Livepatches::read(Path::new("/nonexistent")), Livepatches::default());
    }

    proptest! {
        /// Whatever stands in files and directories: nothing panics, and only `NAME,POSITION` is a
        /// function.
        #[test]
        fn any_tree_is_read(
            entries in prop::collection::btree_map("[a-z,0-9.]{1,12}", any::<bool>(), 0..6),
            enabled in prop_oneof![Just("1\n"), Just("0\n"), Just(""), Just("yes")],
            transition in prop_oneof![Just("1\n"), Just("0\n"), Just("\0")],
            object in prop_oneof![Just("vmlinux".to_owned()), "[a-z_]{1,8}"],
        ) {
            let entries: BTreeMap<String, bool> =
                entries.into_iter().filter(|(name, _)| name != "." && name != "..").collect();
            let sysfs = tree(&[("p", enabled, transition, &[])]);
            let object_path = sysfs.path().join("kernel/livepatch/p").join(&object);
            fs::create_dir_all(&object_path).unwrap();
            for (name, is_directory) in &entries {
                let path = object_path.join(name);
                if *is_directory { fs::create_dir(&path).unwrap() } else { fs::write(&path, "1\n").unwrap() }
            }
            let read = Livepatches::read(sysfs.path());
            let module = (object != KERNEL).then_some(object.as_str());
            let is_known = matches!(enabled, "1\n" | "0\n") && (enabled == "1\n" || transition == "1\n");
            for (entry, is_directory) in &entries {
                let expected = is_directory
                    .then(|| entry.rsplit_once(','))
                    .flatten()
                    .filter(|(name, position)| !name.is_empty() && position.parse::<u32>().is_ok_and(|at| at > 0));
                if let Some((name, _)) = expected {
                    prop_assert_eq!(read.redirect_of(module, name).is_some(), is_known);
                }
            }
            prop_assert!(read.redirect_of(module, "not,there,at,all").is_none());
        }

        #[test]
        fn any_name_is_survived(entry: String) {
            if let Some((name, position)) = function(&entry) {
                prop_assert!(!name.is_empty() && position > 0);
                prop_assert!(entry.starts_with(name));
            }
        }
    }
}
