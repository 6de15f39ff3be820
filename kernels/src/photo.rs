//! A photograph in the public domain (`photo/SOURCE.md`).

/// The photograph as a PNG file, RGB with 8 bits per channel.
pub const PNG: &[u8] = include_bytes!("../photo/astronaut.png");
/// Its width in pixels.
pub const WIDTH: u64 = 320;
/// Its height in pixels.
pub const HEIGHT: u64 = 320;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_png_has_the_stated_size_and_format() {
        // Signature (8), length and name of the first chunk (8), then width, height, depth, colour type.
        assert_eq!(&PNG[..8], b"\x89PNG\r\n\x1a\n");
        let word = |at: usize| u32::from_be_bytes(PNG[at..at + 4].try_into().unwrap());
        assert_eq!((word(16) as u64, word(20) as u64), (WIDTH, HEIGHT));
        assert_eq!(PNG[24..26], [8, 2]);
    }
}
