//! `kprobectl functions`: functions by name.

use clap::Args;
use kprobed_client::api::{Function, ListFunctionsRequest};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Tone};

const AFTER_HELP: &str = "\
PLACE is how a definition names this function: its name, or something else if several functions \
have that name. A function can be probed if ftrace can trace it (TRACEABLE) and it is not on the \
kernel's kprobe blacklist (BLACKLISTED).

Examples:
  kprobectl functions vfs_read
  kprobectl functions 'vfs_*' --traceable
  kprobectl functions --module btrfs -o json | jq -r .place";

/// Arguments of `functions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// A glob for whole names (`*`, `?`), or a part of a name
    #[arg(default_value = "", hide_default_value = true, required_unless_present = "module")]
    pattern: String,
    /// Only functions of this loaded module [default: of the kernel and all modules]
    #[arg(short, long, default_value = "", hide_default_value = true)]
    module: String,
    /// Only functions that ftrace can trace
    #[arg(short, long)]
    traceable: bool,
}

impl MessageRow for Function {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("FUNCTION", |function| Cell::text(&function.name)),
        Column::new("MODULE", |function| Cell::text(&function.module)),
        Column::new("SIZE", |function| Cell::number(function.size_bytes)),
        Column::new("TRACEABLE", |function| yes_or_no(function.traceable, true)),
        Column::new("BLACKLISTED", |function| yes_or_no(function.blacklisted, false)),
        Column::new("PLACE", |function| Cell::text(&function.place)),
    ];
}

fn yes_or_no(yes: bool, good: bool) -> Cell {
    Cell::toned(if yes { "yes" } else { "no" }, if yes == good { Tone::Plain } else { Tone::Bad })
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let Arguments { pattern, module, traceable } = arguments;
    let request = ListFunctionsRequest {
        pattern: pattern.clone(),
        module: module.clone(),
        traceable_only: traceable,
        ..Default::default()
    };
    let answer = client.list_functions(request).await?;
    if answer.functions.is_empty() {
        let hints = answer.suggestions.iter().map(|name| format!("did you mean `{name}`?"));
        return Err(Failure::new(Exit::Refused, nothing(&pattern, &module, traceable), hints));
    }
    output.rows(&answer.functions)?;
    Ok(Exit::Success)
}

/// What was looked for and is not there.
fn nothing(pattern: &str, module: &str, traceable: bool) -> String {
    let function = if traceable { "no traceable function" } else { "no function" };
    match (pattern, module) {
        ("", module) => format!("module `{module}` has {function}"),
        (pattern, "") => format!("{function} matches `{pattern}`"),
        (pattern, module) => format!("{function} of module `{module}` matches `{pattern}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() {
        assert_eq!(nothing("vfs_raed", "", false), "no function matches `vfs_raed`");
        assert_eq!(nothing("", "ext4", true), "module `ext4` has no traceable function");
        assert_eq!(nothing("a*", "ext4", false), "no function of module `ext4` matches `a*`");
    }
}
