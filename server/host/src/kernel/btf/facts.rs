//! BTF of the running kernel and of its modules, read at the first use and cached.
//!
//! Never reads a file of types twice, whether the first reading failed or not, until modules
//! change.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;

use super::{Btf, BtfError};

/// Why types are not known.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct TypesError(String);

type Outcome = Result<Arc<Btf>, TypesError>;

/// The types of a kernel and of its modules, from the files that it shows them in, or those of the
/// kernel alone from its image.
#[derive(Debug)]
pub struct KernelTypes {
    /// Usually `/sys/kernel/btf`; absent for an image.
    directory: Option<PathBuf>,
    vmlinux: Arc<OnceLock<Outcome>>,
    modules: Mutex<HashMap<String, Outcome>>,
}

impl KernelTypes {
    /// Of the kernel that shows itself in this sysfs. Nothing is read yet.
    pub fn new(sysfs: &Path) -> Self {
        Self { directory: Some(sysfs.join("kernel/btf")), vmlinux: Arc::default(), modules: Mutex::default() }
    }

    /// Of a kernel image that has these bytes of BTF, or none.
    pub fn of_image(btf: Option<Vec<u8>>) -> Self {
        let missing = || TypesError("the kernel image has no types of `vmlinux`".to_owned());
        let broken =
            |error: BtfError| TypesError(format!("cannot parse the types of the kernel image: {error}"));
        let parsed = btf.ok_or_else(missing).and_then(|bytes| Btf::parse(bytes).map_err(broken));
        let vmlinux = Arc::new(OnceLock::from(parsed.map(Arc::new)));
        Self { directory: None, vmlinux, modules: Mutex::default() }
    }

    /// The types of the same kernel with other modules. The types of the kernel itself are kept.
    #[must_use]
    pub(crate) fn without_modules(&self) -> Self {
        Self {
            directory: self.directory.clone(),
            vmlinux: Arc::clone(&self.vmlinux),
            modules: Mutex::default(),
        }
    }

    /// Whether the kernel shows its types at all.
    pub fn available(&self) -> bool {
        match &self.directory {
            Some(directory) => directory.join("vmlinux").exists(),
            None => self.vmlinux().is_ok(),
        }
    }

    /// The types of the kernel itself.
    ///
    /// # Errors
    /// See [`TypesError`]; the same each time.
    pub fn vmlinux(&self) -> Result<Arc<Btf>, TypesError> {
        self.vmlinux.get_or_init(|| self.read("vmlinux", Btf::parse)).clone()
    }

    /// The types of a loaded module, with those of the kernel.
    ///
    /// # Errors
    /// See [`TypesError`]; the same until modules come or go.
    pub fn module(&self, name: &str) -> Result<Arc<Btf>, TypesError> {
        // `vmlinux` is not a module, nor is a name with a path in it.
        if name == "vmlinux" || name.contains('/') || name.starts_with('.') {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(TypesError(format!("cannot read `{name}`: {source}")));
        }
        let base = self.vmlinux()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = modules.get(name) {
            return known.clone();
        }
        let outcome = self.read(name, |bytes| Btf::parse_split(bytes, base));
        modules.insert(name.to_owned(), outcome.clone());
        outcome
    }

    fn read(&self, name: &str, parse: impl FnOnce(Vec<u8>) -> Result<Btf, BtfError>) -> Outcome {
        let Some(directory) = &self.directory else {
            return Err(TypesError(format!("the kernel image has no types of `{name}`")));
        };
        let path = directory.join(name);
        let failed = |action: &str, source: &dyn Display| {
            TypesError(format!("cannot {action} `{}`: {source}", path.display()))
        };
        let bytes = std::fs::read(&path).map_err(|source| failed("read", &source))?;
        parse(bytes).map(Arc::new).map_err(|source| failed("parse", &source))
    }
}
