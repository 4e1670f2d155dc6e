//! Which texts are by source lines, and the ranges of lines that people look at.

use kprobed_lang::definition::short::is_of_other_tools;

use crate::error::{LinesError, Result};
use crate::grammar::{Definition, Target, Within, first_of, of_module};

/// Lines of a source that are shown after the first, if no last one is given.
const LINES_SHOWN: u32 = 10;

impl Definition {
    /// The definition, if the text is one that only debug information can answer: it has the number of a line, a
    /// source, a pattern, `$vars` or `$params`. A text in the kernel's own form, `p:[GROUP/]EVENT PLACE ...`, may have
    /// such a place too. `None`: the text is for the daemon.
    pub fn by_source(text: &str) -> Option<Result<Self>> {
        // A program of another tool, with an action in braces: the daemon knows what does the same. Only a pattern
        // can have a brace, and it follows a semicolon.
        if text.split_once('{').is_some_and(|(before, _)| !before.contains([';', '"'])) {
            return None;
        }
        let mut words = text.split_ascii_whitespace();
        let first = words.next()?;
        let (event, place) = match kernel_form(first) {
            Some(event) => (event, words.next()?),
            None => match first_of(first, ";=@+%") {
                Some(at) if first[at..].starts_with('=') => (&first[..at], &first[at + 1..]),
                _ => ("", first),
            },
        };
        let is_variables = |word| matches!(word, "$vars" | "$params");
        let is_plain = first_of(place, "(").is_none();
        let asks_for_variables = is_plain && words.clone().any(is_variables);
        if !(is_by_source(place) || asks_for_variables) {
            return None;
        }
        let is_return = kernel_form(first).is_some() && first.starts_with('r');
        let ending = if is_return && !place.contains('%') { "%return" } else { "" };
        let event =
            if event.is_empty() { String::new() } else { format!("{}=", event.replacen('/', ":", 1)) };
        let rest: Vec<_> = words.collect();
        Some(Self::parse(&format!("{event}{place}{ending} {}", rest.join(" "))))
    }
}

/// What follows the `p:` or `r:` of the kernel's language; empty behind `p` or `r` alone.
fn kernel_form(word: &str) -> Option<&str> {
    let rest = word.strip_prefix(['p', 'r'])?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(':') }
}

fn is_by_source(place: &str) -> bool {
    let (module, place) = of_module(place);
    if module.is_some_and(|module| is_of_other_tools(&module)) {
        return false;
    }
    let Some(at) = first_of(place, ";:@+%(").filter(|at| *at > 0) else { return false };
    let (mark, rest) = (&place[at..=at], &place[at + 1..]);
    match mark {
        ";" | "@" => true,
        // An offset in a program, as in `uprobe_events`, is not a line: the daemon says what it is.
        ":" if place.starts_with('/') && rest.starts_with("0x") => false,
        ":" => rest.starts_with(|c: char| c.is_ascii_digit()),
        _ => false,
    }
}

/// Lines to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The module that has them, if it is given.
    pub module: Option<String>,
    /// The first of them: a function means all of its lines.
    pub target: Target,
    /// The last of them, counted as the first one is. Absent: to the end of the function.
    pub last: Option<u32>,
}

