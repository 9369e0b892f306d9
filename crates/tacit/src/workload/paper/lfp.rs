//! Repeats the measurements of a paper about z/VSE, a mainframe operating system (see
//! `docs/papers.md`). One measurement transfers 1 GB by FTP. The other measurement transfers three
//! streams of 100 MB at the same time. Both measurements are made in both directions.
//!
//! In the paper, programs on z/VSE exchange bytes with Linux. The paper compares a TCP/IP stack in
//! z/VSE with the Linux Fast Path (LFP), which forwards socket calls to Linux. Here, programs in a
//! network namespace exchange bytes with a server of the host. slirp4netns and pasta take the place
//! of the TCP/IP stack, and the network paths of tacit take the place of LFP. `lfp_sockets.rs`
//! measures short connections and idle connections.

use serde_json::Value;

use super::cell::{CellSamples, Gap, Measurement, PaperCell};
use super::lfp_sockets;
use super::paths::{NetworkPath, PathContext};
use super::session::SessionResult;
use super::sheet::{PaperSheet, PaperTable};
use super::stage::{Stage, StagedProcess};

/// What is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    FtpOut,
    FtpIn,
    StreamsOut,
    StreamsIn,
}

/// The published figures of a transfer: MB/s and CPU percent with TCP/IP for VSE and with LFP, and
/// the differences as the paper states them.
struct PublishedTransfer {
    name: &'static str,
    tcp: [f64; 2],
    lfp: [f64; 2],
    faster: &'static str,
    less: &'static str,
}

const RATE: &str = "mb_per_s";
const CPU: &str = "cpu_s_per_gb";

/// The lengths in the paper.
pub(super) const FTP_BYTES: u64 = 1_000_000_000;
const STREAM_BYTES: u64 = 100_000_000;
const STREAMS: u64 = 3;

/// Serves files without I/O: one without blocks, and the null device. An upload is appended,
/// because a server cannot truncate the device.
const SERVER_CONFIG: &str = "\
listen=YES
background=NO
listen_port=2121
run_as_launching_user=YES
seccomp_sandbox=NO
anonymous_enable=YES
local_enable=NO
no_anon_password=YES
allow_writeable_chroot=YES
write_enable=YES
anon_upload_enable=YES
anon_other_write_enable=YES
anon_world_readable_only=NO
xferlog_enable=NO
";

/// Waits before and after curl, as a steered client does. The words are options of curl.
const CURL: &str = "echo '{}'; read go; \
    curl -sS -w '{\"rate\":%{speed_WAY},\"bytes\":%{size_WAY}}\\n' \"$@\"; read end";

impl Transfer {
    const ALL: [Self; 4] = [Self::FtpOut, Self::FtpIn, Self::StreamsOut, Self::StreamsIn];

    fn published(self) -> PublishedTransfer {
        let (name, tcp, lfp, faster, less) = match self {
            Self::FtpOut => ("FTP, z/VSE to Linux", [19.0, 29.0], [72.0, 20.0], "3.7 times", "9 %"),
            Self::FtpIn => ("FTP, Linux to z/VSE", [21.0, 55.0], [70.0, 20.0], "3.3 times", "35 %"),
            Self::StreamsOut => {
                ("3 sockets, z/VSE to Linux", [13.8, 26.0], [43.8, 9.0], "3.2 times", "17 %")
            }
            Self::StreamsIn => {
                ("3 sockets, Linux to z/VSE", [29.1, 26.0], [48.6, 9.0], "1.7 times", "17 %")
            }
        };
        PublishedTransfer { name, tcp, lfp, faster, less }
    }

    fn is_ftp(self) -> bool {
        matches!(self, Self::FtpOut | Self::FtpIn)
    }

    fn key(self, path: NetworkPath) -> String {
        format!("{} {}", self.published().name, path.name())
    }

    fn bytes(self, stage: &Stage) -> u64 {
        let whole = if self.is_ftp() { stage.extent.file_bytes } else { STREAM_BYTES };
        (whole / stage.extent.divisor).max(1)
    }

