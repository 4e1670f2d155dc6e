//! Porting of source lines: one build is a fixture, and the other one is its origin or its source with changes.

use kprobed_lines::{Carried, DebugInfo, Definition, Image, LinesError, MadeOfLine, Wanted};
use proptest::prelude::*;

const SOURCE: &str = include_str!("fixtures/module.c");

const MODULE: &[u8] = include_bytes!("fixtures/module-5.o");

/// Answers a question with the debug information of the fixture.
#[cfg(test)]
fn with<T>(ask: impl FnOnce(&DebugInfo<'_>) -> T) -> T {
    let image = Image::read(MODULE).unwrap();
    ask(&DebugInfo::read(&image, None, &[]).unwrap())
}

/// The kernel's line of a definition at one of its places, with its origin.
#[cfg(test)]
fn made(info: &DebugInfo<'_>, text: &str, number: usize, source: Option<&str>) -> String {
    let definition = Definition::parse(text).unwrap();
    let sources = |_: &str| source.map(str::to_owned);
    let places = info.places(&definition.target, &sources).unwrap();
    let line = info.line(&definition, &places[number], number).unwrap();
    format!("{} {}", line.text, info.origin(&definition, &places[number], &places, "0a1b", &sources))
}

/// What becomes of the kernel's line of a definition: the line for this build without the names, and what carried it.
#[cfg(test)]
fn ported(
    info: &DebugInfo<'_>,
    line: &str,
    source: Option<&str>,
) -> Result<(String, Option<u32>, Carried), LinesError> {
    let made = MadeOfLine::read(line).unwrap();
    let ported = info.port(&made, &|_| source.map(str::to_owned))?;
    let line = info.line(&ported.definition, &ported.place, 0)?;
    let text = line.text.split_once(' ').unwrap().1.to_owned();
    Ok((text, ported.place.relative_line, ported.carried))
}

/// The source with one of its lines changed.
#[cfg(test)]
fn with_line(number: usize, text: &str) -> String {
    let mut lines: Vec<&str> = SOURCE.lines().collect();
    lines[number - 1] = text;
    lines.join("\n")
}

/// A kernel's line whose origin says something else.
#[cfg(test)]
fn moved(line: &str, from: &str, to: &str) -> String {
    assert!(line.contains(from), "{line}");
    line.replace(from, to)
}

#[test]
fn an_origin_has_what_a_port_needs() {
    let line = with(|info| made(info, "twice:3 doubled value", 1, Some(SOURCE)));
    let (_, comment) = line.split_once("# source: ").unwrap();
    let words: Vec<_> = comment.split(' ').collect();
    assert_eq!(words[..4], ["module.c:36", "twice:3", "build:0a1b", "at:1/1/second_caller"], "{line}");
    assert!(words[4] == "args:doubled,value" && words[5].starts_with("near:1/1/1/"), "{line}");
    assert!(words[6].starts_with("code:") && comment.ends_with("text: use(doubled);"), "{line}");
    let line = with(|info| made(info, "twice:3 doubled value", 1, None));
    assert!(
        line.contains(" args:doubled,value code:") && !line.contains("near:"),
        "no text is known: {line}"
    );
}

#[test]
fn the_same_build_has_the_same_lines() {
    for text in [
        "member:3 number",
        "member@module.c request->size@user n=number:x16",
        "twice:3 doubled",
        "shadow:5 value",
        "shadow:8 value",
        "member@module.c%return $retval",
        "module.c:95 $vars",
        "entry;use(3);",
        "call:2 number",
        "split:4 error",
    ] {
        with(|info| {
            let definition = Definition::parse(text).unwrap();
            let places = info.places(&definition.target, &|_| Some(SOURCE.to_owned())).unwrap();
            for source in
                [Some(SOURCE), None].into_iter().filter(|source| source.is_some() || !text.contains(';'))
            {
                for number in 0..places.len() {
                    let line = made(info, text, number, source);
                    let (again, _, carried) = ported(info, &line, source).unwrap();
                    assert!(
                        line.split_once(' ').unwrap().1.starts_with(&format!("{again} # source")),
                        "{again} {line}"
                    );
                    let by_name = text.contains("member@");
                    let by_line = if source.is_some() { Carried::Text } else { Carried::RelativeLine };
                    assert_eq!(carried, if by_name { Carried::Function } else { by_line }, "{line}");
                }
            }
        });
    }
}

#[test]
fn a_line_that_moved_is_carried_by_its_text() {
    with(|info| {
        let line = made(info, "member:3 number", 0, Some(SOURCE));
        let before = moved(&line, "module.c:29 member:3", "module.c:127 member:2");
        let found = ported(info, &before, Some(SOURCE)).unwrap();
        assert_eq!(found, ("fixture:member+11 number=%bx:u32".to_owned(), Some(3), Carried::Text));
        let before = moved(&before, "module.c:", "/usr/src/fixture-1.0/module.c:");
        assert_eq!(ported(info, &before, Some(SOURCE)).unwrap(), found, "a module is built elsewhere");
        // The lines around a text that is there once may change, but for one.
        let changed = with_line(28, "\tuse(request->name);");
        assert_eq!(ported(info, &before, Some(&changed)).unwrap(), found);
        let without =
            before.split_once("near:").unwrap().0.to_owned() + "near:1/1/1/1/2/3/4 code:0 text: use(number);";
        let error = ported(info, &without, Some(SOURCE)).unwrap_err();
        assert!(error.message().contains("in doubt") && error.message().contains("0 of 4"), "{error}");
    });
}

#[test]
fn a_text_that_changed_is_refused() {
    with(|info| {
        let line = made(info, "member:3 number", 0, Some(SOURCE));
        let error = ported(info, &line, Some(&with_line(29, "\tuse(number + 1);"))).unwrap_err();
        assert!(
            error.message().contains("no line of `member`") && error.message().contains("`use(number);`"),
            "{error}"
        );
        let error = ported(info, &line, Some(&format!("\n{SOURCE}"))).unwrap_err();
        assert!(error.message().contains("is not that of the running kernel"), "{error}");
        let error = ported(info, &moved(&line, "args:number", "args:nmber"), Some(SOURCE)).unwrap_err();
        assert!(error.message().contains("no variable `nmber`"), "{error}");
    });
}

#[test]
fn of_several_lines_the_neighbours_tell() {
    // `use(value);` is the lines 2, 6 and 8 of `shadow`.
    with(|info| {
        let line = made(info, "shadow:8 value", 0, Some(SOURCE));
        assert!(line.contains(" near:3/3/1/"), "{line}");
        for before in ["near:1/1/1/", "near:2/2/1/", "near:1/3/1/", "near:3/3/1/"] {
            let before = moved(&moved(&line, "near:3/3/1/", before), "shadow:8", "shadow:6");
            let (_, relative, carried) = ported(info, &before, Some(SOURCE)).unwrap();
            assert_eq!((relative, carried), (Some(8), Carried::Text), "{before}");
        }
        let (start, rest) = line.split_once("near:3/3/1/").unwrap();
        let with_hashes = |numbers: &str, hashes: &str| {
            let rest = rest.split_once(" code:").unwrap().1;
            format!("{start}near:{numbers}/{hashes} code:{rest}")
        };
        let hashes: Vec<_> = rest.split(' ').next().unwrap().split('/').collect();
        let one_new = [hashes[0], "1", hashes[2], hashes[3]].join("/");
        let (_, relative, carried) = ported(info, &with_hashes("3/3/1", &one_new), Some(SOURCE)).unwrap();
        assert_eq!((relative, carried), (Some(8), Carried::Text));
        for (numbers, hashes) in [
            ("2/3/1", one_new.as_str()),
            ("1/1/1", one_new.as_str()),
            ("2/2/1", one_new.as_str()),
            ("3/3/1", "1/2/3/4"),
            ("2/2/2", &hashes.join("/")),
            ("0/0/1", &one_new),
        ] {
            let error = ported(info, &with_hashes(numbers, hashes), Some(SOURCE)).unwrap_err();
            assert!(error.message().contains("in doubt which line"), "{numbers} {hashes}: {error}");
        }
    });
}

#[test]
fn of_lines_that_are_alike_the_number_tells_while_none_is_more_or_less() {
    // All lines of `shadow` from 1 to 9 are the same, and those around it.
    let mut lines: Vec<&str> = SOURCE.lines().collect();
    let first = lines.iter().position(|line| line.contains("void shadow(")).unwrap();
    lines[first + 1..first + 12].fill("\tuse(value);");
    let alike = lines.join("\n");
    with(|info| {
        let line = made(info, "shadow:5 value", 0, Some(&alike));
        assert!(line.contains(" near:5/11/7/"), "{line}");
        let (_, relative, carried) = ported(info, &line, Some(&alike)).unwrap();
        assert_eq!((relative, carried), (Some(5), Carried::Occurrence));
        let error = ported(info, &moved(&line, "near:5/11/", "near:5/12/"), Some(&alike)).unwrap_err();
        assert!(error.message().contains("there were 12 lines of this text, there are 11"), "{error}");
    });
}

#[test]
fn without_texts_the_number_tells_while_the_same_lines_have_code() {
    with(|info| {
        let line = made(info, "member:3 number", 0, None);
        for source in [None, Some(SOURCE)] {
            let (_, relative, carried) = ported(info, &line, source).unwrap();
            assert_eq!((relative, carried), (Some(3), Carried::RelativeLine));
        }
        let line = made(info, "member:3 number", 0, Some(SOURCE));
        let (_, relative, carried) = ported(info, &line, None).unwrap();
        assert_eq!((relative, carried), (Some(3), Carried::RelativeLine));
        let (start, code) = line.split_once("code:").unwrap();
        let error = ported(info, &format!("{start}code:00000000{}", &code[8..]), None).unwrap_err();
        assert!(
            error.message().contains("are others now") && error.hint_text().unwrap().contains("--source"),
            "{error}"
        );
        let error = ported(info, &moved(&line, "member:3", "member:9"), None).unwrap_err();
        assert!(error.message().contains("are others now"), "it has no code: {error}");
    });
}

#[test]
fn what_is_in_doubt_is_refused() {
    with(|info| {
        let refused = |line: &str| ported(info, line, Some(SOURCE)).unwrap_err().message().to_owned();
        assert!(refused(&made(info, "member@module.c+11", 0, Some(SOURCE))).contains("it is of an offset"));
        assert!(
            refused(&made(info, "member:3 x=%bx", 0, Some(SOURCE))).contains("nothing says what `x=%bx` has")
        );
        let line = made(info, "member:3 number", 0, Some(SOURCE));
        assert!(refused(&moved(&line, "at:1/1", "at:1/2")).contains("has 1 places in `member` and had 2"));
        assert!(refused(&moved(&line, "at:1/1", "at:1/1/caller")).contains("has 0 places in `caller`"));
        assert!(refused(&moved(&line, "member:3", "membr:3")).contains("has no function `membr`"));
        assert!(
            refused("p:a fixture:member+11 # source: module.c:29 member:3 build: text: use(number);")
                .contains("does not keep")
        );
        for line in ["p:a fixture:member+11", "r8:a f # source: a.c:1 f:1 build:"] {
            assert_eq!(MadeOfLine::read(line), None, "{line}");
        }
    });
}

proptest! {
    #[test]
    fn arguments_are_written_as_they_are_read(
        name in "([a-z_]{1,3}=)?", variable in "[a-z_][a-z0-9_]{0,5}",
        steps in r"(->[a-z]{1,3}|\.[a-z]{1,3}|\[[0-9]{1,4}\]){0,4}", ty in "(:[a-z0-9]{1,6})?", user in "(@user)?",
    ) {
        let read = Wanted::parse(&format!("{name}{variable}{steps}{ty}{user}")).unwrap();
        prop_assert_eq!(Wanted::parse(&read.to_string()).unwrap(), read);
    }

    #[test]
    fn no_comment_breaks_a_port(comment in r"\PC{0,80}", numbers in "[0-9/]{0,20}") {
        let before = with(|info| made(info, "shadow:8 value", 0, Some(SOURCE)));
        let (start, _) = before.split_once("near:").unwrap();
        for line in [format!("{start}{comment}"), format!("{start}near:{numbers}/1 at:{numbers} text: use(value);")] {
            if let Some(made) = MadeOfLine::read(&line) {
                with(|info| info.port(&made, &|_| Some(SOURCE.to_owned())).is_ok());
            }
        }
    }
}
