//! Files of the user that the client reads: `.npy`.

use pappus_client::array::Element;
use pappus_client::npy;

/// A header: what is read and written again is the same array.
pub fn read_npy(bytes: &[u8]) {
    let Ok(header) = npy::read_header(bytes) else { return };
    assert!(header.data_offset <= bytes.len() as u64);
    let Element::Of(dtype) = header.array.element else { return };
    let Some(descr) = npy::descr(dtype) else { return };
    let again = npy::read_header(&npy::header(descr, &header.array.shape)[..]).expect("it was written");
    assert_eq!(again.array, header.array);
}
