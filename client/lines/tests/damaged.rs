//! Files that are cut off or changed: they end in an error or an answer, in bounded time and memory, never in a panic.

use std::time::{Duration, Instant};

use kprobed_lines::{DebugInfo, Definition, Image, Result, write_index};
use proptest::prelude::*;

const FILES: [&[u8]; 6] = [
    include_bytes!("fixtures/module-5.o"),
    include_bytes!("fixtures/module-4.o"),
    include_bytes!("fixtures/module-compressed.o"),
    include_bytes!("fixtures/module-split.o"),
    include_bytes!("fixtures/kernel.elf"),
    include_bytes!("fixtures/shared.elf"),
];
const SPLIT: &[u8] = include_bytes!("fixtures/module-split.dwo");
const SUPPLEMENTARY: &[u8] = include_bytes!("fixtures/supplementary.elf");

const DEFINITIONS: [&str; 10] = [
    "member request->size request->flags.level request->corners[1].y request->label request->name:string",
    "twice $vars",
    "shadow:5 value",
    "frame:4 points[2].y",
    "computed:6 sum low fixed",
    "pieces pair.second",
    "split:3 error",
    "module.c:114 again counter",
    "same $vars",
    "main_entry:3 here per_cpu_number",
];

/// No file of the fixtures takes longer, on the slowest machine.
const LONGEST: Duration = Duration::from_secs(20);

fn ask(info: &DebugInfo<'_>) -> Result<()> {
    for text in DEFINITIONS {
        let definition = Definition::parse(text)?;
        let Ok(places) = info.places(&definition.target, &|_| None) else { continue };
        for (number, place) in places.iter().enumerate() {
            let _outcome = info.line(&definition, place, number);
            let _outcome = info.variables(place);
        }
    }
    Ok(())
}

fn read(bytes: &[u8], supplementary: &[u8], split: &[u8]) -> Result<()> {
    let image = Image::read(bytes)?;
    let supplementary = Image::read(supplementary).ok();
    let split: Vec<_> = Image::read(split).into_iter().collect();
    ask(&DebugInfo::read(&image, supplementary.as_ref(), &split)?)?;
    let index = write_index(&image, supplementary.as_ref(), &split)?;
    ask(&DebugInfo::from_index(&index)?)
}

fn changed(
    bytes: &[u8],
    changes: &[(prop::sample::Index, u8)],
    end: prop::sample::Index,
    cut: bool,
) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, value) in changes {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    if cut {
        bytes.truncate(end.index(bytes.len()));
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_file_is_no_danger(
        file in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        end in any::<prop::sample::Index>(),
        cut in prop::bool::weighted(0.2),
    ) {
        let begun = Instant::now();
        let file = changed(FILES[file], &changes, end, cut);
        let _outcome = read(&file, SUPPLEMENTARY, SPLIT);
        let _outcome = read(FILES[3], SUPPLEMENTARY, &changed(SPLIT, &changes, end, cut));
        let _outcome = read(FILES[5], &changed(SUPPLEMENTARY, &changes, end, cut), SPLIT);
        prop_assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_changed_index_is_no_danger(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
        end in any::<prop::sample::Index>(),
        cut in prop::bool::weighted(0.2),
    ) {
        let image = Image::read(FILES[0]).unwrap();
        let index = write_index(&image, None, &[]).unwrap();
        let begun = Instant::now();
        let index = changed(&index, &changes, end, cut);
        if let Ok(info) = DebugInfo::from_index(&index) {
            let _outcome = ask(&info);
        }
        prop_assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    }
}

#[test]
fn the_files_are_good_without_changes() {
    for file in FILES {
        read(file, SUPPLEMENTARY, SPLIT).unwrap();
    }
}

/// The end of a function that lies behind the last address was one that gimli computed with an overflow.
#[test]
fn each_byte_of_a_file_may_be_another() {
    let file = FILES[4];
    // Between its segments are pages of zeros, which belong to no section.
    let is_padding = |at: &usize| file.iter().skip(at.saturating_sub(64)).take(128).all(|byte| *byte == 0);
    let bytes: Vec<_> = (0..file.len()).filter(|at| !is_padding(at)).collect();
    assert!((3000..5000).contains(&bytes.len()), "{}", bytes.len());
    for at in bytes {
        let mut bytes = file.to_vec();
        bytes[at] = 127;
        let _outcome = read(&bytes, SUPPLEMENTARY, SPLIT);
    }
}
