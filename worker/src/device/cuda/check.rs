//! Judging modules before the driver sees them.

use pappus_blueprint::code::{CodeFormat, Cubin, Fatbin, Ptx};

use crate::device::{CodeError, MAX_MODULE_BYTES};

/// What a module's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Ptx,
    Cubin,
    Fatbin,
}

/// Bytes of a fatbin's header; its own length and that of what follows lie in it.
const FATBIN_HEADER_BYTES: usize = 16;

/// Recognises a module.
pub(super) fn format(module: &[u8]) -> Result<Format, CodeError> {
    if module.len() > MAX_MODULE_BYTES {
        let why = format!("the module has {} bytes, allowed are {MAX_MODULE_BYTES}", module.len());
        return Err(CodeError(why));
    }
    match module {
        cubin if Cubin.recognises(cubin) => Ok(Format::Cubin),
        fatbin if Fatbin.recognises(fatbin) => check_fatbin(fatbin).map(|()| Format::Fatbin),
        ptx if !Ptx.recognises(ptx) => {
            Err("this is no cubin, no fatbin and no PTX text (which has a `.version` line)".into())
        }
        ptx if ptx.contains(&0) => Err("the PTX text has a zero byte in it".into()),
        _ => Ok(Format::Ptx),
    }
}

/// The driver is not told how many bytes there are, so the lengths in the header must fit them.
fn check_fatbin(module: &[u8]) -> Result<(), CodeError> {
    let truncated = || CodeError::from("truncated: the fatbin is shorter than its header says");
    let header = module.get(..FATBIN_HEADER_BYTES).ok_or_else(truncated)?;
    let header_bytes = u64::from(u16::from_le_bytes([header[6], header[7]]));
    let content = header[8..16].try_into().map(u64::from_le_bytes).map_err(|_| truncated())?;
    match header_bytes.checked_add(content) {
        Some(end) if end <= module.len() as u64 => Ok(()),
        _ => Err(truncated()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_and_others_refused() {
        assert_eq!(format(b"\x7fELF..."), Ok(Format::Cubin));
        assert_eq!(format(b"// made by hand\n.version 7.0\n.target sm_70\n"), Ok(Format::Ptx));
        let mut fatbin = vec![0x50, 0xed, 0x55, 0xba];
        fatbin.extend([1, 0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert!(format(&fatbin).unwrap_err().0.contains("truncated"));
        fatbin.extend([0; 4]);
        assert_eq!(format(&fatbin), Ok(Format::Fatbin));
        for (bytes, words) in [
            (&b"\0asm\x01\0\0\0"[..], "no PTX"),
            (b".version 7.0\0", "zero byte"),
            (b"\xff\xfe", "no cubin"),
            (b"", "no PTX"),
        ] {
            assert!(format(bytes).unwrap_err().0.contains(words), "{bytes:?}");
        }
        assert!(format(&vec![b' '; MAX_MODULE_BYTES + 1]).is_err());
    }
}
