//! What a request is about: a probe or an event of the host, as it would be.

use kprobed_lang::model::{Labels, ProbeName};

use super::{DefinitionDigest, Reads};

/// A probe, resolved on the running kernel, or an event of the host.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    /// Its name.
    pub name: &'a ProbeName,
    /// Its labels.
    pub labels: &'a Labels,
    /// Every name of the function that the place lies in, not only the one that is written: a place
    /// such as `first+0x400` can lie in another function, and functions have aliases. Empty for an
    /// event of the host.
    pub functions: &'a [String],
    /// The module of the function; `vmlinux` for the kernel itself. Absent for an event of the host.
    pub module: Option<&'a str>,
    /// What it reads.
    pub reads: Reads,
    /// Its definition. Absent for an event of the host, and while it is not resolved: then it has no
    /// approval.
    pub digest: Option<DefinitionDigest>,
}
