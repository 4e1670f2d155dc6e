//! Generator of file paths, and of filters on them.

use crate::differential::Random;

/// Paths that are opened.
const PATHS: usize = 60;

/// Bytes of paths: lowest and highest ones, but none that shells treat specially.
const BYTES: &[u8] = &[0x02, b'0', b'A', b'A', b'B', b'a', b'z', 0x7e, 0xbf, 0xf0, 0xff, 0xff];

/// Numbers in a path: name, place, size in bytes, sign.
const NUMBERS: &[(&str, usize, usize, bool)] = &[
    ("u8", 5, 1, false),
    ("u16", 6, 2, false),
    ("u32", 7, 4, false),
    ("u64", 5, 8, false),
    ("s8", 6, 1, true),
    ("s16", 5, 2, true),
    ("s32", 9, 4, true),
    ("s64", 8, 8, true),
    ("x8", 7, 1, false),
    ("x32", 5, 4, false),
    ("sym", 6, 8, false),
    ("four", 5, 4, false),
    ("pair", 6, 4, true),
    ("one", 5, 8, false),
];

pub(super) fn paths(random: &mut Random) -> Vec<Vec<u8>> {
    (0..PATHS)
        .map(|_| {
            let length = 12 + random.below(4);
            b"/tmp/".iter().copied().chain((0..length).map(|_| *random.pick(BYTES))).collect()
        })
        .collect()
}

/// A filter, which is mostly a good one.
pub(super) fn filter(random: &mut Random, paths: &[Vec<u8>]) -> String {
    let mut text = expression(random, paths, 3);
    if random.below(5) == 0 {
        let pieces = [
            "",
            "(",
            ")",
            "!",
            "&&",
            "||",
            "&",
            "=",
            "'",
            "\"",
            " 1 ",
            "nosuch == 1",
            ".function",
            ".ustring",
            "CPUS{",
            "-",
            "{",
            "0x",
            " u8 ",
        ];
        let mut at = random.below(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let piece: &str = random.pick::<&str>(&pieces);
        text.insert_str(at, piece);
        if random.below(2) == 0 && at > 0 && text.is_char_boundary(at - 1) {
            text.remove(at - 1);
        }
    }
    // An empty text and `0` take a filter away.
    if text.trim().is_empty() || text.trim() == "0" { "u8".to_owned() } else { text }
}

fn expression(random: &mut Random, paths: &[Vec<u8>], depth: usize) -> String {
    let mut part = || expression(random, paths, depth.saturating_sub(1));
    if depth == 0 {
        return term(random, paths);
    }
    let (a, b) = (part(), part());
    match random.below(7) {
        0 => format!("{a} && {b}"),
        1 => format!("{a}||{b}"),
        2 => format!("({a} || {b} ) && {}", term(random, paths)),
        3 => format!("!({a} && {b} )"),
        4 => format!("! {a}"),
        _ => term(random, paths),
    }
}

fn term(random: &mut Random, paths: &[Vec<u8>]) -> String {
    match random.below(16) {
        0..=6 => number(random, paths),
        7..=10 => text(random, paths),
        11 => {
            let field = *random.pick(&["comm", "COMM", "task"]);
            let operator = *random.pick(&["==", "!=", "~"]);
            let names = ["cat", "sh", "c*", "*at", "*a*", "?at", "[a-d]a?", "!s*", "*", "ca", "cat*"];
            format!("{field} {operator} \"{}\"", random.pick(&names))
        }
        12 => {
            let field = *random.pick(&["__probe_ip", "ret", "sym", "u64", "u32", "text"]);
            let operator = *random.pick(&["==", "!=", "=="]);
            let function = *random.pick(&[
                "do_sys_openat2",
                "vfs_read",
                "do_sys_open",
                "__x64_sys_openat",
                "no_such_function",
                "5",
            ]);
            format!("{field}.function {operator} {function} ")
        }
        13 => {
            let field = *random.pick(&[
                "CPU",
                "cpu",
                "common_cpu",
                "u8",
                "x8",
                "s8",
                "u16",
                "s16",
                "x32",
                "u64",
                "text",
                "bits",
            ]);
            let operator = *random.pick(&["&", "&", "&", "==", "!=", "<"]);
            let list = *random.pick(&[
                "0", "0-3", "2", "1,5,9-63", "0-63:3/7", "63", "", "3-1", "60-64", "all", "x", "48-63",
            ]);
            format!("{field} {operator} CPUS{{{list}}}")
        }
        _ => {
            let field = *random.pick(&[
                "common_pid",
                "common_type",
                "common_flags",
                "common_preempt_count",
                "CPU",
                "cpu",
                "bits",
            ]);
            let operator = *random.pick(&["==", "!=", "<", "<=", ">", ">=", "&"]);
            let number = *random.pick(&["0", "1", "-1", "4", "0x40", "255", "1000", "65535", "017"]);
            format!("{field} {operator} {number}")
        }
    }
}

/// A comparison with a number that a path has, or nearly.
fn number(random: &mut Random, paths: &[Vec<u8>]) -> String {
    let (field, at, size, signed) = *random.pick(NUMBERS);
    let path = random.pick(paths);
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&path[at..at + size]);
    let unused = 64 - 8 * size;
    let value = u64::from_le_bytes(bytes) << unused;
    let operator = *random.pick(&["==", "!=", "<", "<=", ">", ">=", "&", "=="]);
    let blank = *random.pick(&[" ", ""]);
    let number = if signed {
        let value = value.cast_signed() >> unused;
        match random.below(6) {
            0 => value.saturating_add(1).to_string(),
            1 => value.saturating_sub(1).to_string(),
            2 => format!("{:#x}", value.unsigned_abs()),
            3 => (value.cast_unsigned() & (u64::MAX >> unused)).to_string(),
            _ => value.to_string(),
        }
    } else {
        let value = value >> unused;
        match random.below(6) {
            0 => value.saturating_add(1).to_string(),
            1 => value.saturating_sub(1).to_string(),
            2 => format!("{value:#x}"),
            3 => format!("0{value:o}"),
            4 => format!("-{value}"),
            _ => value.to_string(),
        }
    };
    format!("{field}{blank}{operator}{blank}{number}")
}

/// A comparison with a text that a path has, or nearly. Bytes that are not text stand for one by
/// `?`.
fn text(random: &mut Random, paths: &[Vec<u8>]) -> String {
    let path = random.pick(paths);
    let plain: String = path
        .iter()
        .map(|byte| if byte.is_ascii_alphanumeric() || *byte == b'/' { char::from(*byte) } else { '?' })
        .collect();
    let at = random.below(plain.len());
    let length = 1 + random.below(plain.len() - at);
    let piece = &plain[at..at + length];
    let pattern = match random.below(10) {
        0 => plain.clone(),
        1 => format!("{}*", &plain[..7]),
        2 => format!("*{}", &plain[plain.len() - 1..]),
        3 | 4 => format!("*{piece}*"),
        5 => format!("!*{piece}*"),
        6 => "/tmp/[A-B]*".to_owned(),
        7 => "/tmp/?[!A0]*".to_owned(),
        8 => format!("*{piece}[a-z]*"),
        _ => piece.to_owned(),
    };
    let operator = *random.pick(&["~", "~", "~", "==", "!=", "<"]);
    let quote = *random.pick(&['"', '\'']);
    let suffix = *random.pick(&["", "", "", ".ustring"]);
    format!("text{suffix} {operator} {quote}{pattern}{quote}")
}
