//! Values as arguments of a kprobe.

use kprobed_lang::definition::computed::{Computed, Operator, PARTS_MAX, RuleStep};
use kprobed_lang::definition::{BaseType, Width};

use crate::error::{LinesError, Result};
use crate::symbols::Symbols;
use crate::value::Value;

/// The registers of DWARF by their numbers, as the kernel calls them.
const REGISTERS: [&str; 17] = [
    "ax", "dx", "cx", "bx", "si", "di", "bp", "sp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
    "ip",
];

/// One argument of the kernel's language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// The name of the field.
    pub name: String,
    /// What it reads, such as `+8(%di)`.
    pub source: String,
    /// Its type, such as `u32`; absent for an argument that was written in the kernel's own language.
    pub ty: Option<String>,
}

impl Fetch {
    /// `NAME=SOURCE:TYPE`
    pub fn text(&self) -> String {
        let ty = self.ty.as_ref().map_or_else(String::new, |ty| format!(":{ty}"));
        if self.name.is_empty() {
            format!("{}{ty}", self.source)
        } else {
            format!("{}={}{ty}", self.name, self.source)
        }
    }
}

/// What a value is for its reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) bits: u8,
    pub(super) signed: bool,
    /// Shown in hexadecimal.
    pub(super) is_pointer: bool,
}

/// A value as fetches, and the computed field that joins them if it is not the first alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fetched {
    pub(super) fetches: Vec<Fetch>,
    pub(super) rule: Option<Computed>,
}

fn register(number: u16) -> Result<String> {
    let name = REGISTERS.get(usize::from(number));
    name.map(|name| format!("%{name}"))
        .ok_or_else(|| LinesError::new("it is in a register that the kernel does not keep for probes"))
}

/// Memory at an address, without its type. `None`: the kernel's language cannot compute this address.
pub(super) fn memory(symbols: &Symbols, address: &Value, user: bool) -> Result<Option<String>> {
    let (base, offset) = address.clone().split();
    let base = match base {
        None => return Err(LinesError::new("it is at a fixed address that no symbol names")),
        Some(Value::Address(address)) if offset == 0 => {
            return Ok(Some(format!("@{}", symbols.data(address)?)));
        }
        Some(base) => base,
    };
    let Some(base) = whole(symbols, &base)? else { return Ok(None) };
    let offset = offset.cast_signed();
    if i32::try_from(offset).is_err() {
        return Err(LinesError::new("it is farther from its pointer than 2 GiB"));
    }
    let sign = if offset < 0 { '-' } else { '+' };
    let user = if user { "u" } else { "" };
    Ok(Some(format!("{sign}{user}{}({base})", offset.unsigned_abs())))
}

/// A value of 64 bits, without its type.
fn whole(symbols: &Symbols, value: &Value) -> Result<Option<String>> {
    match value {
        Value::Register(number) => register(*number).map(Some),
        Value::Memory { address, bytes: 8, user } => memory(symbols, address, *user),
        _ => Ok(None),
    }
}

/// A value that one argument fetches, with its type. The type is of that value, which is extended to 64 bits.
fn single(symbols: &Symbols, value: &Value, kind: Kind) -> Result<Option<(String, String)>> {
    let letter = |signed: bool| {
        if kind.is_pointer {
            'x'
        } else if signed {
            's'
        } else {
            'u'
        }
    };
    Ok(match value {
        Value::Constant(number) => {
            let text =
                if kind.signed { format!("\\{}", number.cast_signed()) } else { format!("\\{number}") };
            // That of a bit-field has a number of bits that no type of the kernel has.
            Some((text, format!("{}{}", letter(kind.signed), kind.bits.max(8).next_power_of_two())))
        }
        Value::Register(number) => Some((register(*number)?, format!("{}64", letter(kind.signed)))),
        Value::Memory { address, bytes, user } => {
            let signed = kind.signed && *bytes == 8;
            memory(symbols, address, *user)?
                .map(|text| (text, format!("{}{}", letter(signed), bytes.saturating_mul(8))))
        }
        Value::Bits { of, offset, width, signed } => {
            let (text, container) = match of.as_ref() {
                Value::Register(number) => (Some(register(*number)?), 64),
                Value::Memory { address, bytes, user } => {
                    (memory(symbols, address, *user)?, bytes.saturating_mul(8))
                }
                _ => (None, 0),
            };
            let is_number = *offset == 0 && matches!(width, 8 | 16 | 32 | 64);
            match text {
                Some(text) if is_number => Some((text, format!("{}{width}", letter(*signed)))),
                // A bit-field of the kernel has no sign.
                Some(text) if !signed && offset.saturating_add(*width) <= container => {
                    Some((text, format!("b{width}@{offset}/{container}")))
                }
                _ => None,
            }
        }
        _ => None,
    })
}

