//! `bench sockets`: measures how much throughput is lost if threads share one lock around a table
//! of connections. The agent has no such lock. The benchmark creates a table with the agent's code,
//! and compares calls with and without a lock around this table.
//!
//! The benchmark repeats a measurement of z/TPF, a mainframe operating system. On z/TPF, a program
//! makes ten socket calls for each message. In an old version of z/TPF, all ten calls took one
//! shared lock. In this benchmark, each thread makes the same ten calls on its own connections. In
//! the mode `global`, the lock is exclusive. In the mode `rw`, the lock is a reader-writer lock.
//! The call `aor` (activate on receive) waits for input on a socket. These are the ten calls:
//!
//! ```text
//!  call                      access to the table of connections       global   rw
//!  1 aor                     finds the connection                     lock     write
//!  2 ioctl                   marks it open                            lock     write
//!  3 getsockopt              reads its state and its rekeys           lock     read
//!  4 getpeername             reads the address of its client          lock     read
//!  5 getsockname             reads its own address                    lock     read
//!  6 read                    takes a message from a real socket       lock     write
//!  7 message count, in       counts its bytes                         lock     write
//!  8 send                    builds a packet, queues it on a socket   option   option
//!  9 message count, out      counts its bytes                         lock     write
//! 10 aor                     finds the connection                     lock     write
//! ```
//! The option `--send` determines whether call 8 takes the lock. In the mode `writers`, the calls
//! 3, 4 and 5 do not take the lock. Each thread sends its messages to itself over UNIX sockets, so
//! threads wait only for the lock.
//!
//! ```text
//! arguments.rs   the command line
//! lock.rs        the lock
//! table.rs       the transactions
//! report.rs      the results
//! ```

mod arguments;
mod lock;
mod report;
mod table;

use clap::Parser;

use self::arguments::SocketsArgs;
use self::table::TransactionBench;

/// Runs the command.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let args = match SocketsArgs::try_parse_from([&["sockets"], words].concat()) {
        Ok(args) => args,
        Err(help) if !help.use_stderr() => {
            print!("{help}");
            return Ok(());
        }
        Err(error) => return Err(error.to_string()),
    };
    let measured = TransactionBench::new(&args)?.measure()?;
    let figures = report::figures(&measured);
    if args.json {
        println!("{}", report::json(&args, &figures)?);
    } else {
        print!("{}", report::text(&args, &measured, &figures)?);
    }
    Ok(())
}
