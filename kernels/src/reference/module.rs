//! Module `module`.

/// `check_then_write`: the first element becomes 98765 where it was 12345.
///
/// Limits: the buffer has at least one element.
pub fn check_then_write(buffer: &[i64]) -> Vec<i64> {
    let mut result = buffer.to_vec();
    if result[0] == 12345 {
        result[0] = 98765;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_magic_number_changes() {
        assert_eq!(check_then_write(&[12345, 12345]), [98765, 12345]);
        assert_eq!(check_then_write(&[1]), [1]);
    }
}
