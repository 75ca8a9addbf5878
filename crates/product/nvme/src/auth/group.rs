// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Diffie-Hellman in the groups of RFC 7919. All three are safe primes with generator 2.
//!
//! Invariants:
//! 1. No value of a peer's is used that is 0, 1, p - 1, or p and above: with those the shared value says nothing.
//! 2. Powers take the same time for all exponents of a group.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};

/// RFC 7919, appendix A.
const P2048: &str = concat!(
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE",
    "249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3",
    "B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182",
    "B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70",
    "9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC",
    "2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF",
);

/// RFC 7919, appendix A.
const P3072: &str = concat!(
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE",
    "249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3",
    "B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182",
    "B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70",
    "9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC",
    "2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C0238",
    "61B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452",
    "E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E",
    "0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B66C62E37FFFFFFFFFFFFFFFF",
);

/// RFC 7919, appendix A.
const P4096: &str = concat!(
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE",
    "249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3",
    "B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182",
    "B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70",
    "9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC",
    "2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C0238",
    "61B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452",
    "E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E",
    "0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB7930E9E4E58857B6AC7D5F42",
    "D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832A907600A918130C4",
    "6DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF8EC9B55A",
    "7F88A46B4DB5A851F44182E1C68A007E5E655F6AFFFFFFFFFFFFFFFF",
);

/// A group of DH-HMAC-CHAP (Linux, `include/linux/nvme.h`: `NVME_AUTH_DHGROUP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Group {
    /// No Diffie-Hellman: who listens can try secrets offline.
    Null = 0,
    /// 2,048 bits.
    Ffdhe2048 = 1,
    /// 3,072 bits.
    Ffdhe3072 = 2,
    /// 4,096 bits.
    Ffdhe4096 = 3,
}

impl Group {
    /// By its number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Null,
            1 => Self::Ffdhe2048,
            2 => Self::Ffdhe3072,
            3 => Self::Ffdhe4096,
            _ => return None,
        })
    }

    /// Bytes of a value.
    #[must_use]
    pub fn value_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
        }
    }

    /// Bytes of an exponent: at least 225, 275 and 325 bits (RFC 7919, 5.2).
    #[must_use]
    pub fn exponent_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 32,
            Self::Ffdhe3072 => 40,
            Self::Ffdhe4096 => 48,
        }
    }

    /// Its prime, the first byte first.
    #[must_use]
    pub fn prime(self) -> Vec<u8> {
        let hex = match self {
            Self::Null => "",
            Self::Ffdhe2048 => P2048,
            Self::Ffdhe3072 => P3072,
            Self::Ffdhe4096 => P4096,
        };
        let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
        let pairs = hex.as_bytes().chunks_exact(2);
        pairs
            .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
            .collect()
    }

    /// Whether a peer's value may be used.
    #[must_use]
    pub fn is_usable(self, value: &[u8]) -> bool {
        let mut last = self.prime();
        if value.len() != last.len() || value.is_empty() {
            return false;
        }
        // p is odd.
        let end = last.len() - 1;
        last[end] -= 1;
        let is_small = value[..end].iter().all(|byte| *byte == 0) && value[end] < 2;
        !is_small && value < &last[..]
    }

    fn power(self, base: &[u8], exponent: &[u8]) -> Vec<u8> {
        let bits = u32::try_from(8 * self.value_bytes()).expect("4,096 bits at most");
        let exponent_bits = u32::try_from(8 * exponent.len()).expect("384 bits at most");
        let number = |bytes: &[u8], bits| {
            BoxedUint::from_be_slice(bytes, bits).expect("as many bytes as bits")
        };
        let modulus = Odd::new(number(&self.prime(), bits)).expect("a prime is odd");
        let base = BoxedMontyForm::new(number(base, bits), BoxedMontyParams::new_vartime(modulus));
        let exponent = number(exponent, exponent_bits);
        let power = base.pow_bounded_exp(&exponent, exponent_bits);
        power.retrieve().to_be_bytes().into_vec()
    }
}

/// A computation that takes milliseconds: whoever drives a connection runs it elsewhere.
pub struct Job {
    group: Group,
    exponent: Vec<u8>,
    /// What a peer sent; it is usable.
    peer: Option<Vec<u8>>,
    /// This end's value is known already.
    is_only_shared: bool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The exponent is nobody's business.
        formatter
            .debug_struct("Job")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Computed {
    /// This end's value, unless it is known already.
    pub public: Vec<u8>,
    /// The value that both ends have, if the peer's was known.
    pub shared: Vec<u8>,
}

impl std::fmt::Debug for Computed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Computed").finish_non_exhaustive()
    }
}

impl Job {
    pub(crate) fn new(group: Group, exponent: Vec<u8>, peer: Option<Vec<u8>>) -> Self {
        Self {
            group,
            exponent,
            peer,
            is_only_shared: false,
        }
    }

    /// Of an exponent whose public value has been computed before.
    pub(crate) fn shared(group: Group, exponent: Vec<u8>, peer: Vec<u8>) -> Self {
        Self {
            is_only_shared: true,
            ..Self::new(group, exponent, Some(peer))
        }
    }

    /// Computes it.
    #[must_use]
    pub fn run(&self) -> Computed {
        let mut two = vec![0; self.group.value_bytes()];
        if let Some(last) = two.last_mut() {
            *last = 2;
        }
        let power = |base: &[u8]| self.group.power(base, &self.exponent);
        Computed {
            public: if self.is_only_shared {
                Vec::new()
            } else {
                power(&two)
            },
            shared: self.peer.as_deref().map(power).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_get_the_same_value_in_every_group() {
        for group in [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096] {
            let exponent = |byte| vec![byte; group.exponent_bytes()];
            let public = |byte| Job::new(group, exponent(byte), None).run().public;
            let shared = |byte, peer| Job::new(group, exponent(byte), Some(peer)).run().shared;
            assert!(group.is_usable(&public(3)));
            assert_eq!(shared(3, public(0x95)), shared(0x95, public(3)));
            assert_ne!(shared(3, public(0x95)), shared(3, public(0x96)));
        }
    }

    #[test]
    fn a_power_is_what_multiplication_says() {
        // 2^8 in a field far above it.
        let found = Group::Ffdhe2048.power(&[vec![0; 255], vec![2]].concat(), &[8]);
        assert_eq!(found, [vec![0; 254], vec![1, 0]].concat());
        // Fermat: (p - 1)^2 = 1.
        let mut last = Group::Ffdhe2048.prime();
        last[255] -= 1;
        assert_eq!(
            Group::Ffdhe2048.power(&last, &[2]),
            [vec![0; 255], vec![1]].concat()
        );
    }
}
