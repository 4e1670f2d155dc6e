//! Call stacks as trees, and as folded lines for flame graphs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kprobed_client::api::StackKey;
use kprobed_client::api::key_value::Value;

use super::bucket::value;
use super::columns::{Columns, CountColumn};
use super::order::{Chosen, Group};
use super::text::{key_text, share};
use crate::output::data::one_line;
use crate::output::terminal::{Style, Tone};

/// Stacks below their counts, innermost function first.
pub(super) fn blocks(chosen: &Chosen<'_>, columns: &Columns, stack: usize, style: Style) -> String {
    let mut text = String::new();
    for group in &chosen.groups {
        if !text.is_empty() {
            text.push('\n');
        }
        let mut heading = format!("{} ({})", group.count, share(group.count, chosen.total));
        // Writing to a string cannot fail.
        for (index, column) in others(columns, stack) {
            write!(heading, "  {}={}", column.label(), key_text(group.key(index), column)).ok();
        }
        for (column, sum) in columns.sums.iter().zip(&group.sums) {
            let average = column.quantity.average(*sum, group.count);
            let sum = column.quantity.plain(*sum);
            write!(heading, "  {}={sum} (average {average})", column.label()).ok();
        }
        writeln!(text, "{}", style.paint(Tone::Strong, &heading)).ok();
        for frame in frames_of(group, stack) {
            writeln!(text, "    {}", one_line(frame)).ok();
        }
    }
    text
}

/// Stacks as lines of `OUTERMOST;…;INNERMOST NUMBER`, and how many have a number below 1, which a flame graph cannot
/// show. Ranges of a key are put together. Frames lose their offsets, and stacks that are the same then
/// are added up. The number is the first sum, or the count without one.
pub(super) fn folded(chosen: &Chosen<'_>, columns: &Columns, stack: usize) -> (String, usize) {
    let mut lines = BTreeMap::<String, i128>::new();
    for group in &chosen.groups {
        let keys = others(columns, stack).map(|(index, column)| key_text(group.key(index), column));
        let frames = frames_of(group, stack);
        let functions = frames
            .iter()
            .rev()
            .map(|frame| frame.split_once('+').map_or(*frame, |(function, _)| function).to_owned());
        let names: Vec<_> = keys.chain(functions).map(|name| one_line(&name).replace(';', ":")).collect();
        let weight = group.sums.first().copied().unwrap_or_else(|| group.count.into());
        let line = lines.entry(names.join(";")).or_default();
        *line = line.saturating_add(weight);
    }
    let (mut text, mut left_out) = (String::new(), 0);
    for (names, weight) in lines {
        if weight > 0 {
            writeln!(text, "{names} {weight}").ok();
        } else {
            left_out += 1;
        }
    }
    (text, left_out)
}

/// The keys besides the stack.
fn others(columns: &Columns, stack: usize) -> impl Iterator<Item = (usize, &CountColumn)> {
    let is_other = move |(index, _): &(usize, &CountColumn)| *index != stack && Some(*index) != columns.axis;
    columns.keys.iter().enumerate().filter(is_other)
}

fn frames_of<'a>(group: &Group<'a>, stack: usize) -> Vec<&'a str> {
    match value(group.key(stack)) {
        Some(Value::Stack(stack)) => frames(stack),
        _ => Vec::new(),
    }
}

/// Stands for the frames that the kernel could not find.
const MISSING: &str = "[missing]";

/// The frames of a stack, innermost first, with a mark where some are missing.
pub(super) fn frames(stack: &StackKey) -> Vec<&str> {
    let mut frames: Vec<_> = stack.frames.iter().map(String::as_str).collect();
    if stack.incomplete {
        frames.insert(1.min(frames.len()), MISSING);
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_frames_are_marked_where_they_are() {
        let frames = ["kernel_clone+0x9", "entry_SYSCALL_64_after_hwframe+0x76/0x7e"].map(str::to_owned);
        let stack = StackKey { frames: frames.to_vec(), incomplete: true };
        assert_eq!(super::frames(&stack), [frames[0].as_str(), MISSING, frames[1].as_str()]);
        assert_eq!(super::frames(&StackKey { incomplete: false, ..stack }), frames);
    }
}
