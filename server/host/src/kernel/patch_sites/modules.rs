//! Section addresses of a module, from `/sys/module/MODULE/sections`, to find its tables.

use std::path::Path;

use super::super::hex;
use super::{Table, TableKind};

const SECTIONS: [(TableKind, &str); 4] = [
    (TableKind::JumpLabels, "__jump_table"),
    (TableKind::StaticCalls, ".static_call_sites"),
    (TableKind::Bugs, "__bug_table"),
    (TableKind::Exceptions, "__ex_table"),
];

/// Pages are mapped whole: a section without another one after it ends with its page at the
/// earliest.
const PAGE_BYTES: u64 = 4096;

/// The next section may be in another part of the address space: no module has a table of this
/// size.
const TABLE_MAX_BYTES: u64 = 256 << 10;

/// The tables of a module. Sysfs does not say how long they are: each reaches to the next section,
/// at most. Files that cannot be read are left out.
pub(super) fn tables(sections: &Path) -> Vec<Table> {
    let Ok(directory) = std::fs::read_dir(sections) else { return Vec::new() };
    let found: Vec<(String, u64)> = directory
        .flatten()
        .filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path()).ok()?;
            let address = hex(&text)?;
            Some((entry.file_name().into_string().ok()?, address)).filter(|(_, address)| *address != 0)
        })
        .collect();
    let table = |(name, start): &(String, u64)| {
        let kind = SECTIONS.iter().find(|(_, section)| section == name)?.0;
        let next = found.iter().map(|(_, address)| *address).filter(|address| address > start).min();
        let page_end = (start | (PAGE_BYTES - 1)).saturating_add(1);
        let end = next.unwrap_or(page_end).min(start.saturating_add(TABLE_MAX_BYTES));
        Some(Table { kind, memory: *start..end })
    };
    found.iter().filter_map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_reach_to_the_next_section() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            (".text", "0xffffffffc0000000\n"),
            ("__jump_table", "0xffffffffc0002000\n"),
            (".rodata", "0xffffffffc0002040\n"),
            ("__bug_table", "0xffffffffc0003010\n"),
            (".static_call_sites", "0x0000000000000000\n"),
            (".odd", "nonsense"),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let mut tables = tables(directory.path());
        tables.sort_by_key(|table| table.memory.start);
        let base = 0xffff_ffff_c000_0000;
        assert_eq!(
            tables,
            [
                Table { kind: TableKind::JumpLabels, memory: base + 0x2000..base + 0x2040 },
                Table { kind: TableKind::Bugs, memory: base + 0x3010..base + 0x4000 },
            ]
        );
        assert!(super::tables(&directory.path().join("absent")).is_empty());
    }
}
