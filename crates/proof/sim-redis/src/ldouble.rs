// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `long double` of x86-64, as far as INCRBYFLOAT shows it: a 64-bit mantissa, sums rounded to
//! nearest even, printed with 17 digits after the point and without trailing zeros.

use crate::cast::Signed;
/// Sign, mantissa and binary exponent: mantissa * 2^exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongDouble {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

/// Digits of the fraction that Redis prints.
const FRACTION_DIGITS: u32 = 17;
/// Digits that are read exactly; a number with more is refused by this model.
const DIGITS_MAX: usize = 36;
/// Highest exponent whose integer part fits a u128.
const EXPONENT_MAX: i32 = 63;

fn round_shift(value: u128, shift: u32, sticky: bool) -> u128 {
    if shift == 0 {
        return value;
    }
    if shift > 127 {
        return 0;
    }
    let kept = value >> shift;
    let rest = value & ((1 << shift) - 1);
    let half = 1 << (shift - 1);
    let up = rest > half || (rest == half && (sticky || kept & 1 == 1));
    kept + u128::from(up)
}

impl LongDouble {
    fn normal(negative: bool, value: u128, exponent: i32, sticky: bool) -> Self {
        let bits = 128 - value.leading_zeros();
        // The highest bit of a mantissa is set, so that exponents tell which number is bigger.
        let up = 64_u32.saturating_sub(bits) % 64;
        let (value, exponent) = (value << up, exponent - up.signed());
        let shift = (bits + up).saturating_sub(64);
        let mut mantissa = round_shift(value, shift, sticky);
        let mut exponent = exponent + shift.signed();
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            exponent += 1;
        }
        Self {
            negative: negative && mantissa != 0,
            mantissa: u64::try_from(mantissa).unwrap_or(u64::MAX),
            exponent,
        }
    }

    /// Reads a decimal number with optional sign, point and exponent; None for anything else.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (negative, text) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (body, exponent) = match text.find(['e', 'E']) {
            Some(at) => (&text[..at], text[at + 1..].parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = body.split_once('.').unwrap_or((body, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits: String = [whole, fraction].concat();
        let digits = digits.trim_start_matches('0');
        if digits.len() > DIGITS_MAX || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number: u128 = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        let tens = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        if number == 0 {
            return Some(Self::normal(negative, 0, 0, false));
        }
        if tens >= 0 {
            let power = 10_u128.checked_pow(tens.unsigned_abs())?;
            return Some(Self::normal(negative, number.checked_mul(power)?, 0, false));
        }
        let power = 10_u128.checked_pow(tens.unsigned_abs())?;
        // 66 bits of quotient: 64 to keep, one to round, one so that the rest only makes it sticky.
        let power_bits = 128 - power.leading_zeros();
        let number_bits = 128 - number.leading_zeros();
        let shift = (66 + power_bits).saturating_sub(number_bits);
        if number_bits + shift > 128 {
            return None;
        }
        let scaled = number << shift;
        let sticky = scaled % power != 0;
        Some(Self::normal(
            negative,
            scaled / power,
            -shift.signed(),
            sticky,
        ))
    }

    /// The sum; None if it leaves the range of this model.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        let (big, small) = if self.exponent >= other.exponent {
            (self, other)
        } else {
            (other, self)
        };
        if small.mantissa == 0 {
            return Some(big);
        }
        if big.mantissa == 0 {
            return Some(small);
        }
        let distance = (big.exponent - small.exponent).unsigned_abs();
        if distance > 62 {
            return Some(if big.mantissa.leading_zeros() == 0 {
                big
            } else {
                return None;
            });
        }
        let (a, b) = (
            u128::from(big.mantissa) << distance,
            u128::from(small.mantissa),
        );
        let (negative, sum) = if big.negative == small.negative {
            (big.negative, a + b)
        } else if a >= b {
            (big.negative, a - b)
        } else {
            (small.negative, b - a)
        };
        Some(Self::normal(negative, sum, small.exponent, false))
    }

    /// As `%.17Lf` with the zeros at the end removed; None beyond the range of this model.
    pub(crate) fn print(self) -> Option<String> {
        if self.exponent > EXPONENT_MAX {
            return None;
        }
        let mantissa = u128::from(self.mantissa);
        let scale = 10_u128.pow(FRACTION_DIGITS);
        let (mut whole, mut fraction) = (mantissa, 0);
        if self.exponent > 0 {
            whole = mantissa << self.exponent;
        } else if self.exponent < 0 {
            let shift = self.exponent.unsigned_abs();
            whole = if shift > 127 { 0 } else { mantissa >> shift };
            let rest = mantissa - if shift > 127 { 0 } else { whole << shift };
            fraction = round_shift(rest * scale, shift, false);
        }
        if fraction >= scale {
            fraction -= scale;
            whole += 1;
        }
        let digits = format!("{fraction:017}");
        let digits = digits.trim_end_matches('0');
        let point = if digits.is_empty() { "" } else { "." };
        let sign = if self.negative { "-" } else { "" };
        let text = format!("{sign}{whole}{point}{digits}");
        Some(if text == "-0" { "0".to_owned() } else { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_long_double() {
        for (a, b, sum) in [
            ("10.5", "0.1", "10.6"),
            ("3", "1.5e3", "1503"),
            ("-1", "1", "0"),
            ("0.1", "0.2", "0.3"),
            ("5", "-0.25", "4.75"),
        ] {
            let sum_found = LongDouble::parse(a.as_bytes())
                .unwrap()
                .add(LongDouble::parse(b.as_bytes()).unwrap())
                .unwrap();
            assert_eq!(sum_found.print().unwrap(), sum, "{a} + {b}");
        }
    }
}
