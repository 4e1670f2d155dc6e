//! Livepatched functions: what a livepatch does to a probe in a function that it redirects.
//!
//! Owns which probes the kernel then ignores, and the warnings about those and the others. Never reads
//! livepatches: that is [`Livepatches`].
//!
//! A livepatch is a handler at the function's ftrace call site that leads to another function
//! (kernel/livepatch/patch.c:klp_ftrace_handler). The kernel calls all handlers at that site, in
//! any order, and that of kprobes restores the address to go on at
//! (arch/x86/kernel/kprobes/ftrace.c: kprobe_ftrace_handler), so that a probe at the entry fires
//! with each call, and so does a return probe, when the new function returns. The code after the
//! call site is not run any more (Documentation/livepatch/livepatch.rst, "Limitations"): a
//! breakpoint in it is never reached. The guest test `livepatch` counts this on 6.1 and 6.12.

use kprobed_host::kernel::{Livepatches, Progress, Redirect};
use kprobed_lang::definition::{Code, Diagnostic, ProbeKind, Span};
use kprobed_verdict::checker::CheckOutcome;
use kprobed_verdict::validate::Arming;

/// A warning for the writer of a checked definition, if a livepatch has redirected its function.
pub fn livepatch_warning(outcome: &CheckOutcome, livepatches: &Livepatches) -> Option<Diagnostic> {
    let CheckOutcome { definition, report, text, .. } = outcome;
    warning(livepatches, (&report.location, definition.kind, report.arming), text.as_str())
}

/// What the writer of a definition should know of the livepatches of this host. Its place is
/// `[MODULE:]FUNCTION+0xOFFSET`, with how the kernel arms it. `text` is the definition.
pub(super) fn warning(
    livepatches: &Livepatches,
    (location, kind, arming): (&str, ProbeKind, Option<Arming>),
    text: &str,
) -> Option<Diagnostic> {
    let (module, place) =
        location.split_once(':').map_or((None, location), |(module, place)| (Some(module), place));
    let (function, offset) = place.rsplit_once('+')?;
    // The compiler moves code that is rarely run out of a function: nothing else leads there.
    let (function, is_cold) = function.strip_suffix(".cold").map_or((function, false), |whole| (whole, true));
    let is_at_entry = arming.map_or(offset == "0x0", |arming| arming == Arming::Ftrace);
    // With a call, whichever function runs then.
    let fires = !is_cold && (kind == ProbeKind::Return || is_at_entry);
    let redirect = livepatches.redirect_of(module, function)?;
    let (message, hint) = effect(redirect, (function, offset), fires.then_some(kind));
    let start = text.find(function).unwrap_or_default();
    let end = if text.contains(function) { start + function.len() } else { text.len() };
    Some(Diagnostic { hint, ..Diagnostic::warning(Code::Livepatched, Span::new(start, end), message) })
}

/// What a livepatch does to a probe at this place, and what to do if the kernel ignores it for some tasks at least.
/// `fires`: its kind, if it fires all the same.
fn effect(
    Redirect { patch, progress, position, .. }: &Redirect,
    (function, offset): (&str, &str),
    fires: Option<ProbeKind>,
) -> (String, Option<String>) {
    if *position > 1 {
        // A name alone means the first symbol of it. Which symbol another spelling of the place
        // means is not known here.
        let message = format!(
            "livepatch `{patch}` has redirected number {position} of the functions that are called `{function}`: a \
             probe inside that one is ignored"
        );
        return (message, None);
    }
    if let Some(kind) = fires {
        let when = match kind {
            ProbeKind::Entry | ProbeKind::Event => "fires with each call",
            ProbeKind::Return => "fires with each return",
        };
        let whose = match progress {
            Progress::Enabled => "and the code that runs is that of the livepatch",
            Progress::Enabling | Progress::Disabling => {
                "and for a part of the tasks the code that runs is that of the livepatch"
            }
        };
        let message = format!("livepatch `{patch}` has redirected `{function}`: the probe {when}, {whose}");
        return (message, None);
    }
    let message = match progress {
        Progress::Enabled => {
            format!("livepatch `{patch}` has redirected `{function}`: the code at +{offset} is not run")
        }
        Progress::Enabling => format!(
            "livepatch `{patch}` is redirecting `{function}`: only tasks that it has not reached yet run the \
             code at +{offset}"
        ),
        Progress::Disabling => format!(
            "livepatch `{patch}` is being switched off: only tasks that have left it run the code of \
             `{function}` at +{offset}"
        ),
    };
    let hint = format!(
        "probe the function that takes its place (`kprobectl functions --module {patch}` lists the functions of the \
         livepatch), or the entry of `{function}`"
    );
    (message, Some(hint))
}
