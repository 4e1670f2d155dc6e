//! Canned answers about a probe of a line.

use kprobed_client::api::*;

/// A probe of a line of the kernel in miniature that is held back: the line was another one.
pub(super) const OF_LINE: &str = "kprobes/line";

pub(super) fn of_line() -> Probe {
    let definition = "p:kprobes/line main_entry+99 value=%bx:u64 # source: kernel.c:16 main_entry:2 build:00 at:1/1 \
                      args:value near:1/1/1/d7e1c9ca/f301caa7/70dce4f4/00000000 code:00 text: here += same(value);";
    let difference = MeaningDifference { message: "the code differs".to_owned(), ..Default::default() };
    let change = MeaningChange {
        differences: vec![difference],
        offered_definition: "p:kprobes/line main_entry+98 value=%bx:u64".to_owned(),
        ..Default::default()
    };
    Probe {
        name: OF_LINE.to_owned(),
        definition: definition.to_owned(),
        kernel_definition: String::new(),
        state: ProbeState::HeldBack.into(),
        meaning_change: Some(change),
        ..super::answers::probe("kprobes/open")
    }
}
