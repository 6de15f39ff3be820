//! Bytes on their way between the steps of a composition: regions of arenas of the caller's, of memory made for them, or bytes
//! that came in messages.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use pappus_proto::v1;
use pappus_proto::v1::item::Source;
use pappus_shmem::memfd;

use crate::arena::Arena;
use crate::client_memfd::ClientMemfd;
use crate::quota::Limit;
use crate::refusal::Refusal;
use crate::server::Server;
use crate::tenants::{Account, Taken};

/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;

/// An input, a constant, or an output of a step.
#[derive(Debug, Clone, Default)]
pub(super) struct Value {
    /// Its bytes, in order.
    pub(super) pieces: Vec<Piece>,
    /// What they hold, where that is known.
    pub(super) array: Option<v1::ArrayType>,
}

/// Some bytes of a value.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    /// A region of an arena of the caller's, which may change at any time.
    Caller { arena: Arc<Arena>, offset: u64, bytes: u64 },
    /// A region of memory that was made for it.
    Own { memory: Arc<OwnMemory>, offset: u64, bytes: u64 },
    /// Bytes that come in messages, and what the caller is charged for them.
    Inline(Bytes, Option<Arc<Taken>>),
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Caller { bytes, .. } | Self::Own { bytes, .. } => *bytes,
            Self::Inline(bytes, _) => bytes.len() as u64,
        }
    }

    /// The part of so many bytes from `start` on.
    fn part(&self, start: u64, bytes: u64) -> Self {
        match self {
            Self::Caller { arena, offset, .. } => {
                Self::Caller { arena: arena.clone(), offset: offset + start, bytes }
            }
            Self::Own { memory, offset, .. } => {
                Self::Own { memory: memory.clone(), offset: offset + start, bytes }
            }
            Self::Inline(all, taken) => {
                Self::Inline(all.slice(start as usize..(start + bytes) as usize), taken.clone())
            }
        }
    }

    /// The arena that a call maps for it; none for bytes in messages.
    pub(super) fn arena(&self) -> Option<&Arc<Arena>> {
        match self {
            Self::Caller { arena, .. } => Some(arena),
            Self::Own { memory, .. } => Some(&memory.arena),
            Self::Inline(..) => None,
        }
    }

    /// Reads all of it, part by part.
    pub(super) fn read(&self, each: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let (arena, offset) = match self {
            Self::Inline(bytes, _) => return each(bytes),
            Self::Caller { arena, offset, .. } => (arena, *offset),
            Self::Own { memory, offset, .. } => (&memory.arena, *offset),
        };
        read_parts(&arena.memfd, offset, self.bytes(), each)
    }

    /// True if the piece is in an arena of the caller's.
    pub(super) fn is_callers(&self) -> bool {
        matches!(self, Self::Caller { .. })
    }

    /// The piece as an input of a call.
    fn item(&self) -> v1::Item {
        let source = match self {
            Self::Inline(bytes, _) => Source::Inline(bytes.clone()),
            Self::Caller { arena, offset, bytes } => {
                Source::Region(v1::Region { arena: arena.id, offset: *offset, bytes: *bytes })
            }
            Self::Own { memory, offset, bytes } => {
                Source::Region(v1::Region { arena: memory.arena.id, offset: *offset, bytes: *bytes })
            }
        };
        v1::Item { source: Some(source) }
    }
}

impl Value {
    /// How many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::bytes).sum()
    }

    /// The value as an input of a call.
    pub(super) fn input(&self, name: &str) -> v1::Input {
        let items = self.pieces.iter().map(Piece::item).collect();
        v1::Input { name: name.to_owned(), items, r#type: self.array.clone() }
    }

    /// One of `count` items of the same size; none where there are not so many.
    pub(super) fn item(&self, nth: u64, count: u64) -> Option<Self> {
        let bytes = self.bytes();
        let fits = match &self.array {
            Some(array) => array.shape.first() == Some(&count),
            None => bytes.is_multiple_of(count),
        };
        if !fits {
            return None;
        }
        let each = bytes / count;
        let (start, end) = (nth * each, (nth + 1) * each);
        let (mut pieces, mut at) = (Vec::new(), 0);
        for piece in &self.pieces {
            let (from, to) = (start.max(at), end.min(at + piece.bytes()));
            if from < to {
                pieces.push(piece.part(from - at, to - from));
            }
            at += piece.bytes();
        }
        let array = self.array.as_ref();
        let array = array.map(|array| v1::ArrayType { shape: array.shape[1..].to_vec(), ..array.clone() });
        Some(Self { pieces, array })
    }

    /// Reads all of it, part by part. Those of the caller's arenas may take long.
    pub(super) fn read(&self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| piece.read(&mut each))
    }
}

/// An output of a step that runs for items: theirs, one behind the other, in one piece.
#[derive(Debug)]
pub(super) struct Joined {
    count: u64,
    /// Bytes of each item, and what it holds.
    bytes: u64,
    array: Option<v1::ArrayType>,
    place: JoinedPlace,
}

/// Where the items of an output are.
#[derive(Debug)]
pub(super) enum JoinedPlace {
    /// They go in messages, and this is what the caller is charged for them.
    Inline(Vec<u8>, Taken),
    /// In this memory, from here on.
    Own(Arc<OwnMemory>, u64),
}

