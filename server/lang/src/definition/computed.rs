//! Computed fields: numbers that no argument of the kernel's language fetches, made of several that it fetches.
//!
//! Owns the rules: what they compute, and their text, a comment behind the definition. The kernel reads no comment: it
//! records the parts, as arguments with names of their own, and the decoder shows the computed field in their place. A
//! rule that is not understood is a warning, and its parts are shown as they are.
//!
//! In ` # computed: sum:u64=sum__1,5,+ level:s32=level__1,s5@4`, each word is `NAME:TYPE=STEPS`. A step is a part or a
//! number, or it takes what the steps before it have left: an operator takes two values, and `b5@4` takes the 5 bits
//! from bit 4 of one; `s5@4` are bits of which the highest is a sign.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ast::{Argument, BaseType};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::guard;
use super::names::{ARGUMENT_NAME_MAX_BYTES, is_identifier};
use super::{Span, number};

/// What the comment begins with.
const MARK: &str = "# computed: ";

/// Parts of a rule, at most.
pub const PARTS_MAX: usize = 16;

/// Steps of a rule, at most.
const STEPS_MAX: usize = 128;

/// Values that a rule needs at the same time, at most.
const STACK_MAX: usize = 16;

/// An operation on two values of 64 bits. Overflow wraps around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operator {
    /// Sum.
    Add,
    /// Difference.
    Subtract,
    /// Product.
    Multiply,
    /// Quotient of signed numbers.
    DivideSigned,
    /// Quotient of unsigned numbers.
    Divide,
    /// Remainder of unsigned numbers.
    Remainder,
    /// Bits that both have.
    And,
    /// Bits that either has.
    Or,
    /// Bits that one of both has.
    Xor,
    /// The first, shifted left.
    ShiftLeft,
    /// The first, shifted right; zeros come in.
    ShiftRight,
    /// The first, shifted right; copies of its sign come in.
    ShiftRightSigned,
    /// 1 if both are equal, otherwise 0.
    Equal,
    /// 1 if the first is less, as signed numbers, otherwise 0.
    LessSigned,
    /// 1 if the first is less, as unsigned numbers, otherwise 0.
    Less,
}

/// All operators, with their texts.
const OPERATORS: [(Operator, &str); 15] = [
    (Operator::Add, "+"),
    (Operator::Subtract, "-"),
    (Operator::Multiply, "*"),
    (Operator::DivideSigned, "/s"),
    (Operator::Divide, "/"),
    (Operator::Remainder, "%"),
    (Operator::And, "&"),
    (Operator::Or, "|"),
    (Operator::Xor, "^"),
    (Operator::ShiftLeft, "<<"),
    (Operator::ShiftRight, ">>"),
    (Operator::ShiftRightSigned, ">>s"),
    (Operator::Equal, "=="),
    (Operator::LessSigned, "<s"),
    (Operator::Less, "<"),
];

impl Operator {
    /// The result. `None`: there is none, as for a divisor of 0.
    pub fn apply(self, left: u64, right: u64) -> Option<u64> {
        let (from, by) = (left.cast_signed(), right.cast_signed());
        let shift = u32::try_from(right).ok();
        Some(match self {
            Self::Add => left.wrapping_add(right),
            Self::Subtract => left.wrapping_sub(right),
            Self::Multiply => left.wrapping_mul(right),
            Self::DivideSigned => from.checked_div(by)?.cast_unsigned(),
            Self::Divide => left.checked_div(right)?,
            Self::Remainder => left.checked_rem(right)?,
            Self::And => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
            Self::ShiftLeft => shift.and_then(|by| left.checked_shl(by)).unwrap_or(0),
            Self::ShiftRight => shift.and_then(|by| left.checked_shr(by)).unwrap_or(0),
            Self::ShiftRightSigned => (from >> right.min(63)).cast_unsigned(),
            Self::Equal => u64::from(left == right),
            Self::LessSigned => u64::from(from < by),
            Self::Less => u64::from(left < right),
        })
    }
}

/// Some bits of a number, `width` of them from bit `offset`; the highest is extended if it is a sign.
pub const fn bits(value: u64, offset: u8, width: u8, signed: bool) -> u64 {
    let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
    let value = if offset >= 64 { 0 } else { (value >> offset) & mask };
    let has_sign = signed && width < 64 && width > 0 && value >> (width - 1) & 1 == 1;
    if has_sign { value | !mask } else { value }
}

/// One step of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RuleStep {
    /// The part of this index.
    Part(usize),
    /// A number.
    Number(u64),
    /// Some bits of the last value.
    Bits {
        /// The lowest.
        offset: u8,
        /// How many, 1 to 64.
        width: u8,
        /// The highest is a sign.
        signed: bool,
    },
    /// The last two values.
    Operator(Operator),
}

/// A computed field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Computed {
    name: String,
    ty: BaseType,
    parts: Vec<String>,
    steps: Vec<RuleStep>,
}

