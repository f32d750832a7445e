// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels and variables of PTX text.
//!
//! Reads only declarations: `.target`, `.entry` with its parameters, and variables in `.global`,
//! `.const` and `.shared` space. Instructions are skipped. As in the PTX manual each parameter lies
//! at the next multiple of its alignment.
#![forbid(unsafe_code)]

use crate::ImageError;
use crate::module::{EntryFunction, Global, Module, Param};

/// Reads PTX up to the first zero byte. Invalid UTF-8 is replaced, as names are ASCII.
pub fn read_bytes(image: &[u8]) -> Result<Module, ImageError> {
    let end = image.iter().position(|b| *b == 0).unwrap_or(image.len());
    read(&String::from_utf8_lossy(image.get(..end).unwrap_or(image)))
}

/// Reads PTX.
pub fn read(text: &str) -> Result<Module, ImageError> {
    let mut words = Words::new(text);
    let mut module = Module::default();
    let mut depth = 0u32;
    let mut seen_version = false;
    let mut open: Option<EntryFunction> = None;
    while let Some(word) = words.next() {
        match word {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    module.kernels.extend(open.take());
                }
            }
            // A prototype: no body follows.
            ";" if depth == 0 => open = None,
            ".version" => seen_version = true,
            ".target" => module.arch = words.next().and_then(target).unwrap_or(0),
            ".entry" if depth == 0 => {
                let name = words
                    .next()
                    .ok_or(ImageError::Malformed("PTX entry without a name"))?
                    .to_string();
                open = Some(EntryFunction {
                    name,
                    params: Some(params(&mut words)?),
                    ..EntryFunction::default()
                });
            }
            ".func" if depth == 0 => open = None,
            ".maxntid" => {
                if let Some(kernel) = &mut open {
                    kernel.max_threads = block(&mut words);
                }
            }
            ".global" | ".const" if depth == 0 => {
                if let Some((name, size)) = variable(&mut words) {
                    let constant = word == ".const";
                    module.globals.push(Global {
                        name,
                        size,
                        initial: Vec::new(),
                        constant,
                    });
                }
            }
            ".shared" if depth > 0 => {
                if let (Some(kernel), Some((_, size))) = (&mut open, variable(&mut words)) {
                    kernel.shared = kernel.shared.saturating_add(u32::try_from(size).unwrap_or(u32::MAX));
                }
            }
            _ => {}
        }
    }
    if !seen_version {
        return Err(ImageError::Malformed("PTX without .version"));
    }
    Ok(module)
}

