//! The kallsyms table in the read-only data of a kernel image.
//!
//! Owns the format (scripts/kallsyms.c:write_src, kernel/kallsyms.c), in all of its orders since
//! 4.6. No symbol names the parts of the table. Each part is found by a pattern that no other data
//! has, and checked against the other parts before it is used.

mod addresses;
mod names;
mod tokens;

use names::Names;
use tokens::Tokens;

use super::super::SymbolTable;

/// The symbols in some memory that begins at `base`. None when no table is there that proves
/// itself.
pub(super) fn decode(base: u64, memory: &[u8]) -> Option<SymbolTable> {
    tokens::all(memory).find_map(|tokens| {
        let names = Names::before(memory, &tokens)?;
        let addresses = addresses::find(base, memory, &tokens, &names)?;
        let texts = names.expanded(memory, &tokens)?;
        // Each begins with the letter of its kind (scripts/kallsyms.c:read_symbol).
        let symbols = addresses.into_iter().zip(&texts).filter_map(|(address, text)| {
            let (kind, name) = text.split_at_checked(1)?;
            Some((address, *kind.as_bytes().first()?, name))
        });
        Some(SymbolTable::of_kernel(symbols))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8200_0000;
    const TEXT: u64 = 0xffff_ffff_8100_0000;

    /// Orders of the parts, and how addresses are written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Layout {
        /// Offsets, base, count, names, markers, tokens; numbers of per-CPU data as they are (to
        /// 6.3).
        OffsetsFirst,
        /// The same with the order of names before the tokens (6.2 and 6.3, and stable kernels).
        WithOrderOfNames,
        /// Count, names, markers, tokens, offsets, base (since 6.4).
        OffsetsLast,
        /// The same; every offset counts from the base (without CONFIG_KALLSYMS_ABSOLUTE_PERCPU).
        FromBase,
        /// Count, names, markers, tokens, offsets; every offset counts from itself, and parts are
        /// aligned to 4 bytes (7.2).
        FromItself,
    }

    const LAYOUTS: [Layout; 5] = [
        Layout::OffsetsFirst,
        Layout::WithOrderOfNames,
        Layout::OffsetsLast,
        Layout::FromBase,
        Layout::FromItself,
    ];

    fn align(memory: &mut Vec<u8>, layout: Layout) {
        let alignment = if layout == Layout::FromItself { 4 } else { 8 };
        memory.resize(memory.len().next_multiple_of(alignment), 0);
    }

    fn offsets(memory: &mut Vec<u8>, addresses: &[u64], layout: Layout) {
        for address in addresses {
            let at = BASE + memory.len() as u64;
            let offset = match layout {
                Layout::FromItself => address.wrapping_sub(at),
                Layout::FromBase => address.wrapping_sub(TEXT),
                // Numbers are small; addresses count down from -1.
                _ if *address < TEXT => *address,
                _ => TEXT.wrapping_sub(1).wrapping_sub(*address),
            };
            memory.extend_from_slice(&u32::try_from(offset & 0xffff_ffff).unwrap().to_le_bytes());
        }
        align(memory, layout);
        if layout != Layout::FromItself {
            memory.extend_from_slice(&TEXT.to_le_bytes());
        }
    }

    /// Memory with a table of these symbols, each a kind and a name. Tokens are the bytes
    /// themselves, and one word.
    fn table(symbols: &[(u64, String)], layout: Layout) -> Vec<u8> {
        let addresses: Vec<u64> = symbols.iter().map(|(address, _)| *address).collect();
        let mut memory = b"something before the table, 0\x001\x002\x003\x00 too".to_vec();
        memory.resize(memory.len().next_multiple_of(8), 0);
        if layout == Layout::FromItself {
            memory.extend([0; 4]);
        }
        if matches!(layout, Layout::OffsetsFirst | Layout::WithOrderOfNames) {
            offsets(&mut memory, &addresses, layout);
        }
        memory.extend_from_slice(&u32::try_from(symbols.len()).unwrap().to_le_bytes());
        align(&mut memory, layout);
        let (start, mut markers) = (memory.len(), Vec::new());
        for (index, (_, text)) in symbols.iter().enumerate() {
            if index % 256 == 0 {
                markers.push(u32::try_from(memory.len() - start).unwrap());
            }
            let packed = text.replace("word", "\x01");
            let length = packed.len();
            if length < 0x80 {
                memory.push(u8::try_from(length).unwrap());
            } else {
                memory.push(u8::try_from(length & 0x7f | 0x80).unwrap());
                memory.push(u8::try_from(length >> 7).unwrap());
            }
            memory.extend_from_slice(packed.as_bytes());
        }
        align(&mut memory, layout);
        memory.extend(markers.iter().flat_map(|marker| marker.to_le_bytes()));
        if layout == Layout::WithOrderOfNames {
            memory.extend((0..symbols.len()).flat_map(|_| [1, 2, 3]));
        }
        align(&mut memory, layout);
        let (mut index, mut tokens) = (Vec::new(), Vec::new());
        for byte in 0..=255u8 {
            index.extend(u16::try_from(tokens.len()).unwrap().to_le_bytes());
            match byte {
                1 => tokens.extend(b"word"),
                b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => tokens.push(byte),
                _ => {}
            }
            tokens.push(0);
        }
        memory.extend(tokens);
        align(&mut memory, layout);
        memory.extend(index);
        if matches!(layout, Layout::OffsetsLast | Layout::FromBase | Layout::FromItself) {
            align(&mut memory, layout);
            offsets(&mut memory, &addresses, layout);
        }
        memory.extend_from_slice(b"something behind the table");
        memory
    }

    fn sample(count: u64) -> Vec<(u64, String)> {
        let mut symbols = vec![(TEXT, "T_stext".to_owned()), (TEXT, "Tstartup_word".to_owned())];
        let code = (2..count)
            .map(|i| (TEXT + 16 * i, format!("t{}f{i}", "word".repeat(usize::try_from(i % 3).unwrap()))));
        symbols.extend(code);
        symbols.push((TEXT + 16 * count, format!("t{}", "x".repeat(300))));
        symbols
    }

    #[test]
    fn every_layout_is_read() {
        for layout in LAYOUTS {
            let mut symbols = sample(2000);
            if layout != Layout::FromBase && layout != Layout::FromItself {
                symbols.insert(0, (0x40, "Afixed_percpu_data".to_owned()));
            }
            let found = decode(BASE, &table(&symbols, layout)).unwrap_or_else(|| panic!("{layout:?}"));
            assert_eq!(found.len(), symbols.len(), "{layout:?}");
            for (address, text) in &symbols {
                let named: Vec<_> = found.named(&text[1..], None).collect();
                assert_eq!(named.len(), 1, "{layout:?} {text}");
                assert_eq!(
                    (named[0].address, named[0].kind),
                    (*address, text.chars().next().unwrap()),
                    "{layout:?}"
                );
            }
            assert_eq!(
                found.locate(TEXT + 5).unwrap().to_string(),
                "_stext+0x5/0x20",
                "the order of aliases is kept"
            );
        }
    }

    #[test]
    fn what_does_not_prove_itself_is_not_believed() {
        let symbols = sample(2000);
        let good = table(&symbols, Layout::OffsetsLast);
        assert!(decode(BASE, &[]).is_none());
        assert!(decode(BASE, &good[..good.len() - 60]).is_none(), "no base");
        let mut bad = good.clone();
        let count = u32::try_from(symbols.len()).unwrap();
        let at = good.windows(4).position(|bytes| bytes == count.to_le_bytes()).unwrap();
        bad[at..at + 4].copy_from_slice(&(count - 300).to_le_bytes());
        assert!(decode(BASE, &bad).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        #[test]
        fn any_change_is_survived(layout in 0..LAYOUTS.len(), changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8)) {
            let mut memory = table(&sample(1100), LAYOUTS[layout]);
            for (at, byte) in changes {
                let at = at.index(memory.len());
                memory[at] = byte;
            }
            if let Some(found) = decode(BASE, &memory) {
                prop_assert!(found.len() <= 1102);
            }
        }

        #[test]
        fn any_memory_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let memory = [&bytes[..], b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00", &bytes].concat();
            prop_assert!(decode(BASE, &memory).is_none());
        }
    }
}
