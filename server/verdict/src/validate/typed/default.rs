//! Default types: the type of a value if the definition gives none (see the table in [`super`]).
//!
//! Owns that choice. Never changes a type that was written.

use kprobed_host::kernel::btf::{Btf, BtfError, Composite, Int, Kind, TypeId};
use kprobed_lang::definition::{BaseType, Width};

/// The type of a value for which none was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) base: BaseType,
    /// An array of this many.
    pub(super) count: Option<u8>,
    /// The value has more bytes than this type reads.
    pub(super) partial: bool,
}

/// Most elements of an array (kernel/trace/trace_probe.h:MAX_ARRAY_LEN).
const ARRAY_MAX: u64 = 64;

/// Greatest depth of nested structures and arrays.
const DEPTH_MAX: usize = 16;

/// The structure of an address.
pub(super) const IPV6: &str = "in6_addr";
const IPV6_BYTES: u32 = 16;

const WORD: BaseType = BaseType::Hex(Width::W64);

impl Chosen {
    fn one(base: BaseType) -> Self {
        Self { base, count: None, partial: false }
    }

    /// A value that is too large, of which a word is read.
    fn first_word(partial: bool) -> Self {
        Self { base: WORD, count: None, partial }
    }
}

/// The default type of a value; `in_memory` if it is read from memory, so that it can be more than
/// a word.
pub(super) fn of(btf: &Btf, ty: TypeId, in_memory: bool) -> Result<Chosen, BtfError> {
    let resolved = btf.resolved(ty)?;
    match resolved.kind {
        Kind::Array { .. } if in_memory => return array(btf, ty),
        Kind::Composite(Composite { bytes: IPV6_BYTES, .. }) if in_memory && resolved.name == IPV6 => {
            let count = u8::try_from(IPV6_BYTES).ok();
            return Ok(Chosen { base: BaseType::Unsigned(Width::W8), count, partial: false });
        }
        _ => {}
    }
    single(btf, ty, DEPTH_MAX)
}

fn single(btf: &Btf, ty: TypeId, depth: usize) -> Result<Chosen, BtfError> {
    let resolved = btf.resolved(ty)?;
    let Some(depth) = depth.checked_sub(1) else { return Err(BtfError::TooDeep { id: ty }) };
    Ok(match resolved.kind {
        Kind::Int(int) => integer(int),
        Kind::Enum { bytes, signed, wide, .. } => Chosen::one(match (width(bytes.into()), wide) {
            (Some(width), false) if width < Width::W32 && !signed => BaseType::Unsigned(width),
            (Some(width), _) => BaseType::Signed(width),
            (None, _) => BaseType::Signed(Width::W32),
        }),
        Kind::Float(bytes) => Chosen::one(BaseType::Hex(width(bytes.into()).unwrap_or(Width::W64))),
        Kind::Composite(composite) => {
            let bytes = u64::from(composite.bytes);
            let mut members = composite.members();
            if let (Some(only), None) = (members.next().transpose()?, members.next())
                && only.bits.is_none()
                && btf.size(only.ty)? == Some(bytes)
                && !matches!(btf.resolved(only.ty)?.kind, Kind::Array { .. })
            {
                return single(btf, only.ty, depth);
            }
            match width(bytes) {
                Some(width) => Chosen::one(BaseType::Hex(width)),
                None => Chosen::first_word(bytes > 8),
            }
        }
        Kind::Pointer(target) if matches!(btf.resolved(target)?.kind, Kind::Prototype(_)) => {
            Chosen::one(BaseType::Symbol)
        }
        Kind::Pointer(_) => Chosen::one(WORD),
        Kind::Array { .. } => Chosen::first_word(btf.size(ty)?.is_some_and(|bytes| bytes > 8)),
        // Functions, `void` and incomplete types: the kernel's own default.
        _ => Chosen::first_word(false),
    })
}

fn integer(int: Int) -> Chosen {
    match (width(u64::from(int.bits) / 8).filter(|_| int.bits.is_multiple_of(8)), int.signed) {
        (Some(width), true) => Chosen::one(BaseType::Signed(width)),
        (Some(width), false) => Chosen::one(BaseType::Unsigned(width)),
        (None, _) => Chosen::first_word(int.bytes > 8),
    }
}

