//! Comparisons of fields: `--where 'FIELD OP VALUE'`.
//!
//! Owns their notation and meaning. They are evaluated here and not in the kernel, so that they work for all types and on events
//! that others need as well.

use std::cmp::Ordering;
use std::str::FromStr;

use kprobed_client::api::{EventField, FieldType, Probe};
use kprobed_client::event::{Row, Value};

use crate::command::{Failure, glob};

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    field: String,
    operator: Operator,
    text: String,
    /// The text as a number, where it is one.
    number: Option<i128>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Glob,
}

/// Longer ones first: `<` is the beginning of `<=`.
const OPERATORS: [(&str, Operator); 7] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
    ("~", Operator::Glob),
];

impl Operator {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
            Self::Glob => false,
        }
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (field, rest) = text.split_at(end);
        let rest = rest.trim_start();
        if field.is_empty() {
            return Err("write `FIELD OP VALUE`, such as `dfd == -100`".to_owned());
        }
        let (operator, value) = OPERATORS
            .iter()
            .find_map(|(token, operator)| Some((*operator, rest.strip_prefix(token)?)))
            .ok_or("expected one of `== != < <= > >= ~` behind the field")?;
        let value = unquote(value.trim());
        Ok(Self { field: field.to_owned(), operator, text: value.to_owned(), number: number(value) })
    }
}

/// Takes off one pair of quotes, with which one may write what begins or ends with blanks.
fn unquote(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

fn number(text: &str) -> Option<i128> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None if digits.starts_with(|c: char| c.is_ascii_digit()) => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { -i128::from(magnitude) } else { i128::from(magnitude) })
}

impl Condition {
    /// Says at once what can not hold for any of the selected probes. Probes whose fields are not known are given the benefit
    /// of the doubt.
    pub(super) fn check(&self, selected: &[Probe]) -> Result<(), Failure> {
        let known: Vec<(&str, &[EventField])> = selected
            .iter()
            .filter_map(|probe| Some((probe.name.as_str(), probe.schema.as_ref()?.fields.as_slice())))
            .collect();
        let found: Vec<&EventField> = known
            .iter()
            .flat_map(|(_, fields)| fields.iter())
            .filter(|field| field.name == self.field)
            .collect();
        if known.len() == selected.len() && !known.is_empty() && found.is_empty() {
            let message = format!("no selected probe has a field `{}`", self.field);
            return Err(Failure::usage(message, Some(fields_hint(&known))));
        }
        if !found.is_empty() && !found.iter().any(|field| self.fits(field.r#type())) {
            let (what, hint) = match self.operator {
                Operator::Glob => {
                    ("a number, and `~` compares text", "use `==`, `!=`, `<`, `<=`, `>` or `>=`".to_owned())
                }
                _ => {
                    ("a number", format!("`{}` is none; write decimal, or hexadecimal with `0x`", self.text))
                }
            };
            return Err(Failure::usage(format!("field `{}` is {what}", self.field), Some(hint)));
        }
        Ok(())
    }

    fn fits(&self, kind: FieldType) -> bool {
        match kind {
            FieldType::Unsigned | FieldType::Signed => {
                self.operator != Operator::Glob && self.number.is_some()
            }
            _ => true,
        }
    }

    /// Whether an event has the field and it compares so.
    pub(super) fn holds(&self, row: &Row<'_>) -> bool {
        row.field(&self.field).is_some_and(|value| self.holds_for(value))
    }

    fn holds_for(&self, value: Value<'_>) -> bool {
        match value {
            Value::Fault => false,
            Value::Unsigned { value, .. } => self.holds_for_number(i128::from(value)),
            Value::Signed { value, .. } => self.holds_for_number(i128::from(value)),
            Value::Char(byte) if self.text.len() == 1 => self.holds_for_bytes(&[byte]),
            Value::Char(byte) => self.holds_for_number(i128::from(byte)),
            Value::Bytes(bytes) => self.holds_for_bytes(bytes),
            Value::Symbol(symbol) => match (symbol.text, self.number) {
                (_, Some(_)) => self.holds_for_number(i128::from(symbol.address)),
                (Some(text), None) => self.holds_for_symbol(text),
                (None, None) => false,
            },
            // `!=` is the opposite of `==`, also for arrays: none of the values is it.
            Value::List(list) if self.operator == Operator::NotEqual => {
                !list.iter().any(|value| value.has_fault() || !self.holds_for(value))
            }
            Value::List(list) => list.iter().any(|value| self.holds_for(value)),
        }
    }

    fn holds_for_number(&self, value: i128) -> bool {
        self.number.is_some_and(|number| self.operator.holds(value.cmp(&number)))
    }

    fn holds_for_bytes(&self, bytes: &[u8]) -> bool {
        match self.operator {
            Operator::Glob => glob::matches(self.text.as_bytes(), bytes),
            operator => operator.holds(bytes.cmp(self.text.as_bytes())),
        }
    }

    /// A function name stands for all of the function.
    fn holds_for_symbol(&self, text: &str) -> bool {
        let function = text.split_once('+').map_or(text, |(function, _)| function);
        match self.operator {
            Operator::Equal => text == self.text || function == self.text,
            Operator::NotEqual => text != self.text && function != self.text,
            _ => self.holds_for_bytes(text.as_bytes()),
        }
    }
}

fn fields_hint(known: &[(&str, &[EventField])]) -> String {
    let of_probe = |(name, fields): &(&str, &[EventField])| {
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        if names.is_empty() {
            format!("`{name}` has none")
        } else {
            format!("`{name}` has `{}`", names.join("`, `"))
        }
    };
    known.iter().map(of_probe).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use kprobed_client::event::{Address, Base};

    use super::*;

    fn holds(condition: &str, value: Value<'_>) -> bool {
        condition.parse::<Condition>().unwrap().holds_for(value)
    }

    #[test]
    fn numbers() {
        let signed = |value| Value::Signed { value, base: Base::Decimal };
        let unsigned = |value| Value::Unsigned { value, base: Base::Hex };
        assert!(holds("dfd == -100", signed(-100)));
        assert!(holds("dfd==-0x64", signed(-100)));
        assert!(holds("dfd != 3", signed(-100)));
        assert!(holds("x >= 0xffffffffffffffff", unsigned(u64::MAX)));
        assert!(holds("x > -1", unsigned(0)));
        assert!(holds("x < 5", unsigned(4)) && !holds("x < 5", unsigned(5)) && holds("x <= 5", unsigned(5)));
        assert!(!holds("x != 5", Value::Fault), "what could not be read matches nothing");
    }

    #[test]
    fn texts() {
        assert!(holds("name == /etc/passwd", Value::Bytes(b"/etc/passwd")));
        assert!(holds("name == '/etc/passwd'", Value::Bytes(b"/etc/passwd")));
        assert!(holds("name ~ /etc/*", Value::Bytes(b"/etc/passwd")));
        assert!(!holds("name ~ \"*.so\"", Value::Bytes(b"/etc/passwd")));
        assert!(holds("letter == a", Value::Char(b'a')) && holds("letter == 0x61", Value::Char(b'a')));
        let symbol = Value::Symbol(Address { address: 16, text: Some("do_sys_open+0x10/0x20") });
        assert!(
            holds("caller == do_sys_open", symbol)
                && holds("caller ~ do_*", symbol)
                && holds("caller == 16", symbol)
        );
        assert!(!holds("caller != do_sys_open", symbol));
    }

    #[test]
    fn what_is_no_condition() {
        for text in ["", "dfd", "dfd = 3", "== 3", "a b"] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }
}
