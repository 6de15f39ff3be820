//! PTX's types and how many bytes each has.

/// The bytes of a type written with or without its dot; none for predicates and what is no type.
pub fn bytes(name: &str) -> Option<u64> {
    Some(match name.strip_prefix('.').unwrap_or(name) {
        "b8" | "u8" | "s8" | "e4m3" | "e5m2" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" | "e4m3x2" | "e5m2x2" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" | "u16x2" | "s16x2" => 4,
        "b64" | "u64" | "s64" | "f64" | "f32x2" => 8,
        "b128" => 16,
        _ => return None,
    })
}
