//! Tests that `tacit run` needs few system calls to start a program, even if the policy has many
//! rules.

use crate::network::Network;

/// The largest number of system calls of all processes of a run of `true`, with its start and end,
/// apart from [`MEMORY_CALLS`]. There are about 2,000; a call for each rule would be 10,000 more.
const CALLS_MAX: u64 = 2300;
/// Calls that get memory for the heaps of threads. The C library needs more of them for a thread
/// that helps to read the policy, because it enlarges the heap of such a thread in small steps.
const MEMORY_CALLS: &str = "mprotect|brk";
/// The largest number of these calls. There are about 1,700 in a debug build.
const MEMORY_CALLS_MAX: u64 = 2500;

/// A policy with this many rules for IPv6, which the network has no route for.
const MANY_RULES: &str = r#"
python3 -c '
print("version = 1")
for n in range(10000):
    print(f"""[[rule]]
name = "rule-{n}"
direction = "outbound"
remote = "fd00:{n // 250:x}:{n % 250:x}::/64"
remote-ports = {1000 + n}
permit = true""")' >many.toml
chmod a+r many.toml
"#;

#[test]
fn a_start_with_10_000_rules_takes_few_system_calls() {
    let network = Network::new(&[], MANY_RULES).with_root();
    let said = network.ok(&format!(
        "strace -V >/dev/null 2>&1 || {{ echo skipped; exit; }}
         strace -f -c -o calls ./tacit run --policy many.toml true
         awk '$NF ~ /^({MEMORY_CALLS})$/ {{ memory += $4 }}
              $NF == \"total\" {{ print $4 - memory, memory }}' calls"
    ));
    if said == "skipped\n" {
        println!("skipped: there is no strace");
        return;
    }
    let counts: Vec<u64> = said.split_whitespace().map(|count| count.parse().unwrap()).collect();
    let [others, memory] = counts[..] else { panic!("{said}") };
    assert!((100..CALLS_MAX).contains(&others), "{others}");
    assert!(memory < MEMORY_CALLS_MAX, "{memory}");
}
