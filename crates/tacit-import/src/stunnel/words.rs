//! Lists every option of stunnel, and how the import treats it.
//!
//! For an option without an equivalent in tacit, the list contains the error or change that the
//! import reports. No option is ignored silently.

use super::lines::Entry;
use super::options::StunnelOptions;
use crate::finding::Findings;
use tacit_core::policy::text::nearest_word;

/// Where an option may be set. A service option before all sections is a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionScope {
    Global,
    StunnelService,
}

/// What the import does with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The option is imported.
    Read,
    /// The option has no counterpart, and none is needed: why.
    Info(&'static str),
    /// The option is dropped, and the rule works without it: what differs, and what to do.
    Changed(&'static str, &'static str),
    /// The option cannot be imported: why, and what to do.
    Refused(&'static str, &'static str),
}

/// An option.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) scope: OptionScope,
    /// Values that have no effect.
    pub(super) harmless: &'static [&'static str],
    pub(super) outcome: Outcome,
}

impl Word {
    /// What the import does with it before all sections, or in a section.
    pub(super) fn outcome_in(&self, scope: OptionScope, options: &StunnelOptions) -> Outcome {
        match scope {
            _ if options.without_ocsp && self.outcome == REFUSED_OCSP => {
                Outcome::Changed(NO_OCSP, OCSP_FIX)
            }
            OptionScope::Global if matches!(self.name, "setuid" | "setgid") => USER,
            _ => self.outcome,
        }
    }
}

/// Reports every option that does not exist or is not imported.
pub(super) fn check_words(
    entries: &[Entry],
    scope: OptionScope,
    options: &StunnelOptions,
    findings: &mut Findings,
) {
    for entry in entries {
        let Entry { name, value, at } = entry;
        let Some(word) = word(name) else {
            let known: Vec<&str> = WORDS.iter().map(|word| word.name).collect();
            let fix = match nearest_word(name, &known) {
                Some(word) => format!("did you mean `{word}`?"),
                None => "remove the option, or correct its name according to stunnel(8)".to_owned(),
            };
            findings.error(at, format!("stunnel has no option `{name}`"), fix);
            continue;
        };
        if scope == OptionScope::StunnelService && word.scope == OptionScope::Global {
            let message = format!("`{name}` is a global option, but is set in a service");
            findings.error(
                at,
                message,
                "move the option before the first [service], or remove the option",
            );
            continue;
        }
        if word.harmless.iter().any(|harmless| value.eq_ignore_ascii_case(harmless)) {
            continue;
        }
        match word.outcome_in(scope, options) {
            Outcome::Read => {}
            Outcome::Info(why) => findings.info(at, format!("`{name}`: {why}")),
            Outcome::Changed(what, fix) => findings.changed(at, format!("`{name}`: {what}"), fix),
            Outcome::Refused(why, fix) => findings.error(at, format!("`{name}`: {why}"), fix),
        }
    }
}

/// The option of that name; the case of letters is ignored.
pub(super) fn word(name: &str) -> Option<&'static Word> {
    WORDS.iter().find(|word| word.name.eq_ignore_ascii_case(name))
}

const fn read(name: &'static str) -> Word {
    Word { name, scope: OptionScope::StunnelService, harmless: &[], outcome: Outcome::Read }
}

const fn global(name: &'static str, outcome: Outcome) -> Word {
    Word { name, scope: OptionScope::Global, harmless: &[], outcome }
}

const fn info(name: &'static str, why: &'static str) -> Word {
    Word { name, scope: OptionScope::StunnelService, harmless: &[], outcome: Outcome::Info(why) }
}

const fn changed(
    name: &'static str,
    harmless: &'static [&'static str],
    what: &'static str,
    fix: &'static str,
) -> Word {
    Word {
        name,
        scope: OptionScope::StunnelService,
        harmless,
        outcome: Outcome::Changed(what, fix),
    }
}

const fn refused(
    name: &'static str,
    harmless: &'static [&'static str],
    why: &'static str,
    fix: &'static str,
) -> Word {
    Word { name, scope: OptionScope::StunnelService, harmless, outcome: Outcome::Refused(why, fix) }
}

