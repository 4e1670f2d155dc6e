//! Rendering in the words of 2009: a definition in the first version of the language, as far as
//! that can express it.
//!
//! Owns the way back: parsing the text in that dialect gives the definition. Parts that came later
//! (types, groups, user memory, constants, names from BTF) have no text of 2009. The return address
//! is a field of every return event today and not an argument, so this never writes `ra`.

use super::ast::{Argument, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition, ProbeKind};

/// The line of 2009. The definition must have a name for every argument.
pub(super) fn old_form(definition: &ProbeDefinition) -> Option<String> {
    if definition.group.is_some() || definition.maxactive.is_some() {
        return None;
    }
    let letter = match definition.kind {
        ProbeKind::Entry => 'p',
        ProbeKind::Return => 'r',
        ProbeKind::Event => return None,
    };
    let event = definition.event.as_ref().map(|event| format!(":{}", event.text)).unwrap_or_default();
    let at_function = match &definition.place {
        Place::Symbol { module: None, offset, .. } => *offset == 0,
        Place::Symbol { module: Some(_), .. } => return None,
        Place::Address { .. } | Place::Event { .. } => false,
    };
    let mut words = vec![format!("{letter}{event}"), definition.place.to_string()];
    for argument in &definition.args {
        words.push(argument_form(argument, at_function)?);
    }
    Some(words.join(" "))
}

fn argument_form(argument: &Argument, at_function: bool) -> Option<String> {
    if argument.ty.is_some() {
        return None;
    }
    let fetch = fetch_form(&argument.fetch, at_function)?;
    let name = argument.name.as_ref()?;
    // A word is its own name.
    if name.text == fetch { Some(fetch) } else { Some(format!("{}={fetch}", name.text)) }
}

fn fetch_form(fetch: &Fetch, at_function: bool) -> Option<String> {
    Some(match &fetch.kind {
        FetchKind::Argument(index) if at_function => format!("a{}", index.checked_sub(1)?),
        FetchKind::StackNth(index) => format!("s{index}"),
        FetchKind::Stack => "sa".to_owned(),
        FetchKind::Retval => "rv".to_owned(),
        FetchKind::Register(_)
        | FetchKind::Memory(MemoryAddress::Address(_) | MemoryAddress::Symbol { .. }) => fetch.to_string(),
        FetchKind::Deref { user: false, offset, inner } => {
            let sign = if *offset < 0 { '-' } else { '+' };
            format!("{sign}{}({})", offset.unsigned_abs(), fetch_form(inner, at_function)?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ast::Definition;
    use super::super::dialect::{Dialect, parse_as};
    use super::super::features::Features;
    use super::*;
    use crate::definition::tests::strategies::definitions;
    use crate::samples::{v6_1, v6_12, v7_3};

    fn read(text: &str, features: &Features) -> ProbeDefinition {
        match parse_as(Dialect::Legacy, text, features).result {
            Ok(Definition::Probe(read)) => read.with_explicit_names(),
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Every form of the documents of 2009, and its rendering.
    #[test]
    fn documented_forms() {
        let same = [
            "p:myprobe do_sys_open dfd=a0 filename=a1 flags=a2 mode=a3",
            "p:myprobe do_sys_open a0 a1 a2 a3",
            "p do_sys_open",
            "p:x do_sys_open+4 r=%ax",
            "p:x 0xffffffff81000000 r=%ax",
            "p:x f n=s0 m=s12 a=sa",
            "p:x f s0 sa",
            "p:x f m=@0xffffffff81000000 n=@jiffies o=@jiffies+8 p=@jiffies-8",
            "p:x f m=+8(a0) n=-16(sa) o=+4(+8(%di)) q=+0(s3)",
            "r:myretprobe do_sys_open rv",
            "r do_sys_open value=rv next=+8(rv)",
        ];
        for features in [v6_1(), v6_12()] {
            for text in same {
                assert_eq!(old_form(&read(text, &features)).as_deref(), Some(text));
            }
        }
        for (text, written) in [
            ("r:myretprobe do_sys_open rv ra", "r:myretprobe do_sys_open rv"),
            ("r f+0 rv", "r f rv"),
            ("p f %ax @16", "p f arg1=%ax arg2=@16"),
            // Outside of a function's entry, `a0` is the register at that place.
            ("p f+4 a0 a6", "p f+4 a0=%di a6=s1"),
        ] {
            assert_eq!(old_form(&read(text, &v6_1())).as_deref(), Some(written), "{text}");
        }
    }

    #[test]
    fn what_came_later_has_no_such_form() {
        for text in [
            "p:g/x f",
            "r10 f",
            "p mod:f",
            "p f a0:u8",
            "p f x=+u0(a0)",
            "p f \\1",
            "p f $comm",
            "p f x=+0(a0):string",
        ] {
            assert_eq!(old_form(&read(text, &v6_12())), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

        #[test]
        fn the_form_of_2009_says_the_same(definition in definitions()) {
            let definition = ProbeDefinition { group: None, maxactive: None, ..definition };
            let name = definition.event.as_ref().map_or_else(String::new, |event| format!(":{}", event.text));
            let line = definition.render("g", "e").replacen(":g/e", &name, 1);
            let Ok(Definition::Probe(read_now)) = parse_as(Dialect::Kernel, &line, &v7_3()).result else {
                return Ok(());
            };
            let named = read_now.with_explicit_names();
            let simple = ProbeDefinition {
                args: named.args.iter().filter(|one| argument_form(one, false).is_some()).cloned().collect(),
                ..named.without_spans()
            };
            for meant in [named, simple] {
                if let Some(text) = old_form(&meant)
                    && let Ok(Definition::Probe(again)) = parse_as(Dialect::Legacy, &text, &v7_3()).result
                {
                    prop_assert_eq!(again.with_explicit_names().without_spans(), meant.without_spans(), "{}", text);
                }
            }
        }
    }
}
