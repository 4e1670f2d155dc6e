//! Type parser: the type of an argument, from text to syntax tree.
//!
//! Owns the names of types. Follows kernel/trace/trace_probe.c:parse_probe_arg_type,
//! find_fetch_type and __parse_bitfield_probe_arg. Never decides whether the type suits the
//! expression: that is in `program`.

use super::Span;
use super::ast::{BaseType, Type, Width};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;
use super::line::Word;
use super::number;

/// Longest array (`MAX_ARRAY_LEN`).
const ARRAY_MAX: u64 = 64;

/// The type after the `:` of an argument, and a problem that the kernel finds only after it has parsed the expression.
///
/// `text_only` is true for `$comm` and immediate strings, which can only be strings.
pub(super) fn parse(
    word: Word<'_>,
    text_only: bool,
    features: &Features,
) -> Result<(Type, Option<Diagnostic>), Diagnostic> {
    let (base_word, count) = match word.split_once('[') {
        Some((base, rest)) => (base, Some(array_length(rest)?)),
        None => (word, None),
    };
    let (base, late) = match base_word.text {
        "%pd" if features.percent_pd && count.is_none() => (Some(BaseType::DentryName), None),
        "%pD" if features.percent_pd && count.is_none() => (Some(BaseType::FileName), None),
        text if text_only && (count.is_some() || text != "string") => {
            let message = "$comm and immediate strings can be nothing but a string";
            return Err(word.error(Code::NeedStringType, message));
        }
        text if text.starts_with('b') => bit_field(base_word),
        text => (plain(text, count.is_some(), features), None),
    };
    let Some(base) = base else {
        let message = if base_word.text.is_empty() {
            "the type after `:` is missing".to_owned()
        } else {
            format!("there is no type `{}`", base_word.text)
        };
        let problem = base_word.error(Code::BadType, message);
        let hint = instead_of(base_word.text, features).map_or_else(|| known(features), str::to_owned);
        return Err(problem.with_hint(hint));
    };
    Ok((Type { base, count, span: word.span() }, late))
}

/// The number between `[` and `]`; `rest` starts after the `[`.
fn array_length(rest: Word<'_>) -> Result<u8, Diagnostic> {
    let Some((digits, after)) = rest.split_once(']') else {
        return Err(Diagnostic::error(Code::ArrayNoClose, Span::point(rest.end()), "the `[` is not closed"));
    };
    if !after.text.is_empty() {
        return Err(after.error(Code::BadArraySuffix, format!("`{}` after the `]`", after.text)));
    }
    // The kernel parses an unsigned int here: a value that does not fit is not a number, and only a
    // smaller one can be too big.
    let length = number::unsigned(digits.text).filter(|length| *length > 0 && u32::try_from(*length).is_ok());
    let Some(length) = length else {
        let message = format!("`{}` is not the length of an array", digits.text);
        return Err(digits.error(Code::BadArrayNum, message));
    };
    u8::try_from(length).ok().filter(|_| length <= ARRAY_MAX).ok_or_else(|| {
        let message = format!("an array of {length} elements is too large");
        digits.error(Code::ArrayTooBig, message)
    })
}

fn plain(text: &str, is_array: bool, features: &Features) -> Option<BaseType> {
    match text {
        "char" if features.char_type => Some(BaseType::Char),
        "symbol" => Some(BaseType::Symbol),
        "string" => Some(BaseType::String),
        "ustring" if features.ustring => Some(BaseType::UserString),
        "symstr" if features.symstr => Some(BaseType::SymbolString),
        // The kernel has none: it is made of the types of the kernel.
        "path" if features.own_types && !is_array => Some(BaseType::Path),
        // The kernel knows no other spelling, such as `u08`.
        _ => BaseType::integer(text).filter(|base| base.to_string() == text),
    }
}

/// `bWIDTH@OFFSET/SIZE`. Without a known SIZE it is not a type at all; the rest is judged after the
/// expression, and any field of that size replaces it until then.
fn bit_field(word: Word<'_>) -> (Option<BaseType>, Option<Diagnostic>) {
    let size =
        word.text.split_once('/').and_then(|(_, size)| number::unsigned(size)).and_then(Width::from_bits);
    let Some(container) = size else { return (None, None) };
    let (width, rest) = number::leading(&word.text[1..]);
    let read = (|| {
        let after_at = rest.strip_prefix('@').filter(|_| width > 0)?;
        let (offset, tail) = number::leading(after_at);
        if tail.len() == after_at.len() || !tail.starts_with('/') {
            return None;
        }
        // The sum of the kernel wraps too.
        let fits = width.wrapping_add(offset) <= u64::from(container.bits());
        fits.then_some((width, offset))
    })();
    let small =
        read.and_then(|(width, offset)| Some((u8::try_from(width).ok()?, u8::try_from(offset).ok()?)));
    if let Some((width, offset)) = small {
        return (Some(BaseType::BitField { width, offset, container }), None);
    }
    let message = format!("`{}` is not a bit-field of {} bits", word.text, container.bits());
    let problem = word.error(Code::BadBitfield, message);
    // The kernel takes two numbers whose sum wraps, and shifts by them.
    let problem = if read.is_some() { problem.by_kprobed() } else { problem };
    (Some(BaseType::BitField { width: 1, offset: 0, container }), Some(problem))
}

/// The types that this kernel has.
fn known(features: &Features) -> String {
    let mut known = "there are u8 to u64, s8 to s64, x8 to x64, ".to_owned();
    for (has, name) in [
        (features.char_type, "char, "),
        (true, "symbol, "),
        (features.symstr, "symstr, "),
        (true, "string, "),
        (features.ustring, "ustring, "),
        (features.percent_pd, "%pd, %pD, "),
        (features.own_types, "path, "),
    ] {
        known.push_str(if has { name } else { "" });
    }
    known + "bWIDTH@OFFSET/SIZE, and arrays of them"
}

/// The type that was probably meant by people who write C, or for a newer kernel.
fn instead_of(text: &str, features: &Features) -> Option<&'static str> {
    Some(match text {
        "path" if features.own_types => "one path is one value: write `path`",
        "dentry" | "file" | "d_path" if features.own_types => "write `path` for the whole path",
        "path" | "dentry" | "file" if features.percent_pd => {
            "this kernel does not show its types, by which a path is read: write `%pd` for the name in a `struct dentry`, \
             and `%pD` for that in a `struct file`"
        }
        "int" => "write `s32`",
        "unsigned" | "uint" => "write `u32`",
        "long" => "write `s64`",
        "ulong" | "size_t" => "write `u64`",
        "short" => "write `s16`",
        "bool" => "write `u8`",
        "ptr" | "pointer" | "hex" => "write `x64`",
        "str" => "write `string`",
        "char" => "this kernel has no type `char`: write `u8`",
        "symstr" => "this kernel has no type `symstr`: write `symbol`",
        "%pd" | "%pD" if features.own_types => {
            "this kernel does not know it: write `path` for the whole path, or the member `d_name.name:string`"
        }
        "%pd" | "%pD" => {
            "this kernel does not know it: read the name through its offsets, +0(+OFFSET(EXPRESSION)):string"
        }
        _ => return None,
    })
}
