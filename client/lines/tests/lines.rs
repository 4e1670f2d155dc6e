//! Known answers: fixtures of GCC, whose sources say what is right and whose instructions say where it is.

use kprobed_lines::{
    DebugInfo, Definition, Identity, Image, LinesError, Listing, Place, Target, write_index,
};

const SOURCE: &str = include_str!("fixtures/module.c");

/// Answers a question with the debug information of a fixture.
#[cfg(test)]
fn with<T>(fixture: &str, ask: impl FnOnce(&DebugInfo<'_>) -> T) -> T {
    let read = |name: &str| {
        let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let (bytes, extra) = (read(fixture), read("supplementary.elf"));
    let split = read(if fixture == "module-split-4.o" { "module-split-4.dwp" } else { "module-split.dwo" });
    let image = Image::read(&bytes).unwrap();
    let extra = image.supplementary().map(|_| Image::read(&extra).unwrap());
    let split: Vec<_> = fixture.contains("split").then(|| Image::read(&split).unwrap()).into_iter().collect();
    ask(&DebugInfo::read(&image, extra.as_ref(), &split).unwrap())
}

fn texts(info: &DebugInfo<'_>, text: &str) -> Result<Vec<String>, LinesError> {
    let definition = Definition::parse(text)?;
    let places = info.places(&definition.target, &|path| (path == "module.c").then(|| SOURCE.to_owned()))?;
    let lines = (0..).zip(&places).map(|(number, place)| info.line(&definition, place, number));
    lines.map(|line| Ok(line?.text)).collect()
}

#[cfg(test)]
fn places(info: &DebugInfo<'_>, text: &str) -> Vec<Place> {
    info.places(&Target::parse(text).unwrap(), &|_| None).unwrap()
}

/// Definitions, and the lines that the kernel gets for them.
const ANSWERS: &[(&str, &[&str])] = &[
    // Members, elements, bit-fields, texts, arrays; members of a union without a name.
    ("member request->size", &["p:member fixture:member+0 size=+8(%di):u32"]),
    ("member request->flags.kind", &["p:member fixture:member+0 kind=+12(%di):b3@0/8"]),
    ("member request->flags.urgent", &["p:member fixture:member+0 urgent=+12(%di):b1@3/8"]),
    ("member request->corners[2].y", &["p:member fixture:member+0 y=+36(%di):s32"]),
    (
        "member request->high request->whole",
        &["p:member fixture:member+0 high=+52(%di):u32 whole=+48(%di):u64"],
    ),
    ("member request->next->next->size", &["p:member fixture:member+0 size=+8(+72(+72(%di))):u32"]),
    ("member request->name:string", &["p:member fixture:member+0 name=+0(+0(%di)):string"]),
    ("member request->name:string@user", &["p:member fixture:member+0 name=+0(+0(%di)):ustring"]),
    ("member request->size@user", &["p:member fixture:member+0 size=+u8(%di):u32"]),
    ("member request->label:string", &["p:member fixture:member+0 label=+56(%di):string"]),
    ("member request->label", &["p:member fixture:member+0 label=+56(%di):s8[16]"]),
    ("member request[1].size", &["p:member fixture:member+0 size=+88(%di):u32"]),
    ("member request number:x16", &["p:member fixture:member+0 request=%di:x64 number_x16=%si:x16"]),
    ("g:e=member %di $stack0 n=number", &["p:g/e fixture:member+0 %di $stack0 n=%si:u32"]),
    // A parameter that the function moves to another register.
    ("member:3 number", &["p:member_L3 fixture:member+11 number=%bx:u32"]),
    // A function that is only inlined, twice.
    (
        "twice:3 doubled",
        &[
            "p:twice_L3 fixture:first_caller+17 doubled=%bx:u64",
            "p:twice_L3_1 fixture:second_caller+6 doubled=%bx:u64",
        ],
    ),
    // The inner variable hides the outer one between lines 56 and 58.
    ("shadow value", &["p:shadow fixture:shadow+0 value=%di:u64"]),
    ("shadow:5 value", &["p:shadow_L5 fixture:shadow+17 value=%bp:u64"]),
    ("shadow:8 value", &["p:shadow_L8 fixture:shadow+34 value=%bx:u64"]),
    // Memory around the frame: below the return address, the saved register and 24 bytes more.
    ("frame:5 points[2].y", &["p:frame_L5 fixture:frame+24 y=+20(%sp):s32"]),
    ("frame:4 points[0].x seed", &["p:frame_L4 fixture:frame+16 x=+0(%sp):s32 seed=%bx:u64"]),
    // A constant.
    ("computed:6 fixed", &["p:computed_L6 fixture:computed+9 fixed=\\42:u64"]),
    // A structure in two registers.
    ("pieces pair.first pair.second", &["p:pieces fixture:pieces+0 first=%di:s64 second=%si:s64"]),
    ("pieces:3 pair.first pair.second", &["p:pieces_L3 fixture:pieces+4 first=%ax:s64 second=%si:s64"]),
    ("entry lost", &["p:entry fixture:entry+0 lost=%di:u64"]),
    // The unlikely part has a symbol of its own.
    ("split:4 error", &["p:split_L4 fixture:split.cold+15 error=%bx:u64"]),
    // Statics, by symbols of their own.
    (
        "statics:3 again counter",
        &["p:statics_L3 fixture:statics+0 again=@again.1+0:u32 counter=@counter+0:u32"],
    ),
    ("more_statics:2 again", &["p:more_statics_L2 fixture:more_statics+0 again=@again.0+0:u32"]),
    ("narrow small byte truth", &["p:narrow fixture:narrow+0 small=%di:s16 byte=%si:u8 truth=%dx:u8"]),
    // Of two functions that one line declares, the inner one has the lines of the body. A structure of one member.
    ("call:2 number", &["p:call_L2 fixture:inner_call+0 number=%di:u64"]),
    ("call registers", &["p:call fixture:call+0 registers=%di:x64"]),
    ("inner_call:2 number.value", &["p:inner_call_L2 fixture:inner_call+0 value=%di:u64"]),
    // Places: return, offset, pattern, lines of the source.
    ("entry%return $retval", &["r:entry__return fixture:entry+0 $retval"]),
    ("entry+9", &["p:entry fixture:entry+9"]),
    ("entry;use(3);", &["p:entry_L3 fixture:entry+9"]),
    ("entry@module.c;*lost)*", &["p:entry_L2 fixture:entry+0"]),
    ("module.c:95 $vars", &["p:entry_L3 fixture:entry+9"]),
    ("module.c;use(3);", &["p:entry_L3 fixture:entry+9"]),
    ("member $params", &["p:member fixture:member+0 request=%di:x64 number=%si:u32"]),
];

/// Definitions that are refused, and a part of the reason and of what to do instead.
const REFUSALS: &[(&str, &str, &str)] = &[
    ("entry:3 lost", "at the entry of the function only", "put the probe on `entry`, where it is `%di`"),
    ("member:3 request->size", "at the entry of the function only", "on `member`, where it is `%di`"),
    ("shadow:4 other2", "has no variable `other2`", "`other`"),
    ("member request->size size=number", "two arguments are named `size`", "NAME="),
    ("member request.size", "`.size` follows a pointer", "`->size`"),
    ("member request->flags->kind", "follows a structure", "`.kind`"),
    ("member request->sise", "has no member `sise`", "`size`"),
    ("member request->corners[4].x", "has 4 elements", ""),
    ("member request->flags", "is a structure", "`kind`"),
    ("member number:u64", "more bits than the value has", ""),
    ("member number:odd", "is not one of", ""),
    ("member number@user", "through a pointer", ""),
    ("member number:string", "is a string", ""),
    ("member%return number", "after it has returned", "$retval"),
    ("memer", "no function `memer`", "`member`"),
    ("member@other.c", "no source that ends with `other.c`", "module.c"),
    ("member@odule.c", "no source that ends with `odule.c`", "module.c"),
    ("member:5", "has no code", "`member:3`"),
    ("member:9", "is beyond its end", ""),
    ("member+0x30", "beyond its end", ""),
    ("twice%return", "only inlined", ""),
    ("twice+4", "only inlined", ""),
    ("module.c:31", "has no code", "`module.c:29` and `module.c:33`"),
    ("other.c:3", "no source `other.c`", ""),
    ("entry;nothing", "matches `nothing`", ""),
];

#[test]
fn definitions_have_known_answers_in_every_form_of_the_file() {
    let plain = ["module-5.o", "module-4.o", "module-debug.o"];
    let others = ["module-compressed.o", "module-zstd.o", "module-split.o", "module-split-4.o"];
    for fixture in plain.into_iter().chain(others) {
        with(fixture, |info| {
            assert_eq!(info.module(), Some("fixture"));
            for (text, expected) in ANSWERS {
                let found = texts(info, text).unwrap_or_else(|error| panic!("{fixture}: {text}: {error}"));
                assert_eq!(found, *expected, "{fixture}: {text}");
            }
        });
    }
}

#[test]
fn refusals_say_why_and_what_to_do() {
    with("module-5.o", |info| {
        for (text, reason, hint) in REFUSALS {
            let error = texts(info, text).expect_err(text);
            assert!(error.message().contains(reason), "{text}: {error}");
            assert!(error.hint_text().unwrap_or_default().contains(hint), "{text}: {error}");
        }
    });
}

/// The text of the only argument of a definition, and its value, from what its fetches have read.
#[cfg(test)]
fn computed(info: &DebugInfo<'_>, text: &str, fetched: &[u64]) -> (String, Option<u64>) {
    let definition = Definition::parse(text).unwrap();
    let place = &info.places(&definition.target, &|_| None).unwrap()[0];
    let line = info.line(&definition, place, 0).unwrap();
    let argument = &line.arguments[0];
    assert!(line.text.ends_with(&argument.text()) && line.objection().is_none(), "{}", line.text);
    let rule = argument.rule.as_ref().unwrap_or_else(|| panic!("{text}: {}", line.text));
    (argument.text(), rule.value(fetched))
}

#[test]
fn values_of_several_fetches_come_with_a_rule() {
    with("module-5.o", |info| {
        let of = |text: &str, fetched: &[u64]| computed(info, text, fetched);
        let known = |text: &str, value: u64| (text.to_owned(), Some(value));
        let sum = "sum__1=%bx:u64 # computed: sum:u64=sum__1,5,+";
        assert_eq!(of("computed:6 sum", &[10]), known(sum, 15));
        // base * 3, cut to 32 bits.
        let low = "low__1=%bx:u64 # computed: low:u32=low__1,3,*,b32@0";
        assert_eq!(of("computed:6 low", &[0x8000_0001]), known(low, 0x8000_0003));
        // A bit-field with a sign.
        let level = "level__1=+12(%di):b5@4/16 # computed: level:s8=level__1,s5@0";
        let value = (-13_i64).cast_unsigned();
        assert_eq!(of("member request->flags.level", &[0b10011]), known(level, value));
    });
}

#[test]
fn all_variables_have_the_computed_ones() {
    with("module-5.o", |info| {
        let line = texts(info, "computed:6 $vars").unwrap().remove(0);
        assert!(line.contains(" sum__1=%bx:u64 ") && line.contains(" fixed=\\42:u64"), "{line}");
        assert!(line.contains(" # computed: sum:u64=sum__1,5,+ low:u32=low__1,"), "{line}");
    });
}

#[test]
fn a_line_that_shares_its_address_says_with_which() {
    with("module-5.o", |info| {
        let place = &places(info, "member:2")[0];
        assert_eq!(
            (place.text.as_str(), place.source.line, place.relative_line),
            ("fixture:member+0", 28, Some(2))
        );
        assert_eq!(place.shares.iter().map(|line| line.line).collect::<Vec<_>>(), [27]);
    });
}

#[test]
fn copies_name_the_function_that_has_the_code() {
    with("module-5.o", |info| {
        let found = places(info, "twice");
        let into: Vec<_> = found.iter().map(|place| place.inlined_into.as_deref()).collect();
        assert_eq!(into, [Some("first_caller"), Some("second_caller")]);
        assert!(places(info, "first_caller").iter().all(|place| place.inlined_into.is_none()));
    });
}

/// One source has the function as `private.constprop.0`, and another one has copies only.
#[test]
fn a_static_function_without_its_symbol_has_all_its_places() {
    let expected = ["p:private private.constprop.0+0", "p:private_1 private_other+0"];
    with("private.elf", |info| assert_eq!(texts(info, "private").unwrap(), expected));
    let image = Image::read(include_bytes!("fixtures/private.elf")).unwrap();
    let index = write_index(&image, None, &[]).unwrap();
    assert_eq!(texts(&DebugInfo::from_index(&index).unwrap(), "private").unwrap(), expected);
}

#[test]
fn variables_in_scope_have_types_of_c() {
    with("module-5.o", |info| {
        let place = &places(info, "frame:4")[0];
        let visible = info.variables(place).unwrap();
        let texts: Vec<_> = visible.iter().map(|one| format!("{} {}", one.ty, one.name)).collect();
        assert_eq!(texts, ["u64 seed", "struct request * request", "struct point[3] points"]);
        assert_eq!(visible.iter().map(|one| one.is_parameter).collect::<Vec<_>>(), [true, true, false]);
        // One structure is too much for an argument; its parts are not.
        assert!(visible[2].argument.is_err());
    });
}

#[test]
fn names_that_several_have_are_not_used() {
    with("kernel.elf", |info| {
        assert_eq!(info.module(), None);
        assert_eq!(
            info.build_id(),
            [
                0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd,
                0xef, 0x01, 0x23, 0x45, 0x67
            ]
        );
        assert_eq!(
            texts(info, "same value").unwrap(),
            ["p:same _stext+0 value=%di:u64", "p:same_1 _stext+80 value=%di:u64"]
        );
        assert_eq!(texts(info, "same@kernel_other.c").unwrap(), ["p:same _stext+80"]);
        // The line is counted from another declaration in each source, and only one of them has it.
        assert_eq!(texts(info, "same@kernel.c:3").unwrap().len(), 1);
        let here = texts(info, "main_entry:3 here").unwrap();
        assert!(here[0].contains(" here=@_stext+"), "{here:?}");
        let error = texts(info, "main_entry per_cpu_number").unwrap_err();
        assert!(error.message().contains("each processor"), "{error}");
        let error = texts(info, "same@kernel_other.c hidden->x").unwrap_err();
        assert!(error.message().contains("does not define it"), "{error}");
    });
}

#[test]
fn a_supplementary_file_is_needed_and_read() {
    with("shared.elf", |info| {
        assert_eq!(
            texts(info, "member request->next->size").unwrap(),
            ["p:member member+0 size=+8(+72(%di)):u32"]
        );
    });
    let bytes = include_bytes!("fixtures/shared.elf");
    let image = Image::read(bytes).unwrap();
    let (path, id) = image.supplementary().unwrap();
    assert_eq!((path, id.len()), ("supplementary.elf", 20));
    let error = DebugInfo::read(&image, None, &[]).err().unwrap();
    assert!(error.message().contains("supplementary.elf"), "{error}");
    let wrong = Image::read(include_bytes!("fixtures/kernel.elf")).unwrap();
    let error = DebugInfo::read(&image, Some(&wrong), &[]).err().unwrap();
    assert!(error.message().contains("build id differs"), "{error}");
}

#[test]
fn a_split_file_is_needed_and_named() {
    let image = Image::read(include_bytes!("fixtures/module-split.o")).unwrap();
    let info = DebugInfo::read(&image, None, &[]).unwrap();
    let error = texts(&info, "module.c:95").unwrap_err();
    assert!(error.message().contains("module-split.dwo"), "{error}");
}

#[test]
fn what_is_not_debug_information_is_refused() {
    assert!(Image::read(b"").unwrap_err().message().contains("not an ELF file"));
    assert!(Image::read(b"\x7fELF").is_err());
    let part = Image::read(include_bytes!("fixtures/module-split.dwo")).unwrap();
    let error = DebugInfo::read(&part, None, &[]).err().unwrap();
    assert!(error.message().contains("split part") && error.hint_text().is_some(), "{error}");
    let whole = Image::read(include_bytes!("fixtures/module-5.o")).unwrap();
    let others = [Image::read(include_bytes!("fixtures/kernel.elf")).unwrap()];
    let error = DebugInfo::read(&whole, None, &others).err().unwrap();
    assert!(error.message().contains("not a split one"), "{error}");
    // Its debug information has another name, as if it were removed.
    let mut file = include_bytes!("fixtures/module-5.o").to_vec();
    let name = b".debug_info";
    let found: Vec<usize> = (0..file.len()).filter(|at| file[*at..].starts_with(name)).collect();
    for at in found {
        file[at + 1] = b'x';
    }
    let image = Image::read(&file).unwrap();
    let error = DebugInfo::read(&image, None, &[]).err().unwrap();
    assert!(error.message().contains("no debug information") && error.hint_text().is_some(), "{error}");
}

#[test]
fn an_index_gives_the_answers_of_the_file() {
    for fixture in ["module-5.o", "module-4.o"] {
        let path = format!("{}/tests/fixtures/{fixture}", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let image = Image::read(&bytes).unwrap();
        let index = write_index(&image, None, &[]).unwrap();
        let info = DebugInfo::from_index(&index).unwrap();
        assert_eq!((info.build_id(), info.module()), (image.build_id(), Some("fixture")));
        for (text, expected) in ANSWERS {
            let found = texts(&info, text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found, *expected, "{text}");
        }
        with(fixture, |file| {
            for (text, _, _) in REFUSALS {
                assert_eq!(texts(&info, text).unwrap_err(), texts(file, text).unwrap_err(), "{text}");
            }
        });
    }
}

/// An index knows structures by their names; two of one source may have the same, each within a function.
#[test]
fn an_index_does_not_take_one_structure_for_another() {
    let question = "second_local:3 local->size";
    with("private.elf", |info| {
        let expected = ["p:second_local_L3 second_local+0 size=+8(%di):u32"];
        assert_eq!(texts(info, question).unwrap(), expected);
    });
    let image = Image::read(include_bytes!("fixtures/private.elf")).unwrap();
    let index = write_index(&image, None, &[]).unwrap();
    let error = texts(&DebugInfo::from_index(&index).unwrap(), question).unwrap_err();
    assert!(error.message().contains("2 different structures are named `struct local`"), "{error}");
}

#[test]
fn an_index_of_another_version_is_refused() {
    let image = Image::read(include_bytes!("fixtures/kernel.elf")).unwrap();
    let mut index = write_index(&image, None, &[]).unwrap();
    index[8] += 1;
    let error = DebugInfo::from_index(&index).err().unwrap();
    assert!(error.message().contains("version 2") && error.hint_text().is_some(), "{error}");
    let error = DebugInfo::from_index(b"something else").err().unwrap();
    assert!(error.message().contains("not an index"), "{error}");
}

#[test]
fn a_listing_has_each_line_with_code() {
    with("module-5.o", |info| {
        let listed = |text: &str| {
            let places = info.listing(&Listing::parse(text).unwrap()).unwrap();
            places.into_iter().map(|place| (place.source.line, place.text)).collect::<Vec<_>>()
        };
        let of_member = |line: u32, offset: u32| (line, format!("fixture:member+{offset}"));
        let whole = listed("member");
        assert!(whole.contains(&of_member(28, 0)) && whole.contains(&of_member(29, 11)), "{whole:?}");
        assert!(whole.iter().all(|(line, _)| (26..33).contains(line)), "{whole:?}");
        assert_eq!(listed("member:3-4"), [of_member(29, 11)]);
        assert_eq!(listed("module.c:28-29"), listed("member:2-3"));
        let copies = listed("twice:3-3");
        assert_eq!(copies.len(), 2, "{copies:?}");
        let error = info.listing(&Listing::parse("member:40-41").unwrap()).unwrap_err();
        assert!(error.message().contains("no line of the range"), "{error}");
    });
}

/// The kernel looks a symbol up among its own first, and then in all modules.
#[test]
fn a_static_of_a_module_may_be_another_one() {
    let objection = |info: &DebugInfo<'_>, text: &str| {
        let definition = Definition::parse(text).unwrap();
        let place = &info.places(&definition.target, &|_| None).unwrap()[0];
        info.line(&definition, place, 0).unwrap().objection()
    };
    with("module-5.o", |info| {
        let error = objection(info, "statics:3 counter").unwrap();
        assert!(error.message().contains("the first symbol `counter` of all"), "{error}");
        assert!(error.hint_text().is_some() && objection(info, "statics:3").is_none());
    });
    with("kernel.elf", |info| assert_eq!(objection(info, "main_entry:3 here"), None));
}

#[test]
fn a_file_says_what_it_is_of() {
    let of = |bytes: &[u8]| Identity::read(bytes).unwrap();
    let module = include_bytes!("fixtures/module-5.o");
    assert_eq!(of(module).module.as_deref(), Some("fixture"));
    let kernel = include_bytes!("fixtures/kernel.elf");
    let image = Image::read(kernel).unwrap();
    let index = write_index(&image, None, &[]).unwrap();
    assert_eq!(of(&index), of(kernel));
    assert_eq!((of(kernel).build_id.as_slice(), of(kernel).module), (image.build_id(), None));
    assert!(of(include_bytes!("fixtures/module-split.dwo")).is_split);
    assert!(Identity::read(b"text").is_err());
}

/// The file with the name of its source of modpost replaced by one of the same length.
#[cfg(test)]
fn with_source_of_modpost(file: &[u8], name: &[u8; 13]) -> Vec<u8> {
    let known = b"fixture.mod.c";
    let at = file.windows(known.len()).position(|bytes| bytes == known).unwrap();
    let mut file = file.to_vec();
    file[at..at + name.len()].copy_from_slice(name);
    file
}

#[test]
fn separate_debug_information_has_the_name_of_the_module() {
    let debug = include_bytes!("fixtures/module-debug.o");
    let of = |bytes: &[u8]| {
        let (image, identity) = (Image::read(bytes)?, Identity::read(bytes)?);
        assert_eq!(image.module(), identity.module.as_deref());
        Ok::<_, LinesError>(identity.module)
    };
    assert_eq!(of(debug).unwrap().as_deref(), Some("fixture"));
    // A name of a module has underscores where that of its file has hyphens.
    let hyphen = with_source_of_modpost(debug, b"fix-ure.mod.c");
    assert_eq!(of(&hyphen).unwrap().as_deref(), Some("fix_ure"));
    // Without a name, its places would be taken for those of the kernel.
    let unnamed = with_source_of_modpost(debug, b"fixture.mid.c");
    let error = of(&unnamed).unwrap_err();
    assert!(error.message().contains("`.modinfo` has no data"), "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("NAME.ko")), "{error}");
    assert!(Identity::read(&unnamed).is_err());
}
