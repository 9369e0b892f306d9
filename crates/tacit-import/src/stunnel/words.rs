//! Every option of the language, and what becomes of those that need no thought.
//!
//! `service` reads the options that a policy of ours can express. The rest are listed here with
//! their outcome, so that the import overlooks no option.

use super::lines::Entry;
use super::options::StunnelOptions;
use crate::finding::Findings;
use tacit_core::policy::text::nearest_word;

/// Where an option may stand; service options stand before all sections too, as defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Global,
    StunnelService,
}

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is read.
    Read,
    /// What it did is done otherwise, or need not be done.
    Info(&'static str),
    /// It is not done, and the rest can be without it: what is not as it was, and what to do.
    Changed(&'static str, &'static str),
    /// It cannot be imported: why, and what to do.
    Refused(&'static str, &'static str),
}

/// An option.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) place: Place,
    /// Values that ask for nothing.
    pub(super) harmless: &'static [&'static str],
    pub(super) fate: Fate,
}

impl Word {
    /// What becomes of it before all sections, or in one.
    pub(super) fn fate_in(&self, place: Place, options: &StunnelOptions) -> Fate {
        match place {
            _ if options.without_ocsp && self.fate == REFUSED_OCSP => {
                Fate::Changed(NO_OCSP, OCSP_FIX)
            }
            Place::Global if matches!(self.name, "setuid" | "setgid") => USER,
            _ => self.fate,
        }
    }
}

/// Reports every option that does not exist, or that is not read.
pub(super) fn check_words(
    entries: &[Entry],
    place: Place,
    options: &StunnelOptions,
    findings: &mut Findings,
) {
    for entry in entries {
        let Entry { name, value, at } = entry;
        let Some(word) = word(name) else {
            let known: Vec<&str> = WORDS.iter().map(|word| word.name).collect();
            let fix = match nearest_word(name, &known) {
                Some(word) => format!("did you mean `{word}`?"),
                None => "remove it, or look it up in stunnel(8)".to_owned(),
            };
            findings.error(at, format!("no option is called `{name}`"), fix);
            continue;
        };
        if place == Place::StunnelService && word.place == Place::Global {
            let message = format!("`{name}` is global and stands in a service");
            findings.error(at, message, "put it before the first [service], or remove it");
            continue;
        }
        if word.harmless.iter().any(|harmless| value.eq_ignore_ascii_case(harmless)) {
            continue;
        }
        match word.fate_in(place, options) {
            Fate::Read => {}
            Fate::Info(why) => findings.info(at, format!("`{name}`: {why}")),
            Fate::Changed(what, fix) => findings.changed(at, format!("`{name}`: {what}"), fix),
            Fate::Refused(why, fix) => findings.error(at, format!("`{name}`: {why}"), fix),
        }
    }
}

/// The option of that name, whatever the case.
pub(super) fn word(name: &str) -> Option<&'static Word> {
    WORDS.iter().find(|word| word.name.eq_ignore_ascii_case(name))
}

const fn read(name: &'static str) -> Word {
    Word { name, place: Place::StunnelService, harmless: &[], fate: Fate::Read }
}

const fn global(name: &'static str, fate: Fate) -> Word {
    Word { name, place: Place::Global, harmless: &[], fate }
}

const fn info(name: &'static str, why: &'static str) -> Word {
    Word { name, place: Place::StunnelService, harmless: &[], fate: Fate::Info(why) }
}

const fn changed(
    name: &'static str,
    harmless: &'static [&'static str],
    what: &'static str,
    fix: &'static str,
) -> Word {
    Word { name, place: Place::StunnelService, harmless, fate: Fate::Changed(what, fix) }
}

const fn refused(
    name: &'static str,
    harmless: &'static [&'static str],
    why: &'static str,
    fix: &'static str,
) -> Word {
    Word { name, place: Place::StunnelService, harmless, fate: Fate::Refused(why, fix) }
}

