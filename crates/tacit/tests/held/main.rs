//! Tests agents that have thousands of open connections at the same time. This is a separate test
//! binary, because the test needs nearly all descriptors that a process may have.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]
#![allow(dead_code, reason = "the lab's tools, of which this test needs some")]

#[path = "../lab/harness.rs"]
mod harness;
#[path = "../lab/lane.rs"]
mod lane;

use std::io::{Read, Write};

use harness::wait_for;
use lane::{Ends, Lane, open_connections, open_many};

const HELD_CONNECTIONS: usize = 9000;

#[test]
fn nine_thousand_open_connections_all_work() {
    let enough = u64::try_from(2 * HELD_CONNECTIONS + 500).unwrap();
    for lane in Lane::both() {
        // Two sockets of each connection are an agent's, two are this test's.
        let descriptors = tacit_sys::process::raise_descriptor_limit().unwrap();
        if descriptors < enough {
            println!("SKIPPED: it takes {enough} descriptors (ulimit -Hn): {descriptors}");
            return;
        }
        let open = open_many(&lane, HELD_CONNECTIONS, 1);
        for agent in &lane.agents {
            assert_eq!(open_connections(agent), HELD_CONNECTIONS, "{}", lane.name);
        }
        for Ends { mut client, mut server } in open {
            client.write_all(b"?").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
        wait_for("their end", || lane.agents.iter().all(|agent| open_connections(agent) == 0));
        drop(lane.open());
    }
}
