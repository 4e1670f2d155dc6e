//! Property: texts with many definitions.

use kprobed_lang::definition::{Cutter, parse_any};

use super::definition::check_reading;
use super::kernels::features;

/// Definitions lie in the text, in order and apart; each is what the same text is by itself.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut cutter = Cutter::default();
    cutter.push(data);
    let mut cut: Vec<_> = std::iter::from_fn(|| cutter.next_complete()).collect();
    cut.extend(cutter.finish());
    let mut end = 0;
    for found in cut {
        let begin = usize::try_from(found.offset).expect("it is in memory");
        assert!(begin >= end);
        end = begin + found.text.len();
        let there = text.get(begin..end).expect("a definition lies in the text");
        let before = text.get(..begin).expect("it lies in the text");
        assert_eq!(before.matches('\n').count() as u64 + 1, found.line);
        // Joined lines differ from the text in nothing but what joined them.
        for (ours, theirs) in found.text.bytes().zip(there.bytes()) {
            assert!(ours == theirs || (ours == b' ' && matches!(theirs, b'\\' | b'\n' | b'\r')));
        }
        for features in features() {
            check_reading(&found.text, &parse_any(&found.text, &features), &features);
        }
    }
}
