//! Names of users and groups, as this host knows them.

use std::cell::OnceCell;

use uzers::{Groups, Users, UsersCache};

thread_local! {
    static CACHE: OnceCell<UsersCache> = const { OnceCell::new() };
}

fn with<T>(work: impl FnOnce(&UsersCache) -> T) -> T {
    CACHE.with(|cache| work(cache.get_or_init(UsersCache::new)))
}

/// The name of a user, or its number if it has none or the number is wanted.
pub fn user(uid: u32, numeric: bool) -> String {
    let name = with(|cache| {
        let user = cache.get_user_by_uid(uid).filter(|_| !numeric)?;
        Some(user.name().to_string_lossy().into_owned())
    });
    name.unwrap_or(uid.to_string())
}

/// The name of a group, or its number if it has none or the number is wanted.
pub fn group(gid: u32, numeric: bool) -> String {
    let name = with(|cache| {
        let group = cache.get_group_by_gid(gid).filter(|_| !numeric)?;
        Some(group.name().to_string_lossy().into_owned())
    });
    name.unwrap_or(gid.to_string())
}

/// User and group of `USER`, `USER:GROUP`, `USER:` (the user's own group) or `:GROUP`.
pub fn parse_owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let found = match user {
        "" => None,
        name => Some(find_user(name)?),
    };
    let gid = match (group, &found) {
        (None, _) => None,
        (Some(""), Some((_, Some(own)))) => Some(*own),
        (Some(""), Some((uid, None))) => {
            return Err(format!(
                "user {uid} has no group on this host; add its number"
            ));
        }
        (Some(""), None) => None,
        (Some(name), _) => Some(find_group(name)?),
    };
    Ok((found.map(|(uid, _)| uid), gid))
}

fn find_user(name: &str) -> Result<(u32, Option<u32>), String> {
    let known = with(|cache| {
        cache
            .get_user_by_name(name)
            .map(|user| (user.uid(), Some(user.primary_group_id())))
    });
    let number = || name.parse().ok().map(|uid| (uid, None));
    known
        .or_else(number)
        .ok_or(format!("this host has no user {name}; give a number"))
}

fn find_group(name: &str) -> Result<u32, String> {
    let known = with(|cache| cache.get_group_by_name(name).map(|group| group.gid()));
    known
        .or_else(|| name.parse().ok())
        .ok_or(format!("this host has no group {name}; give a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read() {
        for (text, owner) in [
            ("root", (Some(0), None)),
            ("root:root", (Some(0), Some(0))),
            ("root:", (Some(0), Some(0))),
            (":12", (None, Some(12))),
            ("7:8", (Some(7), Some(8))),
            (":", (None, None)),
        ] {
            assert_eq!(parse_owner(text), Ok(owner), "{text}");
        }
        for text in ["no such user", "0:no such group", "4000000000000"] {
            assert!(parse_owner(text).unwrap_err().contains("give a number"));
        }
    }
}
