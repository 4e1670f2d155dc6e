//! Whole paths: a text that the kernel has in parts, which no argument of its language joins.
//!
//! Owns which hidden arguments a field of the type `path` consists of. A file lies in a directory, that in another, up
//! to the root of its file system, which is mounted on a directory of another file system, and so on. The kernel
//! records the name and the address of each directory, in arguments with names of their own, and the decoder joins the
//! names in their place. Addresses tell where a file system ends: a name does not, since a part of a file system can be
//! mounted too.

use super::ast::{Argument, ProbeDefinition};

/// A field that is joined of arguments, all of them by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathField {
    /// The name of the field.
    pub name: String,
    /// The name of the type of the file system, such as `pipefs`. Absent where only a `struct dentry` is known.
    pub file_system: Option<String>,
    /// The way up in the file system of the file, then in that on which it is mounted, and so on.
    pub levels: Vec<PathLevel>,
    /// The last mount of these levels, and the one above it: the same if there is none above.
    pub above: Option<[String; 2]>,
}

/// The way up to the root of one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathLevel {
    /// The file, or what the mount below is mounted on, and the directories above it, as far as they are recorded.
    pub entries: Vec<PathEntry>,
    /// The address of the root of the mount. Absent where only a `struct dentry` is known.
    pub root: Option<String>,
}

/// A file or a directory (`struct dentry`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathEntry {
    /// Its address.
    pub address: String,
    /// Its name.
    pub name: String,
}

impl PathField {
    /// The names of all arguments that it consists of.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        let levels = self.levels.iter().flat_map(PathLevel::parts);
        let above = self.above.iter().flatten().map(String::as_str);
        levels.chain(self.file_system.as_deref()).chain(above)
    }
}

impl PathLevel {
    fn parts(&self) -> impl Iterator<Item = &str> {
        let entries = self.entries.iter().flat_map(|entry| [&*entry.address, &*entry.name]);
        entries.chain(self.root.as_deref())
    }
}

impl ProbeDefinition {
    /// Whether an argument is a part of a path. Addresses need no proof that they could be read: the name beside each,
    /// and the type of the file system beside those of mounts, are read through the same memory, and show a fault.
    pub fn is_part_of_path(&self, argument: &Argument) -> bool {
        let name = argument.name.as_ref().map(|name| name.text.as_str());
        name.is_some_and(|name| self.paths.iter().any(|path| path.parts().any(|part| part == name)))
    }
}
