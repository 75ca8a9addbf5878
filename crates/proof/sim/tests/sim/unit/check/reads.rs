// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges and times left, as Redis counts them.

use erb_sim::check::reads::{is_left, range};

#[test]
fn ranges_are_those_of_redis() {
    let cases: [(i64, i64, &[u8]); 10] = [
        (0, -1, b"value"),
        (1, 3, b"alu"),
        (-3, -2, b"lu"),
        (-100, 2, b"val"),
        (3, 99, b"ue"),
        (5, 9, b""),
        (3, 2, b""),
        (-2, -3, b""),
        (0, -100, b"v"),
        (4, -5, b""),
    ];
    for (start, end, part) in cases {
        assert_eq!(range(b"value", start, end), part, "{start} {end}");
    }
    assert_eq!(range(b"", 0, -1), b"");
}

#[test]
fn times_left_are_exact() {
    assert!(is_left(10_000, 400, false, 9_600, 9_600));
    assert!(!is_left(10_000, 401, false, 9_600, 9_605));
    assert!(!is_left(10_000, 394, false, 9_600, 9_605));
    assert!(is_left(10_000, 1, true, 9_500, 9_500));
    assert!(!is_left(10_000, 1, true, 9_501, 9_501));
}
