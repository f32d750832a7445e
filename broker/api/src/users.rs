// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users by name, for people.
#![forbid(unsafe_code)]

/// A user's name in this machine's own table, else the number.
pub fn name_of(uid: u32) -> String {
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in(&table, uid).map_or_else(|| uid.to_string(), str::to_string)
}

/// First field of the line with this number in the third (passwd(5)).
fn name_in(table: &str, uid: u32) -> Option<&str> {
    let uid = uid.to_string();
    let mut rows = table.lines().map(|line| line.split(':'));
    let name = rows.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1) == Some(uid.as_str())).then_some(name)
    });
    name.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_names_of_the_table() {
        let table = "root:x:0:0:root:/root:/bin/sh\nodd\nann:x:1001:1001::/home/ann:/bin/sh\n";
        assert_eq!(name_in(table, 0), Some("root"));
        assert_eq!(name_in(table, 1001), Some("ann"));
        assert_eq!(name_in(table, 7), None);
        assert_eq!(name_of(u32::MAX - 7), (u32::MAX - 7).to_string());
    }
}
