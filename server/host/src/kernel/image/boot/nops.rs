//! NOP padding as boot rewrites it: few long NOPs instead of many short ones
//! (arch/x86/kernel/alternative.c:optimize_nops, x86_nops; to 5.12 ideal_nops, which the processor decides).

use super::super::super::SymbolTable;
use crate::insn;

/// How a kernel joins NOPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NopStyle {
    /// Runs of one-byte NOPs, with NOPs of up to 8 bytes, which may be two instructions (to 5.12).
    OfProcessor,
    /// Runs of one-byte NOPs, with NOPs of up to 8 bytes (5.13 to 6.4).
    #[default]
    OneByteRuns,
    /// Runs of any NOPs, with one of up to 11 bytes or a jump over all of them (since 6.5).
    AnyRuns,
}

/// NOPs of 1 to 8 bytes (arch/x86/include/asm/nops.h); longer ones have prefixes before the last.
const NOPS: [&[u8]; 8] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// The same for processors of AMD to family 15, some of Intel and all others, to 5.12 (`k8_nops`): instructions of
/// up to 4 bytes.
const SHORT_NOPS: [&[u8]; 8] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x66, 0x66, 0x90],
    &[0x66, 0x66, 0x66, 0x90],
    &[0x66, 0x66, 0x90, 0x66, 0x90],
    &[0x66, 0x66, 0x90, 0x66, 0x66, 0x90],
    &[0x66, 0x66, 0x66, 0x90, 0x66, 0x66, 0x90],
    &[0x66, 0x66, 0x66, 0x90, 0x66, 0x66, 0x66, 0x90],
];

const LONGEST: usize = 11;
const PREFIX: u8 = 0x66;
const ONE_BYTE: u8 = 0x90;
const SHORT_JUMP: u8 = 0xeb;
const TRAP: u8 = 0xcc;

impl NopStyle {
    /// The style of a kernel: newer kernels have longer tables of NOPs.
    pub(super) fn of(symbols: &SymbolTable) -> Self {
        const OLD_TABLE_BYTES: u64 = 9 * 8;
        if symbols.lookup("k8_nops", None).is_some() {
            return Self::OfProcessor;
        }
        let table = symbols.lookup("x86_nops", None).and_then(|symbol| symbols.locate(symbol.address));
        if table.is_some_and(|located| located.size > OLD_TABLE_BYTES) {
            Self::AnyRuns
        } else {
            Self::OneByteRuns
        }
    }

    /// A site with its NOPs joined, as any processor may have it, the likeliest first.
    pub(super) fn optimised(self, code: &[u8]) -> Vec<Vec<u8>> {
        let with = |nops: &[&[u8]; 8]| {
            let mut code = code.to_vec();
            self.join(&mut code, nops);
            code
        };
        match self {
            Self::OfProcessor => vec![with(&NOPS), with(&SHORT_NOPS)],
            Self::OneByteRuns | Self::AnyRuns => vec![with(&NOPS)],
        }
    }

    fn join(self, code: &mut [u8], nops: &[&[u8]; 8]) {
        let extents: Vec<_> = insn::boundaries(code).collect();
        let mut extents = extents.into_iter().peekable();
        let length = code.len();
        while let Some(first) = extents.next() {
            if !self.joins(code, first.clone()) || self == Self::AnyRuns && first.end == length {
                continue;
            }
            let mut run = first;
            while let Some(next) = extents.next_if(|next| self.joins(code, next.clone())) {
                run.end = next.end;
            }
            if let Some(place) = code.get_mut(run) {
                self.fill(place, nops);
            }
        }
    }

    fn joins(self, code: &[u8], extent: std::ops::Range<usize>) -> bool {
        match (self, code.get(extent).unwrap_or_default()) {
            (_, [ONE_BYTE]) => true,
            (Self::OfProcessor | Self::OneByteRuns, _) => false,
            (Self::AnyRuns, instruction) => {
                // PAUSE is not one.
                let opcode = instruction.iter().position(|byte| *byte != PREFIX).unwrap_or_default();
                matches!(instruction.get(opcode..), Some([ONE_BYTE] | [0x0f, 0x1f, ..]))
            }
        }
    }

