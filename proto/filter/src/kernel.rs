//! Filters as the kernel has to read them: of what is recorded, not of what is shown.
//!
//! Owns the numbers that stand in such a filter for a text, for a number in the order of the host, or for an `int` that
//! the kernel keeps in 64 bits. Never decides what the kernel can compare: it says so itself.

use super::ast::{Expression, Number, Operand, Operator, Term};
use super::error::{FilterCode, FilterError};
use super::fields::{Fields, Kind, Source};
use super::notation::{Notation, swapped};
use super::open_flags::OPEN_FLAGS;
use super::test::{Load, mask};
use super::{Filter, Schema};

impl Filter {
    /// The same filter over what the kernel records. `None` if it is this text.
    ///
    /// # Errors
    /// For a comparison that is possible only with what is shown.
    pub fn for_kernel(&self, schema: &Schema) -> Result<Option<Self>, FilterError> {
        let mut has_names = false;
        self.expression.terms(&mut |term| has_names |= named_number(&term.operand).is_some());
        if schema.is_shown_as_recorded() && !has_names {
            return Ok(None);
        }
        let expression = translated(&self.expression, schema)?;
        Ok((expression != self.expression).then_some(Self { expression }))
    }
}

fn translated(expression: &Expression, schema: &Schema) -> Result<Expression, FilterError> {
    let all =
        |parts: &[Expression]| parts.iter().map(|part| translated(part, schema)).collect::<Result<_, _>>();
    Ok(match expression {
        Expression::Term(term) => of_term(term, schema)?,
        Expression::Not(inner) => translated(inner, schema)?.negated(),
        Expression::And(parts) => Expression::all(all(parts)?),
        Expression::Or(parts) => Expression::any(all(parts)?),
    })
}

fn of_term(term: &Term, schema: &Schema) -> Result<Expression, FilterError> {
    let operand = named_number(&term.operand).unwrap_or_else(|| term.operand.clone());
    let term = &Term { operand, ..term.clone() };
    let unchanged = || Ok(Expression::Term(Box::new(term.clone())));
    let fields = Fields { schema, with_ours: false };
    let Some((source @ Source::Own { index, elements: 1, .. }, kind)) = fields.find(&term.field, term.own)
    else {
        return unchanged();
    };
    let Some(field) = schema.fields.get(index) else { return unchanged() };
    let refused = |why: &str| {
        let message =
            format!("the kernel cannot compare `{}` with `{}`: {why}", term.field, term.operator.text());
        let by_daemon = "filter with `kprobectl observe --filter`";
        let hint = match field.notation {
            Notation::Computed => by_daemon.to_owned(),
            _ => format!("use ==, != or &, or {by_daemon}"),
        };
        FilterError::new(FilterCode::IllegalFieldOp, term.operator_span, message, hint)
    };
    if field.notation == Notation::Computed {
        return Err(refused("the daemon makes it of others"));
    }
    let (Kind::Number { bytes, signed }, None) = (kind, term.suffix) else { return unchanged() };
    if term.operator == Operator::Glob {
        return unchanged();
    }
    let load = Load { source, bytes, signed, swapped: false, is_lower_half: field.is_lower_half };
    let with = |operator, bits: u64| {
        let operand =
            if signed && !field.is_lower_half { signed_number(load.cut(bits)) } else { number(bits) };
        Expression::Term(Box::new(Term { operator, operand, ..term.clone() }))
    };
    let is_equality = matches!(term.operator, Operator::Equal | Operator::NotEqual);
    let bits = match &term.operand {
        Operand::Text(text) if is_equality => match field.notation.number(text, bytes as usize) {
            Some(bits) if field.is_lower_half => bits,
            Some(bits) => return Ok(with(term.operator, bits)),
            None => return unchanged(),
        },
        Operand::Number { value, .. } => match field.notation.without_sign(*value, load, term.operator) {
            Number::Unsigned(bits) => bits,
            Number::Negative(bits) if signed || !is_equality => bits.cast_unsigned(),
            Number::Negative(_) => return unchanged(),
        },
        _ => return unchanged(),
    };
    match (&field.notation, field.is_lower_half) {
        (notation, _) if notation.is_in_network_order() => {
            if term.operator.is_of_order() {
                return Err(refused("it is recorded in network order"));
            }
            if bits > mask(bytes * 8) {
                return unchanged();
            }
            Ok(with(term.operator, swapped(bits, bytes as usize)))
        }
        (_, true) if term.operator.is_of_order() => {
            Err(refused("it records all 64 bits that the system call was given"))
        }
        (_, true) => {
            // The caller of a system call leaves anything in the upper bits: mostly zeros or the sign.
            let lower = bits & mask(32);
            let whole = load.cut(bits);
            if term.operator == Operator::Bits || lower == whole {
                return Ok(with(term.operator, lower));
            }
            let each = vec![with(term.operator, lower), with(term.operator, whole)];
            Ok(if term.operator == Operator::NotEqual {
                Expression::all(each)
            } else {
                Expression::any(each)
            })
        }
        (Notation::Errno, false)
            if !signed && matches!(term.operand, Operand::Number { value: Number::Negative(_), .. }) =>
        {
            Ok(with(term.operator, bits))
        }
        _ => unchanged(),
    }
}

