//! `tacit link init`: runs as the first process (PID 1) of a virtual machine without a network.
//! This process starts a link server and one program, CMD.
//!
//! ```text
//!   mount, modules, lo ──> link server ──> other side answers ──> tacit run CMD ──> power off
//!                              ^   │
//!                              └───┘ starts again if it ends
//! ```
//!
//! The machine needs nothing but tacit, a policy and CMD. The link server connects over vsock to a
//! link server outside of the machine (the *other side*). CMD starts when the other side answers,
//! so the machine can boot before the other side.
//!
//! The kernel makes the first process the parent of orphaned processes, and the first process reaps
//! these processes. A container can also have `tacit link init` as its first process. The kernel
//! does not permit the first process of a container to power off or restart the machine. So in a
//! container, `tacit link init` exits with the status of CMD.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tacit_core::message_id::MessageId;
use tacit_sys::machine::{self, KernelFileSystem, MachineEnd, Patience};
use tacit_sys::netlink::{Netlink, Subsystem, route};
use tacit_sys::process::Signal;

use super::path_of;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_POLICY, EXIT_USAGE, complain_of, fail, note, warn};
use crate::live::check_rules;
use crate::run::link::client::ask;
use crate::run::link::protocol::{LinkAnswer, LinkHello, LinkRequest, LinkWelcome, VERSION};

/// The time between two attempts to reach the other side of the link, or to start the link server.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the link server may take for its answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long processes may take to end after SIGTERM.
const END_WAIT_MAX: Duration = Duration::from_secs(5);
const END_INTERVAL: Duration = Duration::from_millis(20);
/// The name that this command sends in place of the name of a run, when it asks whether the other
/// side of the link answers.
const OWN_NAME: &str = "init";
const RESOLVERS_FILE: &str = "/etc/resolv.conf";
/// Where programs are looked for, if the kernel's command line has no `PATH=`.
const PROGRAMS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Run CMD through a link, as the first process of a virtual machine without a network
#[derive(Debug, Args)]
#[command(after_help = "\
Examples: what to add at the end of the kernel's command line, if the policy has a table [link.near]

If an initramfs contains the program tacit as /tacit, and CMD is /bin/sh:
    rdinit=/tacit -- link init near /bin/sh
If tacit is installed on the disk of the machine, and CMD is a server:
    init=/usr/bin/tacit -- link init near --then restart /usr/bin/orders-server")]
pub(super) struct LinkInitArgs {
    /// The policy file, with the table [link.NAME] and the rules for CMD
    #[arg(long, value_name = "FILE", default_value = "/etc/tacit/policy.toml")]
    policy: PathBuf,
    /// A file with the paths of kernel modules, one on each line, to load in this order
    #[arg(long, value_name = "FILE")]
    modules: Option<PathBuf>,
    /// What the machine does when CMD has ended
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    then: AtEnd,
    /// The NAME of the table [link.NAME] in the policy
    #[arg(value_name = "NAME")]
    link: String,
    /// The program to run, and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// What the machine does when its program has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum AtEnd {
    /// Power off.
    #[default]
    PowerOff,
    /// Restart the machine. Under Firecracker, this ends the machine.
    Restart,
}

/// Runs the command. Returns only if this process cannot end the machine.
pub(super) fn init(args: LinkInitArgs) -> ExitCode {
    if std::process::id() != 1 {
        let reason = "`tacit link init` works only as the first process of a virtual machine or \
                      container\n    fix: in other environments, use `tacit link serve` and \
                      `tacit run --link`";
        return fail(MessageId("not-first-process"), reason, EXIT_USAGE);
    }
    let how = match args.then {
        AtEnd::PowerOff => MachineEnd::PowerOff,
        AtEnd::Restart => MachineEnd::Restart,
    };
    let code = match Guest::start(args).and_then(Guest::run) {
        Ok(status) => {
            note(MessageId("guest-program-ended"), format_args!("the program has ended: {status}"));
            code_of(status)
        }
        Err(reason) => {
            complain_of(MessageId("guest-failed"), reason);
            EXIT_FAILURE
        }
    };
    end_all_processes();
    if let Err(error) = machine::end(how)
        && error.raw_os_error() != Some(rustix::io::Errno::PERM.raw_os_error())
    {
        complain_of(
            MessageId("guest-failed"),
            format_args!("cannot power off or restart the machine: {error}"),
        );
    }
    code.into()
}

