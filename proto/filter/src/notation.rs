//! Notation of numbers: how people write what a field holds, if that is more than a number.
//!
//! Owns the texts, and the way back: what is shown of a number can be compared with in a filter. Never knows where a
//! number comes from.

use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::ast::{Number, Operator};
use super::test::{Load, mask};
use super::{errno, open_flags};

/// How people write the numbers of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// As numbers.
    #[default]
    Number,
    /// A negative number, or a pointer of the last page, is an error: `-2 (ENOENT)`.
    Errno,
    /// Some numbers have names: `1 (SHUT_WR)`.
    Names(Names),
    /// The bytes are in network order: `443`.
    NetworkOrder,
    /// An address of four bytes in network order: `127.0.0.1`.
    Ipv4,
    /// An address of 16 bytes: `::1`.
    Ipv6,
    /// A device, as the kernel has its number: `8:1`, major and minor number.
    Device,
    /// Octal, with a leading 0: `0644`.
    Octal,
    /// `false` and `true`.
    Bool,
    /// Flags of `open`: `33345 (O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE)`.
    OpenFlags,
    /// A text with the symbols of a call stack, one on each line, the innermost first.
    Stack,
    /// A text that the kernel has made of an address: the name of its symbol, or else the address.
    Symbol,
    /// As numbers, which the daemon computes of what the kernel records.
    Computed,
}

/// Where the text of a number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Behind the number.
    Behind,
    /// In place of the number.
    Instead,
}

/// Names of numbers, by number. Of a number with several names the first is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(Arc<[(i64, Box<str>)]>);

/// Bits of a minor number (include/linux/kdev_t.h:MINORBITS).
const MINOR_BITS: u32 = 20;

impl Names {
    /// Most names of one field.
    pub const MAX: usize = 128;

    /// These names. `None` if there are none, or more than [`Self::MAX`], or one is not of letters, digits and `_`.
    pub fn new<T: Into<Box<str>>>(names: impl IntoIterator<Item = (i64, T)>) -> Option<Self> {
        let names = names.into_iter().take(Self::MAX + 1).map(|(number, name)| (number, name.into()));
        let mut names: Vec<(i64, Box<str>)> = names.collect();
        let is_word = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let fits = (1..=Self::MAX).contains(&names.len()) && names.iter().all(|(_, name)| is_word(name));
        names.sort_by_key(|(number, _)| *number);
        fits.then(|| Self(names.into()))
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &str)> {
        self.0.iter().map(|(number, name)| (*number, &**name))
    }

    fn of(&self, number: i64) -> Option<&str> {
        let first = self.0.partition_point(|(known, _)| *known < number);
        self.0.get(first).filter(|(known, _)| *known == number).map(|(_, name)| &**name)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|(_, known)| **known == *name).map(|(number, _)| *number)
    }
}

impl Notation {
    /// Where the text of a number stands. `None` if numbers of this notation have no text.
    pub const fn position(&self) -> Option<Position> {
        match self {
            Self::Number | Self::Stack | Self::Symbol | Self::Computed => None,
            Self::Errno | Self::Names(_) | Self::OpenFlags => Some(Position::Behind),
            _ => Some(Position::Instead),
        }
    }

    /// Whether a number is compared with in the order of bytes of the network.
    pub const fn is_in_network_order(&self) -> bool {
        matches!(self, Self::NetworkOrder | Self::Ipv4)
    }

    /// Appends the text of a number: of its lower `bytes` bytes. Returns false, and appends nothing, if it has none.
    pub fn push(&self, buffer: &mut Vec<u8>, bits: u64, bytes: usize) -> bool {
        let bits = bits & mask(bits_of(bytes));
        let name = match self {
            Self::Errno => error_name(sign_extended(bits, bytes)),
            // Unsigned numbers have all bits of an enumerator that is not negative.
            Self::Names(names) => {
                names.of(sign_extended(bits, bytes)).or_else(|| names.of(bits.cast_signed()))
            }
            Self::Bool if bits <= 1 => Some(if bits == 1 { "true" } else { "false" }),
            Self::Octal if bits == 0 => Some("0"),
            _ => None,
        };
        if let Some(name) = name {
            buffer.extend_from_slice(name.as_bytes());
            return true;
        }
        if *self == Self::OpenFlags {
            open_flags::push(buffer, bits);
            return true;
        }
        let written = match self {
            Self::NetworkOrder => write!(buffer, "{}", swapped(bits, bytes)),
            Self::Ipv4 if bytes == 4 => {
                let [a, b, c, d, ..] = bits.to_le_bytes();
                write!(buffer, "{}", Ipv4Addr::new(a, b, c, d))
            }
            Self::Device => write!(buffer, "{}:{}", bits >> MINOR_BITS, bits & mask(MINOR_BITS)),
            Self::Octal => write!(buffer, "0{bits:o}"),
            _ => return false,
        };
        // Writing to memory cannot fail.
        written.is_ok()
    }

