//! The protobuf wire format: writing of single fields, and reading without building messages.

/// The wire type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Len = 2,
    StartGroup = 3,
    EndGroup = 4,
    Fixed32 = 5,
}

impl WireType {
    fn new(bits: u64) -> Option<Self> {
        Some(match bits {
            0 => Self::Varint,
            1 => Self::Fixed64,
            2 => Self::Len,
            3 => Self::StartGroup,
            4 => Self::EndGroup,
            5 => Self::Fixed32,
            _ => return None,
        })
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n.to_le_bytes()[0] | 0x80);
        n >>= 7;
    }
    out.push(n.to_le_bytes()[0]);
}

pub(crate) fn put_key(out: &mut Vec<u8>, number: u32, wire_type: WireType) {
    put_varint(out, u64::from(number) << 3 | wire_type as u64);
}

/// Writes a length-delimited field.
pub(crate) fn put_len(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    put_key(out, number, WireType::Len);
    put_varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// The value of one field, as far as this crate needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Raw<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Len(&'a [u8]),
    Fixed32([u8; 4]),
    /// A group, which the reader skips.
    Group,
}

/// Reads the fields of a message one by one.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

/// The reason why bytes are malformed.
pub(crate) type Malformed = &'static str;

const TRUNCATED: Malformed = "the bytes end inside a field";

impl<'a> Reader<'a> {
    /// Returns the next field and its number; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Raw<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.key()?;
        let raw = match wire_type {
            WireType::Varint => Raw::Varint(self.varint()?),
            WireType::Fixed64 => Raw::Fixed64(self.take()?),
            WireType::Len => Raw::Len(self.len_delimited()?),
            WireType::Fixed32 => Raw::Fixed32(self.take()?),
            WireType::StartGroup => {
                self.skip_group(number)?;
                Raw::Group
            }
            WireType::EndGroup => return Err("a group ends that was never started"),
        };
        Ok(Some((number, raw)))
    }

    fn key(&mut self) -> Result<(u32, WireType), Malformed> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let number = number.ok_or("a field has an invalid number")?;
        let wire_type = WireType::new(key & 7).ok_or("a field has an invalid wire type")?;
        Ok((number, wire_type))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(TRUNCATED)?;
            self.0 = rest;
            if shift == 63 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a varint has more than 64 bits")
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn skip<const N: usize>(&mut self) -> Result<(), Malformed> {
        self.take::<N>().map(drop)
    }

    fn len_delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.varint()?).map_err(|_| TRUNCATED)?;
        let (head, rest) = self.0.split_at_checked(len).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(head)
    }

    /// Skips a group and its nested groups, without recursion.
    fn skip_group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, wire_type) = self.key()?;
            match wire_type {
                WireType::Varint => drop(self.varint()?),
                WireType::Fixed64 => self.skip::<8>()?,
                WireType::Len => drop(self.len_delimited()?),
                WireType::Fixed32 => self.skip::<4>()?,
                WireType::StartGroup if open.len() >= 100 => {
                    return Err("groups are nested too deeply");
                }
                WireType::StartGroup => open.push(number),
                WireType::EndGroup if *innermost == number => drop(open.pop()),
                WireType::EndGroup => return Err("a group ends that was never started"),
            }
        }
        Ok(())
    }
}

/// Checks that bytes are the fields of some message. The fields of nested messages look like text, so they are not
/// checked.
pub(crate) fn check(message: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader(message);
    while reader.next()?.is_some() {}
    Ok(())
}

/// Returns the last value of a length-delimited field.
pub(crate) fn last(message: &[u8], wanted: u32) -> Option<&[u8]> {
    find_last(message, wanted, |raw| match raw {
        Raw::Len(content) => Some(content),
        _ => None,
    })
}

/// Returns the last value of a text field.
pub(crate) fn last_text(message: &[u8], wanted: u32) -> Option<&str> {
    last(message, wanted).and_then(|content| std::str::from_utf8(content).ok())
}

/// Returns the last value of a field with a varint.
pub(crate) fn last_varint(message: &[u8], wanted: u32) -> Option<u64> {
    find_last(message, wanted, |raw| match raw {
        Raw::Varint(value) => Some(value),
        _ => None,
    })
}

/// Returns the last value of a field that `select` accepts, up to where the bytes are malformed.
fn find_last<'a, T>(
    message: &'a [u8],
    wanted: u32,
    select: impl Fn(Raw<'a>) -> Option<T>,
) -> Option<T> {
    let (mut reader, mut found) = (Reader(message), None);
    while let Ok(Some((number, raw))) = reader.next() {
        if number == wanted {
            found = select(raw).or(found);
        }
    }
    found
}
