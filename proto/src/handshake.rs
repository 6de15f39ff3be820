//! The version handshake. The client writes a greeting that says which versions it speaks; the supervisor
//! answers with the same layout and the one it chose, or zeros if there is none. The sixteen bytes never
//! change shape: any two versions can tell each other apart.
//!
//! ```text
//! 0        8         10        12         16
//! | magic  | lowest  | highest | reserved |   integers little-endian, reserved = 0
//! ```

/// First bytes of every connection; the line ending catches text-mode mangling.
pub const MAGIC: [u8; 8] = *b"PAPPUS\r\n";
/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 16;
/// The only version there is so far.
pub const VERSION: u16 = 1;

/// Versions offered by a client, or (twice the same) the one chosen by the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Lowest version spoken.
    pub lowest: u16,
    /// Highest version spoken.
    pub highest: u16,
}

impl Greeting {
    /// What this build offers.
    pub const OURS: Self = Self { lowest: VERSION, highest: VERSION };
    /// The answer when there is no common version.
    pub const NONE: Self = Self { lowest: 0, highest: 0 };

    /// The bytes on the wire.
    pub fn encode(self) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.lowest.to_le_bytes());
        out[10..12].copy_from_slice(&self.highest.to_le_bytes());
        out
    }

    /// Reads a greeting; `None` if this is no Pappus peer.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Self> {
        (bytes[..8] == MAGIC && bytes[12..] == [0; 4]).then(|| Self {
            lowest: u16::from_le_bytes([bytes[8], bytes[9]]),
            highest: u16::from_le_bytes([bytes[10], bytes[11]]),
        })
    }

    /// The supervisor's answer: the highest common version, or [`Greeting::NONE`].
    pub fn answer(self) -> Self {
        if self.lowest <= VERSION && VERSION <= self.highest { Self::OURS } else { Self::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_survive_the_wire_and_strangers_do_not() {
        let ours = Greeting::OURS.encode();
        assert_eq!(Greeting::decode(&ours), Some(Greeting::OURS));
        for spoilt in [0, 7, 12, 15] {
            let mut bytes = ours;
            bytes[spoilt] ^= 1;
            assert_eq!(Greeting::decode(&bytes), None, "byte {spoilt}");
        }
    }

    #[test]
    fn the_answer_is_a_common_version_or_none() {
        assert_eq!(Greeting { lowest: 1, highest: 9 }.answer(), Greeting::OURS);
        assert_eq!(Greeting { lowest: 2, highest: 9 }.answer(), Greeting::NONE);
        assert_eq!(Greeting { lowest: 1, highest: 0 }.answer(), Greeting::NONE);
    }
}
