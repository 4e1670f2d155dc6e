//! Mutations of the fuzz corpus, the same in every run with the same seed.

/// Largest input that is made, in bytes.
const MAX_BYTES: usize = 16 << 10;

/// Any text, from which other mutations follow; empty when it is not set.
pub(crate) fn seed() -> String {
    std::env::var("KPROBED_SEED").unwrap_or_default()
}

/// Makes mutations from a sequence of numbers that depends on nothing but a name and a seed.
pub(crate) struct Mutator {
    state: u64,
}

impl Mutator {
    pub(crate) fn new(name: &str) -> Self {
        // FNV-1a: hardly ever 0, which the generator would not leave.
        let state = name.bytes().chain(seed().bytes()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self { state: state.max(1) }
    }

    /// xorshift64*.
    fn number(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, or 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.number() >> 33).unwrap() % end.max(1)
    }

    /// A few changes of one of the inputs.
    pub(crate) fn next(&mut self, corpus: &[&[u8]]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].to_vec();
        for _ in 0..=self.below(4) {
            let other = corpus[self.below(corpus.len())];
            self.change(&mut input, other);
        }
        input.truncate(MAX_BYTES);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        const INTERESTING: [u8; 12] = [0, 1, 0x7f, 0x80, 0xff, b' ', b'\n', b'(', b')', b':', b'0', 0xa0];
        let at = self.below(input.len() + 1);
        let length = 1 + self.below(16);
        let end = (at + length).min(input.len());
        match self.below(8) {
            0 => {
                let bit = 1 << self.below(8);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= bit;
                }
            }
            1 => input.insert(at, INTERESTING[self.below(INTERESTING.len())]),
            2 => {
                let byte = INTERESTING[self.below(INTERESTING.len())];
                input[at..end].fill(byte);
            }
            3 => drop(input.drain(at..end)),
            4 => input.truncate(at),
            5 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            6 => {
                let from = self.below(other.len() + 1);
                let to = (from + length).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                input.truncate(at);
                input.extend_from_slice(&other[self.below(other.len() + 1)..]);
            }
        }
    }
}

#[test]
fn mutations_are_the_same_each_time_and_different_from_each_other() {
    let corpus: [&[u8]; 2] = [b"p:x vfs_read %di", b"f(int a)"];
    let made = || {
        let mut mutator = Mutator::new("x");
        (0..100).map(|_| mutator.next(&corpus)).collect::<Vec<_>>()
    };
    assert_eq!(made(), made());
    let different: std::collections::BTreeSet<_> = made().into_iter().collect();
    assert!(different.len() > 80, "{}", different.len());
}
