//! A small model of the kernel's filter, for the filters that it gets from ours.
//!
//! It compares what is in a record, whether or not it was read (kernel/trace/trace_events_filter.c: `predicate_parse`,
//! `parse_pred`, `filter_pred_*`): the guest theme `filters` shows that real kernels do.

use super::Event;

/// What a record has where nothing could be read, and what the kernel knows of a task that the daemon does not know.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub(super) number: i64,
    pub(super) text: String,
}

/// Whether an event passes a filter in the kernel.
pub(super) fn passes(filter: &str, event: &Event, rest: &Rest) -> bool {
    let mut parser = Parser { left: filter, event, rest };
    let passes = parser.any();
    assert!(parser.left.trim().is_empty(), "{filter:?}: {:?} is left", parser.left);
    passes
}

struct Parser<'a> {
    left: &'a str,
    event: &'a Event,
    rest: &'a Rest,
}

impl Parser<'_> {
    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.left.trim_start().strip_prefix(sign);
        rest.inspect(|rest| self.left = rest).is_some()
    }

    fn any(&mut self) -> bool {
        let mut passes = self.all();
        while self.takes("||") {
            passes |= self.all();
        }
        passes
    }

    fn all(&mut self) -> bool {
        let mut passes = self.one();
        while self.takes("&&") {
            passes &= self.one();
        }
        passes
    }

    fn one(&mut self) -> bool {
        if self.takes("!") {
            return !self.one();
        }
        if self.takes("(") {
            let passes = self.any();
            assert!(self.takes(")"), "{:?}", self.left);
            return passes;
        }
        self.comparison()
    }

    fn comparison(&mut self) -> bool {
        let field = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        let operators = ["==", "!=", "<=", ">=", "<", ">", "&", "~"];
        let operator = operators.into_iter().find(|operator| self.takes(operator)).unwrap();
        if self.takes("\"") {
            let (text, left) = self.left.split_once('"').unwrap();
            self.left = left;
            return self.text(&field, operator, text);
        }
        let word = self.word(|c| c.is_ascii_alphanumeric() || c == '-');
        let number = match word.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).unwrap(),
            None => word.parse().unwrap(),
        };
        self.number(&field, operator, number)
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let text = self.left.trim_start();
        let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
        let (word, left) = text.split_at(end);
        self.left = left;
        word.to_owned()
    }

    /// Numbers are cut to the size of the field, and have its sign.
    fn number(&self, field: &str, operator: &str, operand: i64) -> bool {
        let (event, rest) = (self.event, self.rest.number);
        let cut = |number: i64| {
            let [first, second, third, fourth, ..] = number.to_le_bytes();
            match field {
                "u8" => first.into(),
                "s16" => i16::from_le_bytes([first, second]).into(),
                "s32" | "common_pid" | "CPU" => i32::from_le_bytes([first, second, third, fourth]).into(),
                "s64" => number,
                _ => panic!("{field}"),
            }
        };
        let value = match field {
            "u8" => event.u8.map(i64::from),
            "s16" => event.s16.map(i64::from),
            "s32" => event.s32.map(i64::from),
            "s64" => event.s64,
            "common_pid" => Some(event.tid.into()),
            _ => Some(event.cpu.into()),
        };
        let (value, operand) = (cut(value.unwrap_or(rest)), cut(operand));
        match operator {
            "==" => value == operand,
            "!=" => value != operand,
            "<" => value < operand,
            "<=" => value <= operand,
            ">" => value > operand,
            ">=" => value >= operand,
            "&" => value & operand != 0,
            _ => panic!("{operator}"),
        }
    }

    fn text(&self, field: &str, operator: &str, operand: &str) -> bool {
        let known = match field {
            "text" => &self.event.text,
            "COMM" => &self.event.comm,
            _ => panic!("{field}"),
        };
        let value = known.as_deref().unwrap_or(&self.rest.text);
        match (operator, operand.strip_suffix('*')) {
            ("==", _) => value == operand,
            ("!=", _) => value != operand,
            ("~", Some(start)) if !start.contains('*') => value.starts_with(start),
            _ => panic!("{operator} {operand}"),
        }
    }
}
