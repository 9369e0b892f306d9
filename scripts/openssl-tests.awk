# Prints the tests in the given Rust files that start openssl, themselves or by a function of their
# file; for `make check` where there is no openssl.
function finish(    again, name, caller) {
    do {
        again = 0
        for (name in starts)
            for (caller in body)
                if (!(caller in starts) && body[caller] ~ ("(^|[^.:a-z0-9_])" name "\\(")) {
                    starts[caller] = 1
                    again = 1
                }
    } while (again)
    for (name in starts) if (name in test) print name
    split("", starts); split("", body); split("", test)
    current = ""; is_test = 0
}
FNR == 1 { finish() }
/#\[test\]/ { is_test = 1; next }
match($0, /^ *(pub(\([a-z]+\))? )?fn [a-z0-9_]+/) {
    current = $0
    sub(/^.*fn /, "", current)
    sub(/[^a-z0-9_].*/, "", current)
    if (is_test) test[current] = 1
    is_test = 0
    body[current] = ""
    next
}
{
    body[current] = body[current] "\n" $0
    if ($0 ~ /openssl(_[a-z0-9]+)?\(|Command::new\("openssl"\)/) starts[current] = 1
}
END { finish() }