impl Computed {
    /// A field of this name and integer type, computed of the arguments with these names. `None`: the rule has no
    /// value, or is larger than rules may be.
    pub fn new(name: String, ty: BaseType, parts: Vec<String>, steps: Vec<RuleStep>) -> Option<Self> {
        let mut depth = 0_usize;
        for step in &steps {
            let (takes, has) = match step {
                RuleStep::Part(index) => (0, *index < parts.len()),
                RuleStep::Number(_) => (0, true),
                RuleStep::Bits { offset, width, .. } => (1, *width > 0 && offset.checked_add(*width)? <= 64),
                RuleStep::Operator(_) => (2, true),
            };
            depth = depth.checked_sub(takes)? + 1;
            if !has || depth > STACK_MAX {
                return None;
            }
        }
        let fits = (1..=PARTS_MAX).contains(&parts.len()) && steps.len() <= STEPS_MAX;
        (depth == 1 && ty.is_integer() && fits).then_some(Self { name, ty, parts, steps })
    }

    /// The name of the field.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type: `u8` to `x64`.
    pub const fn base_type(&self) -> BaseType {
        self.ty
    }

    /// The arguments that it is computed of.
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Whether it has no value if a divisor is 0.
    pub fn divides(&self) -> bool {
        use Operator::{Divide, DivideSigned, Remainder};
        let is_one = |step: &RuleStep| matches!(step, RuleStep::Operator(Divide | DivideSigned | Remainder));
        self.steps.iter().any(is_one)
    }

    /// The value, from those of the parts, extended to 64 bits as their types say. `None`: a part is missing, or a
    /// divisor is 0.
    pub fn value(&self, parts: &[u64]) -> Option<u64> {
        let mut stack = [0_u64; STACK_MAX];
        let mut depth = 0_usize;
        for step in &self.steps {
            let (takes, value) = match step {
                RuleStep::Part(index) => (0, *parts.get(*index)?),
                RuleStep::Number(number) => (0, *number),
                RuleStep::Bits { offset, width, signed } => {
                    (1, bits(*stack.get(depth.checked_sub(1)?)?, *offset, *width, *signed))
                }
                RuleStep::Operator(operator) => {
                    let (left, right) =
                        (stack.get(depth.checked_sub(2)?)?, stack.get(depth.checked_sub(1)?)?);
                    (2, operator.apply(*left, *right)?)
                }
            };
            depth = depth.checked_sub(takes)?;
            *stack.get_mut(depth)? = value;
            depth += 1;
        }
        stack.first().copied()
    }

    fn read(word: &str) -> Option<Self> {
        let (head, rule) = word.split_once('=')?;
        let (name, ty) = head.split_once(':')?;
        let ty = BaseType::integer(ty)?;
        let mut parts: Vec<String> = Vec::new();
        let mut steps = Vec::new();
        for text in rule.split(',') {
            steps.push(match plain(text) {
                Some(step) => step,
                None if is_identifier(text) => {
                    let known = parts.iter().position(|part| part == text);
                    let index = known.unwrap_or(parts.len());
                    if known.is_none() {
                        parts.push(text.to_owned());
                    }
                    RuleStep::Part(index)
                }
                None => return None,
            });
        }
        let is_name =
            is_identifier(name) && name.len() < ARGUMENT_NAME_MAX_BYTES && !name.starts_with(guard::PREFIX);
        Self::new(name.to_owned(), ty, parts, steps).filter(|_| is_name)
    }
}

/// A step other than a part.
fn plain(text: &str) -> Option<RuleStep> {
    if let Some((operator, _)) = OPERATORS.iter().find(|(_, known)| *known == text) {
        return Some(RuleStep::Operator(*operator));
    }
    if let Some((width, offset)) = text.strip_prefix(['b', 's']).and_then(|rest| rest.split_once('@')) {
        let (width, offset) = (width.parse().ok()?, offset.parse().ok()?);
        return Some(RuleStep::Bits { offset, width, signed: text.starts_with('s') });
    }
    let digits = text.strip_prefix('-');
    let number = number::unsigned(digits.unwrap_or(text))?;
    Some(RuleStep::Number(if digits.is_some() { number.wrapping_neg() } else { number }))
}

/// `NAME:TYPE=STEPS`
impl fmt::Display for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}=", self.name, self.ty)?;
        for (number, step) in self.steps.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match step {
                RuleStep::Part(index) => f.write_str(self.parts.get(*index).map_or("", String::as_str))?,
                RuleStep::Number(number) => write!(f, "{}", number.cast_signed())?,
                RuleStep::Bits { offset, width, signed } => {
                    write!(f, "{}{width}@{offset}", if *signed { 's' } else { 'b' })?;
                }
                RuleStep::Operator(operator) => {
                    let known = OPERATORS.iter().find(|(known, _)| known == operator);
                    f.write_str(known.map_or("", |(_, text)| text))?;
                }
            }
        }
        Ok(())
    }
}

/// The comment of these fields; empty if there are none.
pub fn comment(fields: &[Computed]) -> String {
    let words: Vec<_> = fields.iter().map(ToString::to_string).collect();
    if words.is_empty() { String::new() } else { format!("{MARK}{}", words.join(" ")) }
}