    /// The program and its arguments.
    fn words(self, stage: &Stage, server: &str) -> Vec<String> {
        let bytes = self.bytes(stage);
        let words: Vec<String> = match self {
            Self::FtpOut | Self::FtpIn => {
                let (way, what): (&str, Vec<String>) = match self {
                    Self::FtpOut => (
                        "upload",
                        vec!["--append".to_owned(), "-T".to_owned(), stage.path("ftp/data")],
                    ),
                    _ => ("download", vec!["-o".to_owned(), "/dev/null".to_owned()]),
                };
                let file = if self == Self::FtpOut { "null" } else { "data" };
                let url = format!("ftp://{server}:2121/{file}");
                let shell = ["sh".to_owned(), "-c".to_owned(), CURL.replace("WAY", way)];
                shell.into_iter().chain(["sh".to_owned()]).chain(what).chain([url]).collect()
            }
            Self::StreamsOut | Self::StreamsIn => {
                let way = if self == Self::StreamsOut { "out" } else { "in" };
                let text = format!(
                    "{tacit} workload stream client {way} --connections {STREAMS} --bytes {bytes} \
                     --connect {server}:7000 --wait 20s --steered",
                    tacit = stage.tacit()
                );
                text.split(' ').map(str::to_owned).collect()
            }
        };
        words
    }

    /// The rate in MB/s and the transferred bytes; an error if the transfer is incomplete.
    fn figures(
        self,
        stage: &Stage,
        path: NetworkPath,
        result: &SessionResult,
    ) -> Result<Vec<(String, f64)>, Gap> {
        let SessionResult { report, cpu_s } = result;
        let number = |value: &Value| value.as_f64();
        let figures = &report["figures"];
        let (rate, bytes, wanted) = match self.is_ftp() {
            true => (
                number(&report["rate"]).map(|rate| rate / 1e6),
                number(&report["bytes"]),
                self.bytes(stage),
            ),
            false => (
                number(&figures[RATE]),
                number(&figures["mb"]).map(|mb| mb * 1e6),
                STREAMS * self.bytes(stage),
            ),
        };
        let wanted = wanted as f64;
        match rate.zip(bytes) {
            // A report has six digits.
            Some((rate, bytes)) if (bytes - wanted).abs() <= wanted * 1e-5 => {
                Ok(vec![(RATE.to_owned(), rate), (CPU.to_owned(), cpu_s / (bytes / 1e9))])
            }
            _ => {
                let path = path.name();
                Err(Gap::failed(format!("the transfer over {path} is incomplete: {report}")))
            }
        }
    }
}

/// The servers of the host.
struct Servers {
    ftp: Result<StagedProcess, Gap>,
    streams: StagedProcess,
}

impl Servers {
    fn start(stage: &Stage) -> Result<Self, Gap> {
        let mut streams = stage.server(&[], "0.0.0.0:7000")?;
        stage.wait_for_listener("127.0.0.1:7000", &mut streams)?;
        Ok(Self { ftp: ftp_server(stage), streams })
    }
}

fn ftp_server(stage: &Stage) -> Result<StagedProcess, Gap> {
    for program in ["vsftpd", "curl"] {
        if let Some(gap) = stage.missing(program, "scripts/install-deps.sh") {
            return Err(gap);
        }
    }
    let bytes = Transfer::FtpIn.bytes(stage);
    stage.shell(&format!(
        "mkdir ftp empty\ntruncate -s {bytes} ftp/data\ntouch ftp/null\n\
         mount --bind /dev/null ftp/null\n"
    ))?;
    let [root, empty] = [stage.path("ftp"), stage.path("empty")];
    let config = format!("{SERVER_CONFIG}anon_root={root}\nsecure_chroot_dir={empty}\n");
    stage.write("vsftpd.conf", &config)?;
    let file = stage.path("vsftpd.conf");
    let mut server = stage.start("vsftpd", &["vsftpd", &file])?;
    stage.wait_for_listener("127.0.0.1:2121", &mut server)?;
    Ok(server)
}