/// Converts the status of the program to an exit status, as a shell does: 128 + N after signal N.
fn code_of(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(of_signal).and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(EXIT_FAILURE)
}

/// The state of `tacit link init`, with the process ID of the link server.
struct Guest {
    args: LinkInitArgs,
    /// The socket of the link.
    path: PathBuf,
    server: u32,
}

impl Guest {
    /// Prepares the machine, and starts the link server.
    fn start(args: LinkInitArgs) -> Result<Self, String> {
        mount_all()?;
        if let Some(list) = &args.modules {
            load_modules(list)?;
        }
        if let Err(error) = bring_up_loopback() {
            warn(MessageId("guest-loopback"), format_args!("cannot enable lo: {error}"));
        }
        let path = socket_of_link(&args)?;
        let server = start_server(&args)?;
        Ok(Self { args, path, server })
    }

    /// Waits until the other side of the link answers, and then runs the program. Returns the exit
    /// status of the program.
    fn run(mut self) -> Result<ExitStatus, String> {
        let welcome = self.wait_for_other_side()?;
        write_resolvers(&welcome);
        let program = self.start_program()?;
        loop {
            let ended = machine::next_ended(Patience::UntilOneEnds);
            match ended.map_err(|error| format!("cannot wait for processes: {error}"))? {
                Some((pid, status)) if pid == program => return Ok(status),
                Some((pid, status)) if pid == self.server => self.start_server_again(status)?,
                _ => {}
            }
        }
    }

    /// Waits until the other side of the link answers, and returns its answer.
    fn wait_for_other_side(&mut self) -> Result<LinkWelcome, String> {
        let mut reported = String::new();
        loop {
            while let Ok(Some((pid, status))) = machine::next_ended(Patience::None) {
                if pid == self.server {
                    self.start_server_again(status)?;
                }
            }
            let reason = match hello(&self.path) {
                Ok(LinkAnswer::Welcome(welcome)) => return Ok(welcome),
                Ok(LinkAnswer::Refused(reason)) => reason,
                Ok(_) => "the link server sent an answer of an unexpected type".to_owned(),
                // The server has not opened its socket yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                Err(error) => error.to_string(),
            };
            if reason != reported {
                note(
                    MessageId("link-waits"),
                    format_args!(
                        "waiting for the other side of the link {}: {reason}",
                        self.args.link
                    ),
                );
                reported = reason;
            }
            sleep(RETRY_INTERVAL);
        }
    }

    fn start_program(&self) -> Result<u32, String> {
        let LinkInitArgs { policy, command, .. } = &self.args;
        let mut run = this_program();
        run.args(["run", "--log", "stderr", "--link"]).arg(&self.path).arg("--policy").arg(policy);
        run.arg("--").args(command);
        let child = run.spawn().map_err(|error| format!("cannot start `tacit run`: {error}"))?;
        Ok(child.id())
    }

    /// Starts the link server again, unless its policy is wrong.
    fn start_server_again(&mut self, status: ExitStatus) -> Result<(), String> {
        let is_permanent = [EXIT_OK, EXIT_POLICY, EXIT_USAGE].map(i32::from);
        if status.code().is_some_and(|code| is_permanent.contains(&code)) {
            let fix = "correct the error that `tacit link serve` printed last";
            return Err(format!("`tacit link serve` has ended: {status}\n    fix: {fix}"));
        }
        warn(
            MessageId("link-server-restarted"),
            format_args!("the link server has ended: {status}; tacit starts the server again"),
        );
        sleep(RETRY_INTERVAL);
        self.server = start_server(&self.args)?;
        Ok(())
    }
}

/// The socket at which the link server will listen.
fn socket_of_link(args: &LinkInitArgs) -> Result<PathBuf, String> {
    let LinkInitArgs { policy: file, link: name, .. } = args;
    let policy = check_rules(file).map_err(|findings| {
        let shown = file.display().to_string();
        let texts: Vec<_> = findings.iter().map(|finding| finding.render(&shown)).collect();
        format!("the policy has errors\n{}", texts.join("\n"))
    })?;
    let link = policy.links.get(name).ok_or_else(|| {
        format!("the policy has no table [link.{name}]\n    fix: add it to {}", file.display())
    })?;
    Ok(link.listen.clone().unwrap_or_else(|| path_of(Path::new(name))))
}

