//! The file `IDENTITY`: the owner of a data directory. Text, so that a person can read it.
//!
//! ```text
//! chancery data directory, format 1
//! cluster 000102030405060708090a0b0c0d0e0f
//! replica 1
//! incarnation 1234567890
//! instance 1234567890
//! checksum 0123456789abcdef
//! ```
//!
//! The first line, and the checksum over all lines before it, are the same in every format version.
//! A reader can therefore distinguish a newer version from a damaged file. The line `instance` is
//! optional: older directories lack it.

use chancery_model::Incarnation;
use xxhash_rust::xxh3::xxh3_64;

/// The newest format version that this program knows.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// The owner of a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The ID of the cluster.
    pub(crate) cluster_id: [u8; 16],
    /// The ID of the replica.
    pub(crate) replica_id: u64,
    /// The incarnation of the cluster, which its versions carry.
    pub(crate) incarnation: Incarnation,
    /// The instance: a random number, made with the directory, that distinguishes the replicas that
    /// have had this ID. The value is 0 for a directory from before instances existed.
    pub(crate) instance: u64,
}

/// The reason why an identity cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IdentityError {
    /// A later release wrote the file; its format version.
    Newer(u32),
    /// The file is damaged.
    Damaged(&'static str),
}

impl Identity {
    /// Returns the content of the file.
    pub(crate) fn to_text(self) -> String {
        let mut text = format!(
            "chancery data directory, format {FORMAT_VERSION}\ncluster {}\nreplica {}\nincarnation {}\n",
            hex::encode(self.cluster_id),
            self.replica_id,
            self.incarnation.0
        );
        if self.instance > 0 {
            text.push_str(&format!("instance {}\n", self.instance));
        }
        let checksum = xxh3_64(text.as_bytes());
        text.push_str(&format!("checksum {checksum:016x}\n"));
        text
    }

    /// Parses the content of the file.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, IdentityError> {
        let damaged = IdentityError::Damaged;
        let text = str::from_utf8(content).map_err(|_| damaged("it is not text"))?;
        let (body, checksum) =
            text.rsplit_once("checksum ").ok_or_else(|| damaged("it has no checksum"))?;
        if checksum != format!("{:016x}\n", xxh3_64(body.as_bytes())) {
            return Err(damaged("its checksum does not match its content"));
        }
        let mut lines = body.lines();
        let mut field = |prefix: &'static str| {
            lines.next().and_then(|line| line.strip_prefix(prefix)).ok_or_else(|| damaged(prefix))
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| damaged("a number is invalid"));
        let format = number(field("chancery data directory, format ")?)?;
        if format != u64::from(FORMAT_VERSION) {
            return Err(IdentityError::Newer(u32::try_from(format).unwrap_or(u32::MAX)));
        }
        let mut cluster_id = [0; 16];
        hex::decode_to_slice(field("cluster ")?, &mut cluster_id)
            .map_err(|_| damaged("the cluster ID is invalid"))?;
        let replica_id = number(field("replica ")?)?;
        let incarnation = u32::try_from(number(field("incarnation ")?)?)
            .map_err(|_| damaged("the incarnation is invalid"))?;
        let instance = match lines.find_map(|line| line.strip_prefix("instance ")) {
            Some(instance) => number(instance)?,
            None => 0,
        };
        Ok(Self { cluster_id, replica_id, incarnation: Incarnation(incarnation), instance })
    }
}

/// Fills a buffer with random bytes of the operating system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// Returns a random number for a new instance, never 0.
pub(crate) fn new_instance() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        cluster_id: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        replica_id: 3,
        incarnation: Incarnation(4_000_000_000),
        instance: 0,
    };

    /// The format of the first release is readable forever.
    #[test]
    fn identity_format_of_first_release_is_unchanged() {
        let text = "chancery data directory, format 1\n\
                    cluster 000102030405060708090a0b0c0d0e0f\n\
                    replica 3\n\
                    incarnation 4000000000\n\
                    checksum 741821223279ff11\n";
        assert_eq!(IDENTITY.to_text(), text);
        assert_eq!(Identity::parse(text.as_bytes()), Ok(IDENTITY));
    }

    /// The format since directories have instances. An older release reads it too, because it stops
    /// before that line.
    #[test]
    fn identity_contains_the_instance() {
        let identity = Identity { instance: u64::MAX, ..IDENTITY };
        let text = identity.to_text();
        assert!(
            text.contains("\nincarnation 4000000000\ninstance 18446744073709551615\nchecksum ")
        );
        assert_eq!(Identity::parse(text.as_bytes()), Ok(identity));
        let body = text.split_once("checksum").unwrap().0.replace("instance 1", "instance x");
        let wrong = format!("{body}checksum {:016x}\n", xxh3_64(body.as_bytes()));
        let error = Identity::parse(wrong.as_bytes());
        assert_eq!(error, Err(IdentityError::Damaged("a number is invalid")));
        assert_ne!(new_instance().unwrap(), new_instance().unwrap());
    }

    #[test]
    fn identity_with_flipped_bit_or_truncation_is_damaged() {
        let text = Identity { instance: 7, ..IDENTITY }.to_text().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let result = Identity::parse(&damaged);
            assert!(matches!(result, Err(IdentityError::Damaged(_))), "bit {bit}: {result:?}");
        }
        for len in 0..text.len() {
            let result = Identity::parse(&text[..len]);
            assert!(matches!(result, Err(IdentityError::Damaged(_))), "length {len}: {result:?}");
        }
    }

    #[test]
    fn identity_of_newer_format_is_reported_as_newer() {
        let body = "chancery data directory, format 2\nsomething new\n";
        let text = format!("{body}checksum {:016x}\n", xxh3_64(body.as_bytes()));
        assert_eq!(Identity::parse(text.as_bytes()), Err(IdentityError::Newer(2)));
    }
}
