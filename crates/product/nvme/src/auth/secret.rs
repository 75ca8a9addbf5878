// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Secrets as `nvme gen-dhchap-key` prints them: `DHHC-1:HH:BASE64:`, where HH is the hash that binds the key to
//! its owner's name (00: none), and the CRC-32 of the key stands behind it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::hash::Hash;

/// A secret of DH-HMAC-CHAP.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    hash: Option<Hash>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// A secret cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret has the form DHHC-1:HH:BASE64:, as `nvme gen-dhchap-key` prints it")]
pub struct NoSecret;

impl Secret {
    /// Reads it.
    ///
    /// # Errors
    /// It has another form, or its CRC is wrong.
    pub fn parse(text: &str) -> Result<Self, NoSecret> {
        let rest = text.trim().strip_prefix("DHHC-1:").ok_or(NoSecret)?;
        let (hash, rest) = rest.split_once(':').ok_or(NoSecret)?;
        let hash = hash.parse::<u8>().map_err(|_| NoSecret)?;
        let hash = match hash {
            0 => None,
            number => Some(Hash::of(number).ok_or(NoSecret)?),
        };
        let coded = rest.strip_suffix(':').ok_or(NoSecret)?;
        let mut key = STANDARD.decode(coded).map_err(|_| NoSecret)?;
        if ![36, 52, 68].contains(&key.len()) {
            return Err(NoSecret);
        }
        let crc = key.split_off(key.len() - 4);
        if crc32fast::hash(&key).to_le_bytes() != crc[..] {
            return Err(NoSecret);
        }
        Ok(Self { key, hash })
    }

    /// Writes it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut coded = self.key.clone();
        coded.extend_from_slice(&crc32fast::hash(&self.key).to_le_bytes());
        let number = self.hash.map_or(0, |hash| hash as u8);
        format!("DHHC-1:{number:02}:{}:", STANDARD.encode(coded))
    }

    /// From 32, 48 or 64 bytes that somebody drew.
    ///
    /// # Errors
    /// The key has another length.
    pub fn of_key(key: Vec<u8>, hash: Option<Hash>) -> Result<Self, NoSecret> {
        let is_usual = [32, 48, 64].contains(&key.len());
        is_usual.then_some(Self { key, hash }).ok_or(NoSecret)
    }

    /// The key with which its owner answers.
    pub(super) fn key(&self, owner: &str) -> Vec<u8> {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[owner.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_it_was_written_and_no_other_way() {
        let secret = Secret::of_key((0..48).collect(), Some(Hash::Sha384)).expect("48 bytes");
        let text = secret.text();
        assert!(text.starts_with("DHHC-1:02:"), "{text}");
        assert_eq!(Secret::parse(&text), Ok(secret));
        let wrong = text.replacen("AAEC", "BAEC", 1);
        assert_ne!(wrong, text);
        for text in [
            &wrong[..],
            "",
            "DHHC-1:00:",
            "DHHC-1:04:AAAA:",
            "DHHC-1:00:AAAA:",
        ] {
            assert_eq!(Secret::parse(text), Err(NoSecret), "{text}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::of_key(vec![0x41; 32], None).expect("32 bytes");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(Secret::of_key(vec![0; 31], None).is_err());
    }
}
