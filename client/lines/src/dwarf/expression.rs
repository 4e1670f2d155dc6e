//! Expressions of DWARF, as values and locations.
//!
//! Owns the meaning of each operation. One that is not understood makes the whole location unknown, with the
//! reason: a value is never guessed.

use gimli::{Encoding, Expression, Operation, UnitOffset};
use kprobed_lang::definition::computed::Operator;

use crate::image::Bytes;
use crate::model::{Location, Piece};
use crate::value::{NODES_MAX, Value};

/// Operations of an expression, at most.
const OPERATIONS_MAX: usize = 256;

/// The longest constant, in bytes.
pub(super) const CONSTANT_MAX: usize = 4096;

/// A number as an expression computes with it. `None` is the generic type: 64 bits without a sign of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberType {
    pub(super) bits: u8,
    pub(super) signed: bool,
}

/// What an expression refers to.
pub(super) struct Meaning<'m> {
    pub(super) encoding: Encoding,
    /// The value of the frame base.
    pub(super) frame_base: Option<&'m Value>,
    /// The number type of this entry of the unit.
    pub(super) number_type: &'m dyn Fn(UnitOffset) -> Option<NumberType>,
    /// The address of this index.
    pub(super) indexed: &'m dyn Fn(gimli::DebugAddrIndex) -> Option<u64>,
    /// The id of the variable at this offset of `.debug_info`.
    pub(super) variable: &'m dyn Fn(gimli::DebugInfoOffset) -> u64,
}

impl<'m> Meaning<'m> {
    /// That of an expression of a frame rule.
    pub(super) fn of_frame(encoding: Encoding) -> Self {
        Self { encoding, frame_base: None, number_type: &|_| None, indexed: &|_| None, variable: &|_| 0 }
    }

    pub(super) fn of_unit(encoding: Encoding, frame_base: Option<&'m Value>) -> Self {
        Self { frame_base, ..Self::of_frame(encoding) }
    }
}

/// A number on the stack. One of a type with fewer than 64 bits is extended as its type says.
type Number = (Value, Option<NumberType>);

fn typed(value: Value, ty: Option<NumberType>) -> Number {
    let value = match ty {
        Some(ty) => value.bits(0, ty.bits, ty.signed),
        None => value,
    };
    (value, ty)
}

/// The location that an expression describes.
pub(super) fn meaning(context: &Meaning<'_>, expression: Expression<Bytes<'_>>) -> Location {
    located(context, expression).unwrap_or_else(Location::Unknown)
}

fn located(context: &Meaning<'_>, expression: Expression<Bytes<'_>>) -> Result<Location, String> {
    let mut operations = expression.operations(context.encoding);
    let mut stack: Vec<Number> = Vec::new();
    let mut place: Option<Location> = None;
    let mut pieces: Vec<Piece> = Vec::new();
    for _ in 0..OPERATIONS_MAX {
        let next = operations
            .next()
            .map_err(|error| format!("the compiler describes it in an unknown way: {error}"))?;
        let Some(operation) = next else {
            if !pieces.is_empty() {
                return if place.is_none() && stack.is_empty() {
                    Ok(Location::Pieces(pieces))
                } else {
                    Err("its last part has no size".to_owned())
                };
            }
            return match (place, stack.pop()) {
                (Some(place), _) => Ok(place),
                (None, Some((address, _))) => Ok(Location::Memory(address)),
                (None, None) => Ok(Location::Unknown("the compiler has removed it here".to_owned())),
            };
        };
        match operation {
            Operation::Piece { size_in_bits, bit_offset } => {
                if bit_offset.is_some_and(|offset| offset != 0) {
                    return Err("one of its parts begins within a register".to_owned());
                }
                let memory = stack.pop().map(|(address, _)| Location::Memory(address));
                pieces.push(Piece { bits: size_in_bits, location: place.take().or(memory) });
            }
            Operation::Uninitialized => return Err("the source has not given it a value yet".to_owned()),
            _ if place.is_some() => return Err("its location has operations after its end".to_owned()),
            Operation::Register { register } => place = Some(Location::Value(Value::Register(register.0))),
            Operation::StackValue => place = Some(Location::Value(popped(&mut stack)?.0)),
            Operation::ImplicitValue { data } if data.len() > CONSTANT_MAX => {
                return Err("its constant is longer than 4 KiB".to_owned());
            }
            Operation::ImplicitValue { data } => place = Some(Location::Bytes(data.slice().to_vec())),
            Operation::ImplicitPointer { value, byte_offset } => {
                place =
                    Some(Location::PointerTo { variable: (context.variable)(value), offset: byte_offset });
            }
            other => step(context, &mut stack, &other)?,
        }
        if stack.last().is_some_and(|(value, _)| value.nodes() > NODES_MAX) || stack.len() > 64 {
            return Err("its location is too long an expression".to_owned());
        }
    }
    Err("its location is too long an expression".to_owned())
}