pub(super) fn measure(stage: &Stage) -> PaperSheet {
    let mut samples = CellSamples::default();
    let prepared = Servers::start(stage)
        .and_then(|servers| PathContext::prepare(stage).map(|context| (servers, context)));
    for round in 1..=stage.extent.rounds {
        for transfer in Transfer::ALL {
            for path in NetworkPath::turns(round) {
                let subject = transfer.key(path);
                if samples.is_given_up(&subject) {
                    continue;
                }
                stage.progress(&format!("lfp: {subject}, round {round}"));
                let measured = match &prepared {
                    Ok((servers, context)) => take(stage, servers, context, transfer, path),
                    Err(gap) => Err(gap.clone()),
                };
                samples.add(&subject, measured);
            }
        }
        let of_sockets = match &prepared {
            Ok((servers, context)) => Ok((servers.streams.id(), context)),
            Err(gap) => Err(gap.clone()),
        };
        lfp_sockets::measure(stage, &of_sockets, &mut samples, round);
    }
    let mut sheet = sheet(&samples);
    sheet.tables.extend(lfp_sockets::tables(&samples));
    sheet
}

fn take(
    stage: &Stage,
    servers: &Servers,
    context: &PathContext,
    transfer: Transfer,
    path: NetworkPath,
) -> Result<Vec<(String, f64)>, Gap> {
    let server = match transfer.is_ftp() {
        true => servers.ftp.as_ref().map_err(Clone::clone)?,
        false => &servers.streams,
    };
    let words = transfer.words(stage, path.server());
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (mut session, attached) = path.start(stage, context, &words)?;
    if !transfer.is_ftp() {
        path.check(stage, &session)?;
    }
    let mut others = path.others(context, attached.as_ref());
    others.push(server.id());
    let result = session.measure(&others)?;
    session.end();
    transfer.figures(stage, path, &result)
}

fn sheet(samples: &CellSamples) -> PaperSheet {
    let mut sheet = PaperSheet {
        key: "lfp",
        title: "z/VSE Fast Path to Linux on System z",
        method: "One measurement transfers 1 GB (or `--file-size`) by FTP with curl and vsftpd, \
                 from a sparse file to /dev/null. The other measurement transfers three streams of \
                 100 MB at the same time. The published figures are for TCP/IP for VSE and for LFP \
                 (Linux Fast Path) on a z10 EC under z/VM. The measured figures are for a program \
                 in a network namespace and a server of the host. The program and the server are \
                 connected by a TCP/IP stack in user space (slirp4netns, pasta), by a veth pair, \
                 or by tacit (relay, handed, link over a UNIX socket, link over TLS on TCP). The \
                 CPU time is the sum for the client, the server and all processes between them"
            .to_owned(),
        tables: vec![
            table(samples, "rate", "Rate", RATE, 0, "MB/s"),
            table(samples, "cpu", "CPU time", CPU, 1, "s/GB"),
            difference(samples),
        ],
        ..PaperSheet::default()
    };
    for transfer in Transfer::ALL {
        let bars: Vec<_> = NetworkPath::ALL
            .iter()
            .map(|path| (path.name(), samples.cell(&transfer.key(*path), RATE)))
            .collect();
        sheet.bars(&format!("measured: rate, {}", transfer.published().name), "MB/s", &bars);
    }
    sheet.note(
        "the published CPU figures are CPU use in percent, at the published rates. The measured \
         CPU figures are CPU seconds per GB",
    );
    sheet.note(
        "the path `direct` is for comparison: the program runs on the host itself, without a \
         network namespace of its own",
    );
    sheet
}

