//! What kernels take, from the object that the compiler makes for the CPU device: `KERNEL` of `pappus_cpu.h` leaves a record
//! for each, which is found by its mark.

use pappus_blueprint::limits::PARAM_BYTES;
use pappus_blueprint::signatures::{Class, Signature, Unplaced, laid_out};

/// What a record begins with.
const MARK: &[u8; 16] = b"pappus-kernel-2\0";
/// Bytes of a parameter's entry: its bytes, its alignment, its class as the compiler numbers them.
const ENTRY: usize = 12;
/// Bytes and alignment of a pointer wherever it is a parameter.
const POINTER: (u32, u32) = (8, 8);

/// The signatures of all kernels of an object, in their order. An error names what is wrong.
pub(super) fn all(object: &[u8]) -> Result<Vec<Signature>, String> {
    let mut all = Vec::new();
    let mut rest = object;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        rest = &rest[at + MARK.len()..];
        let Some((kernel, params)) = record(rest) else {
            return Err("its record of a kernel is cut off: is pappus.h the one of this program?".into());
        };
        let Some(params) = laid_out(params) else {
            return Err(format!(
                "kernel `{kernel}`: its parameters have more than {PARAM_BYTES} bytes, or are too many"
            ));
        };
        all.push(Signature { kernel: kernel.to_owned(), params });
    }
    all.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    Ok(all)
}

/// The record behind a mark: the kernel's name and its parameters.
fn record(bytes: &[u8]) -> Option<(&str, Vec<Unplaced<'_>>)> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let (count, kernel_bytes, names_bytes) = (word(0)? as usize, word(4)? as usize, word(8)? as usize);
    let (entries, behind) = bytes.get(12..)?.split_at_checked(count.checked_mul(ENTRY)?)?;
    // An empty entry stands behind the last. Each text ends with a zero, each name with a comma.
    let (kernel, behind) = behind.get(ENTRY..)?.split_at_checked(kernel_bytes)?;
    let names = std::str::from_utf8(behind.get(1..)?.get(..names_bytes)?).ok()?;
    let entry = |(entry, name): (&[u8], _)| {
        let word = |at: usize| Some(u32::from_le_bytes(entry.get(at..at + 4)?.try_into().ok()?));
        Some(match class(word(8)?) {
            Class::Pointer => (name, Class::Pointer, POINTER.0, POINTER.1),
            other => (name, other, word(0)?, word(4)?),
        })
    };
    let params: Vec<_> =
        entries.chunks(ENTRY).zip(names.split_terminator(',')).map(entry).collect::<Option<_>>()?;
    (params.len() == count).then_some((std::str::from_utf8(kernel).ok()?, params))
}

/// The numbers of `__builtin_classify_type`, the same in clang and gcc.
fn class(number: u32) -> Class {
    match number {
        // Integers, characters, enumerations, truth values.
        1..=4 => Class::Integer,
        5 => Class::Pointer,
        8 => Class::Float,
        12 | 13 => Class::Struct,
        _ => Class::Bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, params: &[[u32; 3]]) -> Vec<u8> {
        let mut bytes = b"\0asm...".to_vec();
        bytes.extend(MARK);
        let names: String = (0..params.len()).map(|at| format!("p{at},")).collect();
        let words = [params.len(), name.len(), names.len()].map(|count| count as u32);
        let words = words.into_iter().chain(params.concat()).chain([0; 3]);
        bytes.extend(words.flat_map(u32::to_le_bytes));
        bytes.extend(format!("{name}\0{names}\0").as_bytes());
        bytes
    }

    #[test]
    fn records_become_signatures() {
        let params = [[4, 4, 5], [4, 4, 8], [8, 8, 1], [32, 8, 12], [1, 1, 4]];
        let two = [object("k", &params), object("a", &[])].concat();
        let found = all(&two).unwrap();
        assert_eq!((found[0].kernel.as_str(), found[0].params.len()), ("a", 0));
        let told: Vec<_> =
            found[1].params.iter().map(|one| (&*one.name, one.class, one.offset, one.bytes)).collect();
        use Class::{Float, Integer, Pointer, Struct};
        let expected = [
            ("p0", Pointer, 0, 8),
            ("p1", Float, 8, 4),
            ("p2", Integer, 16, 8),
            ("p3", Struct, 24, 32),
            ("p4", Integer, 56, 1),
        ];
        assert_eq!(told, expected);
        assert_eq!(all(b"nothing").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let whole = object("k", &[[4, 4, 5]]);
        assert!(all(&whole[..whole.len() - 2]).unwrap_err().contains("cut off"));
        let why = all(&object("k", &[[8192, 8, 12]])).unwrap_err();
        assert!(why.contains("kernel `k`: its parameters have more than 4096 bytes"), "{why}");
    }
}
