//! Which devices a process sees: `CUDA_VISIBLE_DEVICES`, which the driver honours, not the runtime.
//!
//! There is one device. A list is read up to the first entry that names no device, as the driver does; an empty list, or
//! one that begins with such an entry, hides the device.
#![forbid(unsafe_code)]

/// Is the one device, with this UUID as text (`GPU-...`), visible under this value of the variable?
pub(crate) fn is_visible(variable: Option<&str>, uuid: &str) -> bool {
    let Some(list) = variable else { return true };
    let first = list.split(',').next().unwrap_or("").trim();
    if let Ok(index) = first.parse::<i64>() {
        // A device that is named twice makes the list invalid; with one device that is every longer list of zeros.
        let again = list.split(',').skip(1).any(|entry| entry.trim().parse() == Ok(index));
        return index == 0 && !again;
    }
    // A prefix of the UUID suffices where it is unambiguous, with or without the part after "GPU-".
    first.len() >= 4 && uuid.to_ascii_lowercase().starts_with(&first.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::is_visible;

    const UUID: &str = "GPU-5e1f0000-0000-4000-8000-000000000001";

    #[test]
    fn lists() {
        let seen = |list| is_visible(Some(list), UUID);
        assert!(is_visible(None, UUID));
        assert!(seen("0"));
        assert!(seen("0,1"));
        assert!(seen(UUID));
        assert!(seen("GPU-5e1f"));
        assert!(!seen(""));
        assert!(!seen("-1"));
        assert!(!seen("1,0"));
        assert!(!seen("0,0"));
        assert!(!seen("GPU-ffff"));
        assert!(!seen("MIG-5e1f"));
        assert!(!seen("none"));
    }
}