fn table(
    samples: &CellSamples,
    key: &'static str,
    title: &str,
    figure: &str,
    published: usize,
    unit: &str,
) -> PaperTable {
    let published_unit = if published == 0 { "MB/s" } else { "%" };
    let mut columns = vec![
        "transfer".to_owned(),
        format!("TCP/IP for VSE, {published_unit}"),
        format!("LFP, {published_unit}"),
    ];
    columns.extend(NetworkPath::ALL.map(|path| format!("{}, {unit}", path.name())));
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let mut table = PaperTable::new(key, title, &columns);
    for transfer in Transfer::ALL {
        let PublishedTransfer { name, tcp, lfp, .. } = transfer.published();
        let mut row = vec![
            PaperCell::name(name),
            PaperCell::Published(tcp[published]),
            PaperCell::Published(lfp[published]),
        ];
        row.extend(NetworkPath::ALL.map(|path| samples.cell(&transfer.key(path), figure)));
        table.rows.push(row);
    }
    table
}

/// How much faster the paths of tacit are than a TCP/IP stack in user space, and their CPU time for
/// the same bytes.
fn difference(samples: &CellSamples) -> PaperTable {
    let columns = [
        "transfer",
        "LFP: speed-up",
        "LFP: CPU saved",
        "rate ratio: relay / slirp4netns",
        "CPU time ratio: relay / slirp4netns",
        "rate ratio: handed / slirp4netns",
        "CPU time ratio: handed / slirp4netns",
        "rate ratio: handed / pasta",
        "CPU time ratio: handed / pasta",
        "rate ratio: handed / direct",
        "CPU time ratio: handed / direct",
        "rate ratio: link / slirp4netns",
        "CPU time ratio: link / slirp4netns",
        "rate ratio: link / handed",
        "CPU time ratio: link / handed",
        "rate ratio: (link over TLS) / slirp4netns",
        "CPU time ratio: (link over TLS) / slirp4netns",
    ];
    let mut table = PaperTable::new("difference", "Ratios between network paths", &columns);
    let pairs = [
        (NetworkPath::Relay, NetworkPath::Slirp),
        (NetworkPath::Handed, NetworkPath::Slirp),
        (NetworkPath::Handed, NetworkPath::Pasta),
        (NetworkPath::Handed, NetworkPath::Direct),
        (NetworkPath::Link, NetworkPath::Slirp),
        (NetworkPath::Link, NetworkPath::Handed),
        (NetworkPath::TlsLink, NetworkPath::Slirp),
    ];
    for transfer in Transfer::ALL {
        let PublishedTransfer { name, faster, less, .. } = transfer.published();
        let mut row =
            vec![PaperCell::name(name), PaperCell::Quoted(faster), PaperCell::Quoted(less)];
        for (path, other) in pairs {
            let ratio = |figure: &str| -> Measurement {
                samples.ratio(figure, &transfer.key(path), &transfer.key(other))
            };
            row.extend([RATE, CPU].map(|figure| PaperCell::from(ratio(figure))));
        }
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_differences_follow_from_the_published_rates() {
        for transfer in Transfer::ALL {
            let PublishedTransfer { name, tcp, lfp, faster, less } = transfer.published();
            let times: f64 = faster.trim_end_matches(" times").parse().unwrap();
            assert!((lfp[0] / tcp[0] - times).abs() < 0.1, "{name}: {}", lfp[0] / tcp[0]);
            let points: f64 = less.trim_end_matches(" %").parse().unwrap();
            assert_eq!(tcp[1] - lfp[1], points, "{name}");
        }
    }

    #[test]
    fn a_missing_peer_empties_its_cells_and_no_others() {
        let mut samples = CellSamples::default();
        for transfer in Transfer::ALL {
            for path in NetworkPath::ALL {
                let figures = vec![(RATE.to_owned(), 100.0), (CPU.to_owned(), 2.0)];
                samples.add(&transfer.key(path), Ok(figures));
            }
            let gap = Gap::skipped("pasta is not installed");
            samples.add(&transfer.key(NetworkPath::Pasta), Err(gap));
        }
        let sheet = sheet(&samples);
        let is_empty = |cell: &&PaperCell| matches!(cell, PaperCell::Empty(_));
        let empty = |table: &PaperTable| table.rows.iter().flatten().filter(is_empty).count();
        assert_eq!(sheet.tables.iter().map(empty).collect::<Vec<_>>(), [4, 4, 8]);
    }
}
