//! What an output of the demo must be, and how well one agrees.

use pappus_kernels::bytes::to_elements;

/// What an output must be.
pub(super) struct Expected {
    pub(super) output: &'static str,
    pub(super) bytes: Vec<u8>,
    /// The largest relative difference of f32 elements; without one, every bit counts.
    pub(super) tolerance: Option<f32>,
}

/// How well an output agrees.
pub(super) struct Verdict {
    pub(super) right: bool,
    pub(super) words: String,
}

impl Expected {
    /// Says how well `got` agrees.
    pub(super) fn compare(&self, got: &[u8]) -> Verdict {
        if self.bytes == got {
            return Verdict { right: true, words: "the same bits as plain Rust".into() };
        }
        let Some(tolerance) = self.tolerance else {
            let at = self.bytes.iter().zip(got).position(|(expected, got)| expected != got);
            let words = format!("differs from plain Rust at byte {}", at.unwrap_or(got.len()));
            return Verdict { right: false, words };
        };
        let (expected, got) = (to_elements::<f32>(&self.bytes), to_elements::<f32>(got));
        let pairs = expected.iter().zip(&got);
        let differences = pairs.map(|(expected, got)| (expected - got).abs() / expected.abs().max(1.0));
        // NaN must not pass, and `max` would skip it.
        let worst =
            differences.map(|next| if next.is_nan() { f32::INFINITY } else { next }).fold(0.0, f32::max);
        let words = format!("differs from plain Rust by at most {worst:.1e}, allowed {tolerance:.0e}");
        Verdict { right: expected.len() == got.len() && worst <= tolerance, words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pappus_kernels::bytes::from_elements;

    #[test]
    fn a_wrong_output_never_passes() {
        let floats = Expected { output: "D", bytes: from_elements(&[1.0f32, 2.0]), tolerance: Some(1e-5) };
        assert!(floats.compare(&from_elements(&[1.0f32, 2.000_001])).right);
        for wrong in [&[1.0f32, 2.1][..], &[1.0], &[f32::NAN, 2.0], &[1.0, f32::NAN], &[1.0, f32::INFINITY]] {
            assert!(!floats.compare(&from_elements(wrong)).right, "{wrong:?}");
        }
        let bits = Expected { tolerance: None, ..floats };
        assert!(bits.compare(&bits.bytes).right);
        assert!(!bits.compare(&bits.bytes[1..]).right);
        assert!(!bits.compare(&[]).right);
    }
}
