//! Limits of the client protocol, each checked before anything is allocated.

/// Bytes of one frame's message.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Descriptors that may come with one message.
pub const MAX_MESSAGE_FDS: usize = 8;
/// Inline bytes of one invocation, inputs and outputs together; larger data travels in arenas or memfds.
pub const MAX_INLINE_BYTES: u64 = 1 << 20;
/// Items of all inputs of one invocation.
pub const MAX_ITEMS: usize = 1024;
/// Bytes of the name that a request has in the log.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// Messages inside one request, of every depth: inputs, items and their places, types, outputs; modules, variants,
/// weights. Eight dimensions of an array count as one.
pub const MAX_REQUEST_PARTS: usize = 8192;
/// Bytes of a module's, function's or buffer's name.
pub const MAX_NAME_BYTES: usize = 128;
/// Bytes of one blob (module, configuration or weights).
pub const MAX_BLOB_BYTES: u64 = 64 << 30;
/// Bytes of one arena.
pub const MAX_ARENA_BYTES: u64 = 64 << 30;

/// True if `name` can name a module or function: letters, digits, `.`, `_`, `-`; no leading dot.
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::is_valid_name;

    #[test]
    fn names_are_plain_words() {
        for good in ["a", "matmul", "mlops.v2", "A-b_c.9"] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in ["", ".hidden", "..", "a/b", "a b", "naïve", "a\0", &"x".repeat(129)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
    }
}