    /// The number whose text is this, in `bytes` bytes.
    pub fn number(&self, text: &str, bytes: usize) -> Option<u64> {
        let number = match self {
            Self::Errno => errno::number(text).map(|number| (-i64::from(number)).cast_unsigned())?,
            Self::Names(names) => names.number(text)?.cast_unsigned(),
            Self::Ipv4 if bytes == 4 => u32::from_le_bytes(text.parse::<Ipv4Addr>().ok()?.octets()).into(),
            Self::Device => {
                let (major, minor) = text.split_once(':')?;
                let (major, minor): (u64, u64) = (major.parse().ok()?, minor.parse().ok()?);
                (minor <= mask(MINOR_BITS))
                    .then(|| major.checked_mul(1 << MINOR_BITS)?.checked_add(minor))??
            }
            Self::Bool => u64::from(text.parse::<bool>().ok()?),
            Self::OpenFlags => open_flags::number(text)?,
            _ => return None,
        };
        let cut = number & mask(bits_of(bytes));
        (cut == number || sign_extended(cut, bytes).cast_unsigned() == number).then_some(cut)
    }

    /// A number as the field has it: the negative number of an error in a field without sign, which shows it so.
    pub(super) fn without_sign(&self, value: Number, load: Load, operator: Operator) -> Number {
        match value {
            Number::Negative(number @ -4095..0)
                if *self == Self::Errno && !load.signed && !operator.is_of_order() =>
            {
                Number::Unsigned(load.cut(number.cast_unsigned()))
            }
            value => value,
        }
    }

    /// A text that [`Self::number`] takes, for a hint. `None` if it takes none.
    pub fn example(&self) -> Option<String> {
        Some(match self {
            Self::Errno => "ENOENT".to_owned(),
            Self::Names(names) => names.iter().next()?.1.to_owned(),
            Self::Ipv4 => "127.0.0.1".to_owned(),
            Self::Device => "8:1".to_owned(),
            Self::Bool => "true".to_owned(),
            Self::OpenFlags => "O_RDWR|O_CREAT".to_owned(),
            _ => return None,
        })
    }
}

/// Appends an address of 16 bytes.
pub fn push_ipv6(buffer: &mut Vec<u8>, bytes: [u8; 16]) {
    // Writing to memory cannot fail.
    write!(buffer, "{}", Ipv6Addr::from(bytes)).ok();
}

/// The lower `bytes` bytes of a number in the other order.
pub const fn swapped(bits: u64, bytes: usize) -> u64 {
    bits.swap_bytes() >> (64 - bits_of(bytes))
}

/// The name of an error that a function returns as a negative number.
fn error_name(number: i64) -> Option<&'static str> {
    errno::name(u16::try_from(number.checked_neg()?).ok()?)
}

const fn bits_of(bytes: usize) -> u32 {
    match bytes {
        0 | 1 => 8,
        2 => 16,
        3 | 4 => 32,
        _ => 64,
    }
}