fn start_server(args: &LinkInitArgs) -> Result<u32, String> {
    let mut serve = this_program();
    serve.args(["link", "serve", "--policy"]).arg(&args.policy).arg(&args.link);
    let child = serve.spawn().map_err(|error| format!("cannot start `link serve`: {error}"))?;
    Ok(child.id())
}

fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PROGRAMS);
    }
    command
}

/// Mounts the file systems that the kernel provides, such as `/proc`, if they are not mounted yet.
fn mount_all() -> Result<(), String> {
    const ALL: [(KernelFileSystem, &str, &str); 5] = [
        (KernelFileSystem::Proc, "/proc", "/proc/self"),
        (KernelFileSystem::Sys, "/sys", "/sys/class"),
        (KernelFileSystem::Devices, "/dev", "/dev/null"),
        (KernelFileSystem::Memory, "/run", ""),
        (KernelFileSystem::Memory, "/tmp", ""),
    ];
    for (kind, at, sign) in ALL {
        let is_there = !sign.is_empty() && Path::new(sign).exists();
        if is_there || kind == KernelFileSystem::Memory && is_writable(at) {
            continue;
        }
        // A directory that exists is enough.
        let _ = std::fs::create_dir(at);
        if let Err(error) = machine::mount(kind, Path::new(at)) {
            return Err(format!("cannot mount {at}: {error}\n    fix: create the directory {at}"));
        }
    }
    Ok(())
}

/// Creates the directory if it is missing. Returns whether this process may create files in it.
fn is_writable(directory: &str) -> bool {
    let _ = std::fs::create_dir(directory);
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Loads kernel modules. Logs a warning for each module that fails to load, and then loads the next
/// module: the machine may lack the device of a module, and may work without this module.
fn load_modules(list: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(list)
        .map_err(|error| format!("cannot read the list of modules {}: {error}", list.display()))?;
    for path in text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Path::new) {
        let loaded = File::open(path).and_then(|file| machine::load_module(&file));
        if let Err(error) = loaded {
            let reason = format!("cannot load the kernel module {}: {error}", path.display());
            warn(MessageId("guest-module"), reason);
        }
    }
    Ok(())
}

fn bring_up_loopback() -> Result<(), String> {
    let mut netlink = Netlink::open(Subsystem::Route).map_err(|error| error.to_string())?;
    route::bring_up(&mut netlink).map_err(|error| error.to_string())
}

/// Asks the link server whether the other side of the link answers.
fn hello(path: &Path) -> io::Result<LinkAnswer> {
    let runtime = crate::runtime::builder()?.enable_all().build()?;
    let request = LinkRequest::Hello(LinkHello { version: VERSION, run: OWN_NAME.to_owned() });
    let requested = runtime
        .block_on(async { tokio::time::timeout(ANSWER_WAIT_MAX, ask(path, &request)).await });
    Ok(requested.map_err(|_| io::ErrorKind::TimedOut)??.1.message)
}

/// Writes the DNS resolvers of the other side of the link to `/etc/resolv.conf`. Does nothing if
/// this file exists.
fn write_resolvers(welcome: &LinkWelcome) {
    if Path::new(RESOLVERS_FILE).exists() || welcome.resolvers.is_empty() {
        return;
    }
    let lines = |ip: IpAddr| format!("nameserver {ip}\n");
    let text: String = welcome.resolvers.iter().map(|at| lines(at.ip())).collect();
    let _ = std::fs::create_dir("/etc");
    if let Err(error) = std::fs::write(RESOLVERS_FILE, text) {
        let reason = format!("cannot write {RESOLVERS_FILE}: {error}");
        warn(MessageId("guest-resolvers"), reason);
    }
}

/// Ends all other processes: with SIGTERM, and after [`END_WAIT_MAX`] with SIGKILL.
fn end_all_processes() {
    let is_over = |until: Instant| {
        loop {
            match machine::next_ended(Patience::None) {
                Ok(Some(_)) => {}
                Ok(None) if Instant::now() < until => sleep(END_INTERVAL),
                Ok(None) => return false,
                // There is no other process.
                Err(_) => return true,
            }
        }
    };
    for signal in [Signal::TERM, Signal::KILL] {
        // Without other processes, the kernel reports an error.
        let _ = machine::signal_all(signal);
        if is_over(Instant::now() + END_WAIT_MAX) {
            return;
        }
    }
}
