//! Two facts of an ELF file: whether a program is dynamic, and the bytes of a section.
//!
//! Any bytes are valid input: what is not a 64-bit little-endian ELF file has no sections and no
//! interpreter. Own code, because a crate for two fields would be built for the guest's target too.

/// Whether `image` is a program or library that the dynamic linker loads (it has a `PT_INTERP` or
/// `PT_DYNAMIC` header).
pub(crate) fn is_dynamic(image: &[u8]) -> bool {
    const DYNAMIC: u32 = 2;
    const INTERPRETER: u32 = 3;
    let Some(table) = table(image, 0x20, 0x36, 0x38) else { return false };
    table
        .filter_map(|header| number(header, 0, 4))
        .any(|kind| u32::try_from(kind).is_ok_and(|kind| kind == DYNAMIC || kind == INTERPRETER))
}

/// The bytes of the section called `name`.
pub(crate) fn section<'a>(image: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let headers: Vec<&[u8]> = table(image, 0x28, 0x3a, 0x3c)?.collect();
    let content = |header: &[u8]| {
        let (offset, size) = (number(header, 0x18, 8)?, number(header, 0x20, 8)?);
        image.get(usize::try_from(offset).ok()?..)?.get(..usize::try_from(size).ok()?)
    };
    let names = content(headers.get(usize::try_from(number(image, 0x3e, 2)?).ok()?)?)?;
    headers.into_iter().find_map(|header| {
        let at = usize::try_from(number(header, 0, 4)?).ok()?;
        let found = names.get(at..)?.split(|byte| *byte == 0).next()?;
        (found == name.as_bytes()).then(|| content(header)).flatten()
    })
}

/// The entries of a header table whose file offset, entry size and entry count stand at these
/// places in the ELF header.
fn table(
    image: &[u8],
    offset_at: usize,
    size_at: usize,
    count_at: usize,
) -> Option<impl Iterator<Item = &[u8]>> {
    // Magic, 64 bits, little endian.
    if !image.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = usize::try_from(number(image, offset_at, 8)?).ok()?;
    let size = usize::try_from(number(image, size_at, 2)?).ok()?;
    let count = usize::try_from(number(image, count_at, 2)?).ok()?;
    if size == 0 {
        return None;
    }
    Some(image.get(offset..)?.chunks_exact(size).take(count))
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let field = bytes.get(at..)?.get(..width)?;
    Some(field.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_test_program_is_dynamic_and_has_text() {
        let image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_dynamic(&image));
        assert!(section(&image, ".text").is_some_and(|text| !text.is_empty()));
        assert_eq!(section(&image, ".nothing"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for (place, magic) in bytes.iter_mut().zip(b"\x7fELF\x02\x01") {
                *place = *magic;
            }
            is_dynamic(&bytes);
            section(&bytes, ".modinfo");
        }
    }
}
