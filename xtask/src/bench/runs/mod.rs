//! Programs under `tacit run`, beside other ways to give a program a network without root.
//!
//! ```text
//! direct   program ────────────────────────────────────> load server
//! permit   program ─ tacit run ────────────────────────> load server
//! tls      program ─ tacit run ══ TLS 1.3 ══> far agent ─> load server
//! pasta, slirp4netns   program ─ a TCP stack as a program ─> load server
//! ```
//! Two questions: what it costs to start and end ([`start`]), and what a connection and a gigabyte
//! cost ([`carry`]). Everything runs as an ordinary user, root's benchmark included.
//!
//! Not done: UDP, programs that accept. The kernel's own threads, which take namespaces apart, are
//! on nobody's clock and so in no figure.

mod carry;
mod start;

use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::certs::{self, SERVER_NAME};
use super::network::Network;
use super::options::Options;

/// Where the load server listens; not loopback, which runs have of their own.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 7);
/// Where the far agent answers TLS.
const FAR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 8, 8)), 8443);

/// What stands for the host's network: addresses, and a default route for those who look for one.
/// Thousands of short connections to one address leave their ports occupied for a minute.
const NETWORK: &str = "
echo 10000 65000 >/proc/sys/net/ipv4/ip_local_port_range
echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
ip addr add 10.9.8.7/32 dev lo
ip addr add 10.9.8.8/32 dev lo
ip link add bench0 type veth peer name bench1
ip link set bench0 up
ip link set bench1 up
ip addr add 192.168.77.1/24 dev bench0
ip route add default via 192.168.77.2
";

/// Lets everybody open the tun device, as most hosts do; in this namespace only.
const TUN: &str = "mknod tun c 10 200 && chmod 666 tun && mount --bind tun /dev/net/tun";

/// The user that root runs the programs as: nobody in particular.
const ORDINARY: &str = "54321";

/// Rules of the larger policy.
const RULES: u32 = 1000;

/// A place that every user can read, with everything that is run.
#[derive(Debug)]
struct Place {
    dir: PathBuf,
    /// Whether there is an ordinary user to become.
    is_root: bool,
}

/// Measures, prints the report and returns the same with every sample.
pub(crate) fn measure(
    options: &Options,
    network: &Network,
    target: &Path,
) -> Result<Value, String> {
    if !network.private {
        println!("\nruns: not measured: this machine lets nobody make a network namespace here");
        return Ok(Value::Null);
    }
    let place = Place::make(target)?;
    place.shell(NETWORK)?;
    if place.is_root {
        place.shell(TUN)?;
    }
    let carried = carry::measure(options, network, &place)?;
    print!("{carried}");
    let started = start::measure(options, &place)?;
    print!("{started}");
    Ok(json!({ "carry": carried.json(), "start": started.json() }))
}

impl Place {
    fn make(target: &Path) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("tacit-bench-{}", std::process::id()));
        let make = || {
            fs::create_dir(&dir)?;
            fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
            for program in ["tacit", "xtask"] {
                fs::copy(target.join("release").join(program), dir.join(program))?;
            }
            fs::write(dir.join("one.toml"), many_rules(1))?;
            fs::write(dir.join("many.toml"), many_rules(RULES))?;
            fs::read_to_string("/proc/self/uid_map")
        };
        let map = make().map_err(|error| format!("{}: {error}", dir.display()))?;
        let everybody = map.split_whitespace().nth(2) == Some("4294967295");
        let place = Self { dir, is_root: everybody && tacit_sys::process::effective_user() == 0 };
        certs::make(&place.dir)?;
        Ok(place)
    }

    /// The command, as an ordinary user, told to terminate when the benchmark ends.
    fn ordinary(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if self.is_root {
            command.args(["--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups"]);
            // Becoming another user forgets whom to end with.
            command.args(["--", "setpriv"]);
        }
        command.args(["--pdeathsig", "TERM", "--", program]).args(words);
        command.current_dir(&self.dir).env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn shell(&self, script: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        let output = command.args(["-ec", script]).current_dir(&self.dir).output();
        let output = output.map_err(|error| format!("sh: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("the network of the runs cannot be made: {said}"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.dir.join(name), text).map_err(|error| format!("writing {name}: {error}"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left over is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A policy of so many rules that nothing can be left out of.
fn many_rules(count: u32) -> String {
    let rule = |number: u32| {
        let [network, host] = [number / 250 + 1, number % 250];
        format!(
            "[[rule]]\nname = \"rule-{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.{network}.{host}.0/24\"\nremote-ports = {}\npermit = true\n",
            1000 + number
        )
    };
    format!("version = 1\n{}", (0..count).map(rule).collect::<String>())
}

/// The policies of the run and of the far agent.
fn policies(server: SocketAddr, congestion: &str) -> [(&'static str, String); 3] {
    let head = format!(
        "version = 1\n[agent]\nworkers = 1\ncongestion-control = \"{congestion}\"\n\
         [trust.bench]\nca = \"ca.pem\"\n"
    );
    let outbound = |address: SocketAddr, action: &str| {
        format!(
            "{head}[[rule]]\nname = \"bench\"\ndirection = \"outbound\"\nremote = \"{}\"\n\
             remote-ports = {}\n{action}\n",
            address.ip(),
            address.port()
        )
    };
    let alike = "min-version = \"1.3\"\ngroups = [\"x25519\"]\nresumption = false";
    let client = format!("[rule.tls]\ntrust = \"bench\"\nserver-name = \"{SERVER_NAME}\"\n{alike}");
    let far = format!(
        "{head}[identity.server]\ncert = \"server.pem\"\nkey = \"server.key\"\n\
         [[rule]]\nname = \"far\"\nlisten = \"{FAR}\"\nconnect = \"{server}\"\nclear = true\n\
         [rule.tls]\nrole = \"server\"\nidentity = \"server\"\nclient-cert = \"none\"\n{alike}\n"
    );
    [
        ("permit.toml", outbound(server, "permit = true")),
        ("tls.toml", outbound(FAR, &client)),
        ("far.toml", far),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tacit_takes_all_policies() {
        let server = SocketAddr::from((SERVER, 9000));
        let many = [("one", many_rules(1)), ("many", many_rules(RULES))];
        for (name, text) in policies(server, "cubic").into_iter().chain(many) {
            let parsed = tacit_core::policy::parse(&text);
            assert!(parsed.policy.is_some(), "{name}: {parsed:?}\n{text}");
        }
    }
}
