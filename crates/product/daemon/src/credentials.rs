// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the password of the daemon's own connection comes from: a file, or the environment. It
//! is never an argument, a note, a line of the log or of the status.

use std::fmt;
use std::path::{Path, PathBuf};

use erb_redis::rights::{Credentials, DEFAULT_USER};

use crate::{Error, Result, secret};

/// Environment variable with the password, for those who have no file.
pub const PASSWORD_VARIABLE: &str = "ERB_REDIS_PASSWORD";

/// As whom the daemon speaks to Redis.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CredentialSource {
    user: Option<String>,
    file: Option<PathBuf>,
    password: Option<Vec<u8>>,
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CredentialSource")
            .field("user", &self.user)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl CredentialSource {
    /// User and file as given, the file before the environment.
    ///
    /// # Errors
    /// [`Error::Usage`] for a user name that Redis cannot have, or a file name that cannot be used.
    pub fn new(user: Option<&str>, file: Option<&Path>) -> Result<Self> {
        if let Some(user) =
            user.filter(|user| user.is_empty() || user.contains(char::is_whitespace))
        {
            return Err(Error::Usage(format!(
                "{user:?} is no user of Redis: names are not empty and have no blanks; correct --redis-user"
            )));
        }
        // The daemon may work from another folder.
        let file = file.map(std::path::absolute).transpose();
        let file = file.map_err(Error::io("could not make --redis-password-file absolute"))?;
        let password = match file {
            Some(_) => None,
            None => {
                std::env::var_os(PASSWORD_VARIABLE).map(std::os::unix::ffi::OsStringExt::into_vec)
            }
        };
        Ok(Self {
            user: user.map(str::to_owned),
            file,
            password,
        })
    }

    /// The user, if one was named.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Who it is for this connection; a file is read each time.
    ///
    /// # Errors
    /// [`Error::Credentials`] if the file cannot be read or others may read it.
    pub fn read(&self) -> Result<Option<Credentials>> {
        let password = match &self.file {
            Some(file) => Some(read_password(file)?),
            None => self.password.clone(),
        };
        if password.is_none() && self.user.is_none() {
            return Ok(None);
        }
        Ok(Some(Credentials {
            user: self.user.clone().unwrap_or_else(|| DEFAULT_USER.to_owned()),
            // A user without password takes any.
            password: password.unwrap_or_default(),
        }))
    }
}

/// The first line of the file, which only its owner may read.
fn read_password(path: &Path) -> Result<Vec<u8>> {
    secret::first_line(path, "--redis-password-file").map_err(|reason| Error::Credentials {
        path: path.to_path_buf(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("erb-{name}-{}", std::process::id()));
            Self(path)
        }

        fn put(&self, text: &[u8], mode: u32) {
            fs::write(&self.0, text).unwrap();
            fs::set_permissions(&self.0, Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_first_line_is_the_password_and_is_read_each_time() {
        let file = Scratch::new("password");
        file.put(b"one\n", 0o600);
        let source = CredentialSource::new(Some("erb"), Some(&file.0)).unwrap();
        let read = || source.read().unwrap().unwrap();
        assert_eq!(
            (read().user.as_str(), read().password),
            ("erb", b"one".to_vec())
        );
        for (text, password) in [
            (&b"two"[..], &b"two"[..]),
            (b"a b\r\n", b"a b"),
            (b"x\nsecond line\n", b"x"),
            (b"\xff\xfe", b"\xff\xfe"),
        ] {
            file.put(text, 0o400);
            assert_eq!(read().password, password);
        }
        assert!(!format!("{source:?} {:?}", read()).contains("two"));
    }

    #[test]
    fn what_others_may_read_or_write_is_refused_and_so_is_what_is_no_password() {
        let file = Scratch::new("modes");
        let source = CredentialSource::new(None, Some(&file.0)).unwrap();
        let why = || source.read().unwrap_err().to_string();
        assert!(why().contains("cannot be read"), "{}", why());
        for (mode, good) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o644, false),
            (0o604, false),
            (0o620, false),
            (0o602, false),
            (0o666, false),
        ] {
            file.put(b"p", mode);
            assert_eq!(source.read().is_ok(), good, "{mode:o}");
        }
        assert!(why().contains("chmod 600"), "{}", why());
        for (text, word) in [
            (&b""[..], "first line"),
            (b"\nx\n", "first line"),
            (&[b'x'; 5000], "longer"),
        ] {
            file.put(text, 0o600);
            assert!(why().contains(word), "{}", why());
        }
        let folder = CredentialSource::new(None, Some(&std::env::temp_dir())).unwrap();
        assert!(folder.read().is_err());
    }

    #[test]
    fn without_user_and_password_nobody_authenticates() {
        let none = CredentialSource::default();
        assert_eq!(none.read().unwrap(), None);
        let user = CredentialSource {
            user: Some("erb".to_owned()),
            ..CredentialSource::default()
        };
        assert_eq!(user.read().unwrap().unwrap().password, b"");
        let password = CredentialSource {
            password: Some(b"p".to_vec()),
            ..CredentialSource::default()
        };
        assert_eq!(password.read().unwrap().unwrap().user, "default");
        assert!(CredentialSource::new(Some("a b"), None).is_err());
        assert!(CredentialSource::new(Some(""), None).is_err());
    }
}
