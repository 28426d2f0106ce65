//! Numbers in fixed places of the cache's files, least significant byte first.

/// Writes fields one after another; what has no room is left out, so records are checked for their size where they are
/// defined.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8]);

impl Writer<'_> {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let room = std::mem::take(&mut self.0);
        if let Some((place, rest)) = room.split_at_mut_checked(bytes.len()) {
            place.copy_from_slice(bytes);
            self.0 = rest;
        }
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }
}

/// Reads what [`Writer`] wrote; zeros behind the end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let Some((array, rest)) = self.0.split_first_chunk::<N>() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *array
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(super) fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.array())
    }
}

/// A checksum, and the hash of owners: FNV-1a, its bits mixed once more at the end. Never zero.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mixed = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)) | 1
}
