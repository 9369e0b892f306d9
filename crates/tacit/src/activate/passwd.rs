//! Looks up a user in `/etc/passwd`, and returns the group and the home directory of the user.

use std::io;

/// An entry of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserEntry {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: String,
}

/// Finds a user by name or number.
///
/// # Errors
/// The file cannot be read, or has no such user.
pub(super) fn find(user: &str) -> io::Result<UserEntry> {
    let text = std::fs::read_to_string("/etc/passwd")?;
    find_in(&text, user)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no user `{user}`")))
}

fn find_in(text: &str, user: &str) -> Option<UserEntry> {
    text.lines().filter_map(entry).find(|one| one.name == user || one.uid.to_string() == user)
}

fn entry(line: &str) -> Option<UserEntry> {
    let fields: Vec<_> = line.split(':').collect();
    let [name, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
    Some(UserEntry {
        name: (*name).to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: (*home).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let text = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:34::/var/www:/bin/false\n";
        let web = UserEntry { name: "web".into(), uid: 33, gid: 34, home: "/var/www".into() };
        assert_eq!(find_in(text, "web"), Some(web.clone()));
        assert_eq!(find_in(text, "33"), Some(web));
        for unknown in ["", "broken", "34", "we"] {
            assert_eq!(find_in(text, unknown), None, "{unknown}");
        }
    }
}