/// Items of one step have different sizes or shapes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Uneven;

impl Joined {
    /// So many items like the first one.
    pub(super) fn new(first: &Value, count: u64, place: JoinedPlace) -> Self {
        Self { count, bytes: first.bytes(), array: first.array.clone(), place }
    }

    /// The next item.
    pub(super) fn add(&mut self, nth: u64, item: &Value) -> Result<io::Result<()>, Uneven> {
        if item.bytes() != self.bytes || item.array != self.array {
            return Err(Uneven);
        }
        let mut at = nth * self.bytes;
        Ok(item.read(|bytes| match &mut self.place {
            JoinedPlace::Inline(all, _) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
            JoinedPlace::Own(memory, offset) => {
                let start = *offset + at;
                at += bytes.len() as u64;
                memory.write(start, bytes)
            }
        }))
    }

    /// All items as one value.
    pub(super) fn value(self) -> Value {
        let Self { count, bytes, array, place } = self;
        let array = array.map(|mut array| {
            array.shape.insert(0, count);
            array
        });
        let piece = match place {
            JoinedPlace::Inline(all, taken) => Piece::Inline(all.into(), Some(Arc::new(taken))),
            JoinedPlace::Own(memory, offset) => Piece::Own { memory, offset, bytes: count * bytes },
        };
        Value { pieces: vec![piece], array }
    }
}

/// Reads bytes of a memfd, part by part.
pub(super) fn read_parts(
    memfd: &ClientMemfd,
    offset: u64,
    bytes: u64,
    each: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut buffer, end) = (Vec::new(), offset + bytes);
    for start in (offset..end).step_by(CHUNK as usize) {
        buffer.resize(CHUNK.min(end - start) as usize, 0);
        memfd.read_at(start, &mut buffer)?;
        each(&buffer)?;
    }
    Ok(())
}

/// An arena of the supervisor's for one call, which workers forget once nothing holds it any more.
#[derive(Debug)]
pub(super) struct OwnMemory {
    pub(super) arena: Arc<Arena>,
    server: Arc<Server>,
}

impl OwnMemory {
    /// So many bytes, which the caller is charged for.
    pub(super) fn new(
        server: &Arc<Server>,
        account: &Arc<Account>,
        bytes: u64,
    ) -> Result<Arc<Self>, Refusal> {
        let memory = ClientMemfd::own("composition", bytes, account, &server.client_io)?;
        let arena = Arena::new(server.next_arena(), memory, account, Limit::ArenaBytes)?;
        Ok(Arc::new(Self { arena: Arc::new(arena), server: server.clone() }))
    }

    /// How many there are.
    pub(super) fn bytes(&self) -> u64 {
        self.arena.memfd.bytes()
    }

    /// Writes at a place.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        memfd::write_all_at(self.arena.memfd.as_fd(), offset, bytes)
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        self.server.forget_arena(&self.arena);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::tenants::{Ledger, Machine, Quota};

    fn inline(bytes: &'static [u8], shape: Option<&[u64]>) -> Value {
        let array = shape.map(|shape| v1::ArrayType { dtype: "u8".into(), shape: shape.into() });
        Value { pieces: vec![Piece::Inline(Bytes::from_static(bytes), None)], array }
    }

    fn read(value: &Value) -> Vec<u8> {
        let mut all = Vec::new();
        value
            .read(|bytes| {
                all.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
        all
    }

    #[test]
    fn items_are_cut_out_of_pieces_and_joined_again() {
        let mut whole = inline(b"abcd", Some(&[3, 2]));
        whole.pieces.extend(inline(b"ef", None).pieces);
        let items: Vec<Value> = (0..3).map(|nth| whole.item(nth, 3).unwrap()).collect();
        assert_eq!(items.iter().map(read).collect::<Vec<_>>(), [b"ab", b"cd", b"ef"]);
        assert_eq!(items[1].array.as_ref().unwrap().shape, [2]);
        let ledger = Ledger::new(Machine { memory_bytes: 1 << 20, descriptors: 1, processes: 0 });
        let account = Account::new(TenantId::new(1), "1".into(), Quota::default(), ledger.into());
        let taken = account.take(Limit::RequestBytes, 6).unwrap();
        let mut joined = Joined::new(&items[0], 3, JoinedPlace::Inline(Vec::new(), taken));
        for (nth, item) in (0..).zip(&items) {
            joined.add(nth, item).unwrap().unwrap();
        }
        assert_eq!(joined.add(3, &inline(b"abc", Some(&[3]))).unwrap_err(), Uneven);
        let joined = joined.value();
        assert_eq!((read(&joined), joined.array.unwrap().shape), (b"abcdef".to_vec(), vec![3, 2]));
        // Across pieces, and not.
        assert_eq!(read(&whole.item(0, 3).unwrap()), b"ab");
        whole.array = None;
        assert_eq!(read(&whole.item(0, 1).unwrap()), b"abcdef");
        assert_eq!(read(&whole.item(1, 2).unwrap()), b"def");
    }

    #[test]
    fn other_numbers_of_items_are_none() {
        assert!(inline(b"abcd", Some(&[4])).item(0, 2).is_none());
        assert!(inline(b"abcd", Some(&[])).item(0, 2).is_none());
        assert!(inline(b"abc", None).item(0, 2).is_none());
    }
}
