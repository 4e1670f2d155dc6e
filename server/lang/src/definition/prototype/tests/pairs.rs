//! Tests with pairs of prototypes and the lines that real kernels accepted for them.

use super::{line, v6_1, v6_12};

const PAIRS: &str = include_str!("../../../../../fixtures/prototype/pairs.tsv");

#[test]
fn every_prototype_becomes_the_line_of_the_table() {
    let mut rows = 0;
    for row in PAIRS.lines().skip(1) {
        let columns: Vec<_> = row.split('\t').collect();
        let [_, prototype, by_argument, by_register] = columns[..] else { panic!("{row}") };
        assert_eq!(line(prototype, &v6_12()), by_argument, "{prototype}");
        // The other column is for kernels without the type `char`, with registers for arguments.
        let mut without_char = line(prototype, &v6_1());
        for (index, register) in ["%di", "%si", "%dx", "%cx", "%r8", "%r9"].iter().enumerate() {
            without_char = without_char.replace(&format!("$arg{}", index + 1), register);
        }
        assert_eq!(without_char, by_register, "{prototype}");
        rows += 1;
    }
    assert_eq!(rows, 77);
}
