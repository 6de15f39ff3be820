//! Messages that are rare travel as postcard.

/// Appends a cold message's bytes; encoding plain data into memory cannot fail.
pub(crate) fn append<T: serde::Serialize>(out: &mut Vec<u8>, message: &T) {
    match postcard::to_extend(message, std::mem::take(out)) {
        Ok(extended) => *out = extended,
        Err(e) => unreachable!("encoding into a Vec failed: {e}"),
    }
}