fn popped(stack: &mut Vec<Number>) -> Result<Number, String> {
    stack.pop().ok_or_else(|| "its location takes more than it has".to_owned())
}

fn step(
    context: &Meaning<'_>,
    stack: &mut Vec<Number>,
    operation: &Operation<Bytes<'_>>,
) -> Result<(), String> {
    let named_type = |offset: UnitOffset| {
        if offset.0 == 0 {
            return Ok(None);
        }
        (context.number_type)(offset)
            .map(Some)
            .ok_or_else(|| "its location computes with a type other than integers".to_owned())
    };
    let pushed = match *operation {
        Operation::Nop => return Ok(()),
        Operation::Drop => return popped(stack).map(drop),
        Operation::Swap => {
            let (top, below) = (popped(stack)?, popped(stack)?);
            stack.push(top);
            below
        }
        Operation::Rot => {
            let (top, second, third) = (popped(stack)?, popped(stack)?, popped(stack)?);
            stack.extend([top, third]);
            second
        }
        Operation::Pick { index } => {
            let at = stack.len().checked_sub(1 + usize::from(index));
            at.and_then(|at| stack.get(at))
                .cloned()
                .ok_or_else(|| "its location takes more than it has".to_owned())?
        }
        Operation::UnsignedConstant { value } => (Value::Constant(value), None),
        Operation::SignedConstant { value } => (Value::Constant(value.cast_unsigned()), None),
        Operation::TypedLiteral { base_type, value } => {
            let bytes = value.slice();
            let number = bytes.iter().rev().take(8).fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
            if bytes.len() > 8 {
                return Err("its location has a constant of more than 8 bytes".to_owned());
            }
            typed(Value::Constant(number), named_type(base_type)?)
        }
        Operation::RegisterOffset { register, offset, base_type } => {
            let ty = named_type(base_type)?;
            typed(Value::Register(register.0).plus(offset.cast_unsigned()), ty)
        }
        Operation::FrameOffset { offset } => {
            let base = context.frame_base.ok_or("the base of its frame is not known")?;
            (base.clone().plus(offset.cast_unsigned()), None)
        }
        Operation::CallFrameCFA => (Value::FrameAddress, None),
        Operation::Address { address } => (Value::Address(address), None),
        Operation::AddressIndex { index } => {
            (Value::Address((context.indexed)(index).ok_or("its address is not in the file")?), None)
        }
        Operation::Deref { base_type, size: bytes @ (1 | 2 | 4 | 8), space: false } => {
            let (address, _) = popped(stack)?;
            let memory = Value::Memory { address: Box::new(address), bytes, user: false };
            typed(memory, named_type(base_type)?)
        }
        Operation::EntryValue { expression } => {
            let inner = Meaning::of_frame(context.encoding);
            let mut bytes = Expression(expression).operations(context.encoding);
            match (bytes.next(), bytes.next()) {
                (Ok(Some(Operation::Register { register })), Ok(None)) => {
                    (Value::AtEntry(Box::new(Value::Register(register.0))), None)
                }
                (Ok(Some(Operation::RegisterOffset { .. } | Operation::CallFrameCFA)), _) => {
                    let Location::Memory(value) = located_entry(&inner, expression)? else {
                        return Err("its value at the entry is not understood".to_owned());
                    };
                    (Value::AtEntry(Box::new(value)), None)
                }
                _ => return Err("its value at the entry is not understood".to_owned()),
            }
        }
        Operation::Convert { base_type } => {
            let (value, _) = popped(stack)?;
            typed(value, named_type(base_type)?)
        }
        Operation::Reinterpret { base_type } => {
            let (value, from) = popped(stack)?;
            let to = named_type(base_type)?;
            if from.map_or(64, |ty| ty.bits) != to.map_or(64, |ty| ty.bits) {
                return Err("its location reads a number as one of another size".to_owned());
            }
            typed(value, to)
        }
        Operation::PlusConstant { value } => {
            let (base, ty) = popped(stack)?;
            typed(base.plus(value), ty)
        }
        Operation::Neg => {
            let (value, ty) = popped(stack)?;
            typed(Value::binary(Operator::Subtract, Value::Constant(0), value), ty)
        }
        Operation::Not => {
            let (value, ty) = popped(stack)?;
            typed(Value::binary(Operator::Xor, value, Value::Constant(u64::MAX)), ty)
        }
        Operation::Ne | Operation::Ge | Operation::Gt | Operation::Le | Operation::Lt | Operation::Eq => {
            compared(stack, operation)?
        }
        Operation::TLS => return Err("it has one copy for each thread".to_owned()),
        Operation::ParameterRef { .. } | Operation::VariableValue { .. } => {
            return Err("only a caller of the function knows it".to_owned());
        }
        _ => combined(stack, operation)?,
    };
    stack.push(pushed);
    Ok(())
}

