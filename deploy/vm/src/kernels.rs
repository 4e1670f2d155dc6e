//! Kernels to boot, from the cache or from the Debian archive: downloaded and unpacked, never
//! installed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::{self, Apt};
use crate::progress::Step;

/// Suffix of the packages of Debian's kernels for virtual machines.
const FLAVOUR: &str = "-cloud-amd64";
/// Suites that are asked when the machine's own lists have no such kernel: first these,
const SUITES: [&str; 4] = ["bookworm", "bookworm-security", "trixie", "trixie-security"];
/// then these as well, which takes longer.
const MORE_SUITES: [&str; 6] =
    ["bullseye", "bullseye-security", "bookworm-backports", "trixie-backports", "sid", "experimental"];

/// A kernel that can be booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Major and minor version (`6.12`); for a kernel given by path its file name.
    pub series: String,
    /// `uname -r`, as far as it is known before booting.
    pub release: String,
    /// The bzImage.
    pub image: PathBuf,
    /// `lib/modules/RELEASE`; none when everything that the guest needs is built in.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// A kernel of the caller's own: a bzImage, and its `lib/modules/RELEASE` directory.
    pub fn from_paths(image: &Path, modules: Option<&Path>) -> Result<Self> {
        let absolute = |path: &Path| fs::canonicalize(path).with_context(|| path.display().to_string());
        let image = absolute(image)?;
        let modules = modules.map(absolute).transpose()?;
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let series: String = name(&image)
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .collect();
        let release = modules.as_deref().map_or_else(|| series.clone(), name);
        Ok(Self { series, release, image, modules })
    }

    /// The kernel below `root`, wherever the packages of this version put it.
    fn in_directory(root: &Path, release: &str) -> Option<Self> {
        let modules = ["lib/modules", "usr/lib/modules"]
            .map(|parent| root.join(parent).join(release))
            .into_iter()
            .find(|directory| directory.join("kernel").is_dir())?;
        let image = [root.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")]
            .into_iter()
            .find(|image| image.is_file())?;
        let series = release.splitn(3, ['.', '-', '+', '~']).take(2).collect::<Vec<_>>().join(".");
        Some(Self { series, release: release.to_owned(), image, modules: Some(modules) })
    }
}

/// The kernels in one directory of the cache, one sub-directory per release.
#[derive(Clone, Debug)]
pub struct KernelStore {
    directory: PathBuf,
}

impl KernelStore {
    /// The directory need not exist.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// All kernels that are there, newest first.
    pub fn cached(&self) -> Vec<Kernel> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().filter_map(Result::ok);
        let mut found: Vec<Kernel> = entries
            .filter_map(|entry| Kernel::in_directory(&entry.path(), entry.file_name().to_str()?))
            .collect();
        found.sort_by_key(|kernel| Reverse(numbers(&kernel.release)));
        found
    }

    /// The newest cached kernel of a series (`6.12`, or more exactly `6.12.107`).
    pub fn find(&self, series: &str) -> Option<Kernel> {
        self.cached().into_iter().find(|kernel| is_of_series(&kernel.release, series))
    }

    /// [`KernelStore::find`], and [`KernelStore::fetch`] when there is none.
    pub fn find_or_fetch(&self, series: &str) -> Result<Kernel> {
        self.find(series).map_or_else(|| self.fetch(series), Ok)
    }

    /// The newest kernel of a series that the archive has, downloaded unless it is there.
    pub fn fetch(&self, series: &str) -> Result<Kernel> {
        let step = Step::start(format!("looking for the newest kernel {series}"));
        let (apt, release) = self.resolve(series)?;
        step.done();
        let target = self.directory.join(&release);
        if let Some(kernel) = Kernel::in_directory(&target, &release) {
            return Ok(kernel);
        }
        let packages = closure(&apt, &release)?;
        let step = Step::start(format!("downloading {}", packages.join(" ")));
        let name = |path: &Path| path.display().to_string();
        // Unpacked next to its place and renamed, so that what has the name is complete.
        let making = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(&self.directory)
            .with_context(|| name(&self.directory))?;
        let (debs, root) = (making.path().join("debs"), making.path().join("root"));
        for directory in [&debs, &root] {
            fs::create_dir(directory).with_context(|| name(directory))?;
        }
        apt.download(&packages, &debs)?;
        for deb in fs::read_dir(&debs).with_context(|| name(&debs))? {
            apt::unpack(&deb.with_context(|| name(&debs))?.path(), &root)?;
        }
        let incomplete = || format!("{} contain no kernel image, or no modules", packages.join(" "));
        ensure!(Kernel::in_directory(&root, &release).is_some(), incomplete());
        match fs::rename(&root, &target) {
            // Another program was quicker, with the same content.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            other => other.with_context(|| name(&target))?,
        }
        step.done();
        Kernel::in_directory(&target, &release).with_context(incomplete)
    }

    /// The release to use, and the package lists that know it.
    fn resolve(&self, series: &str) -> Result<(Apt, String)> {
        fs::create_dir_all(&self.directory).with_context(|| self.directory.display().to_string())?;
        let machine = Apt::machine();
        if let Some(release) = newest(&machine, series)? {
            return Ok((machine, release));
        }
        let lists = self.directory.join(".apt");
        let all = [SUITES.as_slice(), MORE_SUITES.as_slice()].concat();
        for suites in [SUITES.as_slice(), &all] {
            let step = Step::start(format!("fetching the package lists of {}", suites.join(", ")));
            let private = Apt::private(&lists, suites)?;
            step.done();
            if let Some(release) = newest(&private, series)? {
                return Ok((private, release));
            }
        }
        bail!("the Debian archive has no kernel {series}{FLAVOUR} in {}", all.join(", "))
    }
}

