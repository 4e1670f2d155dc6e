//! Where a field of a prototype is read.

use super::super::ast::{Fetch, FetchKind, MemoryAddress};

/// Where a field, or the first element of an array, is read.
pub(super) enum Target {
    /// The parameter itself.
    Value(FetchKind),
    /// Memory `offset` bytes behind a pointer.
    Memory {
        /// The pointer.
        pointer: Fetch,
        /// Added to it.
        offset: i32,
    },
    /// Memory at a fixed address.
    Fixed(MemoryAddress),
}

impl Target {
    /// The fetch of what is `bytes` further on, if there is a number for that.
    pub(super) fn at(&self, bytes: u64) -> Option<FetchKind> {
        Some(match self {
            Self::Value(kind) => kind.clone(),
            Self::Memory { pointer, offset } => FetchKind::Deref {
                user: false,
                offset: offset.checked_add(i32::try_from(bytes).ok()?)?,
                inner: Box::new(pointer.clone()),
            },
            Self::Fixed(MemoryAddress::Address(address)) => {
                FetchKind::Memory(MemoryAddress::Address(address.checked_add(bytes)?))
            }
            Self::Fixed(MemoryAddress::Symbol { symbol, offset }) => {
                let offset = offset.checked_add(i64::try_from(bytes).ok()?)?;
                FetchKind::Memory(MemoryAddress::Symbol { symbol: symbol.clone(), offset })
            }
        })
    }
}