const fn ocsp(name: &'static str, harmless: &'static [&'static str]) -> Word {
    Word { name, place: Place::StunnelService, harmless, fate: REFUSED_OCSP }
}

const LOGS: &str = "the agent logs to standard error; `--audit FILE` keeps every connection";
const RANDOM: &str = "randomness comes from the kernel";
const NO_ENGINE: Fate = Fate::Refused(
    "keys in engines and tokens cannot be used",
    "put certificate and key into PEM files: cert = FILE, key = FILE",
);
/// Before all sections they are about the process; in one, about its socket, and read.
const USER: Fate = Fate::Changed(
    "the agent stays the user that it is started as",
    "start it as that user: User= in its systemd unit; sockets below 1024 come from a socket unit",
);
const NO_OCSP: &str = "OCSP is not asked";
const OCSP_FIX: &str = "give lists of revoked certificates (CRLfile), or issue short-lived ones";
/// Revocation that was checked is not dropped unless that is asked for.
const REFUSED_OCSP: Fate = Fate::Refused(
    NO_OCSP,
    "give lists of revoked certificates (CRLfile) or issue short-lived ones, and import with \
     --without-ocsp, or remove it",
);
const NO_PSK: &str = "TLS by pre-shared keys is not built";
const PSK_FIX: &str = "make certificates for both sides: `tacit ca init`, `tacit ca issue NAME`";
const PROTOCOL: &str = "what is said before TLS cannot be chosen";
const PROTOCOL_FIX: &str = "remove it, if the peer does without";
const CACHE: &str = "sessions are kept as the TLS library does";
const TICKETS: &str = "keys of session tickets are the agent's own: another agent resumes no \
                       session of this one, which costs a full handshake";

/// All of them, in the order of the manual.
pub(super) const WORDS: &[Word] = &[
    global(
        "chroot",
        Fate::Changed(
            "the agent is put into no directory of its own",
            "RootDirectory= or ProtectSystem=strict in its systemd unit do that",
        ),
    ),
    global("compression", Fate::Changed("TLS is never compressed", "remove it")),
    global("EGD", Fate::Info(RANDOM)),
    global("engine", NO_ENGINE),
    global("engineCtrl", NO_ENGINE),
    global("engineDefault", NO_ENGINE),
    Word {
        name: "fips",
        place: Place::Global,
        harmless: &["no"],
        fate: Fate::Refused("an approved mode is not built", "say fips = no, or keep stunnel"),
    },
    global("foreground", Fate::Info("`tacit agent` stays in the foreground; systemd keeps it")),
    global("iconActive", Fate::Info("there is no icon")),
    global("iconError", Fate::Info("there is no icon")),
    global("iconIdle", Fate::Info("there is no icon")),
    global("log", Fate::Info(LOGS)),
    global("output", Fate::Info(LOGS)),
    global("pid", Fate::Info("the agent writes no file with its process id; systemd knows it")),
    global("RNDbytes", Fate::Info(RANDOM)),
    global("RNDfile", Fate::Info(RANDOM)),
    global("RNDoverwrite", Fate::Info(RANDOM)),
    info("service", "the name of the service in logs is that of the rule"),
    global("syslog", Fate::Info(LOGS)),
    global("taskbar", Fate::Info("there is no icon")),
    read("accept"),
    Word { name: "CAengine", place: Place::StunnelService, harmless: &[], fate: NO_ENGINE },
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
        "commands to OpenSSL mean nothing here",
        "say it with sslVersionMin, ciphers, ciphersuites or curves, or remove it",
    ),
    read("connect"),
    refused(
        "CRLpath",
        &[],
        "lists of revoked certificates in a directory are not read",
        "put them into one file: cat DIRECTORY/*.r* > FILE, and say CRLfile = FILE",
    ),
    read("CRLfile"),
    read("curve"),
    read("curves"),
    info("logId", "every connection has a number, in logs and displays"),
    info("debug", LOGS),
    info("delay", "names are resolved again and again"),
    Word { name: "engineId", place: Place::StunnelService, harmless: &[], fate: NO_ENGINE },
    Word { name: "engineNum", place: Place::StunnelService, harmless: &[], fate: NO_ENGINE },
    read("exec"),
    read("execArgs"),
    read("failover"),
    refused(
        "ident",
        &[],
        "tacit does not query IDENT for the name of a user",
        "ask for certificates: verifyChain = yes; or name clients by address: `remote` of a rule",
    ),
    read("key"),
    refused(
        "libwrap",
        &["no"],
        "/etc/hosts.allow and /etc/hosts.deny are not read",
        "say libwrap = no, and write who may connect into the rule: remote = [\"10.0.0.0/8\"]",
    ),
    refused(
        "local",
        &[],
        "the address that connections come from cannot be chosen",
        "remove it and let routing choose: `ip route ... src ADDRESS`",
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
        "who has no certificate is refused, and sent nowhere else",
        "remove it, or offer what is for everybody at an address of its own",
    ),
    changed(
        "renegotiation",
        &["no"],
        "no peer may renegotiate",
        "remove it; 1.3 has no such thing",
    ),
    changed("reset", &["yes"], "errors are told by a reset", "remove it"),
    read("requireCert"),
    read("retry"),
    read("securityLevel"),
    read("setgid"),
    read("setuid"),
    info("sessionCacheSize", CACHE),
    info("sessionCacheTimeout", CACHE),
    read("sessionResume"),
    changed("sessiond", &[], "sessions are not shared between hosts", "remove it"),
    read("sni"),
    read("socket"),
    read("sslVersion"),
    read("sslVersionMax"),
    read("sslVersionMin"),
    info("stack", "connections have no threads of their own"),
    changed("ticketKeySecret", &[], TICKETS, "remove it, and change the secret: it was in a file"),
    changed("ticketMacSecret", &[], TICKETS, "remove it, and change the secret: it was in a file"),
    read("TIMEOUTbusy"),
    info("TIMEOUTclose", "a peer that was told the end is not waited for"),
    read("TIMEOUTconnect"),
    changed(
        "TIMEOUTidle",
        &[],
        "connections are not ended for being idle",
        "let the program or its peer end them, or use TCP keepalive",
    ),
    read("transparent"),
    read("verify"),
    read("verifyChain"),
    read("verifyPeer"),
];
