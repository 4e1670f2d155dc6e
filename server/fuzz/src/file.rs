//! Property: parser of files with many definitions.

use kprobed_lang::definition::{UnknownParameters, file};

use super::definition::check_reading;
use super::kernels::features;

/// Entries lie in the file, in order and apart; each is what the same text is by itself.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for features in features() {
        let mut end = 0;
        for entry in file::parse(text, &features, &UnknownParameters) {
            assert!(entry.span.start >= end);
            end = entry.span.end;
            let there = text.get(entry.span.range()).expect("an entry lies in the file");
            assert_eq!(there.len(), entry.text.len());
            let before = text.get(..entry.span.start).expect("it lies in the file");
            assert_eq!(before.matches('\n').count() + 1, entry.line);
            // Joined lines differ from the file in nothing but what joined them.
            for (ours, theirs) in entry.text.bytes().zip(there.bytes()) {
                assert!(ours == theirs || (ours == b' ' && matches!(theirs, b'\\' | b'\n' | b'\r')));
            }
            check_reading(&entry.text, &entry.reading, &features);
        }
    }
}
