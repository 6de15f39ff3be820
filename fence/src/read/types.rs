//! PTX's types and how many bytes each has.

/// The bytes of a type written with or without its dot; none for predicates and what is no type.
pub fn bytes(name: &str) -> Option<u64> {
    Some(match name.strip_prefix('.').unwrap_or(name) {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}
