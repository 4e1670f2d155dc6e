//! Test data: BTF files and core files of kernels that do not exist.
//!
//! Used by the tests of this crate and of the crates above it. Never used by the daemon.

#![expect(clippy::unwrap_used, reason = "what tests make fits")]

use std::collections::HashMap;

use crate::kernel::KernelText;
use crate::kernel::btf::{Btf, TypeId};

/// A file of types in the making.
#[derive(Clone, Debug)]
pub struct BtfWriter {
    next: u32,
    first_name: u32,
    types: Vec<u8>,
    strings: Vec<u8>,
    names: HashMap<String, u32>,
}

impl Default for BtfWriter {
    fn default() -> Self {
        Self { next: 1, first_name: 0, types: Vec::new(), strings: vec![0], names: HashMap::new() }
    }
}

/// The flag in the first number of a type.
const FLAG: u32 = 1 << 31;

impl BtfWriter {
    /// Types of a module, which go on where those of the kernel end.
    pub fn on_top_of(base: &Btf) -> Self {
        Self {
            next: base.end_type().unwrap(),
            first_name: base.end_name().unwrap(),
            types: Vec::new(),
            strings: Vec::new(),
            names: HashMap::new(),
        }
    }

    pub fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        let offset = self.first_name + u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        self.names.insert(name.to_owned(), offset);
        offset
    }

    /// A type as its numbers: name, kind, count, flag, size or type, and what follows.
    pub fn raw(&mut self, name: &str, kind: u32, info: u32, size: u32, tail: &[u32]) -> TypeId {
        let name = self.name(name);
        for number in [name, (kind << 24) | info, size].iter().chain(tail) {
            self.types.extend(number.to_le_bytes());
        }
        self.next += 1;
        TypeId(self.next - 1)
    }

    pub fn int(&mut self, name: &str, bytes: u32, signed: bool) -> TypeId {
        self.raw(name, 1, 0, bytes, &[(u32::from(signed) << 24) | (bytes * 8)])
    }

    pub fn pointer(&mut self, target: TypeId) -> TypeId {
        self.raw("", 2, 0, target.0, &[])
    }

    pub fn array(&mut self, element: TypeId, count: u32) -> TypeId {
        self.raw("", 3, 0, 0, &[element.0, element.0, count])
    }

    /// Members as name, type, offset in bits, and bits of a bit-field or 0.
    pub fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, TypeId, u32, u32)]) -> TypeId {
        self.composite(4, name, bytes, members)
    }

    pub fn union(&mut self, name: &str, bytes: u32, members: &[(&str, TypeId)]) -> TypeId {
        let members: Vec<_> = members.iter().map(|(name, ty)| (*name, *ty, 0, 0)).collect();
        self.composite(5, name, bytes, &members)
    }

    fn composite(
        &mut self,
        kind: u32,
        name: &str,
        bytes: u32,
        members: &[(&str, TypeId, u32, u32)],
    ) -> TypeId {
        let flag = if members.iter().any(|member| member.3 > 0) { FLAG } else { 0 };
        let tail: Vec<u32> = members
            .iter()
            .flat_map(|(name, ty, offset, bits)| [self.name(name), ty.0, (bits << 24) | offset])
            .collect();
        self.raw(name, kind, flag | u32::try_from(members.len()).unwrap(), bytes, &tail)
    }

    /// `typedef` (8), `volatile` (9), `const` (10), `restrict` (11) or a tag (18).
    pub fn modifier(&mut self, kind: u32, name: &str, target: TypeId) -> TypeId {
        self.raw(name, kind, 0, target.0, &[])
    }

    pub fn typedef(&mut self, name: &str, target: TypeId) -> TypeId {
        self.modifier(8, name, target)
    }

    pub fn prototype(&mut self, result: TypeId, parameters: &[(&str, TypeId)]) -> TypeId {
        let tail: Vec<u32> = parameters.iter().flat_map(|(name, ty)| [self.name(name), ty.0]).collect();
        self.raw("", 13, u32::try_from(parameters.len()).unwrap(), result.0, &tail)
    }

    pub fn function(&mut self, name: &str, result: TypeId, parameters: &[(&str, TypeId)]) -> TypeId {
        let prototype = self.prototype(result, parameters);
        self.raw(name, 12, 0, prototype.0, &[])
    }

    /// The bytes of the file.
    pub fn finish(&self) -> Vec<u8> {
        let types = u32::try_from(self.types.len()).unwrap();
        let strings = u32::try_from(self.strings.len()).unwrap();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for number in [24, 0, types, types, strings] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}

/// A core file that holds these pieces of memory.
pub fn core(memory: &[(u64, Vec<u8>)]) -> Vec<u8> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    let mut file = vec![0; HEADER + PROGRAM_HEADER * memory.len()];
    file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    file[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&u16::try_from(memory.len()).unwrap().to_le_bytes());
    for (index, (address, bytes)) in memory.iter().enumerate() {
        let offset = file.len() as u64;
        let header = &mut file[HEADER + PROGRAM_HEADER * index..][..PROGRAM_HEADER];
        header[0] = 1;
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..24].copy_from_slice(&address.to_le_bytes());
        // What the file has of it, and what it is in memory.
        for size_at in [32, 40] {
            header[size_at..size_at + 8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        }
        file.extend_from_slice(bytes);
    }
    file
}

/// The text of an image with one piece of memory.
pub fn image(address: u64, memory: &[u8]) -> KernelText {
    KernelText::of_image(core(&[(address, memory.to_vec())])).unwrap()
}