/// The fields of the comment behind a definition with these arguments, and what is not understood of it.
pub(super) fn of_text(text: &str, args: &[Argument]) -> (Vec<Computed>, Vec<Diagnostic>) {
    let (mut fields, mut warnings) = (Vec::<Computed>::new(), Vec::new());
    let Some(start) = text.find(MARK).map(|at| at + MARK.len()) else { return (fields, warnings) };
    let rest = text.get(start..).unwrap_or_default();
    let comment = rest.split(['#', '\n']).next().unwrap_or_default();
    let is_argument = |name: &str, is_part: bool| {
        let named = args.iter().find(|arg| arg.name.as_ref().is_some_and(|known| known.text == name));
        named.is_some_and(|arg| !is_part || is_number(arg))
    };
    for word in comment.split_ascii_whitespace() {
        let made = Computed::read(word).filter(|made| {
            let is_new =
                !is_argument(&made.name, false) && fields.iter().all(|field| field.name != made.name);
            is_new && made.parts.iter().all(|part| is_argument(part, true))
        });
        if let Some(made) = made {
            fields.push(made);
            continue;
        }
        let message = format!("`{word}` is not a rule of a computed field: its parts are shown as they are");
        let span = Span::new(start, start + comment.len());
        warnings.push(Diagnostic::warning(Code::IgnoredText, span, message));
    }
    (fields, warnings)
}

fn is_number(argument: &Argument) -> bool {
    let is_one = argument.ty.is_none_or(|ty| ty.count.is_none());
    let base = argument.base_type();
    is_one && (base.is_integer() || matches!(base, BaseType::BitField { .. }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::definition::tests::probe;

    fn value(rule: &str, parts: &[u64]) -> Option<u64> {
        let read = Computed::read(&format!("n:u64={rule}")).unwrap_or_else(|| panic!("{rule}"));
        assert_eq!(read.to_string(), format!("n:u64={rule}"));
        read.value(parts)
    }

    #[test]
    fn rules_compute_as_dwarf_does() {
        let minus = |number: i64| Some((-number).cast_unsigned());
        for (rule, expected) in [
            ("a,7,+", Some(1)),
            ("a,2,*", minus(12)),
            ("a,2,/s", minus(3)),
            ("a,0,/s", None),
            ("a,0,/", None),
            ("a,1,>>s", minus(3)),
            ("a,99,>>s", Some(u64::MAX)),
            ("a,-1,>>s", Some(u64::MAX)),
            ("a,63,>>", Some(1)),
            ("a,64,<<", Some(0)),
            ("a,0,<s", Some(1)),
            ("a,0,<", Some(0)),
            ("a,-6,==", Some(1)),
            ("a,s3@0", Some(2)),
            ("a,b3@1,a,-", Some(11)),
        ] {
            assert_eq!(value(rule, &[(-6_i64).cast_unsigned()]), expected, "{rule}");
        }
        assert_eq!(value("a,s5@0", &[0b10011]), minus(13));
        assert_eq!(value("high,32,<<,low,|", &[1, 2]), Some(1 << 32 | 2));
        assert_eq!(value("a,b,+", &[1]), None);
    }

    #[test]
    fn a_comment_has_rules_over_the_arguments() {
        let text = "p:g/e f s__1=%bx:u64 l__1=+8(%di):b5@4/16 o=%cx:u8 # computed: s:u64=s__1,5,+ l:s32=l__1,s5@0 # source: a";
        let found = probe(text, &crate::definition::Features::from_readme("ustring"));
        assert_eq!(comment(&found.computed), "# computed: s:u64=s__1,5,+ l:s32=l__1,s5@0");
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        for rule in [
            "s:u64=other,5,+",
            "o:u64=s__1,5,+",
            "s:u64=s__1,+",
            "s:u64=5",
            "s:u64=s__1,s__1",
            "s:u65=s__1",
            "s:u64=",
            "__kpd_g0:u64=s__1",
            "s=s__1",
            "s:u64=s__1,b9@60",
            "s:u64=t",
            "s:u64=a",
        ] {
            let text =
                format!("p:g/e f s__1=%bx:u64 o=%cx:u8 t=+0(%di):string a=+0(%di):u8[4] # computed: {rule}");
            let found = probe(&text, &crate::definition::Features::from_readme("ustring"));
            assert!(found.computed.is_empty() && found.warnings.len() == 1, "{rule}: {found:?}");
        }
    }

    proptest! {
        #[test]
        fn any_rule_is_read_or_not(word in "[a-c]:[usx](8|64)=([ab],|-?[0-9]{1,3},|[-+*/%&|^<>=s]{1,3},|[bs][0-9]{1,2}@[0-9],){0,12}[ab+]", parts: [u64; 2]) {
            if let Some(read) = Computed::read(&word) {
                read.value(&parts);
                prop_assert_eq!(Computed::read(&read.to_string()), Some(read));
            }
        }
    }
}
