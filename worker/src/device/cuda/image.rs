//! What the compiler makes of a module where workers may be shared: plain code, and fenced code if there can be any, in one
//! file.
//!
//! ```text
//!  mark (8) | bytes of plain, fenced, initial (u64 each) | bytes of variables (u64) | plain | fenced | initial
//! ```
//!
//! Numbers are little-endian. Without fenced code its length is zero.

use crate::device::CodeError;
use crate::device::gpu::driver::Code;

/// How such a file begins; a cubin begins as ELF files do.
const MARK: [u8; 8] = *b"PAPPUSWN";
const HEADER_BYTES: usize = 5 * 8;

/// The file; `fenced` code may be absent.
pub(super) fn write(plain: &[u8], fenced: Option<&Code>) -> Vec<u8> {
    let none = Code { machine: Vec::new(), variables_bytes: 0, initial: Vec::new() };
    let fenced = fenced.unwrap_or(&none);
    let parts = [plain, &fenced.machine, &fenced.initial];
    let mut image = MARK.to_vec();
    image.extend(parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes()));
    image.extend(fenced.variables_bytes.to_le_bytes());
    parts.iter().for_each(|part| image.extend_from_slice(part));
    image
}

/// The `fenced` code of a file, or the plain one; a file without mark is plain code.
pub(super) fn read(image: Vec<u8>, fenced: bool) -> Result<Code, CodeError> {
    let Some(header) = image.get(..HEADER_BYTES).filter(|header| header.starts_with(&MARK)) else {
        return match fenced {
            true => Err("it is not fenced: the device that compiled it does not share workers".into()),
            false => Ok(Code { machine: image, variables_bytes: 0, initial: Vec::new() }),
        };
    };
    let mut numbers = [0; 4];
    for (number, bytes) in numbers.iter_mut().zip(header[8..].chunks_exact(8)) {
        *number = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    let [plain, fenced_bytes, initial, variables_bytes] = numbers;
    let mut rest = &image[HEADER_BYTES..];
    let mut take = |bytes: u64| {
        let (part, behind) = rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        rest = behind;
        Some(part)
    };
    let parts = take(plain).zip(take(fenced_bytes)).zip(take(initial));
    let ((plain, machine), initial) = parts.ok_or("truncated: its parts are longer than the file")?;
    match fenced {
        true if machine.is_empty() => Err("it is not fenced: its kernels could leave a window".into()),
        true => Ok(Code { machine: machine.to_vec(), variables_bytes, initial: initial.to_vec() }),
        false => Ok(Code { machine: plain.to_vec(), variables_bytes: 0, initial: Vec::new() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_reads_its_code() {
        let fenced = Code { machine: b"fenced".to_vec(), variables_bytes: 64, initial: vec![7; 3] };
        let plain = Code { machine: b"plain".to_vec(), variables_bytes: 0, initial: Vec::new() };
        let image = write(b"plain", Some(&fenced));
        assert_eq!(read(image.clone(), false), Ok(plain.clone()));
        assert_eq!(read(image.clone(), true), Ok(fenced));
        for length in MARK.len()..image.len() {
            assert!(read(image[..length].to_vec(), true).is_err(), "{length}");
        }
        assert_eq!(read(write(b"plain", None), false), Ok(plain));
        assert!(read(write(b"plain", None), true).unwrap_err().0.contains("could leave"));
        // As compilers of devices that share nothing write it.
        assert_eq!(read(b"\x7fELF".to_vec(), false).map(|code| code.machine), Ok(b"\x7fELF".to_vec()));
        assert!(read(b"\x7fELF".to_vec(), true).is_err());
        let mut wrong = image;
        wrong[8..16].fill(0xff);
        assert!(read(wrong, false).is_err());
    }
}