fn width(bytes: u64) -> Option<Width> {
    Width::from_bits(bytes.checked_mul(8)?)
}

fn array(btf: &Btf, ty: TypeId) -> Result<Chosen, BtfError> {
    let mut elements: u64 = 1;
    let mut innermost = btf.resolved(ty)?;
    let mut depth = 0;
    while let Kind::Array { element, count } = innermost.kind {
        elements = elements.saturating_mul(count.into());
        innermost = btf.resolved(element)?;
        depth += 1;
        if depth > DEPTH_MAX {
            return Err(BtfError::TooDeep { id: ty });
        }
    }
    if depth == 1 && is_char(btf, innermost.id)? {
        return Ok(Chosen::one(BaseType::String));
    }
    let element = single(btf, innermost.id, DEPTH_MAX)?;
    if element.partial || btf.size(innermost.id)? != Some(element.base.bytes().into()) {
        return Ok(Chosen::first_word(true));
    }
    // `[]`: the number of elements is not known.
    if elements == 0 {
        return Ok(Chosen { partial: true, ..element });
    }
    let count = u8::try_from(elements.min(ARRAY_MAX)).ok();
    Ok(Chosen { base: element.base, count, partial: elements > ARRAY_MAX })
}

/// `char`, and not a number of 8 bits.
fn is_char(btf: &Btf, ty: TypeId) -> Result<bool, BtfError> {
    let resolved = btf.resolved(ty)?;
    Ok(matches!(resolved.kind, Kind::Int(int) if int.bits == 8) && resolved.name == "char")
}

/// Whether and how `:string` reads text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// The value is text.
    Here,
    /// The value is a pointer to text.
    Pointed,
    /// The value is a number, which the kernel takes for a pointer to text.
    Mistaken,
    /// None of these.
    No,
}

/// The types that the kernel takes for text
/// (kernel/trace/trace_probe.c:check_prepare_btf_string_fetch): arrays of and pointers to unsigned
/// numbers of 8 bits, including `char` since it is unsigned (6.2). The kernel never checks that a
/// type is a pointer: it takes the size of any other type for the type that is pointed to, and
/// follows numbers and structures of 8 bytes if type 8 is a `char`. On kernels that are not
/// `native` the daemon decides, which accepts signed characters too, and no numbers.
pub(super) fn text(btf: &Btf, ty: TypeId, native: bool) -> Result<Text, BtfError> {
    let byte = |id| -> Result<bool, BtfError> {
        let fits = |int: Int| int.bits == 8 && !(native && int.signed);
        Ok(matches!(btf.resolved(id)?.kind, Kind::Int(int) if fits(int)))
    };
    Ok(match btf.resolved(ty)?.kind {
        Kind::Array { element, .. } if byte(element)? => Text::Here,
        Kind::Pointer(target) if byte(target)? => Text::Pointed,
        Kind::Int(Int { bytes, .. })
        | Kind::Enum { bytes, .. }
        | Kind::Composite(Composite { bytes, .. })
            if native && byte(TypeId(bytes))? =>
        {
            Text::Mistaken
        }
        _ => Text::No,
    })
}

/// The type of a bit-field that begins `bit_offset` bits after the beginning of its structure, and
/// the byte from which it is read. The declared integer contains it whole, unless the structure is
/// packed. `None` if no integer does.
pub(super) fn bit_field(btf: &Btf, ty: TypeId, bit_offset: u64, bits: u8) -> Option<(BaseType, u64)> {
    let declared_bytes = btf.size(ty).ok().flatten();
    let declared = declared_bytes
        .and_then(width)
        .map(|width| (width, bit_offset - bit_offset % u64::from(width.bits())));
    let smallest =
        [Width::W8, Width::W16, Width::W32, Width::W64].map(|width| (width, bit_offset - bit_offset % 8));
    let fits = |(container, start): &(Width, u64)| {
        bit_offset - start + u64::from(bits) <= u64::from(container.bits())
    };
    let (container, start) = declared.into_iter().chain(smallest).find(fits)?;
    let offset = u8::try_from(bit_offset - start).ok()?;
    Some((BaseType::BitField { width: bits, offset, container }, start / 8))
}