/// Architecture of `sm_80`, `sm_90a` or `sm_100f`, perhaps with a comma after it.
fn target(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("sm_")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// Size of a fundamental type, bytes.
fn type_size(word: &str) -> Option<u64> {
    Some(match word {
        ".u8" | ".s8" | ".b8" => 1,
        ".u16" | ".s16" | ".b16" | ".f16" | ".bf16" => 2,
        ".u32" | ".s32" | ".b32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".u64" | ".s64" | ".b64" | ".f64" | ".texref" | ".surfref" | ".samplerref" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// Reads parameters up to `)`; the `(` may have been read.
fn params(words: &mut Words<'_>) -> Result<Vec<Param>, ImageError> {
    let mut params = Vec::new();
    if words.peek() != Some("(") {
        return Ok(params);
    }
    words.next();
    let mut offset = 0u64;
    let (mut size, mut align, mut count, mut pointer) = (None::<u64>, None::<u64>, 1u64, false);
    loop {
        let word = words
            .next()
            .ok_or(ImageError::Malformed("PTX parameter list without an end"))?;
        match word {
            // After `.ptr`, `.align` is about the pointee.
            ".ptr" => pointer = true,
            ".align" => {
                let value = words
                    .next()
                    .and_then(|w| w.parse().ok())
                    .filter(|a: &u64| a.is_power_of_two());
                let value = value.ok_or(ImageError::Malformed("PTX alignment"))?;
                if !pointer {
                    align = Some(value);
                }
            }
            "[" => {
                let length = words.next().ok_or(ImageError::Malformed("PTX array"))?;
                count = length.parse().map_err(|_| ImageError::Malformed("PTX array length"))?;
            }
            "," | ")" => {
                if let Some(one) = size.take() {
                    let align = align.unwrap_or(one);
                    let bytes = one
                        .checked_mul(count)
                        .ok_or(ImageError::Malformed("PTX parameter size"))?;
                    let at = offset
                        .checked_next_multiple_of(align)
                        .ok_or(ImageError::Malformed("PTX parameter size"))?;
                    offset = at
                        .checked_add(bytes)
                        .ok_or(ImageError::Malformed("PTX parameter size"))?;
                    let narrow = |n: u64| u32::try_from(n).map_err(|_| ImageError::Malformed("PTX parameter size"));
                    params.push(Param {
                        offset: narrow(at)?,
                        size: narrow(bytes)?,
                    });
                }
                (align, count, pointer) = (None, 1, false);
                if word == ")" {
                    return Ok(params);
                }
            }
            _ => size = size.or_else(|| type_size(word)),
        }
    }
}

/// Product of `x`, `x, y` or `x, y, z` after `.maxntid`.
fn block(words: &mut Words<'_>) -> u32 {
    let mut threads = 1u32;
    while let Some(side) = words.peek().and_then(|w| w.parse::<u32>().ok()) {
        threads = threads.saturating_mul(side);
        words.next();
        if words.peek() != Some(",") {
            break;
        }
        words.next();
    }
    threads
}

/// Name and size (bytes) of a variable, from after its space to its `;`, `=` or `,`.
fn variable(words: &mut Words<'_>) -> Option<(String, u64)> {
    let (mut size, mut count, mut name) = (None, 1u64, None);
    let mut lanes = 1u64;
    while let Some(word) = words.peek() {
        match word {
            ";" | "=" | "," | "{" | "}" | ")" => break,
            ".align" => {
                words.next();
            }
            "[" => {
                words.next();
                // `name[]` of an extern array has no size.
                let length = words.peek().and_then(|w| w.parse::<u64>().ok());
                count = count.saturating_mul(length.unwrap_or(0));
                if length.is_none() {
                    continue;
                }
            }
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            _ if word.starts_with('.') => size = size.or_else(|| type_size(word)),
            "]" => {}
            _ => name = name.or(Some(word)),
        }
        words.next();
    }
    Some((name?.to_string(), size?.saturating_mul(count).saturating_mul(lanes)))
}

/// Words of PTX: identifiers, directives and single punctuation marks. Comments, strings and white
/// space are skipped.
struct Words<'a> {
    rest: &'a str,
    peeked: Option<Option<&'a str>>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words {
            rest: text,
            peeked: None,
        }
    }

    fn peek(&mut self) -> Option<&'a str> {
        if self.peeked.is_none() {
            self.peeked = Some(self.read());
        }
        self.peeked.flatten()
    }

    fn next(&mut self) -> Option<&'a str> {
        match self.peeked.take() {
            Some(word) => word,
            None => self.read(),
        }
    }

    fn read(&mut self) -> Option<&'a str> {
        loop {
            self.rest = self.rest.trim_start();
            let skipped = if self.rest.starts_with("//") {
                self.rest.find('\n').unwrap_or(self.rest.len())
            } else if self.rest.starts_with("/*") {
                self.rest.find("*/").map_or(self.rest.len(), |end| end + 2)
            } else if let Some(text) = self.rest.strip_prefix('"') {
                text.find('"').map_or(self.rest.len(), |end| end + 2)
            } else {
                break;
            };
            self.rest = self.rest.get(skipped..).unwrap_or("");
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.' | '%');
        let end = self.rest.find(|c| !plain(c)).unwrap_or(self.rest.len());
        let end = match end {
            0 => self.rest.chars().next()?.len_utf8(),
            n => n,
        };
        let (word, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some(word)
    }
}