/// An expression within an entry value: it has no further one inside.
fn located_entry(context: &Meaning<'_>, bytes: Bytes<'_>) -> Result<Location, String> {
    let mut operations = Expression(bytes).operations(context.encoding);
    while let Ok(Some(operation)) = operations.next() {
        if matches!(operation, Operation::EntryValue { .. }) {
            return Err("its value at the entry is not understood".to_owned());
        }
    }
    located(context, Expression(bytes))
}

/// A comparison, of signed numbers unless the type has no sign.
fn compared(stack: &mut Vec<Number>, operation: &Operation<Bytes<'_>>) -> Result<Number, String> {
    let ((right, ty), (left, _)) = (popped(stack)?, popped(stack)?);
    let less = if ty.is_none_or(|ty| ty.signed) { Operator::LessSigned } else { Operator::Less };
    let not = |value| Value::binary(Operator::Xor, value, Value::Constant(1));
    let value = match operation {
        Operation::Eq => Value::binary(Operator::Equal, left, right),
        Operation::Ne => not(Value::binary(Operator::Equal, left, right)),
        Operation::Lt => Value::binary(less, left, right),
        Operation::Ge => not(Value::binary(less, left, right)),
        Operation::Gt => Value::binary(less, right, left),
        _ => not(Value::binary(less, right, left)),
    };
    Ok((value, None))
}

fn combined(stack: &mut Vec<Number>, operation: &Operation<Bytes<'_>>) -> Result<Number, String> {
    let is_signed = |ty: Option<NumberType>| ty.is_none_or(|ty| ty.signed);
    let operator = match operation {
        Operation::Plus => Operator::Add,
        Operation::Minus => Operator::Subtract,
        Operation::Mul => Operator::Multiply,
        Operation::And => Operator::And,
        Operation::Or => Operator::Or,
        Operation::Xor => Operator::Xor,
        Operation::Shl => Operator::ShiftLeft,
        Operation::Shr => Operator::ShiftRight,
        Operation::Shra => Operator::ShiftRightSigned,
        Operation::Div => Operator::DivideSigned,
        Operation::Mod => Operator::Remainder,
        _ => return Err("the compiler describes it by an operation that is not understood".to_owned()),
    };
    let ((right, of_right), (left, ty)) = (popped(stack)?, popped(stack)?);
    let is_shift =
        matches!(operator, Operator::ShiftLeft | Operator::ShiftRight | Operator::ShiftRightSigned);
    if !is_shift && of_right != ty {
        return Err("its location computes with two types".to_owned());
    }
    let (operator, left) = match (operator, ty) {
        (Operator::DivideSigned, ty) if !is_signed(ty) => (Operator::Divide, left),
        // The generic type has no sign here; a number of a signed type would need another rule.
        (Operator::Remainder, Some(ty)) if ty.signed => {
            return Err("its location divides signed numbers".to_owned());
        }
        (Operator::ShiftRight, Some(ty)) => (operator, left.bits(0, ty.bits, false)),
        (Operator::ShiftRightSigned, Some(ty)) => (operator, left.bits(0, ty.bits, true)),
        (operator, _) => (operator, left),
    };
    Ok(typed(Value::binary(operator, left, right), ty))
}

#[cfg(test)]
mod tests {
    use gimli::{EndianSlice, Format, LittleEndian};

    use super::*;

    #[test]
    fn a_variable_without_a_value_yet_is_refused_for_that_reason() {
        const SET: [u8; 1] = [gimli::DW_OP_reg3.0];
        const UNSET: [u8; 2] = [gimli::DW_OP_reg3.0, gimli::DW_OP_GNU_uninit.0];
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 5 };
        let read = |bytes: &'static [u8]| {
            let expression = Expression(EndianSlice::new(bytes, LittleEndian));
            meaning(&Meaning::of_unit(encoding, None), expression)
        };
        assert_eq!(read(&SET), Location::Value(Value::Register(3)));
        let Location::Unknown(why) = read(&UNSET) else { panic!("it has a value") };
        assert_eq!(why, "the source has not given it a value yet");
    }
}
