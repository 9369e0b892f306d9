//! `bench sockets`: what a lock around the connection table would cost.
//!
//! z/TPF's messages make ten calls on a socket each, which once shared one lock. Here each thread
//! makes the same ten, on connections of its own, in the agent's own table (which has no lock),
//! with a lock put around it:
//!
//! ```text
//!  call                      in the table                             global   rw
//!  1 aor                     found                                    lock     write
//!  2 ioctl                   marked open                              lock     write
//!  3 getsockopt              whether it is open, its rekeys           lock     read
//!  4 getpeername             its client                               lock     read
//!  5 getsockname             its own address                          lock     read
//!  6 read                    a message taken from a real socket       lock     write
//!  7 message count, in       its bytes                                lock     write
//!  8 send                    a packet built, then queued on a socket  --send   --send
//!  9 message count, out      its bytes                                lock     write
//! 10 aor                     found                                    lock     write
//! ```
//! `writers` is z/TPF's phase 1: the global lock, taken from calls 3, 4 and 5 and from displays.
//! The lock spins, as z/TPF's does, and gives its CPU away now and then: on a machine with fewer
//! CPUs than threads the holder may not be running. Displays read the whole table, under the lock.
//! One transaction in a thousand closes its connection and opens another. The messages come over
//! UNIX sockets from the thread itself; there is no network, and no wait but for the lock.
//!
//! ```text
//! arguments.rs   the command line
//! lock.rs        the lock
//! table.rs       the transactions
//! report.rs      figures
//! ```

mod arguments;
mod lock;
mod report;
mod table;

use clap::Parser;

use self::arguments::SocketsArgs;
use self::table::Bench;

/// Runs the verb.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let args = match SocketsArgs::try_parse_from([&["sockets"], words].concat()) {
        Ok(args) => args,
        Err(help) if !help.use_stderr() => {
            print!("{help}");
            return Ok(());
        }
        Err(error) => return Err(error.to_string()),
    };
    let measured = Bench::new(&args)?.measure()?;
    let figures = report::figures(&measured);
    if args.json {
        println!("{}", report::json(&args, &figures)?);
    } else {
        print!("{}", report::text(&args, &measured, &figures)?);
    }
    Ok(())
}
