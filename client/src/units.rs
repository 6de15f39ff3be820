//! Numbers for people.

use bytesize::ByteSize;

/// Bytes in a column of bytes: `131080 (128.0 KiB)`.
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    format!("{bytes} ({})", rough_bytes(bytes))
}

/// Bytes where nothing else says that they are: `131080 bytes (128.0 KiB)`.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    format!("{bytes} bytes ({})", rough_bytes(bytes))
}

/// Bytes, roughly: `128.0 KiB`.
pub(crate) fn rough_bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Whole mebibytes as an option is written, in the largest unit that says it exactly: `125GiB`, `32000MiB`.
pub(crate) fn exact_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes if bytes.is_multiple_of(1 << 30) => format!("{}GiB", bytes >> 30),
        bytes => format!("{}MiB", bytes >> 20),
    }
}

/// Nanoseconds in the unit that suits them: `4.1 µs`.
pub(crate) fn nanoseconds(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e6 => format!("{:.1} µs", ns / 1e3),
        ..1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// A hash as it is usually written.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(8), "8");
        assert_eq!(bytes(131_072), "131072 (128.0 KiB)");
        assert_eq!(size(8), "8 bytes");
        assert_eq!(size(131_072), "131072 bytes (128.0 KiB)");
        assert_eq!(exact_bytes(0), "0");
        assert_eq!(exact_bytes(125 << 30), "125GiB");
        assert_eq!(exact_bytes(32_000 << 20), "32000MiB");
        assert_eq!(nanoseconds(0), "0 ns");
        assert_eq!(nanoseconds(4_120), "4.1 µs");
        assert_eq!(nanoseconds(1_234_567), "1.23 ms");
        assert_eq!(nanoseconds(61_500_000_000), "61.50 s");
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }
}