    fn fill(self, place: &mut [u8], nops: &[&[u8]; 8]) {
        match self {
            Self::OfProcessor | Self::OneByteRuns => {
                place.chunks_mut(nops.len()).for_each(|place| one(place, nops));
            }
            Self::AnyRuns if place.len() <= LONGEST => one(place, nops),
            // Sites are shorter than a short jump reaches.
            Self::AnyRuns => {
                let distance = u8::try_from(place.len().saturating_sub(2)).unwrap_or_default();
                place.fill(TRAP);
                for (byte, jump) in place.iter_mut().zip([SHORT_JUMP, distance]) {
                    *byte = jump;
                }
            }
        }
    }
}

/// One NOP in all of the place.
fn one(place: &mut [u8], nops: &[&[u8]; 8]) {
    let prefixes = place.len().saturating_sub(nops.len());
    let (before, nop) = place.split_at_mut(prefixes);
    before.fill(PREFIX);
    if let Some(bytes) = nop.len().checked_sub(1).and_then(|index| nops.get(index)) {
        nop.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lengths(style: NopStyle, code: &[u8]) -> Vec<usize> {
        lengths_of(&style.optimised(code)[0])
    }

    fn lengths_of(code: &[u8]) -> Vec<usize> {
        insn::boundaries(code).map(|extent| extent.end - extent.start).collect()
    }

    #[test]
    fn a_long_nop_may_be_two_instructions() {
        let lengths = |bytes: usize| {
            let possible = NopStyle::OfProcessor.optimised(&vec![0x90; bytes]);
            let [long, short] = possible.as_slice() else { panic!("{possible:?}") };
            [lengths_of(long), lengths_of(short)]
        };
        assert_eq!(lengths(4), [[4], [4]]);
        assert_eq!(lengths(5), [vec![5], vec![3, 2]]);
        assert_eq!(lengths(6), [vec![6], vec![3, 3]]);
        assert_eq!(lengths(9), [vec![8, 1], vec![4, 4, 1]]);
    }

    #[test]
    fn runs_are_joined() {
        let old = |code: &[u8]| lengths(NopStyle::OneByteRuns, code);
        let new = |code: &[u8]| lengths(NopStyle::AnyRuns, code);
        assert_eq!((old(&[0x90; 3]), new(&[0x90; 3])), (vec![3], vec![3]));
        assert_eq!((old(&[0x90; 11]), new(&[0x90; 11])), (vec![8, 3], vec![11]));
        assert_eq!(new(&[0x90; 13])[..1], [2], "a jump over traps");
        let mixed = [0x55, 0x0f, 0x1f, 0x00, 0x90, 0x90, 0x5d, 0x90];
        assert_eq!((old(&mixed), new(&mixed)), (vec![1, 3, 2, 1, 1], vec![1, 5, 1, 1]));
        assert_eq!(new(&[0xf3, 0x90, 0x90, 0x90]), [2, 2], "PAUSE stays");
    }

    #[test]
    fn the_table_shows_the_style() {
        let of = |next: &str| {
            NopStyle::of(&SymbolTable::parse(&format!("ffffffff81000000 R x86_nops\n{next} R y\n")))
        };
        assert_eq!(of("ffffffff81000048"), NopStyle::OneByteRuns);
        assert_eq!(of("ffffffff81000060"), NopStyle::AnyRuns);
        let older = SymbolTable::parse("ffffffff81000000 r k8_nops\nffffffff81000050 r p6_nops\n");
        assert_eq!(NopStyle::of(&older), NopStyle::OfProcessor);
    }

    proptest! {
        #[test]
        fn nothing_but_nops_changes(code in proptest::collection::vec(prop_oneof![Just(0x90u8), Just(0x55), any::<u8>()], 0..40)) {
            let styles = [NopStyle::OfProcessor, NopStyle::OneByteRuns, NopStyle::AnyRuns];
            let all = styles.iter().flat_map(|style| style.optimised(&code).into_iter().map(move |made| (style, made)));
            for (style, optimised) in all {
                prop_assert_eq!(optimised.len(), code.len());
                let is_changed = |at: &usize| code[*at] != optimised[*at];
                for at in (0..code.len()).filter(is_changed) {
                    let mut extents = insn::boundaries(&code);
                    let extent = extents.find(|extent| (extent.start..extent.end).contains(&at)).unwrap();
                    prop_assert!(style.joins(&code, extent.start..extent.end));
                }
            }
        }
    }
}
