//! Strategies for property tests: filters, events, and a second evaluator.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::Event;

/// A comparison as written, with its meaning: absent when the value could not be read.
#[derive(Debug, Clone)]
pub(super) enum Tree {
    Number { field: &'static str, operator: &'static str, operand: i64 },
    Text { field: &'static str, operator: &'static str, operand: String },
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

impl Tree {
    /// The text, with parentheses only where the precedence of C asks for them.
    pub(super) fn text(&self) -> String {
        let closed = |tree: &Self, open: bool| if open { format!("({})", tree.text()) } else { tree.text() };
        match self {
            Self::Number { field, operator, operand } => format!("{field} {operator} {operand}"),
            Self::Text { field, operator, operand } => format!("{field} {operator} \"{operand}\""),
            Self::Not(inner) => {
                format!("!{}", closed(inner, matches!(**inner, Self::And(..) | Self::Or(..))))
            }
            Self::And(a, b) => {
                let is_or = |tree: &Self| matches!(tree, Self::Or(..));
                format!("{} && {}", closed(a, is_or(a)), closed(b, is_or(b)))
            }
            Self::Or(a, b) => format!("{} || {}", a.text(), b.text()),
        }
    }

    /// Kleene's logic with a third value: a value that could not be read decides nothing.
    pub(super) fn holds(&self, event: &Event) -> Option<bool> {
        match self {
            Self::Number { field, operator, operand } => {
                let value: i64 = match *field {
                    "u8" => event.u8?.into(),
                    "s16" => event.s16?.into(),
                    "s32" => event.s32?.into(),
                    "s64" => event.s64?,
                    "tgid" => event.tgid?.into(),
                    "pid" => event.tid.into(),
                    _ => event.cpu.into(),
                };
                Some(match *operator {
                    "==" => value == *operand,
                    "!=" => value != *operand,
                    "<" => value < *operand,
                    "<=" => value <= *operand,
                    ">" => value > *operand,
                    ">=" => value >= *operand,
                    _ => value & operand != 0,
                })
            }
            Self::Text { field, operator, operand } => {
                let value = if *field == "text" { &event.text } else { &event.comm }.as_deref()?;
                Some(match *operator {
                    "==" => value == operand,
                    "!=" => value != operand,
                    // Only patterns that end with their only star are made.
                    _ => value.starts_with(operand.trim_end_matches('*')),
                })
            }
            Self::Not(inner) => inner.holds(event).map(|holds| !holds),
            Self::And(a, b) => match (a.holds(event), b.holds(event)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (a, b) => a.and(b),
            },
            Self::Or(a, b) => match (a.holds(event), b.holds(event)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (a, b) => a.and(b),
            },
        }
    }
}

fn numbers() -> impl Strategy<Value = Tree> {
    let operators = select(vec!["==", "!=", "<", "<=", ">", ">=", "&"]);
    let fields = select(vec![
        ("u8", 0, 255),
        ("s16", -300, 300),
        ("s32", -3, 3),
        ("s64", -3, 3),
        ("tgid", 0, 3),
        ("pid", 0, 3),
        ("CPU", 0, 3),
    ]);
    (fields, operators, any::<prop::sample::Index>()).prop_map(|((field, least, most), operator, index)| {
        let operator = if field == "CPU" && operator == "&" { "==" } else { operator };
        let span = usize::try_from(most - least + 1_i64).unwrap();
        Tree::Number { field, operator, operand: least + i64::try_from(index.index(span)).unwrap() }
    })
}

fn texts() -> impl Strategy<Value = Tree> {
    (select(vec!["text", "comm"]), select(vec!["==", "!=", "~"]), "[ab]{0,2}").prop_map(
        |(field, operator, mut operand)| {
            if operator == "~" {
                operand.push('*');
            }
            Tree::Text { field, operator, operand }
        },
    )
}

pub(super) fn trees() -> impl Strategy<Value = Tree> {
    prop_oneof![2 => numbers(), 1 => texts()].prop_recursive(5, 24, 2, |inner| {
        let pair = (inner.clone(), inner.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
        prop_oneof![
            inner.prop_map(|inner| Tree::Not(Box::new(inner))),
            pair.clone().prop_map(|(a, b)| Tree::And(a, b)),
            pair.prop_map(|(a, b)| Tree::Or(a, b)),
        ]
    })
}

pub(super) fn events() -> impl Strategy<Value = Event> {
    let numbers = (
        option::of(any::<u8>()),
        option::of(-300_i16..300),
        option::of(-3_i32..3),
        option::of(-3_i64..3),
        option::of(0_i32..3),
        0_i32..3,
        0_u32..3,
    );
    let texts = (option::of("[ab]{0,2}"), option::of("[ab]{0,2}"));
    (numbers, texts).prop_map(|((u8, s16, s32, s64, tgid, tid, cpu), (text, comm))| Event {
        u8,
        s16,
        s32,
        s64,
        text,
        comm,
        tgid,
        tid,
        cpu,
        ..Event::default()
    })
}

/// Something like a filter.
pub(super) fn nearly() -> impl Strategy<Value = String> {
    let pieces = vec![
        "u8",
        "text",
        "comm",
        "probe",
        "CPU",
        "place",
        ".function",
        ".ustring",
        "==",
        "!=",
        "<",
        "<=",
        "~",
        "&",
        "&&",
        "||",
        "!",
        "(",
        ")",
        "1",
        "-1",
        "0x1f",
        "08",
        "\"a*\"",
        "'b'",
        "\"",
        "'",
        "CPUS{1-2}",
        "CPUS{",
        "one",
        " ",
        "\n",
        "é",
        "\u{a0}",
        "\0",
        "*",
        "u8 == 1",
        "text ~ \"a\"",
        "u8 & 3",
    ];
    vec(select(pieces), 0..14).prop_map(|pieces| pieces.join(" ").replace(" .", "."))
}
