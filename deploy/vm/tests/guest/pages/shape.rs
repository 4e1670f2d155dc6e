//! What two outputs of a command have in common on two hosts: words, columns, fields and terms, and not their values.

/// The shape of a line: numbers with their units, quoted strings, bars and the names of tasks are as in every other
/// line. `in_table` says that the first column is the name of a task.
fn shape(line: &str, in_table: bool) -> String {
    if let Some(code) = code(line) {
        return code;
    }
    if line.starts_with("refused ") {
        // Kernels have had different errnos for the same reason.
        let is_errno = |word: &str| word.starts_with('E') && word.bytes().all(|c| c.is_ascii_uppercase());
        let words = line.split(' ').map(|word| if is_errno(word) { "ERRNO" } else { word });
        return words.collect::<Vec<_>>().join(" ");
    }
    let mut shape = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let before = shape.chars().next_back();
        let begins_word = before.is_none_or(|c| !c.is_alphanumeric() && !"_$%".contains(c));
        let (length, folded) = if c == '"' {
            (rest[1..].find('"').map_or(rest.len(), |end| end + 2), "\"\"")
        } else if c == '|' && rest[1..].trim_start_matches(['@', ' ']).starts_with('|') {
            (rest[1..].find('|').map_or(rest.len(), |end| end + 2), "||")
        } else if c == ' ' {
            let length = rest.len() - rest.trim_start_matches(' ').len();
            (length, if length == 1 { " " } else { "  " })
        } else if c.is_ascii_digit() && begins_word {
            (number(rest), "N")
        } else {
            (c.len_utf8(), &rest[..c.len_utf8()])
        };
        shape.push_str(folded);
        rest = &rest[length..];
    }
    let shape = shape.trim_end();
    // The task of an event follows its CPU; what follows is aligned with the events around it.
    if let Some((before, event)) = shape.split_once(" [N] ")
        && let Some((_, fields)) = event.split_once(' ')
    {
        let fields: Vec<_> = fields.split_whitespace().collect();
        return format!("{before} [N] TASK {}", fields.join(" "));
    }
    match shape.split_once("  ") {
        Some((_, columns)) if in_table => format!("TASK  {columns}"),
        _ => shape.to_owned(),
    }
}

/// How long the number at the beginning is, such as `0x1200000`, `4.096us`, `1014±92`, `05:44:18.233129`,
/// `2026-11-25T05:12:33Z` or the digest `1204:9f86d081...`.
fn number(text: &str) -> usize {
    let mut length = 0;
    for (at, c) in text.char_indices() {
        let is_date = c == '-' && text[at + 1..].starts_with(|next: char| next.is_ascii_digit());
        if !c.is_alphanumeric() && !".:±".contains(c) && !is_date {
            break;
        }
        length = at + c.len_utf8();
    }
    let found = &text[..length];
    if found.ends_with("...") { length } else { found.trim_end_matches(['.', ':']).len() }
}

/// The shape of a line of code: only what is said about the instruction.
fn code(line: &str) -> Option<String> {
    let (offset, bytes) = line.trim_start_matches(['>', '*', ' ']).strip_prefix('+')?.split_once("  ")?;
    let is_byte = |byte: &str| byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !offset.bytes().all(|digit| digit.is_ascii_digit()) || !bytes.split(' ').next().is_some_and(is_byte) {
        return None;
    }
    let remark = bytes.rsplit("  ").next().unwrap_or_default();
    let remark =
        if remark.trim_start().starts_with('+') { shape(remark.trim(), false) } else { String::new() };
    Some(format!("code {remark}"))
}

/// The shapes of lines. Lines of the same shape are one: there are as many as something has happened.
fn shapes(lines: &[&str]) -> Vec<String> {
    let mut in_table = false;
    let mut shapes: Vec<String> = Vec::new();
    for line in lines {
        in_table = !line.is_empty() && in_table;
        shapes.push(shape(line, in_table));
        in_table |= line.starts_with("COMM ");
    }
    shapes.dedup();
    while shapes.last().is_some_and(String::is_empty) {
        shapes.pop();
    }
    shapes
}

/// Whether a line is there only on a host where it counts something.
fn is_optional(shape: &str) -> bool {
    shape.starts_with("  N more ")
}

/// How many shapes agree from the beginning on, of the page and of the output.
fn agreeing(shown: &[String], printed: &[String]) -> (usize, usize) {
    let (mut at, mut of) = (0, 0);
    loop {
        let (expected, found) = (shown.get(at), printed.get(of));
        if expected.is_some_and(|expected| expected == "...") {
            // As few lines as the rest of the page allows.
            let rests = (of..=printed.len()).map(|from| {
                let (more, also) = agreeing(&shown[at + 1..], &printed[from..]);
                (at + 1 + more, from + also)
            });
            return rests.max_by_key(|end| (end.0, end.1 == printed.len())).unwrap_or((at, of));
        }
        let optional = |line: Option<&String>| line.is_some_and(|line| is_optional(line));
        match (optional(expected), optional(found)) {
            _ if expected.is_some() && expected == found => (at, of) = (at + 1, of + 1),
            (true, false) => at += 1,
            (false, true) => of += 1,
            _ => return (at, of),
        }
    }
}

/// Where what was printed is of another shape than what a page shows; `...` in the page is any lines. `None`: nowhere.
pub(super) fn difference(shown: &[&str], printed: &[&str]) -> Option<String> {
    let (shown, printed) = (shapes(shown), shapes(printed));
    let (at, of) = agreeing(&shown, &printed);
    if at == shown.len() && of == printed.len() {
        return None;
    }
    let line = |lines: &[String], at: usize| {
        lines.get(at).map_or("(nothing)".to_owned(), |line| format!("`{line}`"))
    };
    Some(format!("the page shows {}, and the command prints {}", line(&shown, at), line(&printed, of)))
}
