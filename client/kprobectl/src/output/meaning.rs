//! Change of meaning: what a definition records on the running kernel, and on the one it was made
//! for.

use std::fmt::Write as _;

use kprobed_client::api::{KernelBuild, MeaningChange, MeaningDifference};

use super::data::one_line;

/// Blanks between the two sides.
const GAP: usize = 3;

/// Both sides of each difference: side by side if they fit, otherwise one below the other. Then the
/// line for the running kernel.
pub(super) fn render(change: &MeaningChange, columns: usize) -> String {
    let heading = |word: &str, kernel: Option<&KernelBuild>, module: Option<&KernelBuild>| {
        let kernel = kernel.map_or("unknown", |kernel| kernel.name.as_str());
        // Builds of one release differ in their module only.
        let id = module.map(|module| module.build_id.as_str()).filter(|id| !id.is_empty());
        let id = id.map(|id| format!(" ({})", id.chars().take(12).collect::<String>())).unwrap_or_default();
        format!("{word} {kernel}{id}")
    };
    let left = heading("MADE FOR", change.made_for.as_ref(), change.module_made_for.as_ref());
    let right = heading("ON", change.running.as_ref(), change.module_running.as_ref());
    let mut text = String::new();
    let mut shown = None;
    for MeaningDifference { message, before, after, .. } in &change.differences {
        writeln!(text, "\n{}", one_line(message)).ok();
        let sides = (before.as_str(), after.as_str());
        if sides == ("", "") || shown == Some(sides) {
            continue;
        }
        shown = Some(sides);
        push_sides(&mut text, (&left, before), (&right, after), columns);
    }
    if !change.offered_definition.is_empty() {
        let kernel = change.running.as_ref().map_or("this kernel", |kernel| kernel.name.as_str());
        writeln!(text, "\nthe line for {kernel}:\n  {}", one_line(&change.offered_definition)).ok();
    }
    text
}

fn push_sides(text: &mut String, left: (&str, &str), right: (&str, &str), columns: usize) {
    let lines = |(heading, side): (&str, &str)| -> Vec<String> {
        let side = if side.is_empty() { "(not known)" } else { side };
        std::iter::once(heading).chain(side.lines()).map(one_line).collect()
    };
    let (left, right) = (lines(left), lines(right));
    let width = |lines: &[String]| lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
    let (left_width, right_width) = (width(&left), width(&right));
    if 2 + left_width + GAP + right_width <= columns {
        for index in 0..left.len().max(right.len()) {
            let side = |lines: &[String]| lines.get(index).cloned().unwrap_or_default();
            let (left, right) = (side(&left), side(&right));
            writeln!(text, "{}", format!("  {left:<left_width$}{:GAP$}{right}", "").trim_end()).ok();
        }
        return;
    }
    for side in [left, right] {
        for (index, line) in side.iter().enumerate() {
            let indent = if index == 0 { 2 } else { 4 };
            writeln!(text, "{:indent$}{line}", "").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> MeaningChange {
        let build = |name: &str| Some(KernelBuild { name: name.to_owned(), build_id: "12ab".to_owned() });
        MeaningChange {
            made_for: build("6.1"),
            running: build("6.12"),
            differences: vec![MeaningDifference {
                code: "LAYOUT_CHANGED".to_owned(),
                argument: "flags".to_owned(),
                message: "`+64(%di)` read `f_flags` and reads `f_pos` now".to_owned(),
                before: "struct file\n+64  f_flags".to_owned(),
                after: "struct file\n+64  f_pos\n+72  f_ra".to_owned(),
            }],
            offered_definition: "p:kprobes/a f flags=+72(%di)".to_owned(),
            ..MeaningChange::default()
        }
    }

    #[test]
    fn both_sides_are_beside_each_other_where_that_fits() {
        let expected = "
`+64(%di)` read `f_flags` and reads `f_pos` now
  MADE FOR 6.1   ON 6.12
  struct file    struct file
  +64  f_flags   +64  f_pos
                 +72  f_ra

the line for 6.12:
  p:kprobes/a f flags=+72(%di)
";
        assert_eq!(render(&change(), 80), expected);
    }

    #[test]
    fn both_sides_are_below_each_other_where_it_is_narrow() {
        let expected = "
`+64(%di)` read `f_flags` and reads `f_pos` now
  MADE FOR 6.1
    struct file
    +64  f_flags
  ON 6.12
    struct file
    +64  f_pos
    +72  f_ra
";
        let change = MeaningChange { offered_definition: String::new(), ..change() };
        assert_eq!(render(&change, 20), expected);
        assert_eq!(render(&change, 0), expected);
    }

    #[test]
    fn nothing_is_left_out_and_nothing_moves_the_cursor() {
        let mut change = change();
        change.differences[0].message = "\x1b[2J".to_owned();
        change.differences[0].before = String::new();
        for columns in 0..100 {
            let text = render(&change, columns);
            assert!(
                text.contains("(not known)") && text.contains("f_ra") && !text.contains('\x1b'),
                "{text}"
            );
        }
    }
}