/// The number of an error or of flags that are written by their names: the kernel does not know these.
fn named_number(operand: &Operand) -> Option<Operand> {
    match operand {
        Operand::Number { text, value: Number::Negative(value) } if text.starts_with("-E") => {
            Some(signed_number(value.cast_unsigned()))
        }
        Operand::Number { text, value: Number::Unsigned(bits) } if text.starts_with(OPEN_FLAGS) => {
            Some(number(*bits))
        }
        _ => None,
    }
}

/// A number as the kernel reads it.
pub(super) fn number(bits: u64) -> Operand {
    let text = if bits < 1 << 16 { bits.to_string() } else { format!("{bits:#x}") };
    Operand::Number { text, value: Number::Unsigned(bits) }
}

fn signed_number(bits: u64) -> Operand {
    match bits.cast_signed() {
        negative @ ..0 => Operand::Number { text: negative.to_string(), value: Number::Negative(negative) },
        _ => number(bits),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::interfaces::TestHit;
    use crate::{Binding, FieldKind, FieldSchema, Names};

    fn schema() -> Schema {
        let field = |name: &str, kind, notation, is_lower_half| FieldSchema {
            notation,
            is_lower_half,
            ..FieldSchema::new(name, kind)
        };
        let names = Names::new([(-1, "NONE"), (1, "ONE")]).unwrap();
        Schema {
            fields: vec![
                field("port", FieldKind::Unsigned { bytes: 2 }, Notation::NetworkOrder, false),
                field("ret", FieldKind::Signed { bytes: 4 }, Notation::Errno, false),
                field("pointer", FieldKind::Unsigned { bytes: 8 }, Notation::Errno, false),
                field("state", FieldKind::Signed { bytes: 4 }, Notation::Names(names), false),
                field("dfd", FieldKind::Signed { bytes: 4 }, Notation::Number, true),
                field("address", FieldKind::Unsigned { bytes: 4 }, Notation::Ipv4, false),
                field("dev", FieldKind::Unsigned { bytes: 4 }, Notation::Device, false),
                field("flags", FieldKind::Signed { bytes: 4 }, Notation::OpenFlags, true),
                field("how", FieldKind::Unsigned { bytes: 8 }, Notation::OpenFlags, false),
                field("plain", FieldKind::Unsigned { bytes: 2 }, Notation::Number, false),
                field("sum", FieldKind::Unsigned { bytes: 8 }, Notation::Computed, false),
                field("path", FieldKind::String, Notation::Computed, false),
            ],
            is_return: true,
        }
    }

    fn for_kernel(text: &str) -> Result<String, String> {
        let filter = Filter::parse(text).unwrap();
        match filter.for_kernel(&schema()) {
            Ok(translated) => Ok(translated.unwrap_or(filter).to_string()),
            Err(error) => Err(error.message),
        }
    }

    #[test]
    fn what_is_shown_becomes_what_is_recorded() {
        for (shown, recorded) in [
            ("plain == 443 && comm == \"443\"", "plain == 443 && comm == \"443\""),
            ("port == 443", "port == 47873"),
            ("!(port != 80 || port & 0x8000)", "!(port != 20480 || port & 128)"),
            ("port == 99999", "port == 99999"),
            ("ret == -ENOENT", "ret == -2"),
            ("other == -ENOENT", "other == -2"),
            ("ret == \"ENOENT\" || ret < 0", "ret == -2 || ret < 0"),
            ("ret == \"WHAT\"", "ret == \"WHAT\""),
            ("pointer == -ENOENT", "pointer == 0xfffffffffffffffe"),
            ("pointer == 0xffff888000000000", "pointer == 0xffff888000000000"),
            ("state == \"NONE\" || state == 1", "state == -1 || state == 1"),
            ("dfd == 3 && dfd & 1", "dfd == 3 && dfd & 1"),
            ("dfd == -100", "dfd == 0xffffff9c || dfd == 0xffffffffffffff9c"),
            ("dfd != -100", "dfd != 0xffffff9c && dfd != 0xffffffffffffff9c"),
            ("address == \"127.0.0.1\"", "address == 0x100007f"),
            ("dev == \"254:0\"", "dev == 0xfe00000"),
            ("how & O_CREAT|O_EXCL && how != \"O_RDWR\"", "how & 192 && how != 2"),
            ("flags & O_CREAT||plain == O_WRONLY", "flags & 64 || plain == 1"),
            ("flags == \"O_RDONLY|0x80000000\"", "flags == 0x80000000 || flags == 0xffffffff80000000"),
        ] {
            assert_eq!(for_kernel(shown).as_deref(), Ok(recorded), "{shown}");
        }
        for shown in ["port < 1024", "dfd > 2", "sum == 1", "path == \"/a\"", "path ~ \"/tmp/*\""] {
            assert!(for_kernel(shown).unwrap_err().starts_with("the kernel cannot compare `"), "{shown}");
        }
    }

    #[test]
    fn flags_without_a_bit_or_with_another_name_are_refused() {
        for (text, at, message) in [
            ("how & O_RDONLY", 4..5, "`&` does not compare with flags without a bit"),
            (
                "how == O_RDWR|O_CREATE",
                7..22,
                "`O_RDWR|O_CREATE` has a name that is not one of a flag of `open`",
            ),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert_eq!((error.span.range(), error.message.as_str()), (at, message));
        }
        assert_eq!(for_kernel("how == O_RDONLY").as_deref(), Ok("how == 0"));
    }

    /// The fields as the kernel compares them.
    fn recorded() -> Schema {
        let mut schema = schema();
        for field in &mut schema.fields {
            field.notation = Notation::Number;
            if std::mem::take(&mut field.is_lower_half) {
                field.kind = FieldKind::Unsigned { bytes: 8 };
            }
        }
        schema
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// The kernel selects with the translation what the daemon selects with the text.
        #[test]
        fn the_kernel_selects_the_same(
            terms in proptest::collection::vec(
                ("port|ret|pointer|state|dfd|address|dev|plain", "==|!=|&|<|>=", prop_oneof![
                    "-?[0-9]{1,3}|-ENOENT|-EPERM|\"ENOENT\"|\"ONE\"|\"NONE\"|\"0.0.0.1\"|\"0:2\"|443|0xbb01",
                ], any::<bool>()), 1..3,
            ),
            any_of in any::<bool>(),
            port in prop_oneof![Just(0xbb01_u16), Just(443), any::<u16>()],
            number in prop_oneof![-3_i32..3, Just(0x100_0000), any::<i32>()],
            is_sign_extended: bool,
        ) {
            let terms: Vec<_> = terms.into_iter().map(|(field, operator, operand, negated)| {
                format!("{}{field} {operator} {operand}", if negated { "!" } else { "" })
            }).collect();
            let text = terms.join(if any_of { " || " } else { " && " });
            let Ok(filter) = Filter::parse(&text) else { return Ok(()) };
            let binding = Binding { probe: "g/e", host: "h", functions: None };
            let Ok(shown) = filter.bind(&schema(), &binding) else { return Ok(()) };
            let Ok(translated) = filter.for_kernel(&schema()) else { return Ok(()) };
            let translated = translated.unwrap_or(filter);
            let bound = translated.bind(&recorded(), &binding);
            prop_assert!(bound.is_ok(), "{} becomes {}: {:?}", text, translated, bound);
            // As the kernel has the numbers, or as they are read. What the caller left in the upper half is known to
            // the kernel alone.
            let hit = |is_in_kernel: bool| {
                let signed = i64::from(number).cast_unsigned();
                let numbers = move |field: usize| match field {
                    0 => port.into(),
                    4 if is_in_kernel && !is_sign_extended => signed & mask(32),
                    1..=4 => signed,
                    5 | 6 => signed & mask(32),
                    _ => 7,
                };
                TestHit { numbers, text: None, address: 1 }
            };
            prop_assert_eq!(shown.matches(&hit(false)), bound.unwrap().matches(&hit(true)), "{} becomes {}", text, translated);
        }
    }
}
