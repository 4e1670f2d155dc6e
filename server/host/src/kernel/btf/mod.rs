//! BTF (BPF Type Format): the types of the running kernel and of its modules, from
//! `/sys/kernel/btf`.
//!
//! Owns the format (include/uapi/linux/btf.h, Documentation/bpf/btf.rst): a header, types that
//! refer to each other by number, and a section of names. The file is kept as it is, with an offset
//! for each type and an index of functions: 5.4 MiB for the 140,000 types of a kernel. The BTF of a
//! module is *split*: its types and names are numbered from where those of the kernel end.
//!
//! Every byte is distrusted. Reading checks that each type lies in the file. References are checked
//! when they are followed, in a bounded number of steps.

mod declaration;
mod error;
mod facts;
mod raw;
#[cfg(test)]
pub(crate) mod tests;
mod types;
mod walk;

use std::ops::Range;
use std::sync::Arc;

pub use error::BtfError;
pub use facts::{KernelTypes, TypesError};
pub use types::{Composite, Enumerators, Int, Kind, Member, Modifier, Parameter, Prototype, Type, TypeId};
pub use walk::FoundMember;

use raw::{Head, Sections, kind};

/// The types of the kernel, or of a module on top of those.
#[derive(Debug)]
pub struct Btf {
    base: Option<Arc<Btf>>,
    bytes: Vec<u8>,
    strings: Range<usize>,
    /// Id of the first type of this file.
    first_type: u32,
    /// Offset of the first name of this file, in the names of all files together.
    first_name: u32,
    /// Where each type begins.
    offsets: Vec<u32>,
    /// Functions of this file, by name; several of one name in the order of their ids.
    functions: Vec<TypeId>,
}

impl Btf {
    /// Reads the types of a kernel.
    ///
    /// # Errors
    /// See [`BtfError`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        Self::read(bytes, None)
    }

    /// Reads the types of a module of that kernel.
    ///
    /// # Errors
    /// See [`BtfError`].
    pub fn parse_split(bytes: Vec<u8>, base: Arc<Self>) -> Result<Self, BtfError> {
        Self::read(bytes, Some(base))
    }

    fn read(bytes: Vec<u8>, base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let Sections { types, strings } = Sections::read(&bytes)?;
        let (first_type, first_name) = match &base {
            // The first type is `void`, which is in no file.
            None => (1, 0),
            Some(base) => (base.end_type()?, base.end_name()?),
        };
        let offsets = raw::type_offsets(&bytes, &types, first_type)?;
        let mut btf = Self { base, bytes, strings, first_type, first_name, offsets, functions: Vec::new() };
        btf.end_type()?;
        btf.end_name()?;
        btf.functions = btf.indexed_functions()?;
        Ok(btf)
    }

    /// One more than the highest id.
    pub(crate) fn end_type(&self) -> Result<u32, BtfError> {
        let own = u32::try_from(self.offsets.len()).ok();
        own.and_then(|own| self.first_type.checked_add(own)).ok_or(BtfError::TooLarge)
    }

    /// One more than the highest offset of a name.
    pub(crate) fn end_name(&self) -> Result<u32, BtfError> {
        let own = u32::try_from(self.strings.len()).ok();
        own.and_then(|own| self.first_name.checked_add(own)).ok_or(BtfError::TooLarge)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn indexed_functions(&self) -> Result<Vec<TypeId>, BtfError> {
        let mut functions = Vec::new();
        for (offset, id) in self.offsets.iter().zip(self.first_type..) {
            let Some(head) = Head::read(&self.bytes, *offset as usize) else { continue };
            if head.kind == kind::FUNCTION {
                functions.push((self.name(head.name)?, TypeId(id)));
            }
        }
        functions.sort_unstable();
        Ok(functions.into_iter().map(|(_, id)| id).collect())
    }

    /// The name at an offset of the strings.
    fn name(&self, offset: u32) -> Result<&str, BtfError> {
        let Some(own) = offset.checked_sub(self.first_name) else {
            return self.base.as_ref().map_or(Err(BtfError::NoSuchName { offset }), |base| base.name(offset));
        };
        // The empty name needs no strings.
        if offset == 0 {
            return Ok("");
        }
        let strings = self.bytes.get(self.strings.clone()).unwrap_or_default();
        let rest = strings.get(own as usize..).filter(|rest| !rest.is_empty());
        let name = rest.and_then(|rest| rest.split(|byte| *byte == 0).next());
        name.and_then(|name| std::str::from_utf8(name).ok()).ok_or(BtfError::NoSuchName { offset })
    }

    /// The type of that number.
    ///
    /// # Errors
    /// [`BtfError`] when there is none, or it cannot be read.
    pub fn ty(&self, id: TypeId) -> Result<Type<'_>, BtfError> {
        if id == TypeId::VOID {
            return Ok(Type { id, name: "", kind: Kind::Void });
        }
        let Some(index) = id.0.checked_sub(self.first_type) else {
            return self.base.as_ref().map_or(Err(BtfError::NoSuchType { id }), |base| base.ty(id));
        };
        let offset = self.offsets.get(index as usize).ok_or(BtfError::NoSuchType { id })?;
        Type::read(self, id, *offset as usize)
    }

    /// Types of this file: for a module, only its own.
    pub fn types(&self) -> impl Iterator<Item = Result<Type<'_>, BtfError>> {
        self.offsets
            .iter()
            .zip(self.first_type..)
            .map(|(offset, id)| Type::read(self, TypeId(id), *offset as usize))
    }

    /// Functions of that name in this file: for a module, only its own. Several if static functions
    /// share a name.
    pub fn functions<'a>(&'a self, name: &'a str) -> impl Iterator<Item = TypeId> {
        let name_of = |id: TypeId| self.ty(id).map_or("", |ty| ty.name);
        let first = self.functions.partition_point(|id| name_of(*id) < name);
        let rest = self.functions.get(first..).unwrap_or_default();
        rest.iter().copied().take_while(move |id| name_of(*id) == name)
    }
}
