//! What stands around the body of every file of this crate: who it is, which version, how long, whether it is whole. Profiles and traces share it; the
//! table of its bytes stands in their codecs.
#![forbid(unsafe_code)]

/// Bytes before the body.
pub(crate) const HEADER: usize = 32;

/// Why a body was not taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Another kind of file.
    NotOurs,
    /// Of a version that this build does not read.
    Version(u8),
    /// Not as long as it should be, in bytes.
    Truncated { expected: u64 },
    /// This part of it is wrong.
    Corrupt(&'static str),
}

/// The file with this body.
pub(crate) fn seal(magic: [u8; 8], version: u8, body: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + body.len());
    file.extend_from_slice(&magic);
    file.push(version);
    file.extend_from_slice(&[0; 7]);
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&weft_kernel_id::image_hash(body).to_le_bytes());
    file.extend_from_slice(body);
    file
}

/// The body of this file, if all about it is right.
pub(crate) fn open(magic: [u8; 8], version: u8, file: &[u8]) -> Result<&[u8], Broken> {
    let (Some(found), Some(other)) = (file.first_chunk::<8>(), file.get(8)) else {
        return Err(Broken::NotOurs);
    };
    if *found != magic {
        return Err(Broken::NotOurs);
    }
    if *other != version {
        return Err(Broken::Version(*other));
    }
    let word = |at: usize| {
        let bytes = file.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let (Some(length), Some(checksum)) = (word(16), word(24)) else {
        return Err(Broken::Truncated {
            expected: HEADER as u64,
        });
    };
    if file.get(9..16) != Some(&[0; 7]) {
        return Err(Broken::Corrupt("header"));
    }
    let body = file.get(HEADER..).unwrap_or_default();
    if body.len() as u64 != length {
        return Err(Broken::Truncated {
            expected: length.saturating_add(HEADER as u64),
        });
    }
    if weft_kernel_id::image_hash(body) != checksum {
        return Err(Broken::Corrupt("checksum"));
    }
    Ok(body)
}