impl Listing {
    /// Reads `[MODULE:]FUNC[@SRC][:LINE[-LAST|+COUNT]]` or `[MODULE:]SRC:LINE[-LAST|+COUNT]`.
    pub fn parse(text: &str) -> Result<Self> {
        let (module, place) = of_module(text);
        let refused = |why: &str| LinesError::new(format!("the range `{text}` {why}"));
        let number = |digits: &str| {
            let number: Option<u32> = digits.parse().ok();
            number.ok_or_else(|| refused(&format!("has `{digits}` where the number of a line belongs")))
        };
        // The range follows the last colon; a path may have a hyphen.
        let range =
            place.rsplit_once(':').filter(|(_, range)| range.starts_with(|c: char| c.is_ascii_digit()));
        let range = range.and_then(|(start, range)| Some((start, range, range.find(['-', '+'])?)));
        let (start, last) = match range {
            Some((start, range, at)) => {
                let (first, second) = (number(&range[..at])?, number(&range[at + 1..])?);
                let last =
                    if range[at..].starts_with('+') { first.checked_add(second) } else { Some(second) };
                let last =
                    last.filter(|last| first <= *last).ok_or_else(|| refused("ends before it begins"))?;
                (format!("{start}:{first}"), Some(last))
            }
            None => (place.to_owned(), None),
        };
        let target = Target::parse(&start)?;
        let last = match &target {
            Target::Line { line, .. } => last.or(Some(line.saturating_add(LINES_SHOWN))),
            Target::Function { within: Within::Entry | Within::Line(_), .. } => last,
            _ => {
                return Err(
                    refused("is not one of lines").hint("write `FUNC`, `FUNC:6-12` or `FILE:470-480`")
                );
            }
        };
        Ok(Self { module, target, last })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_by_source_are_told_from_those_of_the_kernel() {
        for text in [
            "vfs_read:11 count",
            "fs/read_write.c:468",
            "vfs_read;ret=*",
            "a.c;goto*",
            "vfs_read@read_write.c",
            "io:slow=vfs_read:11 count file->f_mode",
            "vfs_read $vars",
            "vfs_read $params",
            "vfs_read;if*{",
            "p:slow vfs_read:11 count",
            "p vfs_read:11",
            "p /usr/src/linux/fs/read_write.c:468",
            "nf_tables:nft_do_chain:3 pkt",
            "nf_tables:net/netfilter/nf_tables_core.c:120",
            "r:back vfs_read@fs/read_write.c $retval",
        ] {
            assert!(Definition::by_source(text).is_some_and(|read| read.is_ok()), "{text}");
        }
        for text in [
            "",
            "vfs_read",
            "vfs_read count pos",
            "vfs_read+0x10",
            "vfs_read%return",
            "p:open do_sys_openat2 dfd=$arg1:s32",
            "p:x nf_tables:nft_do_chain",
            "r16:x vfs_read $retval",
            "p vfs_read @jiffies",
            "p:bash /bin/bash:0x4245c0 %ip",
            "r /bin/bash:0x4245c0",
            "nf_tables:nft_do_chain",
            "sched:sched_switch",
            "tracepoint:sched:sched_switch",
            "sched/sched_switch",
            "kprobe:vfs_read",
            "ip_rcv(x64 skb | int skb[32])",
            "do_sys_openat2(filename:ustring) -> fd:s32",
            "f(int a) $vars",
            "vfs_*",
            "-:open",
            ":3",
            "kprobe:vfs_read{@[comm]=count();}",
            "kprobe:vfs_read/pid==1/{@=count();}",
            "watchpoint:0x1000:8:rw { printf(\"hit\"); }",
        ] {
            assert_eq!(Definition::by_source(text), None, "{text}");
        }
    }

    #[test]
    fn the_kernels_form_names_the_event() {
        let read = Definition::by_source("p:io/slow nf_tables:f:3 count").unwrap().unwrap();
        assert_eq!(read, Definition::parse("io:slow=nf_tables:f:3 count").unwrap());
        assert_eq!(read.module.as_deref(), Some("nf_tables"));
        let read = Definition::by_source("r:back vfs_read@a.c").unwrap().unwrap();
        assert_eq!(read, Definition::parse("back=vfs_read@a.c%return").unwrap());
        assert!(Definition::by_source("r:back vfs_read:3").unwrap().is_err());
    }

    #[test]
    fn ranges_count_as_their_first_line_does() {
        let line = |last| Listing {
            module: None,
            target: Target::Line { file: "fs/read-write.c".to_owned(), line: 470 },
            last: Some(last),
        };
        assert_eq!(Listing::parse("fs/read-write.c:470-480").unwrap(), line(480));
        assert_eq!(Listing::parse("fs/read-write.c:470+2").unwrap(), line(472));
        assert_eq!(Listing::parse("fs/read-write.c:470").unwrap(), line(480));
        let whole = Listing::parse("m:vfs_read@fs/a-b.c").unwrap();
        assert_eq!((whole.module.as_deref(), whole.last), (Some("m"), None));
        let part = Listing::parse("vfs_read:6-12").unwrap();
        assert!(
            matches!(part.target, Target::Function { within: Within::Line(6), .. }) && part.last == Some(12)
        );
        for text in ["", "f:9-3", "f:3-", "f:3-x", "f%return", "f+3", "f;x", "a.c:0-3", "f:99999999999-3"] {
            assert!(Listing::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in r"[pr]?[:]?[-a-z0-9_.:;=@+%()$/\\ ]{0,24}") {
            if let Some(Ok(read)) = Definition::by_source(&text) {
                prop_assert!(Definition::by_source(&text).is_some());
                prop_assert!(read.arguments.len() <= text.len());
            }
            if let Ok(listing) = Listing::parse(&text) {
                let first = match listing.target {
                    Target::Function { within: Within::Line(line), .. } | Target::Line { line, .. } => line,
                    _ => 0,
                };
                prop_assert!(listing.last.is_none_or(|last| last >= first));
            }
        }
    }
}