/// The newest release of `series` that these lists know: through the meta packages, which name what
/// is current; and when there is none (left), by the names of the kernels themselves.
fn newest(apt: &Apt, series: &str) -> Result<Option<String>> {
    let mut candidates: Vec<(String, String)> = Vec::new();
    for meta in [format!("linux-image-{series}{FLAVOUR}"), format!("linux-image{FLAVOUR}")] {
        for package in apt.show(&meta)? {
            let release = package.depends.iter().find_map(|name| image_release(name, series));
            candidates.extend(release.map(|release| (package.version.clone(), release.to_owned())));
        }
    }
    if candidates.is_empty() {
        for name in apt.names(&format!("linux-image-{series}"))? {
            let Some(release) = image_release(&name, series) else { continue };
            let versions = apt.show(&name)?.into_iter().map(|package| package.version);
            candidates.extend(versions.map(|version| (version, release.to_owned())));
        }
    }
    let mut best: Option<(String, String)> = None;
    for candidate in candidates {
        let better = match &best {
            Some((version, _)) => apt::is_newer(&candidate.0, version)?,
            None => true,
        };
        if better {
            best = Some(candidate);
        }
    }
    Ok(best.map(|(_, release)| release))
}

/// The packages that together are the kernel `release`: those that carry its name, from the image
/// on.
fn closure(apt: &Apt, release: &str) -> Result<Vec<String>> {
    let part = |name: &str| {
        ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"]
            .iter()
            .any(|start| name.starts_with(start))
            && name.contains(release)
            && !name.ends_with("-unsigned")
    };
    let mut found = BTreeSet::new();
    let mut open = vec![format!("linux-image-{release}")];
    while let Some(name) = open.pop() {
        // The newest version comes first; older ones may still need other things.
        if let Some(package) = apt.show(&name)?.into_iter().next() {
            open.extend(package.depends.into_iter().filter(|name| part(name) && !found.contains(name)));
            found.insert(name);
        }
    }
    Ok(found.into_iter().collect())
}

/// The release in the name of a kernel image package of this series; none for meta packages.
fn image_release<'a>(package: &'a str, series: &str) -> Option<&'a str> {
    let release = package.strip_prefix("linux-image-")?;
    let version = release.strip_suffix(FLAVOUR)?;
    (is_of_series(release, series) && version != series).then_some(release)
}

/// 6.12.117+deb13-cloud-amd64 is of the series 6.12 and not of 6.1.
fn is_of_series(release: &str, series: &str) -> bool {
    let rest = release.strip_prefix(series);
    !series.is_empty() && rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// The numbers in a release, to sort by.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_exact() {
        assert_eq!(image_release("linux-image-6.1.0-56-cloud-amd64", "6.1"), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(image_release("linux-image-6.12.117+deb13-cloud-amd64", "6.1"), None);
        assert_eq!(
            image_release("linux-image-6.12.117+deb13-cloud-amd64", "6.12"),
            Some("6.12.117+deb13-cloud-amd64")
        );
        // The meta package, the debug package, another flavour.
        assert_eq!(image_release("linux-image-6.12-cloud-amd64", "6.12"), None);
        assert_eq!(image_release("linux-image-6.12.1-cloud-amd64-dbg", "6.12"), None);
        assert_eq!(image_release("linux-image-6.12.1-amd64", "6.12"), None);
        assert!(!is_of_series("6.12.1", ""));
    }

    fn unpacked(store: &Path, release: &str, image: &str, modules: &str) {
        let root = store.join(release);
        fs::create_dir_all(root.join(modules).join("kernel")).unwrap();
        fs::create_dir_all(root.join(image).parent().unwrap()).unwrap();
        fs::write(root.join(image), "").unwrap();
    }

    #[test]
    fn cached_kernels_are_found_in_every_layout() {
        let directory = tempfile::tempdir().unwrap();
        let store = KernelStore::new(directory.path().join("kernels"));
        assert_eq!(store.cached(), []);
        let at = &store.directory;
        unpacked(
            at,
            "6.1.0-9-cloud-amd64",
            "boot/vmlinuz-6.1.0-9-cloud-amd64",
            "lib/modules/6.1.0-9-cloud-amd64",
        );
        unpacked(
            at,
            "6.1.0-56-cloud-amd64",
            "boot/vmlinuz-6.1.0-56-cloud-amd64",
            "lib/modules/6.1.0-56-cloud-amd64",
        );
        let new = "usr/lib/modules/7.2.13+deb14-cloud-amd64";
        unpacked(at, "7.2.13+deb14-cloud-amd64", &format!("{new}/vmlinuz"), new);
        fs::create_dir_all(at.join("6.12.1-cloud-amd64/boot")).unwrap();
        let series: Vec<_> = store.cached().into_iter().map(|kernel| kernel.series).collect();
        assert_eq!(series, ["7.2", "6.1", "6.1"]);
        assert_eq!(store.find("6.1").unwrap().release, "6.1.0-56-cloud-amd64");
        assert_eq!(
            store.find("7.2").unwrap().image,
            at.join("7.2.13+deb14-cloud-amd64").join(new).join("vmlinuz")
        );
        // Incomplete: as if it were not there.
        assert_eq!(store.find("6.12"), None);
    }

    #[test]
    fn a_kernel_by_path_has_to_be_there() {
        let error = Kernel::from_paths(Path::new("/no/such/bzImage"), None).unwrap_err();
        assert!(format!("{error:#}").starts_with("/no/such/bzImage: "), "{error:#}");
    }
}
