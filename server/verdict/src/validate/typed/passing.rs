//! Parameter passing: the registers and stack words of a function's parameters at its entry.
//!
//! Owns the calling convention of x86-64 (System V psABI 3.2.3), as far as a kernel needs it: it is
//! compiled without floating point. `$argN` counts registers first (di, si, dx, cx, r8, r9) and
//! then words of the stack above the return address
//! (arch/x86/include/asm/ptrace.h:regs_get_kernel_argument), so every value has such a number,
//! which is that of the parameter only as long as each one before it takes exactly one register.
//! Never reads a register.

use kprobed_host::kernel::btf::{Btf, BtfError, Composite, Kind, TypeId};

/// The place of a parameter: words of 8 bytes, each of which is an `$argN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// N of the first.
    pub(crate) first: u32,
    /// How many.
    pub(crate) count: u32,
}

const REGISTERS: u32 = 6;

/// Most bytes that are passed in registers.
const IN_REGISTERS_MAX: u64 = 16;

/// Greatest depth of nested structures.
const DEPTH_MAX: usize = 16;

/// How the convention passes a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// In so many registers, if as many are left.
    Registers(u32),
    /// On the stack, in so many words.
    Memory(u32),
    None,
}

/// The place of each of these parameters. None for what no probe can read: `...`, an empty structure, a floating
/// point number.
pub(super) fn passed(
    btf: &Btf,
    result: TypeId,
    parameters: &[TypeId],
) -> Result<Vec<Option<Words>>, BtfError> {
    // A result that does not fit the registers is written to the target of a hidden first argument.
    let hidden = matches!(class(btf, result)?, Class::Memory(_));
    let mut registers = u32::from(hidden);
    let mut stack: u32 = 0;
    let mut places = Vec::with_capacity(parameters.len());
    for ty in parameters {
        let place = match class(btf, *ty)? {
            Class::None => None,
            Class::Registers(count) if registers + count <= REGISTERS => {
                registers += count;
                Some(Words { first: registers - count + 1, count })
            }
            Class::Registers(count) | Class::Memory(count) => {
                // Only numbers of 16 bytes must be aligned to their size.
                if stack % 2 == 1 && is_wide(btf, *ty)? {
                    stack += 1;
                }
                let first = REGISTERS + stack + 1;
                stack = stack.saturating_add(count);
                Some(Words { first, count })
            }
        };
        places.push(place);
    }
    Ok(places)
}

fn class(btf: &Btf, ty: TypeId) -> Result<Class, BtfError> {
    let Some(bytes) = btf.size(ty)?.filter(|bytes| *bytes > 0) else { return Ok(Class::None) };
    let words = u32::try_from(bytes.div_ceil(8)).map_err(|_too_large| BtfError::TooDeep { id: ty })?;
    Ok(match btf.resolved(ty)?.kind {
        Kind::Float(_) => Class::None,
        Kind::Composite(composite) => {
            if bytes <= IN_REGISTERS_MAX && is_aligned(btf, composite, DEPTH_MAX)? {
                Class::Registers(words)
            } else {
                Class::Memory(words)
            }
        }
        _ => Class::Registers(words),
    })
}

/// A number of 16 bytes.
fn is_wide(btf: &Btf, ty: TypeId) -> Result<bool, BtfError> {
    Ok(matches!(btf.resolved(ty)?.kind, Kind::Int(int) if int.bytes == 16))
}

/// Whether every member is aligned to its own size: a packed structure is passed in memory.
fn is_aligned(btf: &Btf, composite: Composite<'_>, depth: usize) -> Result<bool, BtfError> {
    for member in composite.members() {
        let member = member?;
        let mut ty = btf.resolved(member.ty)?;
        while let Kind::Array { element, .. } = ty.kind {
            ty = btf.resolved(element)?;
        }
        let aligned = match ty.kind {
            Kind::Composite(inner) => match depth.checked_sub(1) {
                Some(depth) => is_aligned(btf, inner, depth)?,
                None => return Err(BtfError::TooDeep { id: ty.id }),
            },
            _ if member.bits.is_some() => true,
            _ => {
                let bits = btf.size(ty.id)?.unwrap_or(1).saturating_mul(8).max(1);
                u64::from(member.bit_offset) % bits == 0
            }
        };
        if !aligned {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_host::samples::BtfWriter;

    #[test]
    fn registers_are_counted_as_the_compiler_does() {
        let mut w = BtfWriter::default();
        let int = w.int("int", 4, true);
        let long = w.int("long", 8, true);
        let wide = w.int("__int128", 16, true);
        let one = w.structure("kuid_t", 4, &[("val", int, 0, 0)]);
        let two = w.structure("two", 16, &[("a", long, 0, 0), ("b", long, 64, 0)]);
        let large = w.structure("large", 24, &[("a", long, 0, 0), ("b", long, 64, 0), ("c", long, 128, 0)]);
        let packed = w.structure("packed", 12, &[("a", int, 0, 0), ("b", long, 32, 0)]);
        let empty = w.structure("empty", 0, &[]);
        let btf = Btf::parse(w.finish()).unwrap();
        let numbers = |result, parameters: &[TypeId]| -> Vec<(u32, u32)> {
            let places = passed(&btf, result, parameters).unwrap();
            places.iter().map(|place| place.map_or((0, 0), |words| (words.first, words.count))).collect()
        };
        let void = TypeId::VOID;
        assert_eq!(numbers(void, &[int, long, one]), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(numbers(void, &[int, two, int]), [(1, 1), (2, 2), (4, 1)], "two registers");
        assert_eq!(numbers(void, &[large, int]), [(7, 3), (1, 1)], "on the stack, and no register is lost");
        assert_eq!(numbers(void, &[packed, int]), [(7, 2), (1, 1)]);
        assert_eq!(numbers(void, &[empty, int, void]), [(0, 0), (1, 1), (0, 0)]);
        assert_eq!(numbers(large, &[int]), [(2, 1)], "the first register says where the result goes");
        assert_eq!(numbers(two, &[int]), [(1, 1)]);
        let eight = [int; 8];
        assert_eq!(numbers(void, &eight).last(), Some(&(8, 1)), "the second word of the stack");
        // A parameter that does not fit as a whole goes to the stack, and the last register is left
        // for the next.
        assert_eq!(
            numbers(void, &[int, int, int, int, int, two, int, int]),
            [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (7, 2), (6, 1), (9, 1)]
        );
        assert_eq!(numbers(void, &[large, wide, wide, wide, wide]).last(), Some(&(11, 2)), "aligned");
    }
}