const fn ocsp(name: &'static str, harmless: &'static [&'static str]) -> Word {
    Word { name, scope: OptionScope::StunnelService, harmless, outcome: REFUSED_OCSP }
}

const LOGS: &str = "the agent logs to standard error, or to the destination of `--log`; `--audit \
                    FILE` records every connection";
const RANDOM: &str = "the kernel provides random numbers";
const NO_ENGINE: Outcome = Outcome::Refused(
    "tacit cannot use OpenSSL engines or PKCS #11 tokens",
    "export the certificate and the key to PEM files, and set cert = FILE and key = FILE",
);
/// Before all sections these options are about the process. In a section they are about its socket,
/// and imported.
const USER: Outcome = Outcome::Changed(
    "the agent does not switch to another user",
    "set User= in the agent's systemd unit to this user. If a rule listens on a port below 1024, \
     also add a systemd socket unit",
);
const NO_OCSP: &str = "tacit does not use OCSP";
const OCSP_FIX: &str = "configure CRLs (CRLfile), or issue short-lived certificates";
/// An import drops a revocation check only if the caller requests it.
const REFUSED_OCSP: Outcome = Outcome::Refused(
    NO_OCSP,
    "remove the option, or run the import with --without-ocsp. Without OCSP, configure CRLs \
     (CRLfile) or issue short-lived certificates",
);
const NO_PSK: &str = "tacit does not support TLS with pre-shared keys";
const PSK_FIX: &str = "remove the option, and create certificates for the client and the server: \
                       `tacit ca init`, `tacit ca issue NAME`";
const PROTOCOL: &str = "tacit has no equivalent for this option, which controls the exchange \
                        before TLS";
const PROTOCOL_FIX: &str = "remove the option if the peer does not need it";
const CACHE: &str = "tacit has no settings for TLS sessions: the TLS library limits the \
                     number and lifetime of sessions";
const TICKETS: &str = "each agent creates its own session ticket keys: a client that connects to \
                       another agent does a full handshake";

/// All options, in the order of the manual.
pub(super) const WORDS: &[Word] = &[
    global(
        "chroot",
        Outcome::Changed(
            "the agent does not change its root directory",
            "set RootDirectory= or ProtectSystem=strict in the agent's systemd unit",
        ),
    ),
    global("compression", Outcome::Changed("tacit never compresses TLS", "remove the option")),
    global("EGD", Outcome::Info(RANDOM)),
    global("engine", NO_ENGINE),
    global("engineCtrl", NO_ENGINE),
    global("engineDefault", NO_ENGINE),
    Word {
        name: "fips",
        scope: OptionScope::Global,
        harmless: &["no"],
        outcome: Outcome::Refused("tacit has no FIPS mode", "set fips = no, or keep stunnel"),
    },
    global(
        "foreground",
        Outcome::Info("`tacit agent` always runs in the foreground, as systemd expects"),
    ),
    global("iconActive", Outcome::Info("tacit shows no icon in a taskbar")),
    global("iconError", Outcome::Info("tacit shows no icon in a taskbar")),
    global("iconIdle", Outcome::Info("tacit shows no icon in a taskbar")),
    global("log", Outcome::Info(LOGS)),
    global("output", Outcome::Info(LOGS)),
    global(
        "pid",
        Outcome::Info("the agent writes no PID file; systemd knows the agent's process ID"),
    ),
    global("RNDbytes", Outcome::Info(RANDOM)),
    global("RNDfile", Outcome::Info(RANDOM)),
    global("RNDoverwrite", Outcome::Info(RANDOM)),
    info("service", "the name of the rule identifies the service in the log"),
    global("syslog", Outcome::Info(LOGS)),
    global("taskbar", Outcome::Info("tacit shows no icon in a taskbar")),
    read("accept"),
    Word {
        name: "CAengine",
        scope: OptionScope::StunnelService,
        harmless: &[],
        outcome: NO_ENGINE,
    },
    read("CApath"),
    read("CAfile"),
    read("cert"),
    read("checkEmail"),
    read("checkHost"),
    read("checkIP"),
    read("ciphers"),
    read("ciphersuites"),
    read("client"),
    refused(
        "config",
        &[],
        "tacit does not use OpenSSL configuration commands",
        "use sslVersionMin, ciphers, ciphersuites or curves instead, or remove the option",
    ),
    read("connect"),
    refused(
        "CRLpath",
        &[],
        "tacit does not read directories of CRLs",
        "put the CRLs into one file (cat DIRECTORY/*.r* > FILE), and set CRLfile = FILE",
    ),
    read("CRLfile"),
    read("curve"),
    read("curves"),
    info("logId", "each connection has a number in the log and in `tacit show connections`"),
    info("debug", LOGS),
    info("delay", "the agent always resolves the name of the target again at regular intervals"),
    Word {
        name: "engineId",
        scope: OptionScope::StunnelService,
        harmless: &[],
        outcome: NO_ENGINE,
    },
    Word {
        name: "engineNum",
        scope: OptionScope::StunnelService,
        harmless: &[],
        outcome: NO_ENGINE,
    },
    read("exec"),
    read("execArgs"),
    read("failover"),
    refused(
        "ident",
        &[],
        "tacit does not query the IDENT service for the name of a user",
        "require certificates: verifyChain = yes; or select clients by address with `remote` in \
         the rule",
    ),
    read("key"),
    refused(
        "libwrap",
        &["no"],
        "tacit does not read /etc/hosts.allow or /etc/hosts.deny",
        "set libwrap = no, and write the addresses of permitted clients into the rule: remote = \
         [\"10.0.0.0/8\"]",
    ),
    refused(
        "local",
        &[],
        "tacit cannot set the source address of connections",
        "remove the option, and set the source address in the routing table: `ip route ... src \
         ADDRESS`",
    ),
    ocsp("OCSP", &[]),
    ocsp("OCSPaia", &["no"]),
    ocsp("OCSPflag", &[]),
    ocsp("OCSPnonce", &["no"]),
    read("options"),
    read("protocol"),
    refused("protocolAuthentication", &[], PROTOCOL, PROTOCOL_FIX),
    refused("protocolDomain", &[], PROTOCOL, PROTOCOL_FIX),
    refused("protocolHeader", &[], PROTOCOL, PROTOCOL_FIX),
    refused("protocolHost", &[], PROTOCOL, PROTOCOL_FIX),
    refused("protocolPassword", &[], PROTOCOL, PROTOCOL_FIX),
    refused("protocolUsername", &[], PROTOCOL, PROTOCOL_FIX),
    refused("PSKidentity", &[], NO_PSK, PSK_FIX),
    refused("PSKsecrets", &[], NO_PSK, PSK_FIX),
    read("pty"),
    refused(
        "redirect",
        &[],
        "tacit rejects clients without a valid certificate, and cannot redirect them to another \
         target",
        "remove the option; for clients that have no valid certificate, add a service with another \
         `accept` address",
    ),
    changed(
        "renegotiation",
        &["no"],
        "tacit allows no renegotiation",
        "remove the option; TLS 1.3 has no renegotiation",
    ),
    changed(
        "reset",
        &["yes"],
        "tacit reports errors to the peer with a TCP reset",
        "remove the option",
    ),
    read("requireCert"),
    read("retry"),
    read("securityLevel"),
    read("setgid"),
    read("setuid"),
    info("sessionCacheSize", CACHE),
    info("sessionCacheTimeout", CACHE),
    read("sessionResume"),
    changed(
        "sessiond",
        &[],
        "tacit does not share TLS sessions between hosts",
        "remove the option",
    ),
    read("sni"),
    read("socket"),
    read("sslVersion"),
    read("sslVersionMax"),
    read("sslVersionMin"),
    info("stack", "tacit does not use a thread for each connection"),
    changed(
        "ticketKeySecret",
        &[],
        TICKETS,
        "remove the option; do not use this secret for another purpose, because other users may \
         have read the secret in this file",
    ),
    changed(
        "ticketMacSecret",
        &[],
        TICKETS,
        "remove the option; do not use this secret for another purpose, because other users may \
         have read the secret in this file",
    ),
    read("TIMEOUTbusy"),
    info(
        "TIMEOUTclose",
        "the agent sends close_notify and does not wait for the answer of the peer",
    ),
    read("TIMEOUTconnect"),
    changed(
        "TIMEOUTidle",
        &[],
        "the imported rule has no idle timeout, so tacit does not close idle connections",
        "if idle connections must be closed, set `idle` in the rule",
    ),
    read("transparent"),
    read("verify"),
    read("verifyChain"),
    read("verifyPeer"),
];
