//! Formats numbers for tables and charts, rounded to about three significant digits.

/// Formats a number with at least three digits, and with no more digits than are known.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        size if size < 0.1 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// Formats a whole number with a comma after every three digits.
#[must_use]
pub fn grouped(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let mut out = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_are_known() {
        for (value, wanted) in [
            (0.0, "0"),
            (0.012_34, "0.012"),
            (1.234, "1.23"),
            (99.94, "99.9"),
            (123.4, "123"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), wanted);
        }
    }
}