/// The fetches of a value, of which the caller wants no other type.
pub(super) fn fetched(symbols: &Symbols, name: &str, value: Value, kind: Kind) -> Result<Fetched> {
    let value = value.bits(0, kind.bits, kind.signed);
    if let Some((source, ty)) = single(symbols, &value, kind)? {
        return Ok(Fetched {
            fetches: vec![Fetch { name: name.to_owned(), source, ty: Some(ty) }],
            rule: None,
        });
    }
    let (mut fetches, mut steps) = (Vec::new(), Vec::new());
    joined(symbols, name, value, &mut fetches, &mut steps)?;
    let bits = u64::from(kind.bits.max(8)).next_power_of_two();
    let width = Width::from_bits(bits).unwrap_or(Width::W64);
    let ty = match kind {
        Kind { is_pointer: true, .. } => BaseType::Hex(width),
        Kind { signed: true, .. } => BaseType::Signed(width),
        _ => BaseType::Unsigned(width),
    };
    let parts = fetches.iter().map(|fetch| fetch.name.clone()).collect();
    let rule = Computed::new(name.to_owned(), ty, parts, steps)
        .ok_or_else(|| LinesError::new("it is computed in more steps than the daemon takes"))?;
    Ok(Fetched { fetches, rule: Some(rule) })
}

/// Appends what computes a value, with a fetch for each part that one argument fetches.
fn joined(
    symbols: &Symbols,
    name: &str,
    value: Value,
    fetches: &mut Vec<Fetch>,
    steps: &mut Vec<RuleStep>,
) -> Result<()> {
    let part = Kind { bits: 64, signed: false, is_pointer: false };
    let fetched = if matches!(value, Value::Constant(_)) { None } else { single(symbols, &value, part)? };
    if let Some((source, ty)) = fetched {
        let ty = Some(ty);
        let known = fetches.iter().position(|fetch| fetch.source == source && fetch.ty == ty);
        let number = known.unwrap_or(fetches.len());
        if known.is_none() {
            fetches.push(Fetch { name: format!("{name}__{}", number + 1), source, ty });
        }
        if fetches.len() > PARTS_MAX {
            return Err(LinesError::new("it is computed from more than 16 values"));
        }
        steps.push(RuleStep::Part(number));
        return Ok(());
    }
    match value {
        Value::Constant(number) => steps.push(RuleStep::Number(number)),
        Value::Bits { of, offset, width, signed } => {
            // A bit-field with a sign: the kernel fetches its bits, the rule adds the sign.
            let unsigned = Value::Bits { of: of.clone(), offset, width, signed: false };
            let is_fetched = single(symbols, &unsigned, part)?.is_some();
            joined(symbols, name, if is_fetched { unsigned } else { *of }, fetches, steps)?;
            steps.push(RuleStep::Bits { offset: if is_fetched { 0 } else { offset }, width, signed });
        }
        Value::Binary(operator, left, right) => {
            joined(symbols, name, *left, fetches, steps)?;
            joined(symbols, name, *right, fetches, steps)?;
            steps.push(RuleStep::Operator(operator));
        }
        Value::Memory { .. } => {
            return Err(LinesError::new(
                "it is in memory whose address is computed, which the kernel cannot do",
            )
            .hint("fetch the values that the address is computed from"));
        }
        Value::Address(_) => {
            return Err(LinesError::new(
                "its value is the address of a symbol, which differs with each boot",
            ));
        }
        Value::AtEntry(_) | Value::FrameAddress | Value::Register(_) => {
            return Err(LinesError::new("it is a value that the kernel cannot fetch"));
        }
    }
    Ok(())
}

/// Parts of a value, joined from the least significant one.
pub(super) fn or_shifted(low: Option<Value>, high: Value, by: u8) -> Value {
    let shifted = Value::binary(Operator::ShiftLeft, high, Value::Constant(u64::from(by)));
    match low {
        None => shifted,
        Some(low) => Value::binary(Operator::Or, low, shifted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_has_a_type_of_the_kernel() {
        let symbols = Symbols::default();
        let of = |number, bits, signed| {
            let kind = Kind { bits, signed, is_pointer: false };
            fetched(&symbols, "f", Value::Constant(number), kind).unwrap().fetches[0].text()
        };
        assert_eq!(of(5, 3, false), r"f=\5:u8");
        assert_eq!(of(0x1ff, 9, true), r"f=\-1:s16");
        assert_eq!(of(7, 64, false), r"f=\7:u64");
    }
}
