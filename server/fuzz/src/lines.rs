//! Property: debug information of a kernel or a module, and its index.

use kprobed_lines::{DebugInfo, Definition, Image, write_index};

/// What the files of the corpus have, in all forms that a place and an argument can have.
const DEFINITIONS: [&str; 6] = [
    "member request->size request->flags.level request->corners[1].y request->name:string",
    "twice $vars",
    "frame:4 points[2].y seed",
    "split:3 error",
    "module.c:114 again counter",
    "main_entry:3 here",
];

/// A file is read or refused. What it answers is a line of the kernel's language, and so is what its index answers.
pub fn check(data: &[u8]) {
    let Ok(image) = Image::read(data) else { return };
    let Ok(info) = DebugInfo::read(&image, None, &[]) else { return };
    check_answers(&info);
    let Ok(index) = write_index(&image, None, &[]) else { return };
    let indexed = DebugInfo::from_index(&index).expect("it was written now");
    assert_eq!((indexed.build_id(), indexed.module()), (info.build_id(), info.module()));
    check_answers(&indexed);
}

fn check_answers(info: &DebugInfo<'_>) {
    for text in DEFINITIONS {
        let definition = Definition::parse(text).expect("it is good");
        let Ok(places) = info.places(&definition.target, &|_| None) else { continue };
        assert!(!places.is_empty(), "without a place there is a reason");
        for (number, place) in places.iter().enumerate() {
            let _visible = info.variables(place);
            let Ok(line) = info.line(&definition, place, number) else { continue };
            assert!(line.text.starts_with("p:") && line.text.contains(&place.text), "{}", line.text);
            for argument in &line.arguments {
                assert!(
                    !argument.fetches.is_empty()
                        && argument.fetches.iter().all(|fetch| line.text.contains(&fetch.text()))
                );
            }
        }
    }
}
