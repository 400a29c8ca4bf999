//! MD5 (RFC 1321), the checksum in Debian packages. It finds damaged files, and protects from no attack.

use std::fmt::Write as _;

/// The bits by which each round rotates.
const ROTATIONS: [[u32; 4]; 4] =
    [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// The integer part of the sine of each number from 1 to 64, without its sign, times 2^32.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];
/// The size of a block in bytes.
const BLOCK: usize = 64;

/// Returns the checksum in hexadecimal.
pub(super) fn md5(content: &[u8]) -> String {
    let whole = content.len() / BLOCK * BLOCK;
    let mut rest = content[whole..].to_vec();
    rest.push(0x80);
    while rest.len() % BLOCK != BLOCK - 8 {
        rest.push(0);
    }
    rest.extend((content.len() as u64).wrapping_mul(8).to_le_bytes());
    let blocks = content[..whole].chunks_exact(BLOCK).chain(rest.chunks_exact(BLOCK));
    let state = blocks.fold(START, add);
    let mut hex = String::with_capacity(32);
    for byte in state.into_iter().flat_map(u32::to_le_bytes) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Returns the state after a block.
fn add(state: [u32; 4], block: &[u8]) -> [u32; 4] {
    let words: Vec<u32> = (block.chunks_exact(4))
        .map(|bytes| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
        .collect();
    let [mut a, mut b, mut c, mut d] = state;
    for (step, sine) in SINES.iter().enumerate() {
        let round = step / 16;
        let (mixed, word) = match round {
            0 => (b & c | !b & d, step),
            1 => (d & b | !d & c, 5 * step + 1),
            2 => (b ^ c ^ d, 3 * step + 5),
            _ => (c ^ (b | !d), 7 * step),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(*sine).wrapping_add(words[word % 16]);
        let turned = sum.rotate_left(ROTATIONS[round][step % 4]);
        (a, d, c, b) = (d, c, b, b.wrapping_add(turned));
    }
    let [old_a, old_b, old_c, old_d] = state;
    [old_a.wrapping_add(a), old_b.wrapping_add(b), old_c.wrapping_add(c), old_d.wrapping_add(d)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test suite in appendix A.5 of RFC 1321.
    #[test]
    fn checksums_are_those_of_the_rfc() {
        for (text, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(md5(text.as_bytes()), expected, "{text}");
        }
    }
}
