//! A 256-bit unsigned integer, just large enough for the intermediate results of `decimal`.
//!
//! The product of two 34-digit coefficients has 68 digits, 226 bits. Nothing else needs this type,
//! so it offers only what decimal arithmetic asks for.

use std::cmp::Ordering;

/// The largest power of ten that fits 128 bits.
const MAX_POW10: u32 = 38;

/// `10^exponent`, for exponents up to 38.
pub(super) fn pow10(exponent: u32) -> u128 {
    10u128.pow(exponent.min(MAX_POW10))
}

/// An unsigned integer below 2^256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct U256 {
    high: u128,
    low: u128,
}

impl From<u128> for U256 {
    fn from(low: u128) -> Self {
        Self { high: 0, low }
    }
}

impl U256 {
    pub(super) fn multiply(a: u128, b: u128) -> Self {
        const HALF: u128 = u64::MAX as u128;
        let (a_high, a_low) = (a >> 64, a & HALF);
        let (b_high, b_low) = (b >> 64, b & HALF);
        let low = a_low * b_low;
        let middle_one = a_high * b_low;
        let middle_two = a_low * b_high;
        let carry = (low >> 64) + (middle_one & HALF) + (middle_two & HALF);
        Self {
            high: a_high * b_high + (middle_one >> 64) + (middle_two >> 64) + (carry >> 64),
            low: (low & HALF) | (carry << 64),
        }
    }

    /// Multiplies by a number so small that the caller knows the result to fit.
    pub(super) fn multiply_small(self, factor: u128) -> Self {
        let low = Self::multiply(self.low, factor);
        Self { high: self.high.wrapping_mul(factor).wrapping_add(low.high), low: low.low }
    }

    pub(super) fn add(self, other: Self) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        Self { high: self.high.wrapping_add(other.high).wrapping_add(u128::from(carry)), low }
    }

    pub(super) fn subtract(self, other: Self) -> Self {
        let (low, borrow) = self.low.overflowing_sub(other.low);
        Self { high: self.high.wrapping_sub(other.high).wrapping_sub(u128::from(borrow)), low }
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        self.high.cmp(&other.high).then(self.low.cmp(&other.low))
    }

    pub(super) fn is_zero(self) -> bool {
        self.high == 0 && self.low == 0
    }

    pub(super) fn to_u128(self) -> Option<u128> {
        (self.high == 0).then_some(self.low)
    }

    /// Quotient and remainder. The divisor is below 2^127, so the running remainder never overflows.
    pub(super) fn divide(self, divisor: u128) -> (Self, u128) {
        if self.high == 0 {
            return (Self::from(self.low / divisor), self.low % divisor);
        }
        let mut remainder: u128 = 0;
        let mut quotient = Self::from(0);
        for bit in (0..256).rev() {
            let source = if bit >= 128 { self.high >> (bit - 128) } else { self.low >> bit };
            remainder = (remainder << 1) | (source & 1);
            if remainder >= divisor {
                remainder -= divisor;
                if bit >= 128 {
                    quotient.high |= 1 << (bit - 128);
                } else {
                    quotient.low |= 1 << bit;
                }
            }
        }
        (quotient, remainder)
    }

    pub(super) fn digit_count(self) -> u32 {
        if self.high == 0 {
            return self.low.checked_ilog10().map_or(0, |log| log + 1);
        }
        let (quotient, _) = self.divide(pow10(MAX_POW10));
        MAX_POW10 + quotient.digit_count()
    }

    /// Cuts the last `digits` digits off and rounds half to even.
    pub(super) fn round_off(self, digits: u32, sticky: bool) -> Self {
        // A step of 37 keeps the divisor below 2^127; five steps empty any 256-bit number.
        const STEP: u32 = 37;
        let mut rest_below = sticky;
        let mut value = self;
        let mut left = digits.min(3 * STEP);
        while left > STEP {
            let (quotient, remainder) = value.divide(pow10(STEP));
            rest_below |= remainder != 0;
            value = quotient;
            left -= STEP;
        }
        let divisor = pow10(left);
        let (quotient, remainder) = value.divide(divisor);
        let up = match (remainder * 2).cmp(&divisor) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => rest_below || quotient.low % 2 == 1,
        };
        if up { quotient.add(Self::from(1)) } else { quotient }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_divide_back_into_their_factors() {
        let (a, b) = (pow10(34) - 1, pow10(34) - 7);
        let (quotient, remainder) = U256::multiply(a, b).divide(b);
        assert_eq!((quotient.to_u128(), remainder), (Some(a), 0));
        assert_eq!(U256::multiply(a, b).digit_count(), 68);
        let (quotient, remainder) = U256::multiply(a, b).add(U256::from(5)).divide(b);
        assert_eq!((quotient.to_u128(), remainder), (Some(a), 5));
    }

    #[test]
    fn cutting_digits_rounds_half_to_even() {
        let round = |value, digits, sticky| U256::from(value).round_off(digits, sticky).low;
        assert_eq!(round(125, 1, false), 12);
        assert_eq!(round(135, 1, false), 14);
        assert_eq!(round(125, 1, true), 13);
        assert_eq!(round(124, 1, true), 12);
        assert_eq!(round(999, 50, false), 0);
    }
}
