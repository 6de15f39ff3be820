//! Numbers to the bytes of a buffer and back, little-endian as on every device.

/// A number that buffers hold.
pub trait Element: Copy {
    /// Appends its bytes.
    fn append_to(self, bytes: &mut Vec<u8>);
    /// Every complete element of `bytes`; what is left over at the end is dropped.
    fn read_all(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($($number:ty),*) => {$(
        impl Element for $number {
            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn read_all(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|chunk| Self::from_le_bytes(*chunk)).collect()
            }
        }
    )*};
}

element!(u8, u64, i64, f32);

/// The bytes of a buffer that holds `elements`.
pub fn from_elements<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|element| element.append_to(&mut bytes));
    bytes
}

/// The elements in a buffer's `bytes`.
pub fn to_elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    T::read_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_survive_the_round_trip_and_are_little_endian() {
        assert_eq!(from_elements(&[1u64])[..2], [1, 0]);
        assert_eq!(to_elements::<i64>(&from_elements(&[-1i64, i64::MIN])), [-1, i64::MIN]);
        assert_eq!(to_elements::<f32>(&from_elements(&[1.5f32, -0.0])), [1.5, -0.0]);
        assert_eq!(to_elements::<u64>(&[1; 7]), []);
    }
}
