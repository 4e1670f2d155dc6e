//! Values as expressions over registers, memory and constants.

use std::cell::Cell;

use kprobed_lang::definition::computed::{Operator, bits};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Nodes of an expression, at most: locations that compilers write have fewer than 40.
pub(crate) const NODES_MAX: usize = 100;

/// Values and scopes within each other that an index can hold; those that are written have fewer.
const DEPTH_MAX: u32 = 250;

/// Reads what may contain more of its kind, to a depth that the stack can hold.
pub(crate) fn bounded<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
    let depth = DEPTH.get();
    if depth >= DEPTH_MAX {
        return Err(D::Error::custom("too many values within each other"));
    }
    DEPTH.set(depth + 1);
    let read = T::deserialize(from);
    DEPTH.set(depth);
    read
}

/// A value of 64 bits: what DWARF says of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// A number.
    Constant(u64),
    /// A register, by its number in DWARF for x86-64.
    Register(u16),
    /// The canonical frame address: the stack pointer before the call of the function.
    FrameAddress,
    /// An address of the file: that of a symbol plus an offset.
    Address(u64),
    /// The value had this meaning when the function was entered.
    AtEntry(#[serde(deserialize_with = "bounded")] Box<Self>),
    /// Memory, extended with zeros.
    Memory {
        /// The address.
        #[serde(deserialize_with = "bounded")]
        address: Box<Self>,
        /// Bytes: 1, 2, 4 or 8.
        bytes: u8,
        /// Memory of a program, not of the kernel.
        user: bool,
    },
    /// Some bits of a value.
    Bits {
        /// The value.
        #[serde(deserialize_with = "bounded")]
        of: Box<Self>,
        /// The lowest bit, from the least significant one.
        offset: u8,
        /// The number of bits, 1 to 64.
        width: u8,
        /// The highest of the bits is a sign, and is extended.
        signed: bool,
    },
    /// Two values.
    Binary(
        Operator,
        #[serde(deserialize_with = "bounded")] Box<Self>,
        #[serde(deserialize_with = "bounded")] Box<Self>,
    ),
}

impl Value {
    /// Two values, computed as far as they are constants.
    pub(crate) fn binary(operator: Operator, left: Self, right: Self) -> Self {
        match (operator, left, right) {
            (operator, Self::Constant(left), Self::Constant(right)) => {
                operator.apply(left, right).map_or_else(
                    || Self::joined(operator, Self::Constant(left), Self::Constant(right)),
                    Self::Constant,
                )
            }
            (Operator::Add, Self::Constant(number), value)
            | (Operator::Add, value, Self::Constant(number)) => value.plus(number),
            (Operator::Subtract, value, Self::Constant(number)) => value.plus(number.wrapping_neg()),
            (Operator::And, Self::Constant(number), value)
            | (Operator::And, value, Self::Constant(number))
                if number != 0 && number & number.wrapping_add(1) == 0 =>
            {
                value.bits(0, u8::try_from(number.count_ones()).unwrap_or(64), false)
            }
            (operator, left, right) => Self::joined(operator, left, right),
        }
    }

    fn joined(operator: Operator, left: Self, right: Self) -> Self {
        Self::Binary(operator, Box::new(left), Box::new(right))
    }

    /// The sum of a value and a number.
    pub(crate) fn plus(self, number: u64) -> Self {
        let (base, offset) = self.split();
        let sum = offset.wrapping_add(number);
        match base {
            None => Self::Constant(sum),
            Some(Self::Address(address)) => Self::Address(address.wrapping_add(sum)),
            Some(base) if sum == 0 => base,
            Some(base) => Self::joined(Operator::Add, base, Self::Constant(sum)),
        }
    }

    /// A value as a base and a constant that is added to it.
    pub(crate) fn split(self) -> (Option<Self>, u64) {
        match self {
            Self::Constant(number) => (None, number),
            Self::Binary(Operator::Add, base, number) => match *number {
                Self::Constant(number) => (Some(*base), number),
                other => (Some(Self::Binary(Operator::Add, base, Box::new(other))), 0),
            },
            other => (Some(other), 0),
        }
    }

