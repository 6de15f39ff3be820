//! Files of the user that the client reads: `.npy`.

use pappus_client::npy;

/// A header: what is read and written again is the same array.
pub fn read_npy(bytes: &[u8]) {
    let Ok(header) = npy::read_header(bytes) else { return };
    assert!(header.data_offset <= bytes.len() as u64);
    // What Pappus writes are its own types' names, which need no quoting.
    if header.data_bytes().is_ok() && header.descr.len() < 8 && header.shape.len() <= 32 {
        let again = npy::read_header(&npy::header(&header.descr, &header.shape)[..]).expect("it was written");
        assert_eq!((again.descr, again.shape), (header.descr, header.shape));
    }
}