/// The lower `bytes` bytes of a number with their sign.
#[inline]
pub const fn sign_extended(bits: u64, bytes: usize) -> i64 {
    let unused = 64 - bits_of(bytes);
    (bits << unused).cast_signed() >> unused
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(notation: &Notation, bits: u64, bytes: usize) -> Option<String> {
        let mut buffer = Vec::new();
        let has_text = notation.push(&mut buffer, bits, bytes);
        assert_eq!(has_text, !buffer.is_empty());
        has_text.then(|| String::from_utf8(buffer).unwrap())
    }

    fn names() -> Notation {
        Notation::Names(
            Names::new([(1, "ONE"), (-1, "MINUS"), (0, "ZERO"), (1, "UNO"), (200, "MANY")]).unwrap(),
        )
    }

    #[test]
    fn numbers_are_written_as_people_do() {
        let minus = |number: i64| number.cast_unsigned();
        for (notation, bits, bytes, expected) in [
            (Notation::Number, 5, 4, None),
            (Notation::Errno, minus(-2), 4, Some("ENOENT")),
            (Notation::Errno, minus(-2), 8, Some("ENOENT")),
            (Notation::Errno, 0xffff_fffe, 8, None),
            (Notation::Errno, minus(-512), 8, Some("ERESTARTSYS")),
            (Notation::Errno, minus(-4095), 8, None),
            (Notation::Errno, minus(i64::MIN), 8, None),
            (Notation::Errno, 2, 4, None),
            (names(), 1, 4, Some("ONE")),
            (names(), 0xffff_ffff, 4, Some("MINUS")),
            (names(), 200, 1, Some("MANY")),
            (names(), 7, 4, None),
            (Notation::NetworkOrder, 0xbb01, 2, Some("443")),
            (Notation::NetworkOrder, 0x0100_0000, 4, Some("1")),
            (Notation::NetworkOrder, 1, 8, Some("72057594037927936")),
            (Notation::Ipv4, 16_777_343, 4, Some("127.0.0.1")),
            (Notation::Ipv4, 16_777_343, 8, None),
            (Notation::Device, 266_338_304, 4, Some("254:0")),
            (Notation::Device, (8 << 20) + 17, 4, Some("8:17")),
            (Notation::Octal, 0o100_644, 2, Some("0100644")),
            (Notation::Octal, 0, 2, Some("0")),
            (Notation::Bool, 1, 1, Some("true")),
            (Notation::Bool, 0, 1, Some("false")),
            (Notation::Bool, 3, 1, None),
            (Notation::OpenFlags, minus(-0x8000_0000 | 0o102), 4, Some("O_RDWR|O_CREAT|0x80000000")),
        ] {
            assert_eq!(text(&notation, bits, bytes).as_deref(), expected, "{notation:?} {bits:#x}");
        }
        let mut buffer = Vec::new();
        push_ipv6(&mut buffer, Ipv6Addr::LOCALHOST.octets());
        assert_eq!(buffer, b"::1");
    }

    #[test]
    fn a_table_of_names_is_bounded() {
        let names = |count: i64| Names::new((0..count).map(|number| (number, format!("N{number}"))));
        assert!(names(0).is_none() && names(129).is_none());
        assert_eq!(names(128).unwrap().iter().count(), Names::MAX);
        for bad in ["", "a b", "a\"b", "\u{1b}[2J", "é"] {
            assert_eq!(Names::new([(1, "GOOD"), (2, bad)]), None);
        }
    }

    fn notations() -> impl Strategy<Value = Notation> {
        proptest::sample::select(vec![
            Notation::Number,
            Notation::Errno,
            names(),
            Notation::NetworkOrder,
            Notation::Ipv4,
            Notation::Device,
            Notation::Octal,
            Notation::Bool,
            Notation::OpenFlags,
        ])
    }

    proptest! {
        /// What is shown of a number can be compared with, and is that number.
        #[test]
        fn a_text_is_read_again(notation in notations(), bits in prop_oneof![any::<u64>(), 0_u64..600, (1_i64..600).prop_map(|number| (-number).cast_unsigned())], bytes in proptest::sample::select(vec![1_usize, 2, 4, 8])) {
            let bits = bits & mask(bits_of(bytes));
            let Some(text) = text(&notation, bits, bytes) else { return Ok(()) };
            match notation {
                // Filters have numbers for these.
                Notation::NetworkOrder => prop_assert_eq!(swapped(text.parse().unwrap(), bytes), bits),
                Notation::Octal => prop_assert_eq!(crate::number::unsigned(&text), Some(bits)),
                _ => prop_assert_eq!(notation.number(&text, bytes), Some(bits), "{}", text),
            }
        }

        #[test]
        fn any_text_is_survived(notation in notations(), text in "([0-9]{0,22}[:.]?){0,4}|[A-Z]{1,8}|true|O_[A-Z]{1,6}[|]0x[0-9]{1,3}|.{0,6}", bytes in proptest::sample::select(vec![1_usize, 2, 4, 8])) {
            if let Some(number) = notation.number(&text, bytes) {
                prop_assert_eq!(number, number & mask(bits_of(bytes)));
                let shown = self::text(&notation, number, bytes).unwrap();
                prop_assert_eq!(notation.number(&shown, bytes), Some(number));
            }
        }
    }
}