    /// Some bits of this value; the shortest form of the same.
    pub(crate) fn bits(self, offset: u8, width: u8, signed: bool) -> Self {
        match self {
            Self::Constant(number) => Self::Constant(bits(number, offset, width, signed)),
            value if offset == 0 && width == 64 => value,
            // Memory is extended with zeros.
            Self::Memory { bytes, .. }
                if offset == 0
                    && (width > bytes.saturating_mul(8) || !signed && width == bytes.saturating_mul(8)) =>
            {
                self
            }
            Self::Bits { of, offset: inner, width: has, signed: had } => {
                // What lies within the inner bits is not changed by their extension.
                if u16::from(offset) + u16::from(width) <= u16::from(has) {
                    of.bits(inner.saturating_add(offset), width, signed)
                } else if offset == 0 && (!had || signed) {
                    Self::Bits { of, offset: inner, width: has, signed: had }
                } else {
                    let of = Box::new(Self::Bits { of, offset: inner, width: has, signed: had });
                    Self::Bits { of, offset, width, signed }
                }
            }
            value => Self::Bits { of: Box::new(value), offset, width, signed },
        }
    }

    /// How many nodes it has, up to a bound.
    pub(crate) fn nodes(&self) -> usize {
        1 + match self {
            Self::AtEntry(of) | Self::Memory { address: of, .. } | Self::Bits { of, .. } => of.nodes(),
            Self::Binary(_, left, right) => left.nodes() + right.nodes(),
            _ => 0,
        }
    }

    /// What the value had to be when the function was entered, if a part of it is from then.
    pub(crate) fn at_entry(&self) -> Option<&Self> {
        match self {
            Self::AtEntry(of) => Some(of),
            Self::Memory { address: of, .. } | Self::Bits { of, .. } => of.at_entry(),
            Self::Binary(_, left, right) => left.at_entry().or_else(|| right.at_entry()),
            _ => None,
        }
    }

    /// The same value with each node replaced, from the leaves up.
    pub(crate) fn map<E>(self, change: &mut impl FnMut(Self) -> Result<Self, E>) -> Result<Self, E> {
        let changed = match self {
            Self::AtEntry(of) => Self::AtEntry(Box::new(of.map(change)?)),
            Self::Memory { address, bytes, user } => {
                Self::Memory { address: Box::new(address.map(change)?), bytes, user }
            }
            Self::Bits { of, offset, width, signed } => of.map(change)?.bits(offset, width, signed),
            Self::Binary(operator, left, right) => {
                Self::binary(operator, left.map(change)?, right.map(change)?)
            }
            leaf => leaf,
        };
        change(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_computed_and_sums_collected() {
        let register = Value::Register(3);
        assert_eq!(register.clone().plus(8).plus(8_u64.wrapping_neg()), register);
        assert_eq!(Value::Address(0x1000).plus(8), Value::Address(0x1008));
        let masked = Value::binary(Operator::And, register.clone(), Value::Constant(0xffff));
        assert_eq!(masked, register.clone().bits(0, 16, false));
        // A mask with holes is not a number of bits.
        let holes = Value::binary(Operator::And, register, Value::Constant(0xf0));
        assert!(matches!(holes, Value::Binary(Operator::And, ..)));
    }

    #[test]
    fn bits_of_bits_are_those_of_the_value() {
        let register = || Value::Register(0);
        let low = register().bits(8, 16, false);
        assert_eq!(low.clone().bits(4, 4, false), register().bits(12, 4, false));
        assert_eq!(low.clone().bits(0, 32, false), low);
        assert_eq!(low.clone().bits(0, 16, true), register().bits(8, 16, true));
        // A sign that was extended is read: what it is of must stay.
        let signed = register().bits(0, 8, true);
        assert!(
            matches!(signed.bits(0, 32, false), Value::Bits { of, width: 32, .. } if matches!(*of, Value::Bits { .. }))
        );
    }
}
