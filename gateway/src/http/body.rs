//! Bodies of requests, read within limits: of bytes, of time, and of the memory of all requests together. Nothing is reserved for what
//! a client merely announces.

use std::io::Read;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};

use crate::failure::{Failure, Kind, Result};
use crate::limits::BODY_TIME;
use crate::memory::Share;

/// Bytes that are decompressed at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// How long the body of a refused request may take.
const SKIP_TIME: Duration = Duration::from_secs(1);

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// gzip.
    Gzip,
    /// zlib, which HTTP calls deflate.
    Deflate,
}

impl Coding {
    /// By its name in a header.
    pub fn named(name: &str) -> Option<Self> {
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") => Some(Self::Gzip),
            name if name.eq_ignore_ascii_case("deflate") => Some(Self::Deflate),
            _ => None,
        }
    }

    /// Its name in a header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }
}

fn too_large(most: usize) -> Failure {
    let told = format!("the body is larger than {most} bytes, the most that this gateway takes (--max-body)");
    Failure::new(Kind::TooLarge, told)
}

/// Lets a small body pass by, whose request is refused: a connection with the rest of a request is of no more use.
pub async fn skip(headers: &HeaderMap, mut body: Incoming) {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes <= CHUNK_BYTES) {
        let passes = async { while let Some(Ok(_)) = body.frame().await {} };
        // Whoever is slow loses the connection.
        let _ = tokio::time::timeout(SKIP_TIME, passes).await;
    }
}

/// All of a body, decompressed, of at most so many bytes.
pub async fn read(headers: &HeaderMap, body: Incoming, share: &Share, most: usize) -> Result<Bytes> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > most as u64) {
        return Err(too_large(most));
    }
    let coding = match headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("" | "identity") => None,
        Some(name) => Some(Coding::named(name).ok_or_else(|| {
            Failure::unsupported("the body has an encoding that is not gzip, deflate or identity")
                .at("Content-Encoding")
        })?),
    };
    let slow = |_| Failure::new(Kind::SlowClient, format!("the body did not come within {BODY_TIME:?}"));
    let raw = tokio::time::timeout(BODY_TIME, collect(body, share, most)).await.map_err(slow)??;
    match coding {
        None => Ok(raw),
        Some(coding) => expand(coding, &raw, share, most),
    }
}

async fn collect(mut body: Incoming, share: &Share, most: usize) -> Result<Bytes> {
    let broken = |_| Failure::invalid("the body ended before it was complete");
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if first.len() + more.len() + data.len() > most {
            return Err(too_large(most));
        }
        share.take(data.len())?;
        match first.is_empty() {
            // Most bodies come in one piece, which is not copied.
            true => first = data,
            false => more.extend_from_slice(&data),
        }
    }
    if more.is_empty() {
        return Ok(first);
    }
    share.take(first.len() + more.len())?;
    let mut all = BytesMut::with_capacity(first.len() + more.len());
    all.extend_from_slice(&first);
    all.extend_from_slice(&more);
    Ok(all.freeze())
}

/// Decompresses; a body that grows beyond the limit is given up there, however much would follow.
pub fn expand(coding: Coding, raw: &[u8], share: &Share, most: usize) -> Result<Bytes> {
    let mut reader: Box<dyn Read + '_> = match coding {
        Coding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(raw)),
        Coding::Deflate => Box::new(flate2::read::ZlibDecoder::new(raw)),
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut out = Vec::new();
    loop {
        let wrong = |_| {
            Failure::invalid(format!("the body is not what {} makes", coding.name())).at("Content-Encoding")
        };
        let bytes = reader.read(&mut chunk).map_err(wrong)?;
        if bytes == 0 {
            return Ok(out.into());
        }
        if out.len() + bytes > most {
            return Err(too_large(most));
        }
        // A list that grows has twice its bytes for a moment.
        share.take(2 * bytes)?;
        out.extend_from_slice(&chunk[..bytes]);
    }
}

/// Compresses, as fast as can be.
pub fn shrink(coding: Coding, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    use flate2::Compression;
    use std::io::Write;
    match coding {
        Coding::Gzip => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), Compression::fast());
            writer.write_all(bytes)?;
            writer.finish()
        }
        Coding::Deflate => {
            let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
            writer.write_all(bytes)?;
            writer.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn a_bomb_is_given_up_at_the_limit() {
        let memory = Memory::new(1 << 20);
        for coding in [Coding::Gzip, Coding::Deflate] {
            let bomb = shrink(coding, &vec![0; 64 << 20]).unwrap();
            assert!(bomb.len() < 1 << 20);
            let share = memory.share();
            assert_eq!(expand(coding, &bomb, &share, 200_000).unwrap_err().row().http, 413);
            assert_eq!(expand(coding, &bomb, &share, usize::MAX).unwrap_err().row().http, 503);
            drop(share);
            // The control: what is small enough comes out as it went in.
            let small = shrink(coding, b"hello").unwrap();
            assert_eq!(&expand(coding, &small, &memory.share(), 5).unwrap()[..], b"hello");
            assert_eq!(
                expand(coding, &small[..small.len() - 9], &memory.share(), 5).unwrap_err().row().http,
                400
            );
            assert_eq!(expand(coding, b"nonsense", &memory.share(), 100).unwrap_err().row().http, 400);
            assert_eq!(Coding::named(coding.name()), Some(coding));
        }
        // A body of gzip may have several members (RFC 1952, 2.2), and nothing else behind them.
        let [one, two] = [&b"hel"[..], b"lo"].map(|part| shrink(Coding::Gzip, part).unwrap());
        let of = |parts: &[&[u8]]| expand(Coding::Gzip, &parts.concat(), &memory.share(), 5);
        assert_eq!(&of(&[&one, &two]).unwrap()[..], b"hello");
        assert_eq!(of(&[&one, b"more"]).unwrap_err().row().http, 400);
    }
}
