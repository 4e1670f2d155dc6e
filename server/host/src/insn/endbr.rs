//! ENDBR instructions (Intel CET) at the beginning of a function, sealed or not.

/// Bytes of ENDBR at the beginning of `code`, sealed or not: 4 or 0.
///
/// A function whose address is never taken is sealed at boot, on processors without IBT as well
/// (arch/x86/kernel/alternative.c:apply_seal_endbr). What is written then differs between releases
/// (arch/x86/include/asm/ibt.h:gen_endbr_poison).
pub fn endbr_bytes(code: &[u8]) -> usize {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
    const SEALED_6_12: [u8; 4] = [0x66, 0x0f, 0x1f, 0x00];
    const SEALED_7_2: [u8; 4] = [0x0f, 0x1f, 0x40, 0xd6];
    let begins = |form: [u8; 4]| code.starts_with(&form);
    if begins(ENDBR64) || begins(ENDBR32) || begins(SEALED_6_12) || begins(SEALED_7_2) { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_four_bytes() {
        for (code, bytes) in [
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x90][..], 4),
            (&[0xf3, 0x0f, 0x1e, 0xfb], 4),
            (&[0x66, 0x0f, 0x1f, 0x00], 4),
            (&[0x0f, 0x1f, 0x40, 0xd6], 4),
            (&[0x0f, 0x1f, 0x40, 0x00], 0),
            (&[0xf3, 0x0f, 0x1e], 0),
        ] {
            assert_eq!(endbr_bytes(code), bytes, "{code:x?}");
        }
    }
}
