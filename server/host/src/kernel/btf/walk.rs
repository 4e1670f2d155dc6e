//! References between BTF types: a type without its modifiers, its size, the place of a member.
//!
//! Every walk is bounded: no file can make it endless.

use super::types::{Composite, Kind, Member, Prototype, Type, TypeId};
use super::{Btf, BtfError};

/// More modifiers and arrays around each other than any C program has.
const DEPTH_MAX: usize = 64;

/// Anonymous structures around each other, and how many may be looked into for one member. The
/// kernel keeps at most 16 in mind (kernel/trace/trace_btf.c:BTF_ANON_STACK_MAX).
const ANONYMOUS_MAX: usize = 512;

/// A member that was found by its name, perhaps inside of anonymous structures and unions.
#[derive(Clone, Copy, Debug)]
pub struct FoundMember<'a> {
    /// The member.
    pub member: Member<'a>,
    /// Distance from the beginning of the structure that was asked, in bits.
    pub bit_offset: u64,
}

impl Btf {
    /// The type without `typedef`, `const`, `volatile`, `restrict` and tags.
    ///
    /// # Errors
    /// [`BtfError`] for broken references.
    pub fn resolved(&self, id: TypeId) -> Result<Type<'_>, BtfError> {
        let mut ty = self.ty(id)?;
        for _ in 0..DEPTH_MAX {
            match ty.kind {
                Kind::Modifier(_, target) => ty = self.ty(target)?,
                _ => return Ok(ty),
            }
        }
        Err(BtfError::TooDeep { id })
    }

    /// The prototype of a function.
    ///
    /// # Errors
    /// [`BtfError`] for broken references, and for a type that is not a function.
    pub fn prototype(&self, function: TypeId) -> Result<Prototype<'_>, BtfError> {
        let Kind::Function(prototype) = self.ty(function)?.kind else {
            return Err(BtfError::WrongKind { id: function, wanted: "a function" });
        };
        match self.ty(prototype)?.kind {
            Kind::Prototype(found) => Ok(found),
            _ => Err(BtfError::WrongKind { id: prototype, wanted: "the prototype of a function" }),
        }
    }

    /// Bytes of a value of this type; `None` if no value has it (`void`, functions, declared
    /// structures).
    ///
    /// # Errors
    /// [`BtfError`] for broken references and impossible sizes.
    pub fn size(&self, id: TypeId) -> Result<Option<u64>, BtfError> {
        let mut factor: u64 = 1;
        let mut id = id;
        for _ in 0..DEPTH_MAX {
            let bytes = match self.resolved(id)?.kind {
                Kind::Int(int) => int.bytes,
                Kind::Pointer(_) => 8,
                Kind::Composite(composite) => composite.bytes,
                Kind::Enum { bytes, .. } | Kind::Float(bytes) => bytes,
                Kind::Array { element, count } => {
                    factor = factor.checked_mul(count.into()).ok_or(BtfError::TooDeep { id })?;
                    id = element;
                    continue;
                }
                _ => return Ok(None),
            };
            return factor.checked_mul(bytes.into()).map(Some).ok_or(BtfError::TooDeep { id });
        }
        Err(BtfError::TooDeep { id })
    }

    /// The member of that name, looked for in anonymous structures and unions too, which are
    /// searched after the named members of what is around them, the last of them first
    /// (kernel/trace/trace_btf.c:btf_find_struct_member). In C no two of them have the same name.
    ///
    /// # Errors
    /// [`BtfError`] for broken references.
    pub fn member<'a>(
        &'a self,
        composite: Composite<'a>,
        name: &str,
    ) -> Result<Option<FoundMember<'a>>, BtfError> {
        let mut found = None;
        self.each_member(composite, &mut |at| {
            if at.member.name == name && !name.is_empty() {
                found = Some(at);
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Shows every named member, those of anonymous structures and unions too, until `visit` says
    /// `false`.
    ///
    /// # Errors
    /// [`BtfError`] for broken references.
    pub fn each_member<'a>(
        &'a self,
        composite: Composite<'a>,
        visit: &mut dyn FnMut(FoundMember<'a>) -> bool,
    ) -> Result<(), BtfError> {
        let mut waiting = vec![(composite, 0)];
        let mut looked_into = 0;
        while let Some((composite, outer)) = waiting.pop() {
            for member in composite.members() {
                let member = member?;
                let bit_offset = u64::from(member.bit_offset).saturating_add(outer);
                if !member.name.is_empty() {
                    if !visit(FoundMember { member, bit_offset }) {
                        return Ok(());
                    }
                    continue;
                }
                let inner = self.resolved(member.ty)?;
                if let Kind::Composite(inner_composite) = inner.kind {
                    looked_into += 1;
                    if looked_into > ANONYMOUS_MAX {
                        return Err(BtfError::TooDeep { id: inner.id });
                    }
                    waiting.push((inner_composite, bit_offset));
                }
            }
        }
        Ok(())
    }
}
