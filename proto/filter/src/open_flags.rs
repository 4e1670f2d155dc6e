//! Names of the flags of `open` on x86-64.
//!
//! A text is the access mode, the names of the bits that are set, and the bits without a name in hexadecimal:
//! `O_WRONLY|O_CREAT|0x4000000`.

use std::io::Write as _;

/// How each name begins.
pub(super) const OPEN_FLAGS: &str = "O_";

/// Bits of the access mode (include/uapi/asm-generic/fcntl.h:O_ACCMODE).
const ACCESS_MODE: u64 = 3;

/// Access modes. 3 has no name.
const MODES: [&str; 3] = ["O_RDONLY", "O_WRONLY", "O_RDWR"];

/// Names of bits (include/uapi/asm-generic/fcntl.h), those of several bits before their parts.
const BITS: [(u64, &str); 17] = [
    (0o100, "O_CREAT"),
    (0o200, "O_EXCL"),
    (0o400, "O_NOCTTY"),
    (0o1000, "O_TRUNC"),
    (0o2000, "O_APPEND"),
    (0o4000, "O_NONBLOCK"),
    (0o4_010_000, "O_SYNC"),
    (0o10000, "O_DSYNC"),
    (0o20000, "O_ASYNC"),
    (0o40000, "O_DIRECT"),
    (0o100_000, "O_LARGEFILE"),
    (0o20_200_000, "O_TMPFILE"),
    (0o200_000, "O_DIRECTORY"),
    (0o400_000, "O_NOFOLLOW"),
    (0o1_000_000, "O_NOATIME"),
    (0o2_000_000, "O_CLOEXEC"),
    (0o10_000_000, "O_PATH"),
];

/// Appends the text of these flags.
pub(super) fn push(buffer: &mut Vec<u8>, flags: u64) {
    let begin = buffer.len();
    let mut unnamed = flags;
    let mut add = |text: &[u8]| {
        if buffer.len() > begin {
            buffer.push(b'|');
        }
        buffer.extend_from_slice(text);
    };
    let mode = usize::try_from(flags & ACCESS_MODE).ok().and_then(|mode| MODES.get(mode));
    if let Some(mode) = mode {
        unnamed &= !ACCESS_MODE;
        add(mode.as_bytes());
    }
    for (bits, name) in BITS {
        if unnamed & bits == bits {
            unnamed &= !bits;
            add(name.as_bytes());
        }
    }
    if unnamed != 0 {
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        write!(text, "{unnamed:#x}").ok();
        add(&text);
    }
}

/// The flags whose text this is. Their names may be in any order. `None` if one is not known.
pub(super) fn number(text: &str) -> Option<u64> {
    text.split('|').try_fold(0, |flags, name| {
        let mode = MODES.iter().zip(0..).find(|(known, _)| **known == name).map(|(_, mode)| mode);
        let bits = || BITS.iter().find(|(_, known)| *known == name).map(|(bits, _)| *bits);
        let unnamed = || u64::from_str_radix(name.strip_prefix("0x")?, 16).ok();
        Some(flags | mode.or_else(bits).or_else(unnamed)?)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(flags: u64) -> String {
        let mut buffer = b"before ".to_vec();
        push(&mut buffer, flags);
        String::from_utf8(buffer).unwrap().split_off("before ".len())
    }

    /// As `strace` shows them.
    #[test]
    fn flags_have_names() {
        for (flags, expected) in [
            (0, "O_RDONLY"),
            (0o101_101, "O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE"),
            (0o2_100_000, "O_RDONLY|O_LARGEFILE|O_CLOEXEC"),
            (0o4_010_002, "O_RDWR|O_SYNC"),
            (0o10002, "O_RDWR|O_DSYNC"),
            (0o20_200_002, "O_RDWR|O_TMPFILE"),
            (0o200_000, "O_RDONLY|O_DIRECTORY"),
            (3, "0x3"),
            (0x1_0000_0043, "O_CREAT|0x100000003"),
        ] {
            assert_eq!(text(flags), expected, "{flags:#o}");
        }
        assert_eq!(number("O_CREAT|O_RDWR"), Some(0o102));
        assert_eq!(
            (number(""), number("O_CREAT|"), number("O_WHAT"), number("0xg")),
            (None, None, None, None)
        );
    }

    proptest! {
        #[test]
        fn a_text_is_read_again(flags in prop_oneof![any::<u64>(), 0_u64..1 << 27]) {
            prop_assert_eq!(number(&text(flags)), Some(flags));
        }
    }
}
