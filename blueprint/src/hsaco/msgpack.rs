//! MessagePack, as much as notes of code objects use: read in place, item by item, without building a tree. Every step
//! consumes a byte of the input, so that nothing takes longer than it is long.

use super::CodeError;

/// What begins at a place of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item<'a> {
    Number(u64),
    Flag(bool),
    Text(&'a [u8]),
    /// As many items follow.
    Array(u32),
    /// As many pairs of items follow.
    Map(u32),
    /// Nothing, a negative number, a float, bytes or an extension.
    Other,
}

/// Reads one item after the other.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// True if everything was read.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many pairs a map has; they follow.
    pub(super) fn map(&mut self) -> Result<u32, CodeError> {
        match self.item()? {
            Item::Map(pairs) => Ok(pairs),
            _ => Err(wrong("a map")),
        }
    }

    /// How many items an array has; they follow.
    pub(super) fn array(&mut self) -> Result<u32, CodeError> {
        match self.item()? {
            Item::Array(items) => Ok(items),
            _ => Err(wrong("an array")),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, CodeError> {
        match self.item()? {
            Item::Text(bytes) => std::str::from_utf8(bytes).map_err(|_| wrong("a text")),
            _ => Err(wrong("a text")),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, CodeError> {
        match self.item()? {
            Item::Number(number) => Ok(number),
            _ => Err(wrong("a number")),
        }
    }

    /// A truth value; some compilers write 0 and 1.
    pub(super) fn flag(&mut self) -> Result<bool, CodeError> {
        match self.item()? {
            Item::Flag(flag) => Ok(flag),
            Item::Number(number @ 0..=1) => Ok(number == 1),
            _ => Err(wrong("true or false")),
        }
    }

    /// Passes over one item with everything in it.
    pub(super) fn skip(&mut self) -> Result<(), CodeError> {
        let mut left = 1u64;
        while left > 0 {
            left -= 1;
            // Counts were compared with the bytes that are left, so that this cannot wrap.
            left += match self.item()? {
                Item::Array(items) => u64::from(items),
                Item::Map(pairs) => 2 * u64::from(pairs),
                _ => 0,
            };
        }
        Ok(())
    }

    fn item(&mut self) -> Result<Item<'a>, CodeError> {
        let [kind] = self.take()?;
        Ok(match kind {
            0x00..=0x7f => Item::Number(kind.into()),
            0x80..=0x8f => self.items(u64::from(kind & 15), 2)?,
            0x90..=0x9f => self.items(u64::from(kind & 15), 1)?,
            0xa0..=0xbf => Item::Text(self.bytes(u64::from(kind & 31))?),
            0xc0 | 0xe0..=0xff => Item::Other,
            0xc1 => return Err("malformed: its note is no MessagePack".into()),
            0xc2 | 0xc3 => Item::Flag(kind == 0xc3),
            0xc4..=0xc6 => {
                let bytes = self.length(kind - 0xc4)?;
                self.pass(bytes)?
            }
            // An extension has a byte for its type.
            0xc7..=0xc9 => {
                let bytes = self.length(kind - 0xc7)?;
                self.pass(bytes + 1)?
            }
            0xca => self.pass(4)?,
            0xcb => self.pass(8)?,
            0xcc..=0xcf => Item::Number(self.length(kind - 0xcc)?),
            0xd0..=0xd3 => {
                let bits = 8 << (kind - 0xd0);
                match self.length(kind - 0xd0)? {
                    negative if negative >> (bits - 1) == 1 => Item::Other,
                    number => Item::Number(number),
                }
            }
            0xd4..=0xd8 => self.pass(1 + (1 << (kind - 0xd4)))?,
            0xd9..=0xdb => {
                let bytes = self.length(kind - 0xd9)?;
                Item::Text(self.bytes(bytes)?)
            }
            0xdc | 0xdd => {
                let items = self.length(kind - 0xdc + 1)?;
                self.items(items, 1)?
            }
            0xde | 0xdf => {
                let pairs = self.length(kind - 0xde + 1)?;
                self.items(pairs, 2)?
            }
        })
    }

    /// An array or a map; each of its items has at least one byte.
    fn items(&self, count: u64, each: u64) -> Result<Item<'a>, CodeError> {
        if count * each > self.rest.len() as u64 {
            return Err(truncated());
        }
        let count = u32::try_from(count).map_err(|_| truncated())?;
        Ok(if each == 1 { Item::Array(count) } else { Item::Map(count) })
    }

    /// A number of 1, 2, 4 or 8 bytes.
    fn length(&mut self, power: u8) -> Result<u64, CodeError> {
        Ok(match power {
            0 => u64::from(u8::from_be_bytes(self.take()?)),
            1 => u64::from(u16::from_be_bytes(self.take()?)),
            2 => u64::from(u32::from_be_bytes(self.take()?)),
            _ => u64::from_be_bytes(self.take()?),
        })
    }

    fn pass(&mut self, bytes: u64) -> Result<Item<'a>, CodeError> {
        self.bytes(bytes).map(|_| Item::Other)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], CodeError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], CodeError> {
        let count = usize::try_from(count).map_err(|_| truncated())?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

fn truncated() -> CodeError {
    "truncated: its note ends within".into()
}

fn wrong(expected: &str) -> CodeError {
    CodeError(format!("malformed: its note has something else where {expected} belongs"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_item_is_read_or_passed_over() {
        let read = |bytes: &'static [u8]| Reader::new(bytes).item();
        for (bytes, item) in [
            (&[0x7f][..], Item::Number(127)),
            (&[0xcc, 200], Item::Number(200)),
            (&[0xcd, 1, 0], Item::Number(256)),
            (&[0xce, 0, 1, 0, 0], Item::Number(65536)),
            (&[0xcf, 0, 0, 0, 1, 0, 0, 0, 0], Item::Number(1 << 32)),
            (&[0xd0, 5], Item::Number(5)),
            (&[0xd0, 0xff], Item::Other),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], Item::Other),
            (&[0xc3], Item::Flag(true)),
            (&[0xa2, b'a', b'b'], Item::Text(b"ab")),
            (&[0xd9, 1, b'a'], Item::Text(b"a")),
            (&[0xda, 0, 1, b'a'], Item::Text(b"a")),
            (&[0x91, 0], Item::Array(1)),
            (&[0xdc, 0, 1, 0], Item::Array(1)),
            (&[0xdd, 0, 0, 0, 1, 0], Item::Array(1)),
            (&[0x81, 0, 0], Item::Map(1)),
            (&[0xdf, 0, 0, 0, 1, 0, 0], Item::Map(1)),
            (&[0xc4, 1, 0], Item::Other),
            (&[0xc7, 1, 0, 0], Item::Other),
            (&[0xcb, 0, 0, 0, 0, 0, 0, 0, 0], Item::Other),
            (&[0xd8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], Item::Other),
        ] {
            assert_eq!(read(bytes), Ok(item), "{bytes:x?}");
            assert!(read(&bytes[..bytes.len() - 1]).is_err(), "{bytes:x?} cut off");
        }
        assert!(read(&[0xc1]).is_err());
    }

    #[test]
    fn what_is_nested_is_passed_over_as_a_whole() {
        // {"a": [1, {2: nil}]}, then 7.
        let mut reader = Reader::new(&[0x81, 0xa1, b'a', 0x92, 1, 0x81, 2, 0xc0, 7]);
        reader.skip().unwrap();
        assert_eq!((reader.number(), reader.is_at_end()), (Ok(7), true));
        // A million arrays within each other need no stack, and counts that lie no time.
        let mut deep = vec![0x91; 1 << 20];
        deep.push(0);
        assert_eq!(Reader::new(&deep).skip(), Ok(()));
        assert!(Reader::new(&deep[..1 << 20]).skip().is_err());
        assert!(Reader::new(&[0xdd, 0xff, 0xff, 0xff, 0xff]).skip().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_passed_over_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = Reader::new(&bytes);
            while reader.skip().is_ok() {}
            prop_assert!(reader.rest.len() <= bytes.len());
        }
    }
}
